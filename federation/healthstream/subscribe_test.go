package healthstream

import (
	"fmt"
	"testing"
	"time"

	"github.com/isthmus-mesh/isthmus/federation"
	pb "github.com/isthmus-mesh/isthmus/federation/federationpb"
	"github.com/isthmus-mesh/isthmus/federation/ledger"
	"github.com/isthmus-mesh/isthmus/federation/record"
	"github.com/isthmus-mesh/isthmus/internal/link"
	"github.com/isthmus-mesh/isthmus/internal/meshtest/trust"
	"github.com/isthmus-mesh/isthmus/mesh"
)

func TestANodeProxyIsToldOfWhatItsPodsUseAndOfNothingElse(t *testing.T) {
	inBubble(t, func(w *world) {
		s := w.gateway("gw-1", nil)
		s.say("used", east(1, "used", 9))
		s.say("other", east(1, "other", 9))
		n := w.node("node-1", nil)
		n.attached(1)
		if _, ok := n.Known("east", "used"); ok {
			t.Error("told of a service that nobody has used")
		}
		start := time.Now()
		n.Use(w.t.Context(), "used", 100*time.Millisecond)
		if took := time.Since(start); took > 2*time.Millisecond || took == 0 {
			t.Errorf("the first use took %v; want one exchange with a gateway 1 ms away", took)
		}
		if f, ok := n.Summary("east", "used", 80); !ok || f.Healthy != 9 {
			t.Errorf("after the first use: %+v, %v", f, ok)
		}
		start = time.Now()
		n.Use(w.t.Context(), "used", 100*time.Millisecond)
		if took := time.Since(start); took != 0 {
			t.Errorf("a later use took %v", took)
		}
		settle()
		time.Sleep(time.Until(time.Now().Truncate(2 * time.Second).Add(2500 * time.Millisecond))) // between two beats
		before := w.bytes.Load()
		for i := range uint64(20) {
			s.say("other", east(i+2, "other", uint32(i%9)))
			time.Sleep(time.Millisecond)
		}
		if got := w.bytes.Load() - before; got != 0 {
			t.Errorf("%d bytes for changes in a service that it does not use", got)
		}
		s.say("used", east(2, "used", 3))
		settle()
		if f, _ := n.Summary("east", "used", 80); f.Healthy != 3 {
			t.Errorf("after a change: %+v", f)
		}
		if got := w.bytes.Load() - before; got == 0 || got > 200 {
			t.Errorf("%d bytes for an edge", got)
		}
	})
}

func TestAServiceThatIsNotUsedIsForgotten(t *testing.T) {
	inBubble(t, func(w *world) {
		s := w.gateway("gw-1", nil)
		for _, name := range []string{"pinned", "busy", "idle"} {
			s.say(name, east(1, name, 9))
		}
		n := w.node("node-1", func(c *ClientConfig) { c.Idle = time.Minute })
		n.Pin("pinned")
		n.attached(1)
		n.Use(w.t.Context(), "idle", time.Second)
		for range 8 {
			n.Use(w.t.Context(), "busy", time.Second)
			time.Sleep(10 * time.Second)
		}
		settle()
		for name, want := range map[string]bool{"pinned": true, "busy": true, "idle": false} {
			if _, got := n.Known("east", name); got != want {
				t.Errorf("%s is known: %v; want %v", name, got, want)
			}
		}
		if got := len(s.health.topics.names()); got != 2 {
			t.Errorf("the gateway keeps %d services; want 2", got)
		}
		n.Use(w.t.Context(), "idle", time.Second)
		if _, ok := n.Known("east", "idle"); !ok {
			t.Error("not known after another use")
		}
		n.Pin() // configuration has changed
		time.Sleep(3 * time.Minute)
		if _, ok := n.Known("east", "pinned"); ok {
			t.Error("what was pinned once is never forgotten")
		}
		n.kill()
		settle()
		if got := len(s.health.topics.names()); got != 0 {
			t.Errorf("the gateway keeps %d services that nobody follows", got)
		}
	})
}

