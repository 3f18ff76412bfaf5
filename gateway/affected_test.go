package gateway

import (
	"net/netip"
	"slices"
	"testing"

	"github.com/isthmus-mesh/isthmus/discovery"
	"github.com/isthmus-mesh/isthmus/mesh"
)

// Ejections are published again for pods that a change names, by themselves or by a service.
func TestAffectedEndpointsAreThoseNamed(t *testing.T) {
	c := discovery.DefaultConfig()
	c.Networks = []discovery.Network{{Name: "west"}}
	host := func(name string) string { return name + ".default.svc.cluster.local" }
	for _, s := range []string{"a", "b"} {
		c.Services = append(c.Services, discovery.Service{Name: s, Ports: []discovery.ServicePort{{Port: 80}}})
	}
	members := map[string][]string{"one": {host("a")}, "both": {host("a"), host("b")}, "none": nil}
	for uid, services := range members {
		c.Workloads = append(c.Workloads, discovery.Workload{UID: uid, Network: "west", Node: "n", Services: services, Addresses: []netip.Addr{netip.AddrFrom4([4]byte{10, 1, 0, byte(len(c.Workloads))})}})
	}
	snap, problems := discovery.Build(1, c)
	if problems != nil {
		t.Fatal(problems)
	}
	named := func(names ...string) map[string]struct{} {
		out := map[string]struct{}{}
		for _, n := range names {
			out[n] = struct{}{}
		}
		return out
	}
	for what, x := range map[string]struct {
		changes discovery.Changes
		want    []string
	}{
		"nothing":               {discovery.Changes{Policies: true}, nil},
		"everything":            {discovery.Everything(), []string{"both", "none", "one"}},
		"a pod":                 {discovery.Changes{Workloads: named("none", "another")}, []string{"none"}},
		"a service of two pods": {discovery.Changes{Services: named(host("a"))}, []string{"both", "one"}},
		"a service of one pod":  {discovery.Changes{Services: named(host("b"), host("c"))}, []string{"both"}},
	} {
		affected := new(Gateway).affected(snap, x.changes)
		var got []string
		for uid := range members {
			if affected(snap.Workload(uid).Endpoint) {
				got = append(got, uid)
			}
		}
		if slices.Sort(got); !slices.Equal(got, x.want) {
			t.Errorf("%s changed: affects %v; want %v", what, got, x.want)
		}
		if gone := mesh.EndpointIDOf("west", "gone"); affected(gone) != x.changes.All {
			t.Errorf("%s changed: a pod that is not listed is affected: %t", what, affected(gone))
		}
	}
}
