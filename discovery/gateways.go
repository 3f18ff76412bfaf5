package discovery

import (
	"net/netip"
	"slices"
	"strings"

	"github.com/spiffe/go-spiffe/v2/spiffeid"

	"github.com/isthmus-mesh/isthmus/mesh"
)

func (n Network) read(r *reader) reading {
	out := reading{network: &mesh.Network{Name: n.Name}, claims: []claim{{what: networkName, text: n.Name, path: at{"name"}}}}
	r.label(at{"name"}, n.Name)
	out.network.Segment = r.word(at{"segment"}, n.Segment)
	if n.Segment != "" && out.network.Segment == "" {
		out.network.Segment = "network " + n.Name // of its own: no word has a space
	}
	for i, node := range n.Nodes {
		if node = r.word(at{"nodes", i}, node); node != "" {
			out.network.Nodes = append(out.network.Nodes, node)
		}
	}
	return out
}

func (g Gateway) read(r *reader) reading {
	out := &mesh.Gateway{Name: g.Name, Network: g.Network, Group: g.Group, Drained: g.Drained, Locality: mesh.Locality(g.Locality), Address: r.dialable(at{"address"}, g.Address)}
	claims := []claim{{what: gatewayName, text: g.Network + "/" + g.Name, path: at{"name"}}, {what: gatewayAddress, text: out.Address.String(), path: at{"address"}}}
	r.label(at{"name"}, g.Name)
	if out.Federation = out.Address; g.FederationAddress.IsValid() && unmap(g.FederationAddress) != out.Address {
		out.Federation = r.dialable(at{"federationAddress"}, g.FederationAddress)
		claims = append(claims, claim{what: gatewayAddress, text: out.Federation.String(), path: at{"federationAddress"}})
	}
	out.More, out.QUIC = r.more("moreAddresses", g.MoreAddresses), r.more("quicAddresses", g.QUICAddresses)
	out.Sources = r.sources(out, g.Sources)
	out.Identity = r.gatewayIdentity(at{"serviceAccount"}, g.ServiceAccount, g.TrustDomain)
	return reading{gateway: out, claims: claims, on: g.Network}
}

// more returns those of a list that can be dialed.
func (r *reader) more(key string, given []netip.AddrPort) (out []netip.AddrPort) {
	for i, a := range given {
		if a = unmap(a); a.IsValid() && a.Port() != 0 && usable(a.Addr()) {
			out = append(out, a)
		} else {
			r.drop(CauseValue, at{key, i}, a, "is not where one machine listens, and counts for nothing: write a unicast address without a zone, and a port from 1 to 65535")
		}
	}
	return out
}

// sources returns where the connections of g to pods come from. One that cannot
// be takes the gateway out: what came from there would not be known as a
// gateway's, and so not be held to exported services.
func (r *reader) sources(g *mesh.Gateway, given []netip.Prefix) []netip.Prefix {
	if len(given) == 0 {
		out := []netip.Prefix{host(g.Address.Addr())}
		if g.Federation.Addr() != g.Address.Addr() {
			out = append(out, host(g.Federation.Addr()))
		}
		return out
	}
	var out []netip.Prefix
	for i, p := range given {
		if !p.IsValid() || p.Bits() == 0 {
			r.out(CauseValue, at{"sources", i}, p, "is not a range of addresses of one gateway: write such as 10.0.0.7/32")
			continue
		}
		out = append(out, p.Masked())
	}
	return slices.Clip(out)
}

func host(a netip.Addr) netip.Prefix { return netip.PrefixFrom(a, a.BitLen()) }

// dialable checks the address of one process, without which the object is none.
func (r *reader) dialable(path at, a netip.AddrPort) netip.AddrPort {
	a = unmap(a)
	switch {
	case !a.IsValid():
		r.out(CauseMissing, path, nil, "is missing: write an IP address and a port, such as 10.0.0.1:15008")
	case a.Port() == 0:
		r.out(CauseValue, path, a, "has port 0: write a port from 1 to 65535")
	case !usable(a.Addr()):
		r.out(CauseValue, path, a, "is not the address of one machine: write a unicast address without a zone")
	}
	return a
}

func unmap(a netip.AddrPort) netip.AddrPort {
	return netip.AddrPortFrom(a.Addr().Unmap(), a.Port())
}

// gatewayIdentity reads "namespace/name".
func (r *reader) gatewayIdentity(path at, account, domain string) spiffeid.ID {
	account = or(account, DefaultGatewayServiceAccount)
	namespace, name, _ := strings.Cut(account, "/")
	if !isLabel(namespace) || spiffeid.ValidatePathSegment(name) != nil {
		r.out(CauseValue, path, account, "is not a service account: write namespace/name, such as %s", DefaultGatewayServiceAccount)
		return spiffeid.ID{}
	}
	if domain == "" {
		return r.identity(path, namespace, name)
	}
	td, err := spiffeid.TrustDomainFromString(domain)
	if err != nil || td.Name() != domain {
		r.out(CauseValue, at{"trustDomain"}, domain, "is not the name of a trust domain: write one such as cluster.local, or leave the key out")
		return spiffeid.ID{}
	}
	id, err := spiffeid.FromSegments(td, "ns", namespace, "sa", name)
	if err != nil {
		r.out(CauseValue, path, account, "cannot be part of a SPIFFE ID: use letters, digits, dots, hyphens and underscores")
	}
	return id
}
