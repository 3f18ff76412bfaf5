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
