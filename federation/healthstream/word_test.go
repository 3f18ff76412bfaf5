package healthstream

import (
	"fmt"
	"testing"
	"testing/synctest"
	"time"

	"github.com/rs/zerolog"

	"github.com/isthmus-mesh/isthmus/federation"
	pb "github.com/isthmus-mesh/isthmus/federation/federationpb"
	"github.com/isthmus-mesh/isthmus/federation/record"
	"github.com/isthmus-mesh/isthmus/mesh"
)

// words is what the gateways of a network tell a node proxy, without streams.
type words struct {
	*services
	t *testing.T
}

func newWords(t *testing.T) words {
	s := newServices(10, newVerified("west", nil))
	s.use(service, false)
	return words{s, t}
}

func (w words) gateway(name string) *uplink {
	up := newUplink(name, &frames{})
	w.attach(up)
	return up
}

// port is a record of one instance of east: of so many pods all are healthy.
type port struct {
	port     uint16
	sequence uint64
	healthy  uint32
}

// tell makes a gateway say what an instance of network says of the ports of the service.
func (w words) tell(up *uplink, network string, live bool, ports ...port) (odd int) {
	w.t.Helper()
	v := Voice{Instance: record.Instance{1}, Gateway: "gw", Live: live}
	for _, p := range ports {
		e, err := record.Encode(record.HealthRecord(service, p.port, record.Health{Ready: 10, Healthy: p.healthy, ReadyCapacity: 10, HealthyCapacity: p.healthy}))
		if err != nil {
			w.t.Fatal(err)
		}
		e.Sequence = p.sequence
		v.Entries = append(v.Entries, e)
	}
	m, err := decode(servicesMessage(appendService(nil, service, false, false, [][]byte{encodeShare(Share{Network: network, Instances: []Voice{v}})})))
	if err != nil {
		w.t.Fatal(err)
	}
	if odd, err = w.take(up, m.GetServices()); err != nil {
		w.t.Fatal(err)
	}
	return odd
}

func (w words) healthy(network string, port uint16) int {
	k, _ := w.get(network, service)
	if f, ok := k.Summaries[port]; ok {
		return int(f.Healthy)
	}
	return -1
}

// Two gateways tell of one instance. One has heard that it has withdrawn a port, which
// leaves no number behind, the other has not yet.
func TestTheWordOfTheGatewayThatIsBehindDoesNotCount(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWords(t)
		one, two := w.gateway("gw-1"), w.gateway("gw-2")
		w.tell(one, "east", true, port{80, 1, 10}, port{81, 2, 10})
		w.tell(two, "east", true, port{80, 1, 10}, port{81, 2, 10})
		time.Sleep(time.Millisecond)
		w.tell(one, "east", true, port{80, 1, 10})
		if got := w.healthy("east", 81); got != -1 {
			t.Errorf("%d are healthy on a port that is withdrawn, by the word of the gateway that is behind", got)
		}
		time.Sleep(time.Minute)
		w.tell(one, "east", true, port{80, 5, 4})
		time.Sleep(behind / 2)
		w.tell(two, "east", true, port{80, 4, 5})
		if got := w.healthy("east", 80); got != 4 {
			t.Errorf("%d are healthy by the word of the gateway that is a little behind; want 4", got)
		}
	})
}

// A gateway that hears the instance no more says its last word: it is no news.
func TestALastWordGivesWayToThatOfAGatewayThatHearsTheInstance(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWords(t)
		one, two := w.gateway("gw-1"), w.gateway("gw-2")
		w.tell(two, "east", true, port{80, 4, 5})
		w.tell(one, "east", true, port{80, 5, 4})
		time.Sleep(time.Minute)
		w.tell(two, "east", false, port{80, 4, 5})
		if got := w.healthy("east", 80); got != 4 {
			t.Errorf("%d are healthy by the last word that gw-2 has heard; want 4", got)
		}
	})
}

// A rogue gateway of the own network repeats an instance of east with the greatest
// number there is.
func TestARogueGatewayCannotKeepANodeProxyFromWhatOthersSay(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWords(t)
		honest, rogue := w.gateway("gw-1"), w.gateway("gw-2")
		w.tell(honest, "east", true, port{80, 1, 10})
		w.tell(rogue, "east", true, port{80, 1<<64 - 1, 0})
		for n := range uint64(3) {
			time.Sleep(behind + time.Millisecond)
			w.tell(rogue, "east", true, port{80, 1<<64 - 1, 0}) // which is no change
			w.tell(honest, "east", true, port{80, 2 + n, uint32(9 - n)})
			if got := w.healthy("east", 80); got != int(9-n) {
				t.Errorf("%d are healthy for the node proxy; want %d: the word that has changed last", got, 9-n)
			}
		}
	})
}

