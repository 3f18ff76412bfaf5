package discovery

import (
	"fmt"
	"net/netip"
	"reflect"
	"slices"
	"testing"
	"time"

	"github.com/isthmus-mesh/isthmus/mesh"
)

func addrs(list ...string) (out []netip.Addr) {
	for _, a := range list {
		out = append(out, netip.MustParseAddr(a))
	}
	return out
}

func no() *bool { return new(bool) }

// quarantined are objects as Kubernetes shows them every day, with the one problem
// that each is, and whether the object is out or only what stands at the field.
var quarantined = []struct {
	what   string
	record Record
	cause  Cause
	field  string
	out    bool
	rest   func(*mesh.Snapshot) bool // what of the object is in all the same
}{
	{what: "a host-network pod shares its node's address with another", cause: CauseConflict, field: "addresses[0]", out: true,
		record: Workload{UID: "z-host", Network: "network-0", Addresses: addrs("10.0.0.0")}},
	{what: "a finished job whose address a new pod was given", cause: CauseConflict, field: "addresses[0]", out: true,
		record: Workload{UID: "a-job", Network: "network-0", Addresses: addrs("10.0.0.0"), Ready: no()}},
	{what: "one of two addresses is another pod's", cause: CauseConflict, field: "addresses[1]", out: true,
		record: Workload{UID: "z-two", Network: "network-0", Addresses: addrs("10.99.0.1", "10.0.0.0")}},
	{what: "a pod that has no address yet", cause: CauseMissing, field: "addresses", out: true,
		record: Workload{UID: "pending", Network: "network-0", Ready: no()}},
	{what: "a pod of a network that is not listed", cause: CauseReference, field: "network", out: true,
		record: Workload{UID: "lost", Network: "network-99", Addresses: addrs("10.99.0.1")}},
	{what: "a pod of a service that is not listed", cause: CauseReference, field: "services[0]",
		record: Workload{UID: "orphan", Network: "network-0", Addresses: addrs("10.99.0.1"), Services: []string{"nobody.default.svc.cluster.local"}},
		rest:   func(s *mesh.Snapshot) bool { return s.Workload("orphan") != nil }},
	{what: "a pod in a state that is unknown", cause: CauseValue, field: "state",
		record: Workload{UID: "asleep", Network: "network-0", Addresses: addrs("10.99.0.1"), State: "asleep"},
		rest:   func(s *mesh.Snapshot) bool { return s.Workload("asleep").State == mesh.NotReady }},
	{what: "a headless service without ports", cause: CauseMissing, field: "ports",
		record: Service{Name: "headless"}, rest: named("headless", 0)},
	{what: "somebody else's proxy listens on a port of ours", cause: CauseUnsupported, field: "ports[0].targetPort",
		record: Service{Name: "istio-eastwest", Ports: []ServicePort{{Port: 15008}, {Port: 80}}}, rest: named("istio-eastwest", 1)},
	{what: "one port twice", cause: CauseConflict, field: "ports[1].port",
		record: Service{Name: "twice", Ports: []ServicePort{{Name: "a", Port: 53}, {Name: "b", Port: 53}}}, rest: named("twice", 1)},
	{what: "a protocol that is unknown", cause: CauseValue, field: "ports[0].protocol",
		record: Service{Name: "quic", Ports: []ServicePort{{Port: 53, Protocol: "QUIC"}, {Port: 80}}}, rest: named("quic", 1)},
	{what: "a traffic distribution that is unknown", cause: CauseValue, field: "trafficDistribution",
		record: Service{Name: "near", TrafficDistribution: "nearby", Ports: []ServicePort{{Port: 80}}}, rest: named("near", 1)},
	{what: "a scope that is unknown", cause: CauseValue, field: "scope",
		record: Service{Name: "wide", Scope: "planet", Ports: []ServicePort{{Port: 80}}},
		rest: func(s *mesh.Snapshot) bool {
			return s.Named("wide.default.svc.cluster.local").Scope == mesh.ScopeCluster
		}},
	{what: "another service has its hostname", cause: CauseConflict, field: "hostname", out: true,
		record: Service{Name: "usurper", Hostname: "svc-0.ns-0.svc.cluster.local", Ports: []ServicePort{{Port: 80}}}},
	{what: "another service has its virtual address", cause: CauseConflict, field: "vips[0]",
		record: Service{Name: "z-vip", Namespace: "z", VIPs: addrs("240.240.0.0"), Ports: []ServicePort{{Port: 80}}},
		rest:   func(s *mesh.Snapshot) bool { return s.Named("z-vip.z.svc.cluster.local") != nil }},
	{what: "a share since a time that nobody can write", cause: CauseValue, field: "created",
		record: Share{Network: "network-1", Name: "since", Created: time.Date(2026, 11, 22, 10, 0, 0, 0, time.FixedZone("", 24*60*60)), Ports: []SharePort{{Port: 80}}, Identities: []string{"spiffe://cluster.local/ns/default/sa/since"}},
		rest:   named("since", 1)},
	{what: "a gateway without a port", cause: CauseValue, field: "address", out: true,
		record: Gateway{Name: "odd", Network: "network-0", Address: netip.MustParseAddrPort("192.0.2.1:0")}},
	{what: "a network whose segment cannot be: it is of its own", cause: CauseValue, field: "segment",
		record: Network{Name: "two", Segment: "a b"},
		rest: func(s *mesh.Snapshot) bool {
			return s.HasNetwork("two") && !s.Reaches(&mesh.Service{Scope: mesh.ScopeSegment}, "two", "network-0")
		}},
	{what: "a network whose name cannot be", cause: CauseValue, field: "name", out: true, record: Network{Name: "Two"}},
}

