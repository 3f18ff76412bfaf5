//go:build linux

package capture

import (
	"fmt"
	"net/netip"
	"slices"

	"github.com/isthmus-mesh/isthmus/nodeproxy/podns"
	"github.com/isthmus-mesh/isthmus/nodeproxy/sockdiag"
)

// Carried reports whether a node proxy, of this process or another, has connections in a namespace that break without
// our tables there: those that were led to it, and those to the application that have a client's address.
func Carried(ns *podns.Namespace) (bool, error) {
	own, err := ns.Addresses()
	if err != nil {
		return false, err
	}
	t, err := sockdiag.Open(ns)
	if err != nil {
		return false, fmt.Errorf("ask for the connections of the pod: %w", err)
	}
	defer t.Close()
	carried := false
	err = t.Open(func(local, _ netip.AddrPort) {
		switch a := local.Addr(); {
		case local.Port() == OutboundPort || local.Port() == InboundPort:
			carried = true
		case !a.IsLoopback() && !a.IsLinkLocalUnicast() && !slices.Contains(own, a.WithZone("")):
			carried = true
		}
	})
	if err != nil {
		return false, fmt.Errorf("ask for the connections of the pod: %w", err)
	}
	return carried, nil
}
