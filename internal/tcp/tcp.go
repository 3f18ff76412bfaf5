// Package tcp has settings of TCP sockets that package net lacks, or needs more calls for: the keep-alive of what a
// listener accepts, and dials that leave no FIN behind when they are given up.
//
// It promises that a socket with which a setting fails is not used. It knows nothing of meshes, and of no namespaces.
package tcp

import (
	"context"
	"net"
	"net/netip"
	"os"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"github.com/isthmus-mesh/isthmus/internal/localfault"
)

// Control is a Control of package net: of a net.Dialer or a net.ListenConfig.
type Control = func(network, address string, c syscall.RawConn) error

// Controls calls one after the other, until one fails.
func Controls(all ...Control) Control {
	return func(network, address string, c syscall.RawConn) error {
		for _, f := range all {
			if err := f(network, address, c); err != nil {
				return err
			}
		}
		return nil
	}
}

// KeepAlive has what a listener accepts inherit the keep-alive that package net sets
// otherwise, with four calls for each connection.
func KeepAlive(_, _ string, c syscall.RawConn) error {
	var err error
	set := func(fd, level, option, value int) {
		if err == nil {
			err = os.NewSyscallError("setsockopt", syscall.SetsockoptInt(fd, level, option, value))
		}
	}
	if e := c.Control(func(fd uintptr) {
		set(int(fd), syscall.SOL_SOCKET, syscall.SO_KEEPALIVE, 1)
		set(int(fd), syscall.IPPROTO_TCP, syscall.TCP_KEEPIDLE, 15)
		set(int(fd), syscall.IPPROTO_TCP, syscall.TCP_KEEPINTVL, 15)
		set(int(fd), syscall.IPPROTO_TCP, syscall.TCP_KEEPCNT, 9)
	}); e != nil {
		return e
	}
	return err
}

const (
	// unsent bounds, in bytes, what the kernel takes of a socket's data beyond what the
	// peer's window has room for.
	unsent = 128 << 10
	// nearBuffer is what a peer on the same node may send ahead of the reader, in bytes. It
	// is more than the round trip there takes; by default it grows to 6 MiB.
	nearBuffer = 128 << 10
)

// BoundMemory bounds what the kernel holds for conn, in a process whose memory is limited:
// the kernel's buffers count for its cgroup. near is a peer on the same node. One that is no
// socket of the kernel is left as it is.
func BoundMemory(conn net.Conn, near bool) {
	if c, ok := conn.(*net.TCPConn); ok {
		if near {
			c.SetReadBuffer(nearBuffer)
		}
		if raw, err := c.SyscallConn(); err == nil {
			raw.Control(func(fd uintptr) { unix.SetsockoptInt(int(fd), unix.IPPROTO_TCP, unix.TCP_NOTSENT_LOWAT, unsent) })
		}
	}
}

// Dial connects within timeout.
type Dial = func(ctx context.Context, addr netip.AddrPort, timeout time.Duration) (net.Conn, error)

// Dialer connects with a keep-alive as in net.Dialer, from sockets that c is
// called with, which includes ResetUnlessConnected. An error of c is a failure of
// this host (see localfault), since c is called before connect(2).
func Dialer(keepAlive time.Duration, c Control) Dial {
	prepare := func(network, address string, raw syscall.RawConn) error {
		return localfault.New(c(network, address, raw))
	}
	return func(ctx context.Context, addr netip.AddrPort, timeout time.Duration) (net.Conn, error) {
		d := net.Dialer{Timeout: timeout, KeepAlive: keepAlive, Control: prepare}
		conn, err := d.DialContext(ctx, "tcp", addr.String())
		if tc, ok := conn.(*net.TCPConn); ok {
			tc.SetLinger(-1) // the kernel's own again
		}
		return conn, localfault.Dialed(d, addr, err)
	}
}

// ResetUnlessConnected has a dial whose ctx ends just when the connection is there
// close it with a RST: the Dialer would send a FIN, an end that nobody has sent.
func ResetUnlessConnected(_, _ string, c syscall.RawConn) error {
	return c.Control(func(fd uintptr) {
		syscall.SetsockoptLinger(int(fd), syscall.SOL_SOCKET, syscall.SO_LINGER, &syscall.Linger{Onoff: 1})
	})
}
