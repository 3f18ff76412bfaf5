package hbone

import (
	"net"
	"time"

	"github.com/spiffe/go-spiffe/v2/spiffeid"
)

// Peer is the authenticated peer of a handshake: its SPIFFE ID, and when the first certificate of
// its chain expires. The zero value is an unknown peer.
type Peer struct {
	ID       spiffeid.ID
	NotAfter time.Time
}

// Transport carries a session. Read is called by one goroutine, and WriteBurst by one goroutine at a
// time. The other methods are safe for concurrent use.
type Transport interface {
	// Read returns at least one byte or an error. It returns all complete records that have
	// arrived, up to len(p), without waiting for more.
	Read(p []byte) (int, error)
	// WriteBurst writes p, which holds whole frames, as one burst. It does not
	// keep p.
	WriteBurst(p []byte) error
	Peer() Peer
	SetReadDeadline(time.Time) error
	SetWriteDeadline(time.Time) error
	LocalAddr() net.Addr
	RemoteAddr() net.Addr
	Close() error
}

// gatherer is an optional interface of a Transport. await waits for data without a buffer. buffered
// reports whether a Read would return without waiting.
type gatherer interface {
	await()
	buffered() bool
}

// halfCloser is an optional interface of a Transport. closeWrite closes its write side: the peer
// reads io.EOF, and reading goes on.
type halfCloser interface{ closeWrite() error }