func TestWithoutAGatewayNobodyWaits(t *testing.T) {
	inBubble(t, func(w *world) {
		n := w.node("node-1", nil)
		start := time.Now()
		n.Use(w.t.Context(), "used", time.Second)
		if took := time.Since(start); took != 0 {
			t.Errorf("the first use waited %v for nobody", took)
		}
		s := w.gateway("gw-1", nil)
		s.say("used", east(1, "used", 9))
		n.attached(1)
		if _, ok := n.Known("east", "used"); !ok {
			t.Error("what was used before a gateway was there is not followed")
		}
	})
}

func TestSubscriptionsAreBounded(t *testing.T) {
	inBubble(t, func(w *world) {
		s := w.gateway("gw-1", func(c *ServerConfig) { c.MaxServices = 10 })
		n := w.node("node-1", nil)
		n.attached(1)
		for i := range 30 {
			start := time.Now()
			n.Use(w.t.Context(), fmt.Sprint("svc-", i), time.Second)
			if took := time.Since(start); took > 5*time.Millisecond {
				t.Fatalf("use %d waited %v: one too many must be answered as well", i, took)
			}
		}
		if got := len(s.health.topics.names()); got != 10 || rejected(s.metrics, "full") != 20 {
			t.Errorf("the gateway keeps %d services and has counted %d refusals; want 10 and 20", got, rejected(s.metrics, "full"))
		}
		n.kill()
		m := w.node("node-1", func(c *ClientConfig) { c.MaxServices = 5 })
		m.Pin("svc-0")
		m.attached(1)
		for i := range 30 {
			m.Use(w.t.Context(), fmt.Sprint("svc-", i), time.Second)
			time.Sleep(time.Millisecond)
		}
		var names []string
		for _, f := range m.Followed() {
			names = append(names, f.Service)
		}
		if fmt.Sprint(names) != "[svc-0 svc-26 svc-27 svc-28 svc-29]" {
			t.Errorf("follows %v; want what is pinned and the four used last", names)
		}
		settle()
		if got := len(s.health.topics.names()); got != 5 {
			t.Errorf("the gateway keeps %d services; want 5", got)
		}
	})
}

// A stream that does not read is cut off; until then it holds no queue, and nobody
// else waits.
func TestASlowNodeIsCutOffAndHarmsNobody(t *testing.T) {
	inBubble(t, func(w *world) {
		w.network.Options.Buffer = 16 << 10
		s := w.gateway("gw-1", nil)
		quick := w.node("quick", nil)
		quick.attached(1)
		quick.Use(w.t.Context(), service, time.Second)
		conn, err := w.raw(s, trust.Node("west", "slow"))
		if err != nil {
			t.Fatal(err)
		}
		f := &frames{conn: conn, dead: 10 * time.Second}
		f.write(attachOf("slow", "west"))
		f.write(&pb.StreamMessage{Message: &pb.StreamMessage_Subscribe{Subscribe: &pb.Subscribe{Add: []string{service}}}})
		settle()
		if got := len(s.health.Nodes()); got != 2 {
			t.Fatalf("%d nodes are attached", got)
		}
		w.wg.Go(func() { // it lives, but does not read
			for f.write(beat()) == nil {
				time.Sleep(time.Second)
			}
		})
		wide := make([]mesh.EndpointID, record.MaxExceptions)
		for i := range wide {
			wide[i] = mesh.EndpointID(i + 1)
		}
		for i := range uint64(2000) {
			s.say(service, east(i+1, service, uint32(i%9), wide...))
			time.Sleep(5 * time.Millisecond)
		}
		if got := s.health.Nodes(); fmt.Sprint(got) != "[quick]" {
			t.Errorf("attached: %v; want the quick one alone", got)
		}
		settle()
		if k, _ := quick.Summary("east", service, 80); k.Healthy != 1999%9 {
			t.Errorf("the quick node knows %d healthy; want %d", k.Healthy, 1999%9)
		}
		link.CloseAbruptly(conn)
	})
}

