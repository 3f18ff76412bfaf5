package pods

import (
	"fmt"
	"net/netip"
	"slices"

	"github.com/isthmus-mesh/isthmus/mesh"
)

// namelessShown is how many services without virtual addresses are named.
const namelessShown = 20

// Addressless says which services lead to other networks and have no virtual address by which a captured pod could call
// them: that is left to listeners, or forgotten.
func (c Config) Addressless(snap *mesh.Snapshot) (list []string) {
	if !c.On() {
		return nil
	}
	more := 0
	for _, s := range snap.Services() {
		if !s.Exported() || len(virtual(s)) > 0 {
			continue
		}
		if len(list) == namelessShown {
			more++
			continue
		}
		why, remedy := "has no virtual address, so that its names have none in captured pods and nothing is captured for it", "give it vips"+c.free(snap)
		switch {
		case len(s.VIPs) > 0:
			why, remedy = fmt.Sprintf("has only virtual addresses that lead to pods of the own network alone (%s), by whatever name it is called", s.VIPs[0]), "set takeover: true for it"
		case !s.Takeover:
			remedy += " and takeover: true"
		}
		list = append(list, fmt.Sprintf("service %s leads to other networks and %s: %s in the discovery file, or call it by a listener (outbound, socks)", s.Hostname, why, remedy))
	}
	if more > 0 {
		list = append(list, fmt.Sprintf("%d more services lead to other networks and have no virtual address: mend those that are named, and the others are", more))
	}
	return list
}

// Taken says which virtual addresses are somebody's as well: captured pods reach the service by them, and nobody else.
func (c Config) Taken(snap *mesh.Snapshot, network string) (list []string) {
	if !c.On() {
		return nil
	}
	for _, s := range snap.Services() {
		for _, a := range virtual(s) {
			whose := ""
			if w := snap.WorkloadAt(network, a); w != nil {
				whose = fmt.Sprintf("that of workload %s, which captured pods do not reach by it", w.UID)
			} else if g := whoseGateway(snap, a); g != nil {
				whose = fmt.Sprintf("that of gateway %s of network %s, which captured pods do not reach by it", g.Name, g.Network)
			} else if a.IsLoopback() {
				whose = "a loopback address, which is the pod itself in each pod"
			}
			if whose != "" && len(list) < namelessShown {
				list = append(list, fmt.Sprintf("service %s has the virtual address %s, and that is %s: give it one that nobody has%s in the discovery file", s.Hostname, a, whose, c.free(snap)))
			}
		}
	}
	return list
}

// whoseGateway returns a gateway at that address; nil: there is none.
func whoseGateway(snap *mesh.Snapshot, a netip.Addr) *mesh.Gateway {
	for _, n := range snap.GatewayNetworks() {
		for _, g := range snap.Gateways(n) {
			if g.Address.Addr() == a {
				return g
			}
		}
	}
	return nil
}

// free names a virtual address of the first range that no service of snap has; empty if it has no range.
func (c Config) free(snap *mesh.Snapshot) string {
	if len(c.Ranges) == 0 {
		return ""
	}
	for a := c.Ranges[0].Addr().Next(); c.Ranges[0].Contains(a); a = a.Next() {
		if snap.ServiceAt(a) == nil {
			return fmt.Sprintf(", such as %s of capture.ranges,", a)
		}
	}
	return ""
}

// virtual are the addresses by which captured pods reach s wherever it is.
func virtual(s *mesh.Service) (list []netip.Addr) {
	if s.Exported() && s.Takeover {
		list = s.VIPs
	}
	if s.Import != nil {
		list = slices.Concat(list, s.Import.VIPs)
	}
	return list
}
