package gossip

import (
	"bufio"
	"context"
	"encoding/binary"
	"fmt"
	"io"
	"net"
	"sync"

	"github.com/isthmus-mesh/isthmus/federation/peer"
	"github.com/isthmus-mesh/isthmus/internal/link"
)

const (
	maxStream  = 1 << 20 // bytes of one exchange of members, each way
	maxListed  = 4096    // members in it
	maxStreams = 16      // exchanges at once that others have begun
)

// stream is one exchange of members between two memberlists. It reads what the
// other end announces before memberlist does, which would make room for a
// million members on its word.
type stream struct {
	net.Conn
	transport *transport
	reader    *bufio.Reader
	dialled   bool
	checked   bool
	once      sync.Once
	closed    chan struct{}
	release   func() bool
}

// newStream returns a stream that ends with ctx at the latest.
func newStream(ctx context.Context, t *transport, raw net.Conn, dialled bool) *stream {
	s := &stream{Conn: raw, transport: t, dialled: dialled, closed: make(chan struct{})}
	s.reader = bufio.NewReader(io.LimitReader(received{s}, maxStream))
	s.release = context.AfterFunc(ctx, func() { s.end() })
	return s
}

// received reads from a stream's connection and counts it.
type received struct{ *stream }

func (r received) Read(p []byte) (int, error) {
	n, err := r.Conn.Read(p)
	r.transport.f.cfg.Metrics.Received.WithLabelValues("stream").Add(float64(n))
	return n, err
}

func (s *stream) Read(p []byte) (int, error) {
	if !s.checked {
		if err := s.check(); err != nil {
			return 0, err
		}
		s.checked = true
	}
	return s.reader.Read(p)
}

func (s *stream) Write(p []byte) (int, error) {
	n, err := s.Conn.Write(p)
	s.transport.f.cfg.Metrics.Bytes.WithLabelValues("stream").Add(float64(n))
	return n, err
}

// Close ends the stream, once what was written has been sent.
func (s *stream) Close() error {
	s.release()
	s.once.Do(func() { s.Conn.Close(); close(s.closed) })
	return nil
}

func (s *stream) end() {
	s.once.Do(func() { link.CloseAbruptly(s.Conn); close(s.closed) })
}

// check reads the header of a push/pull, or of the error that answers one.
func (s *stream) check() error {
	h := header{reader: s.reader}
	switch kind := h.next(); {
	case h.err != nil:
		return h.err
	case kind == typeError && s.dialled:
		return nil
	case kind != typeState:
		return s.malformed("stream of type %d", kind)
	}
	if m := h.next(); m != 0x83 {
		return s.malformed("header of a push/pull begins with %#x", m)
	}
	for range 3 {
		key, value := h.pair()
		switch {
		case h.err != nil:
			return h.err
		case key == "Nodes" && value <= maxListed, key == "UserStateLen" && value == 0, key == "Join":
		default:
			return s.malformed("header of a push/pull with %.20q of %d", key, value)
		}
	}
	return nil
}

func (s *stream) malformed(format string, values ...any) error {
	err := &peer.MalformedError{Cause: fmt.Errorf(format, values...)}
	s.transport.f.cfg.Metrics.Rejected.WithLabelValues("malformed").Inc()
	return err
}

// header reads MessagePack without consuming it.
type header struct {
	reader *bufio.Reader
	at     int
	err    error
}

func (h *header) next() byte {
	if b := h.bytes(1); h.err == nil {
		return b[0]
	}
	return 0
}

func (h *header) bytes(n int) []byte {
	if h.err != nil {
		return nil
	}
	b, err := h.reader.Peek(h.at + n)
	if err != nil {
		h.err = err
		return nil
	}
	b = b[h.at:]
	h.at += n
	return b
}

// pair reads a short key and an integer or a boolean; anything else is a value
// that is too large.
func (h *header) pair() (string, uint64) {
	n := h.next()
	if n&0xe0 != 0xa0 {
		return "", 0
	}
	key := string(h.bytes(int(n & 0x1f)))
	switch v := h.next(); {
	case v < 0x80:
		return key, uint64(v)
	case v == 0xc2, v == 0xc3:
		return key, uint64(v & 1)
	case v >= 0xcc && v <= 0xcf, v >= 0xd0 && v <= 0xd3:
		var wide [8]byte
		size := 1 << (v & 3)
		copy(wide[8-size:], h.bytes(size))
		return key, binary.BigEndian.Uint64(wide[:])
	default:
		return key, 1<<63 + uint64(v)
	}
}
