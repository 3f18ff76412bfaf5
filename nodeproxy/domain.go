package nodeproxy

import (
	"cmp"
	"fmt"
	"net"
	"os"
	"strings"

	"github.com/isthmus-mesh/isthmus/internal/hostport"
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

// checkClusterDomain refuses text that is no domain, and domains in which no service could have
// a name: node proxies answer for the zones of the mesh whatever the domain of the cluster.
func (c Config) checkClusterDomain() error {
	d := c.clusterDomain()
	if !hostport.IsName(d) {
		return fmt.Errorf("%.80q is no domain: write one such as k8s.example, or leave it out", c.ClusterDomain)
	}
	if rest, svc := strings.CutPrefix(d+".", "svc."); svc {
		return fmt.Errorf("%.80q begins with svc, and services are NAME.NAMESPACE.svc.DOMAIN: write %s, or leave it out", c.ClusterDomain, cmp.Or(strings.TrimSuffix(rest, "."), "the domain"))
	}
	for _, zone := range []string{"mesh.internal", "clusterset.local"} {
		if d == zone || strings.HasSuffix(d, "."+zone) {
			return fmt.Errorf("%.80q is in %s, which has the names of the mesh in every cluster: write the domain of the cluster, such as cluster.local, or leave it out", c.ClusterDomain, zone)
		}
	}
	return nil
}