// What one gateway makes a node proxy keep is of networks that discovery lists, and
// bounded in bytes.
func TestAGatewayCannotMakeANodeProxyKeepWhatItLikes(t *testing.T) {
	w := newWords(t)
	listed := map[string]bool{"east": true}
	w.listed = func(network string) bool { return listed[network] }
	up := w.gateway("gw-1")
	w.tell(up, "east", true, port{80, 1, 10})
	one := up.kept
	if one == 0 {
		t.Fatal("nothing is kept of what is listed")
	}
	for n := range 3 * maxNetworks {
		w.tell(up, fmt.Sprint("nowhere-", n), true, port{80, 1, 10})
	}
	if n := len(w.byName[service].known); n != 1 || up.kept != one || len(up.missed) > maxNetworks {
		t.Errorf("%d networks and %d bytes are kept, and %d names; want one network, %d bytes, %d names at most", n, up.kept, len(up.missed), one, maxNetworks)
	}
	// Discovery may be behind: then all is asked for again.
	up.take(silent{})
	listed["nowhere-7"] = true
	honest := w.gateway("gw-2") // up is full of names
	w.tell(honest, "later", true, port{80, 1, 10})
	honest.take(silent{})
	w.relist()
	if m := honest.take(silent{}); len(m) != 0 {
		t.Errorf("a gateway is asked again that has not spoken of what is listed: %v", m)
	}
	listed["later"] = true
	if w.relist(); len(honest.take(silent{})) != 1 {
		t.Error("a network is listed of which a gateway spoke that is not full of names, and it is not asked again")
	}
	if m := up.take(silent{}); len(m) != 1 || len(m[0].GetSubscribe().GetAdd()) != 1 {
		t.Errorf("when a network is listed that was spoken of, the node proxy says %v; want that it asks again", m)
	}
	w.relist()
	if m := up.take(silent{}); len(m) != 0 {
		t.Errorf("it asks once more: %v", m)
	}

	w.listed = func(string) bool { return true }
	w.budget = one + one/2
	if odd := w.tell(up, "west", true, port{80, 1, 10}); odd != 1 || w.healthy("west", 80) != -1 || up.kept != one {
		t.Errorf("beyond the budget: %d refused, %d healthy, %d bytes kept; want 1, nothing known, %d", odd, w.healthy("west", 80), up.kept, one)
	}
	w.tell(up, "east", true, port{80, 2, 9})
	if got := w.healthy("east", 80); got != 9 {
		t.Errorf("%d are healthy; want that a share within the budget is replaced", got)
	}
	w.tell(up, "east", true) // no word of it any more
	w.tell(up, "west", true, port{80, 1, 10})
	if got := w.healthy("west", 80); got != 10 {
		t.Errorf("%d are healthy; want that there is room again", got)
	}
	w.sweep(-time.Hour)
	if up.kept != 0 {
		t.Errorf("%d bytes are kept of a service that is not followed", up.kept)
	}
}

// A gateway that is attached and does not answer makes the first connection wait, and
// those that come meanwhile.
func TestOnlyTheFirstUseWaits(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := NewClient(ClientConfig{Log: zerolog.Nop()})
		c.add(newUplink("gw-1", &frames{}))
		const wait = 100 * time.Millisecond
		var meanwhile time.Duration
		go func() {
			time.Sleep(wait / 2)
			start := time.Now()
			c.Use(t.Context(), service, wait)
			meanwhile = time.Since(start)
		}()
		for n, want := range []time.Duration{wait, 0, 0} {
			start := time.Now()
			c.Use(t.Context(), service, wait)
			if took := time.Since(start); took != want {
				t.Errorf("use %d waited for %v; want %v", n+1, took, want)
			}
		}
		synctest.Wait()
		if meanwhile != wait/2 {
			t.Errorf("a use in between waited for %v; want what is left, %v", meanwhile, wait/2)
		}
	})
}

// A gateway that has restarted says nothing of services before it has heard the others:
// its node proxies would take it for the truth that nothing is known.
func TestAGatewayThatHasNotHeardTheOthersTakesNothingBack(t *testing.T) {
	inBubble(t, func(w *world) {
		s := w.gateway("gw-1", nil)
		s.say(service, east(1, service, 9))
		w.list("node-1", 7)
		n := w.node("node-1", nil)
		n.Pin(service)
		n.attached(1)
		n.knows("at first", "east", 9)
		s.stop()
		n.attached(0)
		settled := make(chan struct{})
		again := w.start(s.Gateway, func(c *ServerConfig) { c.Settled = settled })
		n.attached(1)
		n.observe(7, ejected)
		again.holds("reports are heard meanwhile", 7)
		n.knows("before the gateway has heard the others", "east", 9)
		again.say(service, east(2, service, 8))
		n.knows("and has heard one of them", "east", 9)
		close(settled)
		n.knows("when it has heard them", "east", 8)
		again.say(service, east(3, service, 7))
		n.knows("and later", "east", 7)
	})
}

// People read reasons in terminals and logs.
func TestReasonsWithControlCharactersAreRefused(t *testing.T) {
	for reason, ok := range map[string]bool{"refused": true, "": true, "a reason of ours (4): ~!": true, "\x1b[2J\x1b[Hwell": false, "two\nlines": false, "\x7f": false, "ünicode": false} {
		f := factOf(mesh.EndpointID(1), federation.Ejected)
		f.Reason = reason
		if got, err := factFromWire(factToWire(f)); (err == nil) != ok {
			t.Errorf("reason %q: %+v, %v; want it taken: %v", reason, got, err, ok)
		}
	}
	if _, err := factsFromWire([]*pb.PortHealth{factToWire(factOf(1, federation.Ejected))}); err != nil {
		t.Error(err)
	}
}
