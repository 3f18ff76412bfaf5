package nodeproxy

import (
	"fmt"
	"net/netip"
	"testing"

	"github.com/spiffe/go-spiffe/v2/spiffeid"

	"github.com/isthmus-mesh/isthmus/discovery"
	"github.com/isthmus-mesh/isthmus/mesh"
	"github.com/isthmus-mesh/isthmus/policy"
)

// BenchmarkAsk is what policies cost a new connection, of 8 clients in turn.
func BenchmarkAsk(b *testing.B) {
	for _, policies := range []int{0, 2, 2000} {
		b.Run(fmt.Sprint(policies), func(b *testing.B) {
			pod := &mesh.Workload{UID: "pod", Namespace: "demo", Network: "east", Addresses: []netip.Addr{netip.MustParseAddr("10.0.0.1")}, Capacity: 1}
			var list []policy.Object
			for i := range policies {
				list = append(list, &policy.Authorization{Metadata: policy.Metadata{Namespace: "demo", Called: fmt.Sprint(i)}, Rules: []policy.Rule{{policy.Clause{policy.Match{Principals: policy.Field[policy.Text]{Is: []policy.Text{policy.TextOf(fmt.Sprintf("cluster.local/ns/demo/sa/client-%d", policies-1-i))}}}}}}})
			}
			store := &discovery.Store{}
			store.Swap(mesh.NewSnapshot(1, mesh.Parts{Workloads: []*mesh.Workload{pod}}))
			edit := store.Current().Edit()
			edit.SetPolicies(policy.NewSet("root", list))
			store.Swap(edit.Snapshot(2))
			s := newPermits("pod", store)
			var peers []madePeer
			for i := range 8 {
				peers = append(peers, madePeer{spiffeid.RequireFromString(fmt.Sprintf("spiffe://cluster.local/ns/demo/sa/client-%d", i))})
			}
			i := 0
			b.ReportAllocs()
			for b.Loop() {
				if p, _ := s.ask(peers[i%8], pod, madeApp); p != nil {
					p.end()
				}
				i++
			}
		})
	}
}
