//go:build linux

package capture

import (
	"net"
	"os"

	"golang.org/x/sys/unix"
)

// Leave has a UDP socket that shares its port receive nothing more: others that listen there do. What
// it has received is there to be read, and it can be written to.
func Leave(c *net.UDPConn) error {
	raw, err := c.SyscallConn()
	if err != nil {
		return err
	}
	// A connected socket receives from its peer alone.
	var nobody unix.Sockaddr = &unix.SockaddrInet4{Addr: [4]byte{127, 0, 0, 1}, Port: discard}
	if a, ok := c.LocalAddr().(*net.UDPAddr); ok && a.AddrPort().Addr().Is6() && !a.AddrPort().Addr().Is4In6() {
		nobody = &unix.SockaddrInet6{Addr: [16]byte{15: 1}, Port: discard}
	}
	e := raw.Control(func(fd uintptr) { err = os.NewSyscallError("connect", unix.Connect(int(fd), nobody)) })
	if e != nil {
		return e
	}
	return err
}

// discard is a port from which nobody asks.
const discard = 9
