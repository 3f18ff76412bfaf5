package names

import (
	"net/netip"
	"reflect"
	"strings"
	"testing"
	"time"
)

func servers(list ...string) (out []netip.AddrPort) {
	for _, s := range list {
		out = append(out, netip.AddrPortFrom(netip.MustParseAddr(s), 53))
	}
	return out
}

func TestParseResolvConf(t *testing.T) {
	for name, c := range map[string]struct {
		text string
		want Resolver
	}{
		"of a pod": {"search demo.svc.cluster.local svc.cluster.local cluster.local\nnameserver 10.96.0.10\noptions ndots:5\n",
			Resolver{Servers: servers("10.96.0.10"), Search: []string{"demo.svc.cluster.local", "svc.cluster.local", "cluster.local"}, Timeout: 5 * time.Second}},
		"empty":                {"", Resolver{Timeout: 5 * time.Second}},
		"no end of line":       {"nameserver fd00::a", Resolver{Servers: servers("fd00::a"), Timeout: 5 * time.Second}},
		"a zone":               {"nameserver fe80::1%eth0\n", Resolver{Servers: servers("fe80::1%eth0"), Timeout: 5 * time.Second}},
		"comments":             {"# nameserver 1.1.1.1\n;search a\nnameserver 10.0.0.1 # mine\n", Resolver{Servers: servers("10.0.0.1"), Timeout: 5 * time.Second}},
		"three servers count":  {"nameserver 10.0.0.1\nnameserver 10.0.0.2\nnameserver x\nnameserver 10.0.0.3\nnameserver 10.0.0.4\n", Resolver{Servers: servers("10.0.0.1", "10.0.0.2", "10.0.0.3"), Timeout: 5 * time.Second}},
		"the last search":      {"search a b\ndomain c d\nsearch E. . f\n", Resolver{Search: []string{"e", "f"}, Timeout: 5 * time.Second}},
		"a domain is one":      {"search a\ndomain C. d\n", Resolver{Search: []string{"c"}, Timeout: 5 * time.Second}},
		"options":              {"options rotate timeout:2\toptions\noptions ndots:1 edns0\n", Resolver{Timeout: 2 * time.Second, Rotate: true}},
		"too long a timeout":   {"options timeout:99999999999999999999 timeout:86400\n", Resolver{Timeout: 30 * time.Second}},
		"no timeout":           {"options timeout:0 timeout:-1 timeout:x timeout\n", Resolver{Timeout: 5 * time.Second}},
		"blanks and no values": {" \t\nnameserver\nsearch\noptions\n\x00\n", Resolver{Timeout: 5 * time.Second}},
	} {
		if got := ParseResolvConf(c.text); !reflect.DeepEqual(got, c.want) {
			t.Errorf("%s: %+v, want %+v", name, got, c.want)
		}
	}
	if got := ParseResolvConf("search" + strings.Repeat(" a", 100)); len(got.Search) != maxSearch {
		t.Errorf("%d search domains, want %d", len(got.Search), maxSearch)
	}
}

// Whatever a pod has as its resolv.conf, what comes of it is bounded.
func FuzzParseResolvConf(f *testing.F) {
	f.Add("search demo.svc.cluster.local svc.cluster.local\nnameserver 10.96.0.10\noptions ndots:5 timeout:3 rotate\n")
	f.Add("domain x.\nnameserver fe80::1%eth0\nnameserver ::ffff:1.2.3.4\r\n# no\n")
	f.Fuzz(func(t *testing.T, text string) {
		r := ParseResolvConf(text)
		if len(r.Servers) > maxServers || len(r.Search) > maxSearch || r.Timeout < time.Second || r.Timeout > maxTimeout {
			t.Errorf("%q: %+v", text, r)
		}
		for _, s := range r.Servers {
			if !s.IsValid() || s.Port() != 53 || s.Addr().Is4In6() {
				t.Errorf("%q: server %v", text, s)
			}
		}
		for _, d := range r.Search {
			if d == "" || len(d) > maxName || strings.ToLower(d) != d || strings.ContainsAny(d, " \t\n") {
				t.Errorf("%q: search domain %q", text, d)
			}
		}
	})
}
