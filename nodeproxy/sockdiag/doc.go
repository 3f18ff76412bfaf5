// Package sockdiag asks the kernel of the TCP sockets of one network namespace, by
// sock_diag(7): which listeners there are, how many connections wait in their
// accept queues, which connections nobody has accepted yet; and it hears
// when a listener is closed.
//
// It needs no privilege of its own, only a thread in that namespace at [Open]. What
// runs in a sandbox with a TCP stack of its own (gVisor, Kata) is not seen: there
// are no listeners, and no errors. A kernel without inet_diag is an error of Open.
//
// It decides nothing: what a queue means is said by nodeproxy/acceptqueue, what a
// listener's end means by package nodeproxy.
package sockdiag

import (
	"errors"
	"net/netip"
)

// Namespace runs f on a thread in a network namespace. Sockets that f opens belong
// to the namespace wherever they are used; each keeps it alive until it is closed.
type Namespace interface{ Do(f func() error) error }

// ErrLost is that the kernel had more to say than the reader took: listeners may have
// been closed that were not told of.
var ErrLost = errors.New("sockdiag: events were lost")

// ErrCannotEnd is returned on a kernel that cannot reset connections.
var ErrCannotEnd = errors.New("the kernel needs CONFIG_INET_DIAG_DESTROY")

// Connection is one open connection. Its hidden fields identify the socket. Two link-local connections by two interfaces
// may have the same addresses and ports, and so may a connection that closed and a later one.
type Connection struct {
	Local, Remote netip.AddrPort

	cookie uint64
	device uint32 // index of the interface that the socket is bound to, or 0
}

// Listener is one listening socket.
type Listener struct {
	Cookie  uint64         // its name, never used again in this namespace
	Local   netip.AddrPort // where it listens; the unspecified address for all
	Queue   uint32         // connections that nobody has accepted yet
	Backlog uint32         // Queue may be one more than that, and then the kernel drops what comes

	family uint8 // of the socket, and of all that it accepts
}

// Full says whether the kernel drops new connections.
func (l Listener) Full() bool { return l.Queue > l.Backlog }
