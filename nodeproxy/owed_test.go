package nodeproxy

import (
	"context"
	"net"
	"net/netip"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/rs/zerolog"

	"github.com/isthmus-mesh/isthmus/federation"
	"github.com/isthmus-mesh/isthmus/federation/healthstream"
	"github.com/isthmus-mesh/isthmus/health"
	"github.com/isthmus-mesh/isthmus/mesh"
)

// owing is a witness whose applications all answer, on a node where the test says
// what discovery lists.
type owing struct {
	*witness
	mu     sync.Mutex
	listed map[health.Key]bool
	said   map[health.Key]int // how often there was news of each
}

func newOwing(ctx context.Context, listed ...health.Key) *owing {
	o := &owing{listed: map[health.Key]bool{}, said: map[health.Key]int{}}
	o.list(listed...)
	declared := func(k health.Key) *mesh.Workload {
		o.mu.Lock()
		defer o.mu.Unlock()
		if !o.listed[k] {
			return nil
		}
		return &mesh.Workload{UID: "pod", Endpoint: k.Endpoint, Addresses: []netip.Addr{netip.MustParseAddr("127.0.0.1")}}
	}
	connect := func(context.Context, netip.AddrPort, time.Duration) (net.Conn, error) {
		c, _ := net.Pipe()
		return c, nil
	}
	news := func(targets ...healthstream.Target) {
		o.mu.Lock()
		defer o.mu.Unlock()
		for _, t := range targets {
			o.said[health.Key(t)]++
		}
	}
	o.witness = newWitness(ctx, DefaultConfig(), declared, connect, news, zerolog.Nop())
	return o
}

func (o *owing) list(keys ...health.Key) {
	o.mu.Lock()
	defer o.mu.Unlock()
	for _, k := range keys {
		o.listed[k] = true
	}
}

func (o *owing) unlist(keys ...health.Key) {
	o.mu.Lock()
	defer o.mu.Unlock()
	for _, k := range keys {
		delete(o.listed, k)
	}
}

// words returns how often there was news of k, after its application was asked.
func (o *owing) words(k health.Key) int {
	time.Sleep(time.Second)
	synctest.Wait()
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.said[k]
}

func (o *owing) owes() int {
	o.witness.mu.Lock()
	defer o.witness.mu.Unlock()
	return len(o.owed)
}

func portOf(id int) health.Key { return health.Key{Endpoint: mesh.EndpointID(id), Port: 8080} }

// Gateways may want a word on ports that do not exist any more. It is owed for as long
// as they hold them as out, in case discovery is late, and keeps nobody else waiting.
func TestWhatIsOwedHasAnEnd(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ctx, cancel := context.WithCancel(t.Context())
		defer cancel()
		here, late, later := portOf(1), portOf(2), portOf(3)
		o := newOwing(ctx, here)
		gone := []healthstream.Target{healthstream.Target(late)}
		for i := range 2 * maxOwed {
			gone = append(gone, healthstream.Target(portOf(1000+i)))
		}
		o.owe(gone)
		if n := o.owes(); n != maxOwed {
			t.Errorf("%d ports that discovery does not list are owed; want %d at most", n, maxOwed)
		}
		o.owe([]healthstream.Target{healthstream.Target(here)})
		if n := o.words(here); n != 1 {
			t.Errorf("%d words on a port that is listed, with many owed that are not; want 1", n)
		}

		time.Sleep(healthstream.Held / 2)
		o.forget()
		o.list(late)
		o.askOwed()
		if n := o.words(late); n != 1 {
			t.Errorf("%d words on a port that is listed half a minute after it was asked for; want 1", n)
		}
		time.Sleep(healthstream.Held / 2)
		o.forget()
		if n := o.owes(); n != 0 {
			t.Errorf("%d ports are owed when no gateway holds them any more", n)
		}

		o.owe([]healthstream.Target{healthstream.Target(later)})
		o.list(later)
		o.askOwed()
		if n := o.words(later); n != 1 {
			t.Errorf("%d words on a port that was asked for afterwards; want 1", n)
		}
	})
}

// A pod is deleted while it is out and comes back under its name: its node proxy says
// that it knows nothing of it any more, and asks it when it is back.
func TestWhatIsForgottenIsToldAndAskedWhenItIsBack(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ctx, cancel := context.WithCancel(t.Context())
		defer cancel()
		sick, well := portOf(1), portOf(2)
		o := newOwing(ctx, sick, well)
		for k, state := range map[health.Key]federation.FactState{sick: federation.Ejected, well: federation.Healthy} {
			o.facts[k] = fact{federation.EndpointFact{Endpoint: k.Endpoint, Port: k.Port, State: state}, time.Now()}
		}
		o.unlist(sick, well)
		o.forget()
		o.askOwed()
		for _, k := range []health.Key{sick, well} {
			if _, known := o.Fact(healthstream.Target(k)); known || o.words(k) != 1 {
				t.Errorf("of %v a fact is kept: %v; %d words, want that it is forgotten", k, known, o.words(k))
			}
		}
		o.list(sick, well)
		o.forget()
		o.askOwed()
		if n := o.words(sick); n != 2 {
			t.Errorf("%d words on the pod that is back, want one more: it answers", n)
		}
		if f, known := o.Fact(healthstream.Target(sick)); !known || f.State != federation.Healthy {
			t.Errorf("it is said to be %+v, %v; want that it answers", f, known)
		}
		if n := o.words(well); n != 1 {
			t.Errorf("%d words on the one that was well; want none more", n)
		}
	})
}
