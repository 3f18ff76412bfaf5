package gateway

import (
	"fmt"
	"math/rand/v2"
	"net/netip"
	"testing"

	"github.com/isthmus-mesh/isthmus/discovery"
	"github.com/isthmus-mesh/isthmus/mesh"
)

// Pods come, go and take over addresses at random: a tunnel ends as soon as its pod's
// address is another's, not before, once, and nothing is kept of those that are over.
func TestTunnelsEndWhenTheirAddressIsAnothers(t *testing.T) {
	for seed := range uint64(50) {
		rng := rand.New(rand.NewPCG(seed, 0))
		const addresses = 4
		var owners [addresses]int // the pod at each, 0: none
		build := func() *mesh.Snapshot {
			c := discovery.Config{TrustDomain: "cluster.local", Networks: []discovery.Network{{Name: "west"}}}
			for i, pod := range owners {
				if pod > 0 {
					c.Workloads = append(c.Workloads, discovery.Workload{UID: fmt.Sprint("pod-", pod), ServiceAccount: "a", Network: "west", Node: "n",
						Addresses: []netip.Addr{netip.AddrFrom4([4]byte{10, 0, 0, byte(i + 1)})}})
				}
			}
			s, problems := discovery.Build(0, c)
			if len(problems) > 0 {
				t.Fatal(problems)
			}
			return s
		}
		snap := build()
		type open struct {
			at, pod, ends int
			anothers      bool
			closed        func() bool
		}
		var all tunnels
		var live []*open
		for next := 1; next < 300; next++ {
			at := rng.IntN(addresses)
			switch rng.IntN(3) {
			case 0: // another pod, or none
				old := owners[at]
				if owners[at] = next; rng.IntN(3) == 0 {
					owners[at] = 0
				}
				snap = build()
				changes := discovery.Everything()
				if rng.IntN(2) == 0 {
					changes = discovery.Changes{Workloads: map[string]struct{}{fmt.Sprint("pod-", old): {}, fmt.Sprint("pod-", owners[at]): {}}}
				}
				all.revised("west", snap, changes)
			case 1:
				if w := snap.Workload(fmt.Sprint("pod-", owners[at])); w != nil {
					o := &open{at: at, pod: owners[at]}
					o.closed = all.open(w, func() *mesh.Snapshot { return snap }, func() { o.ends++ })
					live = append(live, o)
				}
			case 2:
				if len(live) > 0 {
					o := live[0]
					if live = live[1:]; o.closed() != (o.ends > 0) {
						t.Fatalf("seed %d: ended %d times, and told otherwise", seed, o.ends)
					}
				}
			}
			for _, o := range live {
				o.anothers = o.anothers || owners[o.at] != 0 && owners[o.at] != o.pod
				if o.ends > 1 || o.anothers != (o.ends == 1) {
					t.Fatalf("seed %d: tunnel to pod %d at address %d, which is pod %d's, ended %d times", seed, o.pod, o.at, owners[o.at], o.ends)
				}
			}
		}
		for _, o := range live {
			o.closed()
		}
		if len(all.at) != 0 {
			t.Fatalf("seed %d: %d addresses are kept, and no tunnel is open", seed, len(all.at))
		}
	}
}
