package mesh

import "strings"

// CanonicalDomain is the domain by which networks name services to each other, as Istio does,
// whatever the domain of their clusters is.
const CanonicalDomain = "cluster.local"

// CanonicalHost returns the name by which networks know a service that a cluster of the given
// domain calls host: NAME.NAMESPACE.svc.DOMAIN is NAME.NAMESPACE.svc.cluster.local. A name with
// more labels below svc.DOMAIN is translated alike. Another host is returned as it is. Both are
// in lower case, without a dot at the end; an empty domain translates nothing.
func CanonicalHost(host, domain string) string {
	if domain == "" || domain == CanonicalDomain {
		return host
	}
	if rest, ok := strings.CutSuffix(host, ".svc."+domain); ok && rest != "" {
		return rest + ".svc." + CanonicalDomain
	}
	return host
}
