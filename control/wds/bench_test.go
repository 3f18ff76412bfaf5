package wds

import (
	"fmt"
	"net/netip"
	"testing"

	"github.com/isthmus-mesh/isthmus/discovery"
)

// large is a gateway of 50 000 pods in 5 000 services, each of which network b has too.
func large() (*server, func(i int, node string) discovery.Change) {
	key := func(kind discovery.Kind, name string) discovery.Key {
		return discovery.Key{Kind: kind, Source: discovery.Cluster, Name: name}
	}
	pod := func(i int, node string) discovery.Change {
		w := discovery.Workload{UID: fmt.Sprintf("pod-%d", i), Name: fmt.Sprintf("web-%d", i), Namespace: "n0", Network: own, Node: node, Cluster: "cluster-a", Addresses: []netip.Addr{netip.AddrFrom4([4]byte{10, byte(i >> 16), byte(i >> 8), byte(i)})}, Services: []string{fmt.Sprintf("s%d.n0.svc.cluster.local", i/10)}}
		return discovery.Change{Key: key(discovery.KindWorkload, w.UID), Record: w}
	}
	changes := []discovery.Change{{Key: key(discovery.KindNetwork, "b"), Record: discovery.Network{Name: "b"}}}
	for i := range 5000 {
		name := fmt.Sprintf("s%d", i)
		changes = append(changes,
			discovery.Change{Key: key(discovery.KindService, name), Record: discovery.Service{Name: name, Namespace: "n0", Global: true, VIPs: []netip.Addr{netip.AddrFrom4([4]byte{240, 0, byte(i >> 8), byte(i)})}, Ports: []discovery.ServicePort{{Port: 80}}}},
			discovery.Change{Key: key(discovery.KindShare, name), Record: discovery.Share{Network: "b", Name: name, Namespace: "n0", Ports: []discovery.SharePort{{Port: 80}}, Identities: []string{"spiffe://cluster.local/ns/n0/sa/web"}}})
	}
	for i := range 50_000 {
		changes = append(changes, pod(i, fmt.Sprintf("n%d", i%500)))
	}
	return newServer(changes...), pod
}

func BenchmarkUpdateOfOnePod(b *testing.B) {
	s, pod := large()
	next := 0
	for b.Loop() {
		b.StopTimer()
		next++
		s.builder.Apply(pod(next%50_000, fmt.Sprintf("n%d", 500+next)))
		snap, changes, _ := s.builder.Commit()
		b.StartTimer()
		if out := s.encoder.Update(snap, changes); out.Whole || len(out.Put) != 1 {
			b.Fatalf("%d resources", len(out.Put))
		}
	}
}

func BenchmarkWhole(b *testing.B) {
	s, _ := large()
	for b.Loop() {
		s.encoder.Update(s.snap, discovery.Everything())
	}
}
