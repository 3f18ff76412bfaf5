package discovery

import (
	"net/netip"
	"strings"

	"github.com/spiffe/go-spiffe/v2/spiffeid"

	"github.com/isthmus-mesh/isthmus/mesh"
)

func (b *builder) addGateways(gateways []Gateway) {
	type name struct{ network, name string }
	names := map[name]int{}
	addresses := map[netip.AddrPort]string{}
	for i, g := range gateways {
		path := at{"gateways", i}
		if b.label(path.below("name"), g.Name) {
			if first, twice := names[name{g.Network, g.Name}]; twice {
				b.problem(path.below("name"), g.Name, "is also the name of gateways[%d] on network %q: give each gateway its own name", first, g.Network)
			} else {
				names[name{g.Network, g.Name}] = i
			}
		}
		b.network(path.below("network"), g.Network)
		out := &mesh.Gateway{
			Name: g.Name, Network: g.Network, Drained: g.Drained, Locality: mesh.Locality(g.Locality),
			Address:    b.dialable(path.below("address"), g.Address, addresses),
			Federation: g.FederationAddress,
		}
		if !g.FederationAddress.IsValid() {
			out.Federation = out.Address
		} else if unmap(g.FederationAddress) != out.Address {
			out.Federation = b.dialable(path.below("federationAddress"), g.FederationAddress, addresses)
		}
		out.Sources = b.sources(path, out, g.Sources)
		out.Identity = b.gatewayIdentity(path.below("serviceAccount"), g.ServiceAccount)
		b.gateways = append(b.gateways, out)
	}
}

// sources returns where the connections of g to pods come from.
func (b *builder) sources(path at, g *mesh.Gateway, given []netip.Prefix) []netip.Prefix {
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
			b.problem(path.below("sources", i), p, "is not a range of addresses of one gateway: write such as 10.0.0.7/32")
			continue
		}
		out = append(out, p.Masked())
	}
	return out
}

func host(a netip.Addr) netip.Prefix { return netip.PrefixFrom(a, a.BitLen()) }

// dialable checks the address of one process, which nobody else may have.
func (b *builder) dialable(path at, a netip.AddrPort, seen map[netip.AddrPort]string) netip.AddrPort {
	a = unmap(a)
	switch first, twice := seen[a]; {
	case !a.IsValid():
		b.problem(path, nil, "is missing: write an IP address and a port, such as 10.0.0.1:15008")
	case a.Port() == 0:
		b.problem(path, a, "has port 0: write a port from 1 to 65535")
	case !usable(a.Addr()):
		b.problem(path, a, "is not the address of one machine: write a unicast address without a zone")
	case twice:
		b.problem(path, a, "is also %s: give each gateway its own address or port", first)
	default:
		seen[a] = fieldOf(path)
	}
	return a
}

func unmap(a netip.AddrPort) netip.AddrPort {
	return netip.AddrPortFrom(a.Addr().Unmap(), a.Port())
}

// gatewayIdentity reads "namespace/name".
func (b *builder) gatewayIdentity(path at, account string) spiffeid.ID {
	if account == "" {
		account = DefaultGatewayServiceAccount
	}
	namespace, name, _ := strings.Cut(account, "/")
	if !isLabel(namespace) || spiffeid.ValidatePathSegment(name) != nil {
		b.problem(path, account, "is not a service account: write namespace/name, such as %s", DefaultGatewayServiceAccount)
		return spiffeid.ID{}
	}
	id, _ := b.identity(path, namespace, name)
	return id
}
