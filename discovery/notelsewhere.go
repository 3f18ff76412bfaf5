package discovery

import (
	"fmt"
	"net/netip"
	"slices"

	"github.com/isthmus-mesh/isthmus/mesh"
)

// NotElsewhere returns why at cannot be a gateway of another network than own; empty if it
// can. It is dialed and probed, and not all that listens on the own node or network
// expects that: other networks do not choose it. Where the own gateways are on loopback, as
// in a demonstration, others may be too.
func NotElsewhere(snap *mesh.Snapshot, own string, at netip.AddrPort) string {
	ip, gateways := at.Addr(), snap.Gateways(own)
	switch {
	case ip.IsLinkLocalUnicast():
		return "is link-local, where a cloud keeps its metadata service"
	case slices.ContainsFunc(gateways, func(g *mesh.Gateway) bool { return g.Address == at || g.Federation == at }):
		return "is that of a gateway of this network"
	case ip.IsLoopback() && slices.ContainsFunc(gateways, func(g *mesh.Gateway) bool { return g.Address.Addr().IsLoopback() }):
		return ""
	case ip.IsLoopback():
		return "is on loopback, and no gateway of this network is"
	}
	if w := snap.WorkloadAt(own, ip); w != nil {
		return fmt.Sprintf("is that of workload %s of this network", w.UID)
	}
	if svc := snap.ServiceAt(ip); svc != nil {
		return "is the virtual address of service " + svc.Hostname
	}
	return ""
}
