package names

import (
	"net/netip"
	"slices"
	"strconv"
	"strings"
	"time"
)

// Resolver is what a resolv.conf says, as far as it matters to who stands in the place of
// its servers: names come from the client with search domains behind them already.
type Resolver struct {
	Servers []netip.AddrPort // in order
	Search  []string         // in order: lower case, without a dot at the end
	// Timeout is how long a client waits for one server.
	Timeout time.Duration
	// Rotate is whether servers take turns.
	Rotate bool
}

// Bounds of resolv.conf, as in glibc's resolv.h; it has none for search domains, Kubernetes
// allows 32.
const (
	maxServers     = 3
	maxSearch      = 32
	maxTimeout     = 30 * time.Second
	defaultTimeout = 5 * time.Second
	dnsPort        = 53
)

// ParseResolvConf reads a resolv.conf(5). What it does not know, and what makes no sense, counts for
// nothing, as in the C libraries: a pod with a strange one resolves what it can.
func ParseResolvConf(text string) Resolver {
	r := Resolver{Timeout: defaultTimeout}
	for line := range strings.Lines(text) {
		if strings.HasPrefix(line, "#") || strings.HasPrefix(line, ";") {
			continue
		}
		f := strings.Fields(line)
		if len(f) < 2 {
			continue
		}
		switch f[0] {
		case "nameserver":
			if a, err := netip.ParseAddr(f[1]); err == nil && len(r.Servers) < maxServers {
				r.Servers = append(r.Servers, netip.AddrPortFrom(a.Unmap(), dnsPort))
			}
		case "domain":
			r.Search = searchOf(f[1:2])
		case "search": // the last one counts
			r.Search = searchOf(f[1:])
		case "options":
			for _, o := range f[1:] {
				r.option(o)
			}
		}
	}
	return r
}

func searchOf(domains []string) (out []string) {
	for _, d := range domains {
		d = strings.ToLower(strings.TrimSuffix(d, "."))
		if d != "" && len(d) <= maxName && len(out) < maxSearch {
			out = append(out, d)
		}
	}
	return out
}

// ClusterDomain returns the domain of the cluster's names by the search list that the kubelet
// writes, "NAMESPACE.svc.DOMAIN svc.DOMAIN DOMAIN"; empty if there is none.
func ClusterDomain(search []string) string {
	for _, s := range search {
		_, zone, _ := strings.Cut(s, ".")
		if domain, ok := strings.CutPrefix(zone, "svc."); ok && domain != "" && zoneOf(zone) == "" && slices.Contains(search, zone) {
			return domain
		}
	}
	return ""
}

func (r *Resolver) option(o string) {
	switch name, value, _ := strings.Cut(o, ":"); name {
	case "rotate":
		r.Rotate = true
	case "timeout":
		if n, err := strconv.Atoi(value); err == nil && n > 0 {
			r.Timeout = min(time.Duration(min(n, 3600))*time.Second, maxTimeout)
		}
	}
}
