package gossip

import (
	"context"
	"fmt"
	"net"
	"net/netip"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus/testutil"

	"github.com/isthmus-mesh/isthmus/federation/ledger"
	"github.com/isthmus-mesh/isthmus/internal/testlb"
	"github.com/isthmus-mesh/isthmus/mesh"
)

// balanced is networks whose gateways list each other, and know other networks by one
// address each alone.
type balanced struct {
	*world
	mu     sync.Mutex
	fronts map[string][]netip.AddrPort // of networks, as others know them
	behind map[netip.AddrPort]*testlb.Balancer
	sites  map[string][]*site // by network
	relays map[*mesh.Gateway]*relay
}

// newBalanced starts networks of n gateways each.
func newBalanced(w *world, n int, policy testlb.Policy, networks ...string) *balanced {
	b := &balanced{world: w, fronts: map[string][]netip.AddrPort{}, behind: map[netip.AddrPort]*testlb.Balancer{}, sites: map[string][]*site{}}
	for i, network := range networks {
		for k := range n {
			w.add(network, fmt.Sprint("gw-", k+1)).Identity = workload("gateway") // as a rule all networks' gateways show the same
		}
		at := netip.AddrPortFrom(netip.AddrFrom4([4]byte{10, 9, byte(i), 1}), 15008)
		b.fronts[network] = []netip.AddrPort{at}
		b.behind[at] = &testlb.Balancer{Policy: policy}
	}
	b.relays = w.relays()
	for _, network := range networks {
		for _, g := range w.all() {
			if g.Network == network {
				b.begin(g)
			}
		}
		b.give(network)
	}
	return b
}

// begin starts a process of g.
func (b *balanced) begin(g *mesh.Gateway) *site {
	s := b.world.start(g, b.relays[g], func(c *Config) {
		c.Peers = func() []*mesh.Gateway {
			return slices.DeleteFunc(b.all(), func(o *mesh.Gateway) bool {
				return o.Network != g.Network || o.Name == g.Name
			})
		}
		c.Doors = func() (out []Door) {
			b.mu.Lock()
			defer b.mu.Unlock()
			for network, at := range b.fronts {
				if network != g.Network {
					out = append(out, Door{Network: network, Identity: workload("gateway"), Addresses: at, Dialled: true})
				}
			}
			return out
		}
		c.dial = b.dialFront
	})
	b.sites[g.Network] = append(b.sites[g.Network], s)
	return s
}

func (b *balanced) dialFront(ctx context.Context, address string) (net.Conn, error) {
	b.mu.Lock()
	lb := b.behind[netip.MustParseAddrPort(address)]
	b.mu.Unlock()
	if lb != nil {
		backend, ended, err := lb.Pick(netip.AddrFrom4([4]byte{10, 0, 0, 1}))
		if err != nil {
			return nil, err
		}
		ended()
		address = backend
	} else if strings.HasPrefix(address, "10.9.") {
		return nil, &net.OpError{Op: "dial", Err: fmt.Errorf("nobody is at %s", address)}
	}
	return b.dial(ctx, address)
}

// give has the balancers of network lead to all of its gateways that run.
func (b *balanced) give(network string) {
	var to []string
	for _, s := range b.sites[network] {
		to = append(to, s.relay.listener.Addr().String())
	}
	for _, at := range b.fronts[network] {
		b.behind[at].Set(to...)
	}
}

func (b *balanced) everybody() (out []*site) {
	for _, list := range b.sites {
		out = append(out, list...)
	}
	return out
}

// all believe each other.
func (b *balanced) agree(t *testing.T) time.Duration {
	t.Helper()
	list := b.everybody()
	return eventually(t, "everybody believes everybody", func() bool {
		return all(list, func(s *site) bool {
			return all(list, func(o *site) bool { return s.status(o.federation.Instance()).Phase == ledger.Live })
		})
	})
}

// edge is how long a word of s takes to be known to all.
func (b *balanced) edge(t *testing.T, s *site, healthy uint32) time.Duration {
	t.Helper()
	for _, o := range b.sites[s.Network] { // the best counts
		o.publish(healthy)
	}
	return eventually(t, "an edge is everywhere", func() bool {
		return all(b.everybody(), func(o *site) bool { return o.believes(s.Network, healthy) })
	})
}

func (b *balanced) end(s *site) {
	b.sites[s.Network] = slices.DeleteFunc(b.sites[s.Network], func(o *site) bool { return o == s })
	b.give(s.Network)
}

