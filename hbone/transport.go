package hbone

import (
	"net"
	"time"

	"github.com/spiffe/go-spiffe/v2/spiffeid"
)

// Peer is who answered the handshake: the authenticated SPIFFE ID and when the
// first certificate of its chain expires. The zero value is an unknown peer.
type Peer struct {
	ID       spiffeid.ID
	NotAfter time.Time
}

// Transport is what a session runs on. Read is called by one goroutine and
// WriteBurst by one goroutine at a time; the rest may be called by any.
type Transport interface {
	// Read returns at least one byte or an error. It gathers every complete
	// record that is already here, up to len(p), without waiting for more.
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

// gatherer is what a Transport may offer on top: waiting without holding a
// buffer, and telling whether a Read would return at once.
type gatherer interface {
	await()
	buffered() bool
}

// halfCloser is what a Transport may offer on top: to end its writing half, after
// which its peer reads io.EOF, and go on reading.
type halfCloser interface{ closeWrite() error }
