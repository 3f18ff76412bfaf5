package nodeproxy

import (
	"fmt"
	"net/netip"
	"slices"

	"github.com/isthmus-mesh/isthmus/discovery"
	"github.com/isthmus-mesh/isthmus/federation/record"
	"github.com/isthmus-mesh/isthmus/mesh"
)

// addressOf returns the first IP address of b that may be that of another network's
// gateway, or why there is none.
func (t *toldShares) addressOf(b *record.Network) (at netip.AddrPort, odd string) {
	snap := t.snapshot()
	for _, a := range b.Addresses {
		ip, err := netip.ParseAddr(a.Host)
		if err != nil || ip.Zone() != "" {
			continue
		}
		at := netip.AddrPortFrom(ip.Unmap(), a.Port)
		why := elsewhere(snap, t.own, at)
		if why == "" {
			return at, ""
		}
		if odd == "" {
			odd = fmt.Sprintf("its address %s %s: that network must give it one at which it is reached from here", at, why)
		}
	}
	if odd == "" {
		odd = "it has no IP address that can be dialled"
	}
	return netip.AddrPort{}, odd
}

// elsewhere returns why at cannot be a gateway of another network than own; empty if it
// can. Node proxies dial and probe it, and not all that listens on their own node or network
// expects that: other networks do not choose it. Where the own gateways are on loopback, as
// in a demonstration, others may be too.
func elsewhere(snap *mesh.Snapshot, own string, at netip.AddrPort) string {
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

// relocated looks again at the gateways of other networks by what discovery says
// of the own network now.
func (t *toldShares) relocated() {
	t.mu.Lock()
	defer t.mu.Unlock()
	networks := map[string]bool{}
	for network := range t.unused {
		networks[network] = true
	}
	for network := range t.ways {
		networks[network] = true
	}
	t.put(map[discovery.Key]discovery.Record{}, networks)
}