func dialsOf(list []*site, result string) (n int) {
	for _, s := range list {
		n += int(testutil.ToFloat64(s.metrics.Joins.WithLabelValues(result)))
	}
	return n
}

// Other networks' gateways are behind one address each: whoever answers receives and
// passes on, whoever is killed or comes anew is heard of, and nobody dials without end.
func TestNetworksBehindOneAddressEachHearEveryInstance(t *testing.T) {
	simulated(t, func(t *testing.T, w *world) {
		b := newBalanced(w, 3, testlb.RoundRobin, "east", "west")
		t.Logf("all believe each other after %v", b.agree(t))
		for _, s := range b.everybody() {
			<-s.federation.Synced()
		}
		eventuallyMembers(t, b.everybody())
		for i := range uint32(5) {
			if took := b.edge(t, b.sites["west"][0], i); took > 200*time.Millisecond {
				t.Errorf("an edge took %v", took)
			}
			time.Sleep(700 * time.Millisecond)
		}
		lost := b.sites["west"][1]
		lost.kill()
		b.end(lost)
		time.Sleep(10 * time.Second)
		if took := b.edge(t, b.sites["west"][0], 9); took > 200*time.Millisecond {
			t.Errorf("an edge took %v after one gateway was killed", took)
		}
		// Each of the others is replaced in turn.
		for _, old := range slices.Clone(b.sites["west"]) {
			name := "new-" + old.Name
			r := w.newRelay("127.0.0.1")
			g := w.add("west", name, func(g *mesh.Gateway) {
				g.Identity, g.Federation = workload("gateway"), netip.MustParseAddrPort(r.listener.Addr().String())
			})
			b.relays[g] = r
			b.begin(g)
			b.give("west")
			b.agree(t)
			old.stop()
			b.end(old)
			time.Sleep(3 * time.Second)
		}
		b.agree(t)
		led := func() (n int) { // those that have led to somebody: the dead are listed still
			return dialsOf(b.everybody(), "ok") + dialsOf(b.everybody(), "twice")
		}
		before := led()
		time.Sleep(10 * time.Minute)
		t.Logf("%d dials until everybody was replaced, %d in ten minutes at rest", before, led()-before)
		if n := led() - before; n > 2*len(b.everybody())*11 {
			t.Errorf("%d dials in ten minutes at rest; want one a minute for each door at most", n)
		}
	})
}

// A door that moves is followed.
func TestAnAddressThatMovesIsFollowed(t *testing.T) {
	simulated(t, func(t *testing.T, w *world) {
		b := newBalanced(w, 2, testlb.RoundRobin, "east", "west")
		b.agree(t)
		for i := range 5 {
			fresh := netip.AddrPortFrom(netip.AddrFrom4([4]byte{10, 9, 1, byte(10 + i)}), 15008)
			b.mu.Lock()
			old := b.fronts["west"][0]
			b.behind[fresh] = b.behind[old]
			delete(b.behind, old)
			b.fronts["west"] = []netip.AddrPort{fresh}
			b.mu.Unlock()
			for _, s := range b.sites["west"] { // nothing that is open outlives it
				s.federation.transport.mu.Lock()
				for c := range s.federation.transport.conns() {
					if !c.local {
						c.end(nil, true)
					}
				}
				s.federation.transport.mu.Unlock()
			}
			if took := b.edge(t, b.sites["west"][0], uint32(i)); took > 2*time.Second {
				t.Errorf("a word took %v after the address had moved", took)
			}
			time.Sleep(3 * time.Second)
			b.agree(t)
		}
	})
}

// A door leads to nobody but those whom a key of its network certifies, and who show
// that network's identity.
func TestADoorAdmitsItsOwnNetworkAlone(t *testing.T) {
	simulated(t, func(t *testing.T, w *world) {
		b := newBalanced(w, 1, testlb.RoundRobin, "east", "west", "north")
		b.agree(t)
		// The way to west leads to north.
		b.mu.Lock()
		b.behind[b.fronts["west"][0]].Set(b.sites["north"][0].relay.listener.Addr().String())
		b.mu.Unlock()
		lost := b.sites["west"][0]
		lost.kill()
		east := b.sites["east"][0]
		time.Sleep(20 * time.Second)
		if east.status(lost.federation.Instance()).Phase == ledger.Live {
			t.Error("west lives for east, and is dead")
		}
		if dialsOf([]*site{east}, "failed") == 0 {
			t.Error("nothing was tried")
		}
		if rejected(east.metrics, "identity") == 0 {
			t.Error("nobody was refused for another identity")
		}
	})
}
