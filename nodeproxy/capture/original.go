//go:build linux

package capture

import (
	"encoding/binary"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os"
	"syscall"
	"unsafe"

	"golang.org/x/sys/unix"
)

// ErrDirect is that of a connection that no rule has led here.
var ErrDirect = errors.New("the connection was made to this port itself, and says nothing of where it is to go")

// Original returns where a captured connection was to go.
func Original(c *net.TCPConn) (netip.AddrPort, error) {
	local, ok := c.LocalAddr().(*net.TCPAddr)
	if !ok {
		return netip.AddrPort{}, ErrDirect
	}
	raw, err := c.SyscallConn()
	if err != nil {
		return netip.AddrPort{}, err
	}
	here := netip.AddrPortFrom(local.AddrPort().Addr().Unmap(), local.AddrPort().Port())
	var to netip.AddrPort
	if e := raw.Control(func(fd uintptr) { to, err = original(int(fd), here.Addr().Is6()) }); e != nil {
		err = e
	}
	switch {
	case errors.Is(err, unix.ENOENT): // the kernel does not follow it, or no more
		return netip.AddrPort{}, ErrDirect
	case err != nil:
		return netip.AddrPort{}, fmt.Errorf("original destination: %w", err)
	case to == here:
		return netip.AddrPort{}, ErrDirect
	}
	return to, nil
}

// originalDst is SO_ORIGINAL_DST and IP6T_SO_ORIGINAL_DST.
const originalDst = 80

func original(fd int, six bool) (netip.AddrPort, error) {
	if !six {
		v, err := unix.GetsockoptIPv6Mreq(fd, unix.SOL_IP, originalDst) // a sockaddr_in fits
		if err != nil {
			return netip.AddrPort{}, os.NewSyscallError("getsockopt", err)
		}
		b := v.Multiaddr
		return netip.AddrPortFrom(netip.AddrFrom4([4]byte(b[4:8])), binary.BigEndian.Uint16(b[2:4])), nil
	}
	v, err := unix.GetsockoptIPv6MTUInfo(fd, unix.SOL_IPV6, originalDst) // a sockaddr_in6 fits
	if err != nil {
		return netip.AddrPort{}, os.NewSyscallError("getsockopt", err)
	}
	port := *(*[2]byte)(unsafe.Pointer(&v.Addr.Port)) // in network order
	return netip.AddrPortFrom(netip.AddrFrom16(v.Addr.Addr).Unmap(), binary.BigEndian.Uint16(port[:])), nil
}

// Mark has no rule apply to what a socket sends: implements the Control of a net.Dialer.
func Mark(_, _ string, c syscall.RawConn) error {
	return set(c, unix.SOL_SOCKET, unix.SO_MARK, mark)
}

// Share has a listener share its port with that of another process of the same user, the next
// node proxy of this node: implements the Control of a net.ListenConfig.
func Share(_, _ string, c syscall.RawConn) error {
	return set(c, unix.SOL_SOCKET, unix.SO_REUSEPORT, 1)
}

func set(c syscall.RawConn, level, option, value int) error {
	var err error
	if e := c.Control(func(fd uintptr) {
		err = os.NewSyscallError("setsockopt", unix.SetsockoptInt(int(fd), level, option, value))
	}); e != nil {
		return e
	}
	return err
}