// named returns whether the service is in with this many ports.
func named(name string, ports int) func(*mesh.Snapshot) bool {
	return func(s *mesh.Snapshot) bool {
		svc := s.Named(name + ".default.svc.cluster.local")
		return svc != nil && len(svc.Ports) == ports
	}
}

// ordinary are objects that look odd and are not.
var ordinary = map[string]Record{
	"TCP and UDP on one port":                       Service{Name: "dns", Ports: []ServicePort{{Name: "tcp", Port: 53}, {Name: "udp", Port: 53, Protocol: "UDP"}}},
	"a traffic distribution in lower case":          Service{Name: "lower", TrafficDistribution: "preferclose", Ports: []ServicePort{{Port: 80}}},
	"the same address on another network":           Workload{UID: "twin", Network: "network-1", Addresses: addrs("10.0.0.0")},
	"a pod that is not ready, and of no service":    Workload{UID: "starting", Network: "network-0", Addresses: addrs("10.99.0.1"), Ready: no()},
	"a service that nobody is a member of (as yet)": Service{Name: "empty", Ports: []ServicePort{{Port: 80}}},
}

// Beside many good pods an odd object costs itself: they stay what they were,
// one problem is shown, and both are gone with the object. It is the same whether
// the object comes last or with the others.
func TestAnOddObjectIsQuarantinedAlone(t *testing.T) {
	const pods = manyPods
	c := city(pods, pods/10)
	good := c.List().changes()
	fresh := func(changes ...Change) *Builder {
		b := NewBuilder(0)
		b.Apply(changes...)
		b.Commit()
		return b
	}
	late := fresh(good...)
	before := late.current
	if before.NumWorkloads() != pods || len(late.Problems()) != 0 {
		t.Fatalf("%d pods, problems %v; want %d good ones", before.NumWorkloads(), late.Problems(), pods)
	}
	for _, o := range quarantined {
		t.Run(o.what, func(t *testing.T) {
			key := Key{Kind: o.record.kind(), Name: "odd"}
			check := func(when string, b *Builder) {
				t.Helper()
				if w := different(before, b.current); w != "" {
					t.Errorf("%s: %s is not what it was", when, w)
				}
				p := b.Problems()
				if len(p) != 1 || p[0].Object != key || p[0].Cause != o.cause || p[0].Field != o.field || p[0].Out != o.out || p[0].Message == "" {
					t.Errorf("%s: problems %+v; want one, %s at %s", when, p, o.cause, o.field)
				}
				if o.out == (o.rest != nil) {
					t.Fatal("a case that is neither out nor in part")
				}
				if o.rest != nil && !o.rest(b.current) {
					t.Errorf("%s: what is good of it is not in", when)
				}
				if _, in := b.entries[key]; !in || b.entries[key].in == o.out {
					t.Errorf("%s: the object is in: %t", when, b.entries[key].in)
				}
			}
			late.Apply(Change{Key: key, Record: o.record})
			_, set, news := late.Commit()
			check("last", late)
			if len(news.Appeared) != 1 || set.All || o.out != set.Empty() {
				t.Errorf("news %+v, changes %+v; want one problem, and none or the object alone", news, set)
			}
			late.Apply(Change{Key: key})
			if _, _, news := late.Commit(); len(news.Gone) != 1 || len(late.Problems()) != 0 || different(before, late.current) != "" {
				t.Errorf("gone: news %+v, problems %v", news, late.Problems())
			}
			check("with all", fresh(append([]Change{{Key: key, Record: o.record}}, good...)...))
		})
	}
	for what, record := range ordinary {
		t.Run(what, func(t *testing.T) {
			key := Key{Kind: record.kind(), Name: "odd"}
			late.Apply(Change{Key: key, Record: record})
			_, set, _ := late.Commit()
			if len(late.Problems()) != 0 || set.Len() != 1 || different(before, late.current) != "" {
				t.Errorf("problems %v, changes %+v; want none, and the object", late.Problems(), set)
			}
			late.Apply(Change{Key: key})
			late.Commit()
		})
	}
}

// different returns the name of something of good that is not in s as it was.
func different(good, s *mesh.Snapshot) string {
	same := func(a, b *mesh.Service) bool { return a == b || reflect.DeepEqual(a, b) }
	for _, w := range good.Workloads() {
		got := s.Workload(w.UID)
		if got == nil || got != w && !reflect.DeepEqual(got, w) || s.WorkloadAt(w.Network, w.Addresses[0]) != got || !slices.EqualFunc(s.ServicesOf(w.UID), good.ServicesOf(w.UID), same) {
			return fmt.Sprintf("workload %s (%+v, was %+v)", w.UID, got, w)
		}
	}
	for _, svc := range good.Services() {
		got := s.Service(svc.Aliases[0])
		if got == nil || !same(got, svc) || s.ServiceAt(svc.VIPs[0]) != got || len(s.Identities(got, "")) != len(good.Identities(svc, "")) {
			return fmt.Sprintf("service %s (%+v, was %+v)", svc.Hostname, got, svc)
		}
		for _, n := range good.Networks(svc) {
			if len(s.Members(got, n)) != len(good.Members(svc, n)) {
				return fmt.Sprintf("service %s on %s: %d members, had %d", svc.Hostname, n, len(s.Members(got, n)), len(good.Members(svc, n)))
			}
		}
	}
	for _, n := range good.GatewayNetworks() {
		if len(s.Gateways(n)) != len(good.Gateways(n)) || !s.HasNetwork(n) {
			return "network " + n
		}
	}
	return ""
}
