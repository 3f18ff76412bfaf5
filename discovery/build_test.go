package discovery

import (
	"fmt"
	"net/netip"
	"reflect"
	"testing"

	"pgregory.net/rapid"

	"github.com/isthmus-mesh/isthmus/mesh"
)

// small is a mesh that Build accepts.
func small() Config {
	return Config{
		Networks: []Network{{Name: "east"}, {Name: "west"}},
		Gateways: []Gateway{{Name: "gw", Network: "west", Address: netip.MustParseAddrPort("127.0.1.1:15008")}},
		Services: []Service{{Name: "web", Global: true, Ports: []ServicePort{{Port: 80, TargetPort: 8080}}}},
		Workloads: []Workload{
			{UID: "a", Network: "west", Addresses: []netip.Addr{netip.MustParseAddr("10.0.0.1")}, Services: []string{"web.default.mesh.internal"}},
			{UID: "b", Network: "east", Addresses: []netip.Addr{netip.MustParseAddr("10.0.0.1")}},
		},
	}
}

func TestBuildTellsTheSameAddressOnTwoNetworksApart(t *testing.T) {
	s, problems := Build(1, small())
	if len(problems) > 0 {
		t.Fatal(problems)
	}
	addr := netip.MustParseAddr("10.0.0.1")
	if w, e := s.WorkloadAt("west", addr), s.WorkloadAt("east", addr); w.UID != "a" || e.UID != "b" {
		t.Errorf("10.0.0.1 is %q on west and %q on east; want a and b", w.UID, e.UID)
	}
}

func TestBuildKeepsNothingOfTheConfig(t *testing.T) {
	c := small()
	c.Services[0].Aliases = []string{"x.example.org"}
	s, problems := Build(1, c)
	if len(problems) > 0 {
		t.Fatal(problems)
	}
	c.Services[0].Aliases[0] = "changed"
	c.Workloads[0].Addresses[0] = netip.MustParseAddr("10.9.9.9")
	if got := s.Services()[0].Aliases[0]; got != "x.example.org" {
		t.Errorf("alias became %q after the config was changed", got)
	}
	if got := s.Workload("a").Addresses[0].String(); got != "10.0.0.1" {
		t.Errorf("address became %s after the config was changed", got)
	}
}

func TestProblemsPointIntoTheConfig(t *testing.T) {
	c := small()
	c.Workloads[1].Addresses = append(c.Workloads[1].Addresses, netip.IPv4Unspecified())
	s, problems := Build(1, c)
	if s != nil || len(problems) != 1 {
		t.Fatalf("snapshot %v, problems %v; want none and one", s, problems)
	}
	p := problems[0]
	if want := []any{"workloads", 1, "addresses", 1}; !reflect.DeepEqual(p.Path, want) {
		t.Errorf("path %v, want %v", p.Path, want)
	}
	if p.Field != "workloads[1].addresses[1]" || p.Value != "0.0.0.0" {
		t.Errorf("field %q value %q", p.Field, p.Value)
	}
}

func TestReferencesToAFaultyRecordAreNotReportedAgain(t *testing.T) {
	c := small()
	c.Services[0].Ports = nil
	c.Workloads[0].ServiceAccount = "no spaces"
	if _, problems := Build(1, c); len(problems) != 2 {
		t.Errorf("got %v; want two problems", problems)
	}
}

// TestBuildGivesASnapshotOrProblems draws whole configs from alphabets that
// collide, err and repeat a lot, and checks what a snapshot promises.
func TestBuildGivesASnapshotOrProblems(t *testing.T) {
	accepted := 0
	rapid.Check(t, func(t *rapid.T) {
		c := anyConfig().Draw(t, "config")
		s, problems := Build(3, c)
		if (s == nil) == (len(problems) == 0) {
			t.Fatalf("snapshot %v with problems %v; want exactly one", s, problems)
		}
		for _, p := range problems {
			if p.Field == "" || p.Message == "" || len(p.Path) == 0 {
				t.Fatalf("problem without field or message: %+v", p)
			}
		}
		if s != nil {
			accepted++
			checkSnapshot(t, s, c)
		}
	})
	if accepted == 0 {
		t.Error("no drawn config was accepted: the generator proves nothing about snapshots")
	}
}

