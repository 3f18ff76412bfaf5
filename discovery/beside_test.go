package discovery

import (
	"fmt"
	"net/netip"
	"testing"

	"github.com/isthmus-mesh/isthmus/mesh"
)

// Of two imports that claim one address, each beside a Service of its own name, the first in the order of
// records has it, whichever came first.
func TestAddressOfTwoImportsBesideServicesIsTheFirstOnes(t *testing.T) {
	vip := netip.MustParseAddr("240.240.0.1")
	var changes []Change
	for _, name := range []string{"a", "b"} {
		changes = append(changes,
			Change{Key: Key{Kind: KindService, Source: Cluster, Name: "default/" + name}, Record: Service{Name: name, Ports: []ServicePort{{Port: 80}}}},
			Change{Key: Key{Kind: KindService, Source: Told, Name: "default/" + name}, Record: Service{Name: name, VIPs: []netip.Addr{vip}, Ports: []ServicePort{{Port: 80}}}})
	}
	for _, order := range [][]int{{0, 1, 2, 3}, {3, 2, 1, 0}, {1, 3, 0, 2}, {2, 0, 3, 1}} {
		b := NewBuilder(0)
		for _, i := range order {
			c := changes[i]
			b.Apply(c)
			b.Commit()
		}
		s := b.current
		if svc := s.ServiceAt(vip); svc == nil || svc.Name != "a" {
			t.Errorf("%s leads to %+v, want a", vip, svc)
		}
		if x := s.Named("b.default.svc.cluster.local").Import; x.HasVIP(vip) {
			t.Error("b has the address too")
		}
		b.Apply(Change{Key: changes[1].Key})
		if s, _, _ = b.Commit(); s.ServiceAt(vip) == nil || s.ServiceAt(vip).Name != "b" {
			t.Errorf("%s leads to %+v when the import a is gone, want b", vip, s.ServiceAt(vip))
		}
	}
}

// A hostname that the file gives to one service as an alias is that one's, whatever the cluster calls so,
// and the cluster's service comes back when the alias goes.
func TestAliasInTheFileGoesBeforeTheClustersHostname(t *testing.T) {
	const name = "web.shop.svc.cluster.local"
	clusters := Change{Key: Key{Kind: KindService, Source: Cluster, Name: "shop/web"}, Record: Service{Name: "web", Namespace: "shop", VIPs: []netip.Addr{netip.MustParseAddr("10.96.0.1")}, Ports: []ServicePort{{Port: 80}}}}
	own := Change{Key: Key{Kind: KindService, Name: "shop/new"}, Record: Service{Name: "new", Namespace: "shop", Aliases: []string{name}, Ports: []ServicePort{{Port: 80}}}}
	pod := func(i int) Change {
		return Change{Key: Key{Kind: KindWorkload, Source: Cluster, Name: fmt.Sprint("w", i)}, Record: Workload{UID: fmt.Sprint("w", i), Network: "east", Addresses: []netip.Addr{netip.AddrFrom4([4]byte{10, 0, 0, byte(i)})}, Services: []string{name}}}
	}
	east := Change{Key: Key{Kind: KindNetwork, Name: "east"}, Record: Network{Name: "east"}}
	for _, order := range [][]Change{{east, clusters, pod(1), own}, {own, pod(1), clusters, east}, {pod(1), east, own, clusters}} {
		b := NewBuilder(0)
		for _, c := range order {
			b.Apply(c)
			b.Commit()
		}
		if svc := b.current.Service(name); svc == nil || svc.Name != "new" || len(b.current.Members(svc, "east")) != 1 {
			t.Errorf("%s leads to %+v, want new with its pod", name, svc)
		}
		b.Apply(Change{Key: own.Key})
		s, _, _ := b.Commit()
		if svc := s.Service(name); svc == nil || svc.Name != "web" || len(s.Members(svc, "east")) != 1 || s.ServiceAt(netip.MustParseAddr("10.96.0.1")) != svc {
			t.Errorf("%s leads to %+v without the alias, want web with its pod and its address", name, svc)
		}
	}
}

// A Service of the cluster that the file lists too is the file's in all that the file can say. It is at home and as
// old as in the cluster all the same, and so exported without pods, whichever record came first and while both are there.
func TestServiceOfFileAndClusterStaysExported(t *testing.T) {
	const host = "web.demo.svc.cluster.local"
	network := Change{Key: Key{Kind: KindNetwork, Source: Cluster, Name: "west"}, Record: Network{Name: "west"}}
	object := Change{Key: Key{Kind: KindService, Source: Cluster, Name: "demo/web"}, Record: Service{Name: "web", Namespace: "demo", Home: true, Created: 5, Ports: []ServicePort{{Port: 80, TargetPort: 8080}}}}
	listed := Change{Key: Key{Kind: KindService, Name: "demo/web"}, Record: Service{Name: "web", Namespace: "demo", Scope: "global", TrafficDistribution: "PreferRegion", Ports: []ServicePort{{Port: 81}}}}
	for _, order := range [][]Change{{network, object, listed}, {listed, network, object}} {
		b := NewBuilder(0)
		for _, c := range order {
			b.Apply(c)
			b.Commit()
		}
		if svc := b.current.Named(host); !mesh.Exports(svc, nil) || svc.Created != 5 || svc.Distribution != mesh.PreferRegion || svc.Ports[0].Service != 81 {
			t.Errorf("exported without pods: %t; %+v", mesh.Exports(svc, nil), svc)
		}
		older := object.Record.(Service)
		older.Created = 3
		b.Apply(Change{Key: object.Key, Record: older})
		if s, _, _ := b.Commit(); s.Named(host).Created != 3 {
			t.Errorf("created %d, want that of the new object", s.Named(host).Created)
		}
		b.Apply(Change{Key: object.Key})
		if s, _, _ := b.Commit(); s.Named(host) == nil || mesh.Exports(s.Named(host), nil) {
			t.Errorf("%+v; want it exported by its pods alone when the cluster has no such Service", s.Named(host))
		}
	}
}
