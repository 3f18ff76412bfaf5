package healthstream

import (
	"fmt"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	"github.com/spiffe/go-spiffe/v2/spiffeid"

	"github.com/isthmus-mesh/isthmus/federation"
	pb "github.com/isthmus-mesh/isthmus/federation/federationpb"
	"github.com/isthmus-mesh/isthmus/federation/peer"
	"github.com/isthmus-mesh/isthmus/internal/link"
	"github.com/isthmus-mesh/isthmus/internal/meshtest/trust"
	"github.com/isthmus-mesh/isthmus/mesh"
)

const (
	healthy = federation.Healthy
	ejected = federation.Ejected
)

func TestReportsGoUpAndStatesComeDown(t *testing.T) {
	inBubble(t, func(w *world) {
		s := w.gateway("gw-1", nil)
		w.list("node-1", 7)
		s.say(service, east(1, service, 9))
		n := w.node("node-1", nil)
		n.Pin(service)
		n.attached(1)
		n.knows("at attach", "east", 9)
		n.knows("at attach", "west", 100)
		start := time.Now()
		n.observe(7, ejected)
		for len(s.believed()) == 0 {
			time.Sleep(100 * time.Microsecond)
		}
		if up := time.Since(start); up > 2*time.Millisecond {
			t.Errorf("an edge took %v to the gateway, 1 ms away", up)
		}
		n.knows("after the edge", "west", 99)
		start = time.Now()
		s.say(service, east(2, service, 3))
		for f, _ := n.Summary("east", service, 80); f.Healthy != 3; f, _ = n.Summary("east", service, 80) {
			time.Sleep(100 * time.Microsecond)
		}
		if down := time.Since(start); down > 2*time.Millisecond {
			t.Errorf("news took %v to the node, 1 ms away", down)
		}
		if got := s.health.Nodes(); !slices.Equal(got, []string{"node-1"}) {
			t.Errorf("nodes: got %v", got)
		}
		n.observe(7, healthy)
		n.knows("after it healed", "west", 100)
	})
}

// A node proxy restarts while one pod heals, one stays ill, one falls ill and one
// goes away; the clock of the node is set back a year meanwhile. Its first report is
// empty: it readmits nobody, and it asks and states what is held as out.
func TestTheTruthIsKnownSoonAfterANodeProxyRestarts(t *testing.T) {
	inBubble(t, func(w *world) {
		s, other := w.gateway("gw-1", nil), w.gateway("gw-2", nil)
		w.list("node-1", 1, 2, 3, 4)
		first := w.node("node-1", nil)
		first.attached(2)
		for id := range first.world.places {
			if id != 4 {
				first.observe(id, ejected)
			}
		}
		s.holds("before", 1, 2, 3)
		first.kill()
		s.holds("while nobody is there", 1, 2, 3)
		time.Sleep(10 * time.Second)
		w.list("", 3)
		s.health.Relocate(anyEndpoint)
		other.health.Relocate(anyEndpoint)
		second := w.node("node-1", func(c *ClientConfig) { c.Self = trust.Node("west", "node-1") })
		second.mu.Lock()
		second.skew = -365 * 24 * time.Hour
		second.mu.Unlock()
		second.attached(2)
		s.holds("after an empty first report", 1, 2)
		if got := second.takeAsked(); !slices.Equal(got, slices.Concat(targets(1), targets(1), targets(2), targets(2))) {
			t.Errorf("two gateways asked for %v; want 1 and 2 of each", got)
		}
		if second.every != 2 {
			t.Errorf("%d of 2 gateways said that another instance was there before", second.every)
		}
		attached := time.Now()
		second.observe(1, healthy) // by its probes
		second.observe(2, ejected)
		second.observe(4, ejected)
		for _, x := range []*site{s, other} {
			x.holds("after its answers", 2, 4)
		}
		if took := time.Since(attached); took > 2*time.Second {
			t.Errorf("known %v after it was attached", took)
		}
		time.Sleep(3 * Held)
		s.holds("much later", 2, 4)
	})
}

