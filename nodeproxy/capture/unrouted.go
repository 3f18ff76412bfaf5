//go:build linux

package capture

import (
	"errors"
	"net"
	"net/netip"

	"golang.org/x/sys/unix"

	"github.com/isthmus-mesh/isthmus/nodeproxy/podns"
)

// Unrouted reports whether a network namespace has no route for an address: what is sent there fails before rules see it.
// Nothing is sent to find out.
func Unrouted(ns *podns.Namespace, a netip.Addr) bool {
	d := net.Dialer{Control: ns.Control}
	c, err := d.Dial("udp", netip.AddrPortFrom(a, 9).String()) // which asks for the route, and no more
	if err == nil {
		c.Close()
	}
	return errors.Is(err, unix.ENETUNREACH) || errors.Is(err, unix.EHOSTUNREACH)
}
