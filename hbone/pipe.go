package hbone

import (
	"bytes"
	"crypto/tls"
	"errors"
	"io"
	"net"
	"os"
	"sync"
	"time"
)

// Pipe is one end of an in-memory connection between two sessions of one process. It is the
// seam for tunnels that are not HTTP/2 on the wire: the caller's session runs on the outer end
// as on any transport, and a session on the inner end translates (package hbone/quic). So all
// transports share one implementation of limits, GOAWAY, drain and failure handling.
//
// Closing the inner session does not close the outer one. End does, after the translator has
// delivered all data.
type Pipe struct {
	in, out *pipeHalf
	info    PipeInfo
	inner   bool
}

// translates reports that s runs on the inner end of a pipe, and passes responses of a peer
// elsewhere on.
func (s *Session) translates() bool {
	p, ok := s.t.(*Pipe)
	return ok && p.inner
}

// PipeInfo describes the connection that a pipe stands for.
type PipeInfo struct {
	Peer          Peer
	Local, Remote net.Addr
	TLS           tls.ConnectionState // zero on the inner end
	Stats         func() PipeStats    // of the connection. nil: not known
}

// PipeStats are statistics of a connection since it was opened.
type PipeStats struct {
	RTT        time.Duration // smoothed
	MinRTT     time.Duration
	Sent, Lost uint64 // bytes of all packets sent, and of those declared lost. A few of these may have arrived late
}

// PipeStats returns the statistics of the connection that s runs on. ok is false over TCP, and if
// s runs in a stream.
func (s *Session) PipeStats() (x PipeStats, ok bool) {
	if p, isPipe := s.t.(*Pipe); isPipe && p.info.Stats != nil {
		return p.info.Stats(), true
	}
	return x, false
}

const (
	// pipeBuffer is how many bytes one direction holds before a write waits. A write is
	// taken whole, so up to one burst more.
	pipeBuffer = 64 << 10
	// pipeWindow bounds the windows of streams on a pipe, which has no round trip. Behind it
	// are the windows of the wire.
	pipeWindow = 256 << 10
)

// NewPipe returns both ends. Outer reports info; the peer of inner is unknown, so that it has
// no certificate that expires.
func NewPipe(info PipeInfo) (outer, inner *Pipe) {
	a, b := newPipeHalf(), newPipeHalf()
	return &Pipe{in: a, out: b, info: info},
		&Pipe{in: b, out: a, info: PipeInfo{Local: info.Local, Remote: info.Remote}, inner: true}
}

// pipeHalf is one direction.
type pipeHalf struct {
	mu   sync.Mutex
	cond sync.Cond     // on mu: bytes, room, the end, a deadline
	buf  *bytes.Buffer // nil without unread bytes
	err  error         // behind buf: io.EOF after an orderly close; nil while open
	deaf bool          // bytes are dropped: no reader is left, or the direction is closed

	readBy, writeBy deadline
}

var pipeBuffers = sync.Pool{New: func() any { return new(bytes.Buffer) }}

func newPipeHalf() *pipeHalf {
	h := &pipeHalf{}
	h.cond.L = &h.mu
	return h
}

// Read implements Transport.
func (p *Pipe) Read(b []byte) (int, error) {
	h := p.in
	h.mu.Lock()
	defer h.mu.Unlock()
	if err := h.waitLocked(); err != nil {
		return 0, err
	}
	n, _ := h.buf.Read(b)
	if h.buf.Len() == 0 {
		if h.buf.Cap() <= 2*pipeBuffer {
			pipeBuffers.Put(h.buf)
		}
		h.buf = nil
	}
	h.cond.Broadcast()
	return n, nil
}

// waitLocked waits for a byte. It returns what Read is to return without one.
func (h *pipeHalf) waitLocked() error {
	for h.buf == nil {
		switch {
		case h.readBy.expired:
			return os.ErrDeadlineExceeded
		case h.err != nil:
			return h.err
		}
		h.cond.Wait()
	}
	return nil
}

// await and buffered implement gatherer.
func (p *Pipe) await() {
	p.in.mu.Lock()
	p.in.waitLocked()
	p.in.mu.Unlock()
}

func (p *Pipe) buffered() bool {
	p.in.mu.Lock()
	defer p.in.mu.Unlock()
	return p.in.buf != nil
}

// WriteBurst implements Transport. Bytes without a reader are dropped: Read returns why the
// connection was closed.
func (p *Pipe) WriteBurst(b []byte) error {
	h := p.out
	h.mu.Lock()
	defer h.mu.Unlock()
	for h.buf != nil && h.buf.Len() >= pipeBuffer && !h.deaf {
		if h.writeBy.expired {
			return os.ErrDeadlineExceeded
		}
		h.cond.Wait()
	}
	if h.deaf || len(b) == 0 {
		return nil
	}
	if h.buf == nil {
		h.buf = pipeBuffers.Get().(*bytes.Buffer)
		h.buf.Reset()
	}
	h.buf.Write(b)
	h.cond.Broadcast()
	return nil
}

// end has the reader read err behind the written bytes. Only the first call counts.
func (h *pipeHalf) end(err error) {
	h.mu.Lock()
	if h.err == nil {
		h.err = err
	}
	h.deaf = true
	h.cond.Broadcast()
	h.mu.Unlock()
}

// leave drops later writes.
func (h *pipeHalf) leave() {
	h.mu.Lock()
	h.deaf = true
	h.readBy.stop()
	h.writeBy.stop()
	h.cond.Broadcast()
	h.mu.Unlock()
}

// Close implements Transport. On the inner end it does not close the outer one: see End.
func (p *Pipe) Close() error {
	p.in.leave()
	if !p.inner {
		p.out.end(io.EOF)
	}
	return nil
}

// End closes the outer session's reading half, behind the bytes of the inner one. With a nil err
// it is an orderly close. It is called on the inner end.
func (p *Pipe) End(err error) {
	if err == nil {
		err = io.EOF
	}
	p.out.end(err)
}

// closeWrite implements halfCloser. An inner session waits for nothing.
func (p *Pipe) closeWrite() error {
	if p.inner {
		return errors.ErrUnsupported
	}
	p.out.end(io.EOF)
	return nil
}

// abort closes both directions, not in order.
func (p *Pipe) abort() {
	p.in.leave()
	if !p.inner {
		p.out.end(errPipeCut)
	}
}

var errPipeCut = errors.New("the session was cut off")

func (p *Pipe) Peer() Peer           { return p.info.Peer }
func (p *Pipe) LocalAddr() net.Addr  { return p.info.Local }
func (p *Pipe) RemoteAddr() net.Addr { return p.info.Remote }

// Protocol is the negotiated ALPN protocol.
func (p *Pipe) Protocol() string { return p.info.TLS.NegotiatedProtocol }

// ConnectionState is that of the TLS handshake of the connection.
func (p *Pipe) ConnectionState() tls.ConnectionState { return p.info.TLS }

// SetReadDeadline implements Transport.
func (p *Pipe) SetReadDeadline(t time.Time) error {
	p.in.mu.Lock()
	defer p.in.mu.Unlock()
	p.in.readBy.set(t, &p.in.cond)
	return nil
}

// SetWriteDeadline implements Transport.
func (p *Pipe) SetWriteDeadline(t time.Time) error {
	p.out.mu.Lock()
	defer p.out.mu.Unlock()
	p.out.writeBy.set(t, &p.out.cond)
	return nil
}
