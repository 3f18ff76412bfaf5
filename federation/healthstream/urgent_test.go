package healthstream

import (
	"context"
	"fmt"
	"net"
	"net/netip"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/isthmus-mesh/isthmus/discovery"
	"github.com/isthmus-mesh/isthmus/discovery/excerpt"
	"github.com/isthmus-mesh/isthmus/federation/record"
	"github.com/isthmus-mesh/isthmus/internal/link"
)

// thin is a way to a node proxy that takes so many bytes a second, and what came by it when.
type thin struct {
	net.Conn
	bandwidth float64
	t         testing.TB

	mu    sync.Mutex
	kinds []string
	at    []time.Time
	bytes int
}

func (c *thin) SetWriteDeadline(time.Time) error { return nil }

func (c *thin) Write(b []byte) (int, error) {
	m, err := decode(b[link.FrameHeader:])
	if err != nil {
		c.t.Errorf("written: %v", err)
	}
	time.Sleep(time.Duration(float64(len(b)) / c.bandwidth * float64(time.Second)))
	c.mu.Lock()
	defer c.mu.Unlock()
	c.kinds, c.at, c.bytes = append(c.kinds, fmt.Sprintf("%T", m.GetMessage())), append(c.at, time.Now()), c.bytes+len(b)
	return len(b), nil
}

// edges is a source of one service, which says something else each time.
type edges struct {
	mu sync.Mutex
	n  uint64
}

func (e *edges) Shares(string) []Share {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.n++
	return []Share{{Network: "east", Instances: []Voice{voice(record.Instance{1}, e.n, service, record.Health{Ready: 1, Healthy: uint32(e.n % 2)})}}}
}

// While megabytes of discovery go to a node proxy that has just attached, an edge of health waits
// for one message of it, in virtual time: some 64 KiB.
func TestAnEdgeDoesNotWaitForAllOfDiscovery(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := discovery.NewBuilder(0)
		b.Apply(discovery.Change{Key: discovery.Key{Kind: discovery.KindNetwork, Name: "west"}, Record: discovery.Network{Name: "west"}}, serviceOf("large"))
		for i := range 20_000 {
			name := fmt.Sprintf("pod-%d", i)
			b.Apply(discovery.Change{Key: discovery.Key{Kind: discovery.KindWorkload, Name: name}, Record: discovery.Workload{UID: name, Network: "west", Node: "n2", ServiceAccount: "large", Namespace: "default",
				Services: []string{hostOf("large")}, Addresses: []netip.Addr{netip.AddrFrom4([4]byte{10, 1, byte(i >> 8), byte(i)})}}})
		}
		snap, _, _ := b.Commit()
		x := newTopics(&edges{})
		x.offer = offer{made: true, synchronised: true}
		d := newDownlink(x, 100)
		d.excerpts.index, d.excerpts.node = excerpt.NewIndex("west", snap), "n1"
		defer d.close()
		c := &thin{t: t, bandwidth: 4 << 20}
		d.subscribe([]string{service, hostOf("large")}, nil)
		d.lead(true)
		ctx, stop := context.WithCancel(t.Context())
		var pushing sync.WaitGroup
		pushing.Go(func() {
			if err := push(ctx, &frames{conn: c, dead: time.Minute}, d, nil); err != nil {
				t.Error(err)
			}
		})
		const message = 64 << 10 * time.Second / (4 << 20) // that a message takes
		count := func() (n int) {
			c.mu.Lock()
			defer c.mu.Unlock()
			for _, k := range c.kinds {
				if k == "*federationpb.StreamMessage_Services" {
					n++
				}
			}
			return n
		}
		during := 0
		for range 5 { // edges, one after the other
			time.Sleep(50 * time.Millisecond)
			before, began := count(), time.Now()
			x.changed([]string{service})
			for count() == before {
				time.Sleep(time.Millisecond)
			}
			if took := time.Since(began); took > 2*message {
				t.Errorf("an edge took %v; want at most two messages of discovery: %v", took, 2*message)
			}
			c.mu.Lock()
			if k := c.kinds[max(0, len(c.kinds)-2)]; k == "*federationpb.StreamMessage_Excerpt" {
				during++
			}
			c.mu.Unlock()
		}
		time.Sleep(10 * time.Second)
		stop()
		pushing.Wait()
		c.mu.Lock()
		defer c.mu.Unlock()
		if c.bytes < 1<<20 || during < 3 {
			t.Errorf("%d bytes were told, and %d edges behind messages of discovery: this tests nothing", c.bytes, during)
		}
	})
}
