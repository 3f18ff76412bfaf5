package localfault

import (
	"errors"
	"net"
	"net/netip"
	"slices"
	"syscall"
)

// Dialed returns err, of a TCP dial by d to an address. It becomes a local failure
// if this host has no route to the address, or if TimedOut says so.
//
// connect(2) returns the same errnos for a missing route of this host and for the
// ICMP of a router. The kernel decides: a UDP socket of the same dialer, which sends
// nothing when it connects, fails as well if this host has no route.
func Dialed(d net.Dialer, to netip.AddrPort, err error) error {
	errno, ok := errors.AsType[syscall.Errno](err)
	if !ok || !slices.ContainsFunc(rows, func(r row) bool { return r.route && r.errno == errno }) {
		return TimedOut(err)
	}
	if errno == syscall.EACCES && to.Addr().Unmap().Is4() {
		return New(err)
	}
	if from, ok := d.LocalAddr.(*net.TCPAddr); ok {
		d.LocalAddr = &net.UDPAddr{IP: from.IP, Zone: from.Zone}
	}
	c, failed := d.Dial("udp", to.String())
	if failed != nil {
		return New(err)
	}
	c.Close()
	return err
}
