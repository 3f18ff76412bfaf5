// Package localfault separates failures of this host from failures of the
// endpoint that was dialed.
//
// The invariant: a local resource failure is never an endpoint failure. A
// process without a free descriptor, port, route or permission cannot connect to
// any endpoint, and no endpoint may lose traffic for it. One table decides, by
// system call and errno. It names the errnos of an endpoint; all others are local.
// A router's ICMP and a route of this host give the same errnos: Dialed asks the
// kernel for the route.
package localfault

import (
	"errors"
	"net"
	"os"
	"slices"
	"syscall"
)

// site is a group of system calls whose errnos have the same meaning.
type site uint8

const (
	// before is each call that a socket needs before connect(2), such as
	// socket(2), bind(2), setsockopt(2), setns(2) and open(2).
	before site = iota
	// connecting is connect(2), and an errno without a call.
	connecting
	// connected is accept(2) and all calls that move bytes. Linux returns errors
	// of the new connection from accept(2).
	connected
)

// row is an errno that an endpoint, or the path to it, causes in some sites. It is
// local in all other sites.
type row struct {
	errno  syscall.Errno
	name   string
	in     []site
	route  bool // connect(2) also returns it if this host has no route, see Dialed
	reason string
}

// rows is the table. docs/architecture.md has a copy, which a test compares.
var rows = []row{
	{syscall.ECONNREFUSED, "ECONNREFUSED", []site{connecting, connected}, false, "the endpoint answers with RST, or a firewall does so for it"},
	{syscall.ECONNRESET, "ECONNRESET", []site{connecting, connected}, false, "the endpoint resets the connection"},
	{syscall.ECONNABORTED, "ECONNABORTED", []site{connecting, connected}, false, "the peer resets a connection before it is accepted"},
	{syscall.EPIPE, "EPIPE", []site{connecting, connected}, false, "the peer has reset the connection"},
	{syscall.ENOTCONN, "ENOTCONN", []site{connected}, false, "the peer has reset the connection"},
	{syscall.ETIMEDOUT, "ETIMEDOUT", []site{connecting, connected}, false, "the endpoint does not answer"},
	{syscall.EHOSTUNREACH, "EHOSTUNREACH", []site{connecting, connected}, true, "a neighbor does not answer ARP, as after the loss of a node, or a router or firewall sends ICMP. On this host: a route of type `unreachable`"},
	{syscall.EHOSTDOWN, "EHOSTDOWN", []site{connecting, connected}, false, "a router sends ICMP host unknown"},
	{syscall.ENONET, "ENONET", []site{connecting, connected}, false, "a router sends ICMP host isolated"},
	{syscall.ENOPROTOOPT, "ENOPROTOOPT", []site{connecting, connected}, false, "the endpoint sends ICMP protocol unreachable"},
	{syscall.EPROTO, "EPROTO", []site{connecting, connected}, false, "the peer breaks the protocol"},
	{syscall.ENETUNREACH, "ENETUNREACH", []site{connecting, connected}, true, "a router or firewall sends ICMP network unreachable. On this host: no route"},
	{syscall.EACCES, "EACCES", []site{connecting, connected}, true, "a router or firewall sends ICMPv6 administratively prohibited. On this host: a route of type `prohibit`, or a security module, which is not told apart by IPv6 if it denies TCP alone. No ICMP of IPv4 gives it, so `connect` to an IPv4 address fails locally"},
}

// calls are the system calls that are not in the site before, by the names that
// package net gives them in os.SyscallError.
var calls = map[string]site{
	"connect": connecting,
	"accept":  connected, "accept4": connected,
	"read": connected, "readv": connected, "recvfrom": connected, "recvmsg": connected, "recvmmsg": connected,
	"write": connected, "writev": connected, "sendto": connected, "sendmsg": connected, "sendmmsg": connected,
	"sendfile": connected, "splice": connected, "copy_file_range": connected, "shutdown": connected,
}

// ops are the operations of net.OpError for errors that do not name a system call.
var ops = map[string]site{"dial": connecting, "accept": connected, "read": connected, "readfrom": connected, "write": connected, "writeto": connected, "close": connected}

// Error is a failure of this host, whatever error it wraps. A function that fails
// before it could reach the endpoint returns one; nil stays nil.
type Error struct{ Err error }

// New returns err as a failure of this host. It returns nil if err is nil.
func New(err error) error {
	if err == nil {
		return nil
	}
	return &Error{err}
}

func (e *Error) Error() string { return e.Err.Error() }
func (e *Error) Unwrap() error { return e.Err }

// Is reports whether err, of a dial, an accept or a connection, is a failure of
// this process or its host. It searches all errors that err wraps. One local
// failure among several suffices: what failed beside it may be its consequence.
// An error without an errno, such as a deadline, is not local.
func Is(err error) bool { return local(err, connecting) }

// local reports whether err, which was returned by a call at s, has a local part.
func local(err error, s site) bool {
	switch e := err.(type) {
	case nil:
		return false
	case *Error, *net.DNSError, *net.AddrError, net.InvalidAddrError, net.UnknownNetworkError, *os.PathError, *os.LinkError:
		return true // no packet was sent to the endpoint
	case *net.OpError:
		if at, ok := ops[e.Op]; ok {
			s = at
		}
		return local(e.Err, s)
	case *os.SyscallError:
		return local(e.Err, calls[e.Syscall])
	case syscall.Errno:
		return e != 0 && !ofEndpoint(e, s)
	}
	if many, ok := err.(interface{ Unwrap() []error }); ok {
		return slices.ContainsFunc(many.Unwrap(), func(err error) bool { return local(err, s) })
	}
	return local(errors.Unwrap(err), s)
}

func ofEndpoint(errno syscall.Errno, s site) bool {
	return slices.ContainsFunc(rows, func(r row) bool { return r.errno == errno && slices.Contains(r.in, s) })
}