func TestWhatNobodySpeaksOfAnyMoreIsHeldForAMinute(t *testing.T) {
	inBubble(t, func(w *world) {
		s := w.gateway("gw-1", nil)
		w.list("node-1", 1)
		first := w.node("node-1", nil)
		first.attached(1)
		first.observe(1, ejected)
		s.holds("before", 1)
		first.kill()
		w.node("node-1", nil).attached(1) // and says nothing, ever
		time.Sleep(Held - 5*time.Second)
		s.holds("within a minute", 1)
		time.Sleep(10 * time.Second)
		s.holds("after it")
	})
}

func TestTwoInstancesOfANodeProxySideBySide(t *testing.T) {
	inBubble(t, func(w *world) {
		s := w.gateway("gw-1", nil)
		w.list("node-1", 1, 2, 3)
		old := w.node("node-1", nil)
		old.attached(1)
		old.observe(1, ejected)
		old.observe(2, ejected)
		fresh := w.node("node-1", nil)
		fresh.mu.Lock()
		fresh.auto = true
		fresh.mu.Unlock()
		fresh.attached(1)
		if old.Attached() != 1 {
			t.Fatal("the old instance was cut off")
		}
		s.holds("side by side; 1 and 2 answer by now") // fresh was asked and says that they do
		old.observe(1, ejected)
		old.observe(3, ejected)
		s.holds("what is said last counts, while neither drains", 3)
		old.Drain()
		fresh.observe(3, healthy)
		old.observe(2, healthy)
		old.observe(2, ejected) // its word goes behind
		s.holds("the old one drains")
		old.observe(3, healthy)
		fresh.observe(3, ejected)
		s.holds("an edge of the new one", 3)
		w.list("node-1", 9)
		fresh.mu.Lock()
		fresh.ills[Target{9, 80}] = true
		fresh.mu.Unlock()
		old.observe(9, ejected) // of what the new one has not spoken
		s.holds("only the old one has seen it", 3, 9)
		old.kill()
		settle()
		if got := fresh.takeAsked(); !slices.Contains(got, Target{9, 80}) {
			t.Errorf("when the old one ended the new one was asked for %v; want 9 among them", got)
		}
		s.holds("the old one has gone", 3, 9)
		fresh.observe(9, healthy)
		s.holds("healed", 3)
	})
}

// The same instance attaches again: what it said before and does not repeat is
// taken back.
func TestAStreamReplacesWhatTheSameInstanceSaid(t *testing.T) {
	inBubble(t, func(w *world) {
		s := w.gateway("gw-1", nil)
		w.list("node-1", 1, 2)
		n := w.node("node-1", nil)
		n.attached(1)
		n.observe(1, ejected)
		n.observe(2, ejected)
		s.holds("before", 1, 2)
		w.cut("node-1")
		n.mu.Lock()
		delete(n.facts, Target{1, 80})
		n.mu.Unlock()
		time.Sleep(time.Second)
		n.attached(1)
		s.holds("after", 2)
		if n.every != 0 {
			t.Error("a reconnect was taken for another instance")
		}
		if len(s.left) > 0 && len(s.health.Nodes()) != 1 {
			t.Errorf("left %v, attached %v", s.left, s.health.Nodes())
		}
	})
}

// Discovery of gateway and node need not change at the same moment.
func TestFactsAboutWhatDiscoveryDoesNotKnowYetAreKept(t *testing.T) {
	inBubble(t, func(w *world) {
		s := w.gateway("gw-1", nil)
		n := w.node("node-1", nil)
		n.attached(1)
		n.observe(5, ejected)
		s.holds("not listed yet")
		w.list("node-1", 5)
		s.health.Relocate(anyEndpoint)
		s.holds("listed", 5)
		if got := rejected(s.metrics, peer.ReasonOtherNode); got != 0 {
			t.Errorf("%d rejected", got)
		}
		w.list("node-2", 5) // a pod of a stateful set has moved
		s.health.Relocate(anyEndpoint)
		s.holds("on another node")
		n.observe(5, healthy)
		settle()
		n.observe(5, ejected)
		s.holds("another node's pod")
		if got := rejected(s.metrics, peer.ReasonOtherNode); got != 2 {
			t.Errorf("%d rejected; want 2", got)
		}
		for id := range 3 * MaxFacts {
			n.observe(mesh.EndpointID(1000+id), ejected)
		}
		time.Sleep(time.Second)
		if got := len(s.health.Words()); got > MaxFacts {
			t.Errorf("%d facts are kept; want at most %d", got, MaxFacts)
		}
		w.list("node-1", 6)
		n.observe(6, ejected)
	})
}

