package imported

import (
	"fmt"
	"net/netip"
	"strings"
	"testing"

	"github.com/isthmus-mesh/isthmus/controller/imports"
	"github.com/isthmus-mesh/isthmus/controller/vip"
	"github.com/isthmus-mesh/isthmus/discovery"
	"github.com/isthmus-mesh/isthmus/mesh"
)

func web(ips ...string) imports.Import {
	i := imports.Import{Name: vip.Name{Namespace: "demo", Name: "web"}, Ports: []imports.Port{{Name: "http", Protocol: "TCP", Port: 80}}, Clusters: []string{"east"}}
	for _, a := range ips {
		i.IPs = append(i.IPs, netip.MustParseAddr(a))
	}
	return i
}

func TestAnImportLeadsToItsServiceByAddressAndNames(t *testing.T) {
	s := &Source{told: map[discovery.Key]discovery.Service{}}
	b := discovery.NewBuilder(0)
	var snap *mesh.Snapshot
	apply := func(list ...imports.Import) int {
		changes := s.compare(list)
		b.Apply(changes...)
		snap, _, _ = b.Commit()
		return len(changes)
	}
	vips := []string{"240.240.1.2", "2001:2::102"}
	if n := apply(web(vips...)); n != 1 {
		t.Fatalf("%d changes; want 1", n)
	}
	for _, a := range vips {
		if svc := snap.ServiceAt(netip.MustParseAddr(a)); svc == nil || svc.Hostname != "web.demo.svc.cluster.local" || !svc.Everywhere(svc.Hostname) {
			t.Errorf("at %s there is %v", a, svc)
		}
	}
	for _, host := range []string{"web.demo.mesh.internal", "web.demo.svc.clusterset.local", "web.demo.svc.cluster.local"} {
		if svc := snap.Service(host); svc == nil || svc.Name != "web" {
			t.Errorf("%s is %v", host, svc)
		}
	}
	if n := apply(web(vips...)); n != 0 {
		t.Errorf("%d changes of nothing", n)
	}

	// A Service of the cluster has its name; the import is no problem.
	b.Apply(discovery.Change{Key: discovery.Key{Kind: discovery.KindService, Source: discovery.Cluster, Name: "demo/web"},
		Record: discovery.Service{Name: "web", Namespace: "demo", VIPs: []netip.Addr{netip.MustParseAddr("10.96.0.7")}, Ports: []discovery.ServicePort{{Port: 80}}}})
	snap, _, _ = b.Commit()
	if svc := snap.Service("web.demo.svc.cluster.local"); svc == nil || fmt.Sprint(svc.VIPs) != "[10.96.0.7]" || svc.Exported() {
		t.Errorf("beside a Service of the cluster there is %v", svc)
	}
	for _, p := range b.Problems() {
		if strings.Contains(p.Error(), "web") {
			t.Errorf("problem: %v", p)
		}
	}

	if apply(); snap.ServiceAt(netip.MustParseAddr(vips[0])) != nil {
		t.Error("an import that is gone has an address")
	}
	if n := apply(web()); n != 0 {
		t.Errorf("%d changes by an import without an address", n)
	}
}
