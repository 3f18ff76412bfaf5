package names

import (
	"testing"

	"github.com/miekg/dns"

	"github.com/isthmus-mesh/isthmus/mesh"
)

// What has names below exists, without records: caches that know RFC 8020 take a denial of it for
// one of all below.
func TestNamesAboveOthersAreEmpty(t *testing.T) {
	nameless := imported("one", "shop", "240.240.0.2")
	nameless.Ports = []mesh.Port{{Service: 80, Target: 80}}
	s := still([]string{"demo.svc.cluster.local"}, imported("cart", "shop", "240.240.0.1"), nameless)
	for name, want := range map[string]int{
		"mesh.internal":                           dns.RcodeSuccess,
		"shop.mesh.internal":                      dns.RcodeSuccess,
		"_tcp.cart.shop.mesh.internal":            dns.RcodeSuccess,
		"_udp.cart.shop.mesh.internal":            dns.RcodeNameError,
		"_tcp.one.shop.mesh.internal":             dns.RcodeNameError,
		"_._tcp.one.shop.mesh.internal":           dns.RcodeNameError,
		"_acme-challenge.cart.shop.mesh.internal": dns.RcodeNameError,
		"_tcp.shop.mesh.internal":                 dns.RcodeNameError,
		"cart-0.cart.shop.mesh.internal":          dns.RcodeNameError,
		"mesh.internal.demo.svc.cluster.local":    dns.RcodeNameError,
	} {
		for _, kind := range []uint16{dns.TypeA, dns.TypeSRV, dns.TypeNS, dns.TypeHTTPS, dns.TypeANY} {
			_, reply, later := s.atOnce(packed(t, name, kind), true)
			if later {
				t.Errorf("%s %s is passed on", name, dns.TypeToString[kind])
				continue
			}
			if m := parsed(t, reply); m.Rcode != want || len(m.Answer) != 0 || len(m.Ns) != 1 || m.Ns[0].Header().Ttl != 2 || m.Ns[0].(*dns.SOA).Minttl != 2 {
				t.Errorf("%s %s: %v, want %s with a SOA that holds for 2 s", name, dns.TypeToString[kind], m, dns.RcodeToString[want])
			}
		}
	}
}

// A service that has a hostname of its own, outside of all zones, has it for its addresses alone.
func TestAHostnameElsewhereHasItsAddressesHere(t *testing.T) {
	svc := imported("api", "shop", "240.240.0.1")
	svc.Hostname = "api.example.com"
	s := still(nil, svc)
	for _, c := range []struct {
		name  string
		kind  uint16
		here  bool
		found int
	}{
		{"api.example.com", dns.TypeA, true, 1}, {"API.example.com", dns.TypeAAAA, true, 0}, {"_http._tcp.api.example.com", dns.TypeSRV, true, 1},
		{"api.example.com", dns.TypeMX, false, 0}, {"_dmarc.api.example.com", dns.TypeTXT, false, 0}, {"_http._tcp.api.example.com", dns.TypeTXT, false, 0},
		{"www.api.example.com", dns.TypeA, false, 0}, {"example.com", dns.TypeA, false, 0},
	} {
		_, reply, later := s.atOnce(packed(t, c.name, c.kind), true)
		if later == c.here {
			t.Errorf("%s %s: answered here %v, want %v", c.name, dns.TypeToString[c.kind], !later, c.here)
		} else if c.here {
			if m := parsed(t, reply); m.Rcode != 0 || len(m.Answer) != c.found || len(m.Answer)+len(m.Ns) != 1 {
				t.Errorf("%s %s: %v", c.name, dns.TypeToString[c.kind], m)
			}
		}
	}
}
