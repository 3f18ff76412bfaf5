package excerpt

import (
	"fmt"
	"net/netip"
	"testing"
	"time"

	"github.com/isthmus-mesh/isthmus/discovery"
)

// A pod of many Services, each with a target name of its own, is known to its node and to node proxies that follow
// one of its Services. These get the named port of that Service alone.
func TestPodOfManyServicesIsKnown(t *testing.T) {
	for _, n := range []int{10, 1025, maxMembers + 10} {
		host := func(i int) string { return fmt.Sprintf("s-%d.demo.svc.cluster.local", i) }
		pod := discovery.Workload{UID: "p", Namespace: "demo", Network: modelNetwork, Node: modelNode, Addresses: []netip.Addr{netip.MustParseAddr("10.1.0.1")}}
		changes := []discovery.Change{{Key: discovery.Key{Kind: discovery.KindNetwork, Name: modelNetwork}, Record: discovery.Network{Name: modelNetwork}}}
		for i := range n {
			name := fmt.Sprintf("demo/s-%d:http", i)
			pod.Services, pod.Ports = append(pod.Services, host(i)), append(pod.Ports, discovery.NamedPort{Name: name, Port: uint16(8000 + i)})
			changes = append(changes, discovery.Change{Key: discovery.Key{Kind: discovery.KindService, Name: host(i)}, Record: discovery.Service{Name: fmt.Sprintf("s-%d", i), Namespace: "demo", Ports: []discovery.ServicePort{{Name: "http", Port: 80, TargetName: name}}}})
		}
		b := discovery.NewBuilder(0)
		b.Apply(append(changes, discovery.Change{Key: discovery.Key{Kind: discovery.KindWorkload, Name: "p"}, Record: pod})...)
		truth, _, _ := b.Commit()
		last := n - 1
		for _, node := range []string{modelNode, "other"} {
			v, held := newView(), NewHeld(modelNetwork, node, "cluster.local")
			held.Lead("gw-1")
			ports := 0
			for _, m := range NewIndex(modelNetwork, truth).Add(node, []string{host(last)}, func() {}).Take() {
				for _, w := range m.GetWorkloads() {
					ports += len(w.GetPorts())
				}
				c, _, err := held.Take(m, func(string) bool { return true }, time.Now())
				if err != nil {
					t.Fatalf("%d services, node %s: %v", n, node, err)
				}
				v.apply(c...)
			}
			want := min(n, maxMembers)
			if node != modelNode {
				want = 1
			}
			svc := truth.Named(host(last))
			if _, known := held.pods["p"]; !known || ports != want {
				t.Errorf("%d services, node %s: pod known: %t, with %d named ports; want %d", n, node, known, ports, want)
			}
			if s := v.snap.Named(host(last)); s == nil || fmt.Sprint(members(v.snap, s)) != fmt.Sprint(members(truth, svc)) {
				t.Errorf("%d services, node %s: members of %s are not those of the cluster, %v", n, node, host(last), members(truth, svc))
			}
		}
	}
}
