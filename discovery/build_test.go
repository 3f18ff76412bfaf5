package discovery

import (
	"fmt"
	"net/netip"
	"reflect"
	"testing"

	"pgregory.net/rapid"
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
	if s.Workload("b") == nil || len(problems) != 1 {
		t.Fatalf("workload %v, problems %v; want one of each", s.Workload("b"), problems)
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
				Node: nodeOfDraws, UID: pick("uid", []string{fmt.Sprintf("w%d", i)}, "w0"), Network: pick("network", networks, "south"),
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
