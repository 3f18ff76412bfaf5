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
	var list []sockdiag.Connection
	there := map[[2]netip.AddrPort]bool{}
	if err := t.All(func(c sockdiag.Connection) {
		list = append(list, c)
		there[[2]netip.AddrPort{c.Local, c.Remote}] = true
	}); err != nil {
		return 0, fmt.Errorf("list the connections of the pod: %w", err)
	}
	for _, c := range list {
		at, from := c.Local.Addr(), c.Remote.Addr()
		if !slices.Contains(own, at) || slices.Contains(own, from) || at.IsLoopback() || there[[2]netip.AddrPort{c.Remote, c.Local}] {
			continue
		}
		listens, err := t.Listens(c)
		if err != nil {
			return ended, fmt.Errorf("look for a listener of the pod: %w", err)
		}
		if !listens || !ends(c.Local, c.Remote) {
			continue
		}
		is, err := t.End(c)
		if err != nil {
			return ended, fmt.Errorf("reset a connection of the pod (SOCK_DESTROY, for which the kernel needs CONFIG_INET_DIAG_DESTROY): %w", err)
		}
		if is {
			ended++
		}
	}
	return ended, nil
}
