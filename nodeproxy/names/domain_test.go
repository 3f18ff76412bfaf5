package names

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"strings"
	"testing"

	"github.com/miekg/dns"
	"github.com/prometheus/client_golang/prometheus"
	"github.com/rs/zerolog"

	"github.com/isthmus-mesh/isthmus/mesh"
)

// queryOutcome is what becomes of one query, with DOMAIN for the domain of the cluster.
func queryOutcome(t *testing.T, s *Server, domain, name string, kind uint16) string {
	t.Helper()
	text := func(j judgement, reply []byte) string {
		out := fmt.Sprintf("do %d host %s", j.do, j.host)
		if reply != nil {
			m := parsed(t, reply)
			out += fmt.Sprintf(" rcode %d answers %v authority %v extra %v", m.Rcode, m.Answer, m.Ns, m.Extra)
		}
		return strings.ReplaceAll(strings.ReplaceAll(out, domain, "DOMAIN"), mesh.CanonicalDomain, "DOMAIN")
	}
	q, reply, later := s.atOnce(packed(t, name, kind), true)
	if !later {
		return "at once: " + text(judgement{}, reply)
	}
	s.free(&q)
	first, _ := s.judge(&q, unasked)
	out := "later: " + text(first, nil)
	if first.do == contest {
		for _, asked := range []state{unasked, sure, unsure} {
			j, snap := s.denied(&q, asked)
			var reply []byte
			if j.do == answer {
				reply = s.answer(&q, j, snap, dns.MaxMsgSize)
			}
			out += "; denied: " + text(j, reply)
		}
	}
	return out
}

// The invariant: each name that has an outcome with cluster.local has the same one with another
// domain of the cluster, be it configured or by the search list of the pod.
func TestNamesResolveAlikeInEveryDomain(t *testing.T) {
	bound := imported("cart", "shop", "240.240.0.1")
	elsewhere := imported("api", "shop", "240.240.0.2")
	elsewhere.Hostname = "api.example.com"
	snap := snapshotOf(bound, elsewhere)
	server := func(search []string, domain string) *Server {
		return New(Config{Snapshot: func() *mesh.Snapshot { return snap }, Resolver: func() Resolver { return Resolver{Search: search} }, Domain: domain,
			Ask:     func(context.Context, string) bool { return true },
			Dial:    func(context.Context, string, netip.AddrPort) (net.Conn, error) { return nil, errors.New("no network") },
			Metrics: NewMetrics(prometheus.NewRegistry()), Log: zerolog.Nop()})
	}
	search := func(domain string) []string {
		return []string{"shop.svc." + domain, "svc." + domain, domain, "office.test"}
	}
	var hosts []string // DOMAIN stands for the domain
	for _, service := range []string{"cart.shop", "CART.Shop", "api.shop", "none.shop", "cart-0.cart.shop", "shop", ""} {
		for _, zone := range []string{"svc.DOMAIN", "DOMAIN", "mesh.internal", "svc.clusterset.local", "svc"} {
			for _, front := range []string{"", "_http._tcp.", "_tcp.", "_udp."} {
				if service == "" && zone == "DOMAIN" {
					continue // DOMAIN.svc.DOMAIN is a service where DOMAIN has two labels
				}
				host := strings.ReplaceAll(strings.TrimPrefix(front+service+"."+zone, "."), "..", ".")
				hosts = append(hosts, host)
				for _, s := range search("DOMAIN") {
					hosts = append(hosts, host+"."+s)
				}
			}
		}
	}
	hosts = append(hosts, "api.example.com", "api.example.com.svc.DOMAIN", "cart", "cart.shop.svc.DOMAIN.")
	domains := []string{"k8s.example", "corp.invalid", "cluster.local.example", "a.b.c.d.e"}
	for _, host := range hosts {
		for _, kind := range []uint16{dns.TypeA, dns.TypeAAAA, dns.TypeSRV, dns.TypeTXT} {
			want := queryOutcome(t, server(search(mesh.CanonicalDomain), ""), mesh.CanonicalDomain, strings.ReplaceAll(host, "DOMAIN", mesh.CanonicalDomain), kind)
			for _, domain := range domains {
				name := strings.ReplaceAll(host, "DOMAIN", domain)
				for how, s := range map[string]*Server{"by the search list": server(search(domain), ""), "configured": server(search(domain), domain)} {
					if got := queryOutcome(t, s, domain, name, kind); got != want {
						t.Fatalf("%s %s, domain %s %s:\n%s\nwith cluster.local:\n%s", name, dns.TypeToString[kind], domain, how, got, want)
					}
				}
			}
		}
	}
}

func TestClusterDomainIsReadFromTheSearchList(t *testing.T) {
	for list, want := range map[string]string{
		"demo.svc.cluster.local svc.cluster.local cluster.local": "cluster.local",
		"demo.svc.k8s.example svc.k8s.example k8s.example corp":  "k8s.example",
		"corp demo.svc.k8s.example svc.k8s.example":              "k8s.example",
		"svc.k8s.example": "", "demo.svc.k8s.example": "", "corp.example": "", "": "",
		"demo.svc.clusterset.local svc.clusterset.local": "",
	} {
		if got := ClusterDomain(strings.Fields(list)); got != want {
			t.Errorf("search %q: %q; want %q", list, got, want)
		}
	}
}