func TestNodesHealthSurvivesARestartOfTheGateway(t *testing.T) {
	inBubble(t, func(w *world) {
		s := w.gateway("gw-1", nil)
		w.list("node-1", 8)
		n := w.node("node-1", nil)
		n.Pin(service)
		n.observe(8, ejected) // nobody to tell yet
		n.attached(1)
		s.holds("at attach", 8)
		n.knows("at attach", "west", 99)
		s.stop()
		n.attached(0)
		n.knows("without a gateway", "west", 99)
		again := w.start(s.Gateway, nil)
		n.attached(1)
		again.holds("after the restart", 8)
		n.knows("after the restart", "west", 99)
	})
}

func TestOneGatewayIsEnough(t *testing.T) {
	inBubble(t, func(w *world) {
		a, b := w.gateway("gw-1", nil), w.gateway("gw-2", nil)
		w.list("node-1", 7)
		n := w.node("node-1", nil)
		n.Pin(service)
		n.attached(2)
		n.observe(7, ejected)
		a.holds("both", 7)
		b.holds("both", 7)
		a.say(service, east(1, service, 5))
		n.knows("from one", "east", 5)
		b.say(service, east(2, service, 4))
		n.knows("the other is further", "east", 4)
		b.stop()
		n.attached(1)
		n.knows("what the one that is left says", "east", 5)
		a.say(service)
		settle()
		if k, ok := n.Known("east", service); ok {
			t.Errorf("the share was withdrawn; still known: %+v", k)
		}
		a.stop()
		n.attached(0)
		n.knows("without a gateway the known stands", "west", 99)
	})
}

func TestDetachIsToldWhenTheLastStreamOfANodeHasEnded(t *testing.T) {
	inBubble(t, func(w *world) {
		s := w.gateway("gw-1", nil)
		a, b := w.node("node-1", nil), w.node("node-1", nil)
		a.attached(1)
		b.attached(1)
		a.kill()
		settle()
		if len(s.left) != 0 {
			t.Errorf("left: %v, with an instance attached", s.left)
		}
		b.kill()
		settle()
		if !slices.Equal(s.left, []string{"node-1"}) {
			t.Errorf("left: %v", s.left)
		}
	})
}

func attachOf(node, network string) *pb.StreamMessage {
	return &pb.StreamMessage{Message: &pb.StreamMessage_Attach{Attach: &pb.Attach{Node: node, Network: network, Instance: make([]byte, 16)}}}
}

