// Package simnet is a TCP-like network in memory for tests: connections with
// delay, bounded buffers, half-close and resets, which a test can stall or cut.
//
// It is made for testing/synctest: it waits only on condition variables and
// timers, so that time stands still until everybody waits. It drops nothing and
// reorders nothing; it does not model bandwidth.
package simnet

import (
	"context"
	"fmt"
	"net"
	"net/netip"
	"sync"
	"syscall"
	"time"
)

// Options describe both directions of a connection. The zero value has no delay
// and 256 KiB of buffer per direction.
type Options struct {
	Delay  time.Duration // one way
	Buffer int           // bytes in flight before a Write blocks
}

// Pair returns the two ends of a connection.
func Pair(o Options) (*Conn, *Conn) { return PairOf(o, "127.0.0.1:1", "127.0.0.1:2") }

// PairOf returns the two ends, a and b, of a connection between two addresses, each
// ip:port.
func PairOf(o Options, a, b string) (*Conn, *Conn) {
	if o.Buffer == 0 {
		o.Buffer = 256 << 10
	}
	ab, ba := newPipe(o), newPipe(o)
	la, lb := tcpAddr(a), tcpAddr(b)
	return &Conn{in: ba, out: ab, local: la, remote: lb}, &Conn{in: ab, out: ba, local: lb, remote: la}
}

// tcpAddr is what a socket would call address.
func tcpAddr(address string) *net.TCPAddr {
	return net.TCPAddrFromAddrPort(netip.MustParseAddrPort(address))
}

// Network connects listeners and dialers by address. The zero value has no
// delay and no listeners. Safe for concurrent use.
type Network struct {
	Options Options

	mu        sync.Mutex
	listeners map[string]*Listener
	next      int
}

// Listen accepts connections to address, which must be free.
func (n *Network) Listen(address string) (*Listener, error) {
	n.mu.Lock()
	defer n.mu.Unlock()
	if n.listeners[address] != nil {
		return nil, fmt.Errorf("simnet: listen on %s: %w", address, syscall.EADDRINUSE)
	}
	l := &Listener{n: n, addr: tcpAddr(address), queue: make(chan *Conn, 1024), done: make(chan struct{})}
	if n.listeners == nil {
		n.listeners = make(map[string]*Listener)
	}
	n.listeners[address] = l
	return l, nil
}

// Dial connects to address: after one round trip, or ECONNREFUSED.
func (n *Network) Dial(ctx context.Context, address string) (*Conn, error) {
	timer := time.NewTimer(2 * n.Options.Delay)
	defer timer.Stop()
	select {
	case <-timer.C:
	case <-ctx.Done():
		return nil, context.Cause(ctx)
	}
	n.mu.Lock()
	l := n.listeners[address]
	n.next++
	local := fmt.Sprintf("127.0.0.1:%d", 10000+n.next)
	n.mu.Unlock()
	if l == nil {
		return nil, fmt.Errorf("simnet: dial %s: %w", address, syscall.ECONNREFUSED)
	}
	a, b := PairOf(n.Options, local, address)
	select {
	case l.queue <- b:
		return a, nil
	case <-l.done:
		return nil, fmt.Errorf("simnet: dial %s: %w", address, syscall.ECONNREFUSED)
	}
}

// Listener is a net.Listener of a Network.
type Listener struct {
	n     *Network
	addr  *net.TCPAddr
	queue chan *Conn
	once  sync.Once
	done  chan struct{}
}

var _ net.Listener = (*Listener)(nil)

// Accept implements net.Listener.
func (l *Listener) Accept() (net.Conn, error) {
	select {
	case c := <-l.queue:
		return c, nil
	case <-l.done:
		return nil, net.ErrClosed
	}
}

// Close implements net.Listener.
func (l *Listener) Close() error {
	l.once.Do(func() {
		close(l.done)
		l.n.mu.Lock()
		delete(l.n.listeners, l.addr.String())
		l.n.mu.Unlock()
	})
	return nil
}

// Addr implements net.Listener.
func (l *Listener) Addr() net.Addr { return l.addr }
