package istioca

import (
	"context"
	"net"
	"net/netip"
	"sync"
	"time"

	"google.golang.org/grpc/peer"

	"github.com/isthmus-mesh/isthmus/internal/admission"
	"github.com/isthmus-mesh/isthmus/internal/pending"
)

// A node proxy needs one connection, for a moment, twice in the life of a certificate.
const (
	// maxConns bounds the connections of all clients. With all of them idle they take
	// 15 MiB; the controller has 256 MiB in the chart.
	maxConns = 512
	// idleTime ends a connection without a request for so long, ageTime any connection.
	// Clients connect again for their next request.
	idleTime = time.Minute
	ageTime  = 30 * time.Minute
	// bufferSize is what a connection reads and writes with; by default gRPC has 32 KiB
	// each way.
	bufferSize = 4 << 10
	// maxHeaders bounds the headers of a request: the token, and room for the rest.
	maxHeaders = maxToken + 4<<10
)

// boundedListener accepts at most maxConns connections at once. One more closes the oldest
// connection without a request of the client address that has the most (see package
// pending). A client that holds connections therefore closes its own, and a client that
// loses one connects again for its next request.
type boundedListener struct {
	net.Listener
	set     *pending.Set
	evicted func()
}

func newBoundedListener(l net.Listener, evicted func()) *boundedListener {
	return &boundedListener{Listener: l, set: pending.New(maxConns), evicted: evicted}
}

// Accept implements net.Listener.
func (l *boundedListener) Accept() (net.Conn, error) {
	for {
		c, err := l.Listener.Accept()
		if err != nil {
			return nil, err
		}
		entry, evicted := l.set.Enter(c, addressKey(c.RemoteAddr()))
		if entry == nil || evicted {
			l.evicted()
		}
		if entry != nil {
			return &boundedConn{Conn: c, entry: entry}, nil
		}
		c.Close()
	}
}

// addressKey returns the address that connections are counted by.
func addressKey(a net.Addr) netip.Prefix {
	p, err := netip.ParseAddrPort(a.String())
	if err != nil {
		return netip.Prefix{}
	}
	return admission.AddressKey(p.Addr())
}

// boundedConn is a connection in the set.
type boundedConn struct {
	net.Conn
	entry *pending.Entry
	once  sync.Once
}

// RemoteAddr implements net.Conn. It returns a peerAddr: gRPC hands requests the address of
// their connection, not the connection.
func (c *boundedConn) RemoteAddr() net.Addr { return peerAddr{c.Conn.RemoteAddr(), c.entry} }

// peerAddr is the client address of a connection in the set.
type peerAddr struct {
	net.Addr
	entry *pending.Entry
}

// requestUnderWay keeps the connection of the request with ctx from eviction until done is
// called.
func requestUnderWay(ctx context.Context) (done func()) {
	if p, ok := peer.FromContext(ctx); ok {
		if a, ok := p.Addr.(peerAddr); ok {
			return a.entry.Work()
		}
	}
	return func() {}
}

// Close implements net.Conn.
func (c *boundedConn) Close() error {
	c.once.Do(c.entry.Leave)
	return c.Conn.Close()
}