func TestHealthServerRefuses(t *testing.T) {
	inBubble(t, func(w *world) {
		s := w.gateway("gw-1", nil)
		w.list("good", 7)
		good := w.node("good", nil)
		good.attached(1)
		bad := trust.Node("west", "bad")
		ports := func(m *pb.PortHealth) *pb.StreamMessage { return report(&pb.Report{Ports: []*pb.PortHealth{m}}) }
		for _, c := range []struct {
			name   string
			as     spiffeid.ID
			reason string
			hello  *pb.StreamMessage
			then   *pb.StreamMessage
			bytes  []byte
		}{
			{name: "identity that may not attach", as: trust.Workload("app"), reason: "identity", hello: attachOf("bad", "west")},
			{name: "a gateway as a node", as: trust.Workload("gateway-east"), reason: "identity", hello: attachOf("bad", "west")},
			{name: "a node proxy without a node", as: trust.Workload("nodeproxy"), reason: "identity", hello: attachOf("bad", "west")},
			{name: "another node's name", as: trust.Node("west", "good"), reason: "identity", hello: attachOf("bad", "west")},
			{name: "a node of another network", as: trust.Node("east", "bad"), reason: "identity", hello: attachOf("bad", "west")},
			{name: "another network", as: bad, reason: "foreign", hello: attachOf("bad", "east")},
			{name: "no attach", as: bad, reason: "malformed", hello: report(&pb.Report{Whole: true})},
			{name: "attach without a name", as: bad, reason: "malformed", hello: attachOf("", "west")},
			{name: "attach without an instance", as: bad, reason: "malformed", hello: &pb.StreamMessage{Message: &pb.StreamMessage_Attach{Attach: &pb.Attach{Node: "bad", Network: "west"}}}},
			{name: "no state", as: bad, reason: "malformed", hello: attachOf("bad", "west"), then: ports(&pb.PortHealth{Endpoint: 7, Port: 80})},
			{name: "no port", as: bad, reason: "malformed", hello: attachOf("bad", "west"), then: ports(&pb.PortHealth{Endpoint: 7, State: 1})},
			{name: "health beyond 1", as: bad, reason: "malformed", hello: attachOf("bad", "west"), then: ports(&pb.PortHealth{Endpoint: 7, Port: 80, State: 1, Health: 2})},
			{name: "long reason", as: bad, reason: "malformed", hello: attachOf("bad", "west"), then: ports(&pb.PortHealth{Endpoint: 7, Port: 80, State: 1, Reason: fmt.Sprintf("%100d", 1)})},
			{name: "a service without a name", as: bad, reason: "malformed", hello: attachOf("bad", "west"),
				then: &pb.StreamMessage{Message: &pb.StreamMessage_Subscribe{Subscribe: &pb.Subscribe{Add: []string{""}}}}},
			{name: "oversized frame", as: bad, reason: "oversized", hello: attachOf("bad", "west"), bytes: []byte{0x7f, 0xff, 0xff, 0xff}},
			{name: "garbage", as: bad, reason: "malformed", hello: attachOf("bad", "west"), bytes: []byte{0, 0, 0, 3, 0xff, 0xff, 0xff}},
		} {
			before := rejected(s.metrics, c.reason)
			conn, err := w.raw(s, c.as)
			if err != nil {
				t.Fatal(err)
			}
			f := &frames{conn: conn, dead: 10 * time.Second}
			f.write(c.hello)
			if c.then != nil {
				f.write(c.then)
			}
			conn.Write(c.bytes)
			for err = nil; err == nil; {
				_, err = f.read()
			}
			link.CloseAbruptly(conn)
			settle()
			if rejected(s.metrics, c.reason) <= before {
				t.Errorf("%s: not counted as %s (the stream ended with %v)", c.name, c.reason, err)
			}
		}
		s.holds("after all that")
		good.observe(7, ejected)
		s.holds("the good node", 7)
	})
}

func TestNobodyButTheGatewayIsSpokenTo(t *testing.T) {
	inBubble(t, func(w *world) {
		s := w.gateway("gw-1", nil)
		// The client expects the gateway's identity; somebody else answers there.
		_, err := w.dialOf("x").TLS(w.t.Context(), w.identity, trust.Node("west", "node-1"), trust.Workload("gateway-east"), s.Address.String(), ALPN, 5*time.Second)
		if err == nil {
			t.Error("got a connection to the wrong gateway")
		}
	})
}

func TestSilenceEndsAStream(t *testing.T) {
	inBubble(t, func(w *world) {
		s := w.gateway("gw-1", nil)
		conn, err := w.raw(s, trust.Node("west", "mute"))
		if err != nil {
			t.Fatal(err)
		}
		(&frames{conn: conn, dead: time.Second}).write(attachOf("mute", "west"))
		settle()
		if got := s.health.Nodes(); len(got) != 1 {
			t.Fatalf("attached: %v", got)
		}
		time.Sleep(7 * time.Second)
		if got := s.health.Nodes(); len(got) != 0 {
			t.Errorf("attached after 7 s of silence: %v", got)
		}
		link.CloseAbruptly(conn)
	})
}

