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

// EndDirect resets connections that other hosts opened to the pod, and that the kernel delivered without the node proxy,
// if ends returns true. It returns their number. An error about one connection does not keep it from the others.
//
// It skips connections of a node proxy to the application, which have a client's address: their other end is in the pod
// too. A socket does not record which side opened its connection. It counts as the other side if a listener could have
// accepted it, or if conntrack saw the other side open it: its listener may have been closed since. So one that the pod
// opened from a port on which it listens counts as opened by the other side. One that was open before the kernel tracked
// connections in the pod, and whose listener is closed, counts as opened by the pod.
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
	opened, err := openTracked(ns)
	if err != nil {
		return 0, fmt.Errorf("look for who opened the connections of the pod: %w", err)
	}
	defer opened.c.Close()
	return endDirect(list, own, podSockets{t, opened}, ends)
}

// podSockets is what the kernel knows of a pod's connections.
type podSockets struct {
	*sockdiag.Table
	tracked
}

// sockets is podSockets, outside tests.
type sockets interface {
	Listens(sockdiag.Connection) (bool, error)
	openedByRemote(local, remote netip.AddrPort) (bool, error)
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
		opened, err := t.Listens(c)
		if err == nil && !opened {
			opened, err = t.openedByRemote(c.Local, c.Remote)
		}
		if err != nil {
			fail("look for who opened a connection of the pod", err)
			continue
		}
		if !opened || !ends(c.Local, c.Remote) {
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