func checkSnapshot(t *rapid.T, s *mesh.Snapshot, c Config) {
	if len(s.Workloads()) != len(c.Workloads) || len(s.Services()) != len(c.Services) {
		t.Fatalf("%d workloads and %d services from %d and %d", len(s.Workloads()), len(s.Services()), len(c.Workloads), len(c.Services))
	}
	services := map[string]int{}
	for _, w := range c.Workloads {
		services[w.UID] = len(w.Services)
	}
	for _, w := range s.Workloads() {
		if s.Workload(w.UID) != w || s.WorkloadByEndpoint(w.Endpoint) != w || w.Capacity == 0 || w.Identity.IsZero() || len(w.Addresses) == 0 {
			t.Fatalf("workload %+v is not found by its names, or incomplete", w)
		}
		for _, a := range w.Addresses {
			if s.WorkloadAt(w.Network, a) != w {
				t.Fatalf("%s on %s is not %s", a, w.Network, w.UID)
			}
		}
		if got := len(s.ServicesOf(w.UID)); got != services[w.UID] {
			t.Fatalf("%s is a member of %d services, want %d", w.UID, got, services[w.UID])
		}
	}
	for _, svc := range s.Services() {
		for _, name := range append([]string{svc.Hostname}, svc.Aliases...) {
			if s.Service(name) != svc {
				t.Fatalf("%s does not lead to its service", name)
			}
		}
		for _, n := range s.Networks(svc) {
			for _, w := range s.Members(svc, n) {
				if w.Network != n || !contains(s.Identities(svc, n), w.Identity) || !contains(s.Identities(svc, ""), w.Identity) {
					t.Fatalf("member %s: network %s listed under %s, identity %s among %s", w.UID, w.Network, n, w.Identity, s.Identities(svc, n))
				}
			}
		}
	}
}

func contains[T comparable](list []T, x T) bool {
	for _, y := range list {
		if y == x {
			return true
		}
	}
	return false
}