func TestAStreamThatIsBehindHoldsNoMoreThanItsNames(t *testing.T) {
	u := newUplink("gw-1", nil)
	u.take(silent{}) // the whole, at attach
	for id := range 3 * MaxFacts {
		u.changed([]Target{{mesh.EndpointID(id + 1), 80}})
	}
	if n := len(u.dirty); n > MaxFacts || !u.whole {
		t.Errorf("%d names are kept, whole %v; want at most %d, and then the whole", n, u.whole, MaxFacts)
	}
}

// What comes in while a gateway is busy with edges is told in one call afterwards.
func TestEdgesThatWaitAreToldTogether(t *testing.T) {
	inBubble(t, func(w *world) {
		var calls []int
		busy := make(chan struct{})
		s := w.gateway("gw-1", func(c *ServerConfig) {
			c.OnEdge = func(edges []Edge) { // one call at a time
				calls = append(calls, len(edges))
				<-busy
			}
		})
		for i, name := range []string{"node-1", "node-2", "node-3"} {
			w.list(name, mesh.EndpointID(7+i))
			n := w.node(name, nil)
			n.attached(1)
			n.observe(mesh.EndpointID(7+i), ejected)
			settle()
		}
		close(busy)
		settle()
		if !slices.Equal(calls, []int{1, 2}) {
			t.Errorf("%s was told of so many edges by call: %v; want one, and the two that waited", s.Name, calls)
		}
	})
}

// A thief of one node's key flips every port that it may name, while a gateway is busy
// with an edge.
func TestEdgesThatWaitAreOnePerPortInTheirLastState(t *testing.T) {
	inBubble(t, func(w *world) {
		busy := make(chan struct{})
		var last []Edge
		s := w.gateway("gw-1", func(c *ServerConfig) {
			c.OnEdge = func(edges []Edge) {
				last = edges
				<-busy
			}
		})
		for i := range 2 {
			name := fmt.Sprint("node-", i+1)
			w.list(name, mesh.EndpointID(7+i))
			w.node(name, nil).attached(1)
		}
		s.health.mu.Lock()
		stream := func(node string) *attachment { return s.health.streams[s.health.book.nodes[node].lives[0]] }
		one, two := stream("node-1"), stream("node-2")
		s.health.mu.Unlock()
		for round := range 51 {
			m := &pb.Report{Whole: true}
			for port := range uint16(MaxFacts) {
				f := factOf(8, federation.FactState(round%2))
				f.Port = port + 1
				m.Ports = append(m.Ports, factToWire(f))
			}
			if round == 0 { // this keeps the hook busy
				go s.health.report(one, &pb.Report{Ports: []*pb.PortHealth{factToWire(factOf(7, federation.Ejected))}})
				synctest.Wait()
			}
			if err := s.health.report(two, m); err != nil {
				t.Fatal(err)
			}
			if n := len(s.health.book.waiting); n > MaxFacts {
				t.Fatalf("%d edges of %d ports wait", n, MaxFacts)
			}
		}
		// Ports that nobody was told of, and of which nothing is known any more, are no edges.
		for round := range 5 {
			m := &pb.Report{Whole: true}
			for port := range uint16(MaxFacts) {
				f := factOf(8, federation.Ejected)
				f.Port = uint16(round+2)*MaxFacts + port
				m.Ports = append(m.Ports, factToWire(f))
			}
			if err := s.health.report(two, m); err != nil {
				t.Fatal(err)
			}
			if n := len(s.health.book.waiting); n > MaxFacts {
				t.Fatalf("%d edges wait; %d facts are kept", n, MaxFacts)
			}
		}
		close(busy)
		settle()
		if len(last) != MaxFacts || last[0].Fact.State != federation.Ejected {
			t.Errorf("told of %d edges, the first of them %+v; want %d in their last state", len(last), last[0], MaxFacts)
		}
	})
}