// 20 services that are used, in a mesh of 10 networks of 2 gateways and 2 000
// services, nothing changes: less than 200 B/s for each node proxy.
func TestAtRestAStreamCostsNextToNothing(t *testing.T) {
	inBubble(t, func(w *world) {
		sites := []*site{w.gateway("gw-1", nil), w.gateway("gw-2", nil)}
		for i := range 2000 {
			name := fmt.Sprint("svc-", i)
			var shares []Share
			for n := range 10 {
				s := Share{Network: fmt.Sprint("network-", n)}
				for g := range 2 {
					s.Instances = append(s.Instances, voice(record.Instance{byte(n), byte(g)}, 1, name, record.Health{Ready: 3, Healthy: 3, ReadyCapacity: 3, HealthyCapacity: 3}))
				}
				shares = append(shares, s)
			}
			for _, s := range sites {
				s.say(name, shares...)
			}
		}
		n := w.node("node-1", nil)
		for i := range 20 {
			n.Use(w.t.Context(), fmt.Sprint("svc-", i*7), 0)
		}
		n.attached(2)
		full := w.bytes.Load()
		if got := len(n.Followed()[0].Networks); got != 10 {
			t.Fatalf("%d networks are known; want 10", got)
		}
		const minutes = 10
		time.Sleep(minutes * time.Minute)
		rate := float64(w.bytes.Load()-full) / (minutes * 60)
		t.Logf("full state with both handshakes %d bytes; at rest %.0f B/s, both gateways, both ways, TLS included", full, rate)
		if rate > 200 {
			t.Errorf("%.0f B/s at rest; want less than 200", rate)
		}
	})
}

// Without a gateway health holds for a minute, and is unknown from then on: of other
// networks and of the own one. The export holds. Whoever follows is told.
func TestHealthLapsesWhenNoGatewaySpeaks(t *testing.T) {
	inBubble(t, func(w *world) {
		w.list("node-1", 7)
		s := w.gateway("gw-1", nil)
		share := east(1, service, 0, 9)
		export, err := record.Encode(record.ExportRecord(service, record.Export{Name: "shop", Namespace: "default", Ports: []record.Port{{Name: "http", Port: 80}}, Scope: record.ScopeGlobal, Capacity: 10}))
		if err != nil {
			t.Fatal(err)
		}
		export.Sequence = 2
		share.Instances[0].Entries = append(share.Instances[0].Entries, export)
		s.say(service, share)
		n := w.node("node-1", nil)
		n.Pin(service)
		n.attached(1)
		n.observe(7, federation.Ejected)
		n.knows("with a gateway", "east", 0)
		n.knows("with a gateway", "west", 99)

		s.stop()
		n.attached(0)
		lost := time.Now()
		time.Sleep(ledger.Lapse / 2)
		s = w.start(s.Gateway, nil)
		s.say(service, share)
		n.attached(1)
		s.stop()
		n.attached(0)
		time.Sleep(time.Until(lost.Add(ledger.Lapse + time.Second)))
		n.knows("a minute after the first loss", "east", 0) // the word between counts
		lost = time.Now().Add(-ledger.Lapse / 2)
		time.Sleep(time.Until(lost.Add(ledger.Lapse - 2*time.Second)))
		n.knows("just before the minute is over", "east", 0)
		n.TakeChanges()
		time.Sleep(3 * time.Second)
		settle()
		for _, network := range []string{"east", "west"} {
			if f, ok := n.Summary(network, service, 80); ok {
				t.Errorf("when nobody has spoken for a minute: %s is believed to have %+v", network, f)
			}
			if _, ok := n.Known(network, service); ok != (network == "east") {
				t.Errorf("when nobody has spoken for a minute: something is known of %s: %v; want the export of east alone", network, ok)
			}
		}
		if k, _ := n.Known("east", service); len(k.Deliveries) != 1 || k.Deliveries[0].Export == nil || k.Deliveries[0].Live {
			t.Errorf("when nobody has spoken for a minute: %+v; want the export of one that is silent", k.Deliveries)
		}
		if got := n.TakeChanges(); len(got) != 2 {
			t.Errorf("told of the changes %v; want both networks", got)
		}
		time.Sleep(2 * ledger.Lapse)
		if got := n.TakeChanges(); len(got) != 0 || len(n.services.silent) != 0 {
			t.Errorf("afterwards: changes %v, and %d services that wait to lapse; want none", got, len(n.services.silent))
		}

		s = w.start(s.Gateway, nil)
		s.say(service, share)
		n.attached(1)
		n.knows("with a gateway again", "east", 0)
		n.kill()
	})
}
