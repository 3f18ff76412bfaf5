//go:build linux

package capture

import (
	"fmt"
	"net/netip"
	"slices"

	"github.com/isthmus-mesh/isthmus/nodeproxy/podns"
	"github.com/isthmus-mesh/isthmus/nodeproxy/sockdiag"
)

// EndDirect resets connections that other hosts opened to ports on which the pod listens, and that the kernel delivered
// without the node proxy, if ends returns true. It returns their number. It skips connections of a node proxy to the
// application, which have a client's address: their other end is in the pod too. The kernel does not record which side
// opened a connection. So one that the pod opened from a port on which it listens is treated as opened by the other side.
func EndDirect(ns *podns.Namespace, ends func(local, remote netip.AddrPort) bool) (ended int, err error) {
	own, err := ns.Addresses()
	if err != nil {
		return 0, err
	}
	t, err := sockdiag.Open(ns)
	if err != nil {
		return 0, err
	}
	defer t.Close()
	type connection struct{ local, remote netip.AddrPort }
	list, there := []connection{}, map[connection]bool{}
	if err := t.All(func(local, remote netip.AddrPort) {
		c := connection{local, remote}
		list, there[c] = append(list, c), true
	}); err != nil {
		return 0, fmt.Errorf("list the connections of the pod: %w", err)
	}
	for _, c := range list {
		at, from := c.local.Addr().WithZone(""), c.remote.Addr().WithZone("")
		if !slices.Contains(own, at) || slices.Contains(own, from) || at.IsLoopback() || there[connection{c.remote, c.local}] {
			continue
		}
		_, listens, err := t.Listener(c.local)
		if err != nil {
			return ended, fmt.Errorf("look for a listener of the pod: %w", err)
		}
		if !listens || !ends(c.local, c.remote) {
			continue
		}
		if err := t.End(c.local, c.remote); err != nil {
			return ended, fmt.Errorf("reset a connection of the pod (SOCK_DESTROY, for which the kernel needs CONFIG_INET_DIAG_DESTROY): %w", err)
		}
		ended++
	}
	return ended, nil
}
