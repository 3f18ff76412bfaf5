//go:build linux

package capture

import (
	"errors"
	"fmt"
	"net/netip"
	"slices"

	"github.com/isthmus-mesh/isthmus/nodeproxy/podns"
	"github.com/isthmus-mesh/isthmus/nodeproxy/sockdiag"
)

// EndDirect resets connections that other hosts opened to ports on which the pod listens, and that the kernel delivered
// without the node proxy, if ends returns true. It returns their number. An error about one connection does not keep it
// from the others.
//
// It skips connections of a node proxy to the application, which have a client's address: their other end is in the pod
// too. The kernel does not record which side opened a connection. So one that the pod opened from a port on which it
// listens is treated as opened by the other side.
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
	if err := t.All(func(c sockdiag.Connection) { list = append(list, c) }); err != nil {
		return 0, fmt.Errorf("list the connections of the pod: %w", err)
	}
	return endDirect(list, own, t, ends)
}

// sockets is a *sockdiag.Table, outside tests.
type sockets interface {
	Listens(sockdiag.Connection) (bool, error)
	End(sockdiag.Connection) (bool, error)
}

// endDirect is EndDirect for the connections and addresses of a pod.
func endDirect(list []sockdiag.Connection, own []netip.Addr, t sockets, ends func(local, remote netip.AddrPort) bool) (ended int, err error) {
	there := map[[2]netip.AddrPort]bool{}
	for _, c := range list {
		there[[2]netip.AddrPort{c.Local, c.Remote}] = true
	}
	var failed []error
	fail := func(what string, err error) { // each text once, of many connections
		err = fmt.Errorf("%s: %w", what, err)
		if !slices.ContainsFunc(failed, func(e error) bool { return e.Error() == err.Error() }) {
			failed = append(failed, err)
		}
	}
	for _, c := range list {
		at, from := c.Local.Addr(), c.Remote.Addr()
		if !slices.Contains(own, at) || slices.Contains(own, from) || at.IsLoopback() || there[[2]netip.AddrPort{c.Remote, c.Local}] {
			continue
		}
		listens, err := t.Listens(c)
		if err != nil {
			fail("look for a listener of the pod", err)
			continue
		}
		if !listens || !ends(c.Local, c.Remote) {
			continue
		}
		is, err := t.End(c)
		if err != nil {
			fail("reset a connection of the pod (SOCK_DESTROY)", err)
		}
		if is {
			ended++
		}
	}
	return ended, errors.Join(failed...)
}
