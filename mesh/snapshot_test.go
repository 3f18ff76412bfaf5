package mesh

import (
	"net/netip"
	"slices"
	"sync"
	"testing"
)

func addr(s string) netip.Addr { return netip.MustParseAddr(s) }

// pair is a mesh of two networks that both use 10.0.0.1.
func pair() *Snapshot {
	workload := func(uid, network, address string, s State) *Workload {
		return &Workload{UID: uid, Network: network, Addresses: []netip.Addr{addr(address)}, State: s, Endpoint: EndpointIDOf(network, uid)}
	}
	return NewSnapshot(4, Parts{
		Workloads: []*Workload{
			workload("w1", "west", "10.0.0.1", Ready), workload("w2", "west", "10.0.0.2", NotReady),
			workload("e1", "east", "10.0.0.1", Ready), workload("x", "east", "10.0.0.9", Ready),
		},
		Services: []*Service{
			{Hostname: "web.shop.svc.cluster.local", Aliases: []string{"Web.shop.mesh.internal"}, VIPs: []netip.Addr{addr("240.240.0.1")}, Ports: []Port{{Name: "http", Service: 80, Target: 8080}, {Service: 90, Target: 90}}},
			{Hostname: "empty.shop.svc.cluster.local"},
		},
		Gateways: []*Gateway{{Name: "b", Network: "west"}, {Name: "a", Network: "west"}, {Name: "c", Network: "east"}},
		Members:  map[string][]string{"web.shop.svc.cluster.local": {"w1", "w2", "e1", "gone"}},
	})
}

func uids(ws []*Workload) (out []string) {
	for _, w := range ws {
		out = append(out, w.UID)
	}
	return out
}

func TestSameAddressOnTwoNetworksIsTwoWorkloads(t *testing.T) {
	s := pair()
	for network, want := range map[string]string{"west": "w1", "east": "e1"} {
		if got := s.WorkloadAt(network, addr("10.0.0.1")); got == nil || got.UID != want {
			t.Errorf("10.0.0.1 on %s = %v, want %s", network, got, want)
		}
	}
	if got := s.WorkloadAt("west", addr("::ffff:10.0.0.2")); got == nil || got.UID != "w2" {
		t.Errorf("an IPv4 address written as IPv6 was not found: %v", got)
	}
	if got := s.WorkloadAt("north", addr("10.0.0.1")); got != nil {
		t.Errorf("found %s on a network that is not there", got.UID)
	}
}

func TestServiceAnswersToEveryNameInAnyCase(t *testing.T) {
	s := pair()
	svc := s.Service("web.shop.svc.cluster.local")
	for _, name := range []string{"WEB.shop.svc.CLUSTER.local", "web.shop.mesh.internal", "Web.Shop.mesh.internal"} {
		if s.Service(name) != svc || svc == nil {
			t.Errorf("Service(%q) is not the service", name)
		}
	}
	if s.ServiceAt(addr("240.240.0.1")) != svc || s.ServiceAt(addr("::ffff:240.240.0.1")) != svc {
		t.Error("the service is not found by its virtual address")
	}
	if s.Service("web") != nil || s.ServiceAt(addr("240.240.0.2")) != nil {
		t.Error("found a service that is not there")
	}
}

func TestMembersAreKeptPerNetworkWhateverTheirState(t *testing.T) {
	s := pair()
	svc := s.Service("web.shop.svc.cluster.local")
	if got := uids(s.Members(svc, "west")); !slices.Equal(got, []string{"w1", "w2"}) {
		t.Errorf("members on west = %v, want w1 and w2", got)
	}
	if got := s.Networks(svc); !slices.Equal(got, []string{"east", "west"}) {
		t.Errorf("networks = %v, want east and west", got)
	}
	empty := s.Service("empty.shop.svc.cluster.local")
	if len(s.Networks(empty)) != 0 || len(s.Members(empty, "west")) != 0 {
		t.Error("a service without members has some")
	}
	if got := s.ServicesOf("e1"); len(got) != 1 || got[0] != svc {
		t.Errorf("services of e1 = %v", got)
	}
	if got := s.ServicesOf("gone"); got != nil {
		t.Errorf("services of an unknown workload = %v", got)
	}
}

func TestLookupsByUIDEndpointAndPort(t *testing.T) {
	s := pair()
	w := s.Workload("e1")
	if w == nil || s.WorkloadByEndpoint(w.Endpoint) != w || s.Workload("gone") != nil || s.WorkloadByEndpoint(1) != nil {
		t.Error("workloads are not found by UID and endpoint alone")
	}
	svc := s.Service("web.shop.svc.cluster.local")
	if p, ok := svc.Port(80); !ok || p.Target != 8080 {
		t.Errorf("Port(80) = %v, %t", p, ok)
	}
	if _, ok := svc.Port(8080); ok {
		t.Error("a target port was taken for a service port")
	}
}

func TestGatewaysAreListedByName(t *testing.T) {
	s := pair()
	var names []string
	for _, g := range s.Gateways("west") {
		names = append(names, g.Name)
	}
	if !slices.Equal(names, []string{"a", "b"}) {
		t.Errorf("gateways of west = %v, want a then b", names)
	}
	if got := s.GatewayNetworks(); !slices.Equal(got, []string{"east", "west"}) {
		t.Errorf("networks with gateways = %v", got)
	}
}

func TestZeroSnapshotIsAnEmptyMesh(t *testing.T) {
	var s Snapshot
	if s.Workload("a") != nil || s.WorkloadAt("west", addr("10.0.0.1")) != nil || s.WorkloadByEndpoint(1) != nil || s.Service("a") != nil ||
		s.ServiceAt(addr("10.0.0.1")) != nil || s.Gateways("west") != nil || len(s.GatewayNetworks()) != 0 || s.ServicesOf("a") != nil || s.Members(nil, "west") != nil {
		t.Error("the zero Snapshot holds something")
	}
}

func TestSnapshotIsSafeForManyReaders(t *testing.T) { // meaningful with -race
	s := pair()
	var wg sync.WaitGroup
	for range 4 {
		wg.Go(func() {
			for range 100 {
				s.Members(s.Service("web.shop.svc.cluster.local"), "west")
				s.GatewayNetworks()
				s.WorkloadAt("east", addr("10.0.0.9"))
			}
		})
	}
	wg.Wait()
}

func TestStateNames(t *testing.T) {
	for s, want := range map[State]string{Ready: "ready", NotReady: "notReady", Terminating: "terminating", 9: "state(9)"} {
		if got := s.String(); got != want {
			t.Errorf("State(%d) = %q, want %q", uint8(s), got, want)
		}
	}
}