// anyConfig draws from good values three times out of four.
func anyConfig() *rapid.Generator[Config] {
	return rapid.Custom(func(t *rapid.T) Config {
		wild := rapid.Bool().Draw(t, "wild")
		pick := func(name string, good []string, bad ...string) string {
			if wild && rapid.IntRange(0, 9).Draw(t, name+"?") == 0 {
				return rapid.OneOf(rapid.SampledFrom(append(bad, "", "A b", "..", "x/y")), rapid.String()).Draw(t, name)
			}
			return rapid.SampledFrom(good).Draw(t, name)
		}
		addr := func(i int) netip.Addr {
			if wild && rapid.IntRange(0, 9).Draw(t, "addr?") == 0 {
				return rapid.SampledFrom([]netip.Addr{{}, netip.IPv4Unspecified(), netip.MustParseAddr("ff02::1"), netip.MustParseAddr("10.0.0.1"), netip.MustParseAddr("fe80::1%a")}).Draw(t, "addr")
			}
			return netip.AddrFrom4([4]byte{10, 0, byte(i), byte(rapid.IntRange(1, 3).Draw(t, "host"))})
		}
		c := Config{TrustDomain: pick("td", []string{"", "example.org"}, "Spiffe://x"), Networks: []Network{{Name: "east"}, {Name: "west"}}}
		if wild {
			c.Networks = append(c.Networks, Network{Name: pick("network", []string{"north", "east"})})
		}
		networks := []string{"east", "west"}
		for i := range rapid.IntRange(0, 3).Draw(t, "gateways") {
			c.Gateways = append(c.Gateways, Gateway{
				Name: pick("gateway", []string{fmt.Sprintf("gw-%d", i)}, "gw-0"), Network: pick("network", networks, "south"),
				Address:        netip.AddrPortFrom(addr(i), uint16(rapid.IntRange(0, 2).Draw(t, "port"))+1),
				ServiceAccount: pick("account", []string{"", "a/b"}, "a", "a/"),
			})
		}
		var hosts []string
		for i := range rapid.IntRange(0, 3).Draw(t, "services") {
			s := Service{
				Name: pick("service", []string{fmt.Sprintf("s%d", i)}, "s0"), Namespace: pick("namespace", []string{"", "shop"}),
				Hostname: pick("hostname", []string{""}, "s0.default.svc.cluster.local", "10.1.1.1"), Global: rapid.Bool().Draw(t, "global"),
				TrafficDistribution: pick("distribution", []string{"", "Any", "PreferClose"}, "any"),
			}
			for j := range rapid.IntRange(1, 2).Draw(t, "ports") {
				s.Ports = append(s.Ports, ServicePort{Port: uint16(80 + j), TargetPort: rapid.SampledFrom([]uint16{0, 8080}).Draw(t, "target")})
			}
			if wild {
				s.Ports = append(s.Ports, ServicePort{Port: rapid.Uint16().Draw(t, "port"), Name: pick("port", []string{"", "http"})})
				s.VIPs = append(s.VIPs, addr(i))
				s.Aliases = append(s.Aliases, pick("alias", []string{"a.example.org", fmt.Sprintf("b%d.example.org", i)}))
			}
			c.Services = append(c.Services, s)
			hosts = append(hosts, s.Name+"."+or(s.Namespace, "default")+".svc.cluster.local")
		}
		for i := range rapid.IntRange(0, 5).Draw(t, "workloads") {
			w := Workload{
				UID: pick("uid", []string{fmt.Sprintf("w%d", i)}, "w0"), Network: pick("network", networks, "south"),
				Namespace: pick("namespace", []string{"", "shop"}), ServiceAccount: pick("account", []string{"", "web"}),
				State: pick("state", []string{"", "terminating"}, "ready", "notReady"), Addresses: []netip.Addr{addr(i)},
			}
			for j, h := range hosts {
				if (i+j)%2 == 0 {
					w.Services = append(w.Services, pick("member", []string{h}, "nowhere"))
				}
			}
			if wild {
				w.Ready = rapid.Ptr(rapid.Bool(), true).Draw(t, "ready")
				w.Capacity = rapid.Ptr(rapid.Uint32Range(0, 70000), true).Draw(t, "capacity")
			}
			c.Workloads = append(c.Workloads, w)
		}
		return c
	})
}

// large is a mesh of n workloads on ten networks with a hundred services.
func large(n int) Config {
	var c Config
	for i := range 10 {
		name := fmt.Sprintf("net-%d", i)
		c.Networks = append(c.Networks, Network{Name: name})
		for g := range 2 {
			c.Gateways = append(c.Gateways, Gateway{Name: fmt.Sprintf("gw-%d", g), Network: name, Address: netip.AddrPortFrom(netip.AddrFrom4([4]byte{172, 16, byte(i), byte(g + 1)}), 15008)})
		}
	}
	for i := range 100 {
		c.Services = append(c.Services, Service{Name: fmt.Sprintf("svc-%d", i), Global: true, Ports: []ServicePort{{Port: 80, TargetPort: 8080}, {Port: 81, TargetPort: 8081}}})
	}
	for i := range n {
		c.Workloads = append(c.Workloads, Workload{
			UID: fmt.Sprintf("uid-%06d", i), Network: fmt.Sprintf("net-%d", i%10), Node: fmt.Sprintf("node-%d", i%300),
			ServiceAccount: fmt.Sprintf("sa-%d", i%100), Services: []string{fmt.Sprintf("svc-%d.default.svc.cluster.local", i%100)},
			Addresses: []netip.Addr{netip.AddrFrom4([4]byte{10, byte(i >> 16), byte(i >> 8), byte(i)})},
		})
	}
	return c
}

func BenchmarkBuild10000Workloads(b *testing.B) {
	c := large(10000)
	b.ReportAllocs()
	for b.Loop() {
		if _, problems := Build(1, c); len(problems) > 0 {
			b.Fatal(problems[0])
		}
	}
}
