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
		return conn, localfault.Dialed(err)
	}
}

// ResetUnlessConnected has a dial whose ctx ends just when the connection is there
// close it with a RST: the Dialer would send a FIN, an end that nobody has sent.
func ResetUnlessConnected(_, _ string, c syscall.RawConn) error {
	return c.Control(func(fd uintptr) {
		syscall.SetsockoptLinger(int(fd), syscall.SOL_SOCKET, syscall.SO_LINGER, &syscall.Linger{Onoff: 1})
	})
}
