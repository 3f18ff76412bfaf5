package nodeproxy

import (
	"cmp"
	"net"
	"os"
	"strings"

	"github.com/isthmus-mesh/isthmus/mesh"
	"github.com/isthmus-mesh/isthmus/nodeproxy/names"
)

// domain is the domain of the cluster's names for what is no captured pod: listeners, SOCKS and
// explain. A captured pod has its own, by its resolv.conf (package names). Empty if unknown.
func (c Config) domain() string {
	text, _ := os.ReadFile(resolvConf) // without one there is no search list
	return cmp.Or(c.clusterDomain(), names.ClusterDomain(names.ParseResolvConf(string(text)).Search))
}

// clusterDomain is the configured domain as package names takes it.
func (c Config) clusterDomain() string {
	return strings.ToLower(strings.Trim(c.ClusterDomain, "."))
}

// canonicalHost returns the name by which the snapshot has host, which may be in the domain of
// the cluster.
func canonicalHost(snap *mesh.Snapshot, host, domain string) string {
	plain := strings.ToLower(strings.TrimSuffix(host, "."))
	if c := mesh.CanonicalHost(plain, domain); c != plain && snap.Service(host) == nil {
		return c
	}
	return host
}

// canonicalTargets returns listeners whose destinations are canonical names.
func canonicalTargets(list []Outbound, domain string) []Outbound {
	out := make([]Outbound, len(list))
	for i, o := range list {
		if host, port, err := net.SplitHostPort(o.To); err == nil {
			plain := strings.ToLower(strings.TrimSuffix(host, "."))
			if c := mesh.CanonicalHost(plain, domain); c != plain {
				o.To = net.JoinHostPort(c, port)
			}
		}
		out[i] = o
	}
	return out
}
