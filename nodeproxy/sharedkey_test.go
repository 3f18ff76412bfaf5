package nodeproxy

import (
	"net/netip"
	"testing"

	"github.com/isthmus-mesh/isthmus/discovery"
	"github.com/isthmus-mesh/isthmus/route"
)

// Whatever name a destination is asked for by, it is one; what has no way is none.
func TestNamesOfOneDestinationShareABound(t *testing.T) {
	c := discovery.DefaultConfig()
	c.Networks = []discovery.Network{{Name: "west"}}
	c.Services = []discovery.Service{{Name: "hello", Ports: []discovery.ServicePort{{Name: "a", Port: 80, TargetPort: 8080}}}}
	c.Workloads = []discovery.Workload{{UID: "y", Network: "west", Node: "west-1", Services: []string{"hello.default.svc.cluster.local"}, Addresses: []netip.Addr{netip.MustParseAddr("10.1.0.2")}}}
	with, problems := discovery.Build(1, c)
	if problems != nil {
		t.Fatal(problems)
	}
	pod := netip.MustParseAddr("10.1.0.2")
	for _, x := range []struct {
		flow route.Flow
		want string
	}{
		{route.Flow{Host: "hello.default.svc.cluster.local", Port: 80}, "hello.default.svc.cluster.local:80"},
		{route.Flow{Host: "HELLO.default.svc.cluster.LOCAL", Port: 80}, "hello.default.svc.cluster.local:80"},
		{route.Flow{Host: "hello.default.svc.cluster.local", Port: 81}, ""},
		{route.Flow{Host: "no-such.default.svc.cluster.local", Port: 80}, ""},
		{route.Flow{Addr: netip.AddrPortFrom(pod, 8080)}, "y"},
		{route.Flow{Addr: netip.AddrPortFrom(pod, 9999)}, "y"},
	} {
		if got := keyOf(with, "y", x.flow); got != x.want {
			t.Errorf("%+v shares %q; want %q", x.flow, got, x.want)
		}
	}
	if got := keyOf(with, "gone", route.Flow{Host: "hello.default.svc.cluster.local", Port: 80}); got != "" {
		t.Errorf("a workload that is not listed shares %q", got)
	}
}
