package discovery

import (
	"fmt"
	"net/netip"
	"slices"

	"github.com/isthmus-mesh/isthmus/mesh"
)

// OnLoopback says which gateways have only loopback addresses while a gateway of another network has another one: whoever
// lists both does so for several machines, and from another machine the former leads to nobody, or to somebody else. Where
// all are on loopback, as in a demonstration, there is nothing to say.
//
// From the network namespaces of pods loopback leads nowhere in any case: where they are captured, by a node proxy of
// network, that is said of all gateways of other networks. network is empty otherwise.
func OnLoopback(snap *mesh.Snapshot, network string) (list []string) {
	for _, n := range snap.GatewayNetworks() {
		for _, g := range snap.Gateways(n) {
			if !loops(g) {
				continue
			}
			if network != "" && n != network {
				list = append(list, fmt.Sprintf("gateway %s of network %s is at %s, a loopback address, and captured pods dial it from within their own network namespaces, where it is not: write an address there that pods reach (gateways[].address of the discovery file, and listen of that gateway)", g.Name, n, g.Address))
			} else if other := farGateway(snap, n); other != nil {
				list = append(list, fmt.Sprintf("gateway %s of network %s is at %s, a loopback address, and gateway %s of network %s at %s is not: from other machines nobody reaches the former: write the address there at which other networks dial it (gateways[].address of the discovery file)", g.Name, n, g.Address, other.Name, other.Network, other.Address))
			}
		}
	}
	return list
}

// loops reports whether all addresses of g are loopback ones.
func loops(g *mesh.Gateway) bool {
	return g.Address.Addr().IsLoopback() && !slices.ContainsFunc(g.More, func(a netip.AddrPort) bool { return !a.Addr().IsLoopback() })
}

// farGateway returns a gateway of another network than that one with an address that is no loopback one; nil: there is none.
func farGateway(snap *mesh.Snapshot, network string) *mesh.Gateway {
	for _, n := range snap.GatewayNetworks() {
		for _, g := range snap.Gateways(n) {
			if n != network && !loops(g) {
				return g
			}
		}
	}
	return nil
}
