package hbone

import (
	"fmt"
	"io"
	"net"
	"syscall"

	"github.com/isthmus-mesh/isthmus/hbone/flow"
)

// source moves what an application sends to a stream. A socket of the kernel and a
// Stream hold no buffer while there is nothing to be read, or while what there is
// cannot be sent.
type source interface {
	// next waits for bytes and returns a buffer with n of them at frameFront, which
	// send takes; io.EOF behind the last ones, or why no more can be read or sent.
	next() (f *frameBuf, n int, err error)
	// send is called once for each buffer. It says how many bytes were sent.
	send(f *frameBuf, n int) (int, error)
}

// newSource returns the connection of k as a source for its stream.
func newSource(k *sink) source {
	st, c := k.st, k.c
	if from, ok := c.(*Stream); ok {
		return newStreamSource(st, from)
	}
	if k.inline {
		return newSocketSource(k)
	}
	return &plainSource{st: st, c: c}
}

func readFailed(c net.Conn, err error) error {
	if err == io.EOF {
		return err
	}
	return fmt.Errorf("hbone: relay: read from %v: %w", c.RemoteAddr(), err)
}

// plainSource is any net.Conn: it holds one buffer.
type plainSource struct {
	st *Stream
	c  net.Conn
}

func (p *plainSource) next() (*frameBuf, int, error) {
	f := getFrameBuf()
	for {
		n, err := p.c.Read(f.payload()[:p.st.s.chunk])
		if n > 0 {
			return f, n, nil // an error comes again
		}
		if err != nil {
			putFrameBuf(f)
			return nil, 0, readFailed(p.c, err)
		}
	}
}

func (p *plainSource) send(f *frameBuf, n int) (int, error) {
	defer putFrameBuf(f)
	return p.st.writeFrame(f, frameFront, n)
}

// streamSource is a stream of another session.
type streamSource struct {
	claimer
	from *Stream
}

func newStreamSource(st, from *Stream) *streamSource {
	s := &streamSource{claimer: claimer{st: st}, from: from}
	s.lost = s.broken
	return s
}

func (s *streamSource) next() (*frameBuf, int, error) {
	if err := s.from.WaitReadable(); err != nil {
		return nil, 0, readFailed(s.from, err)
	}
	n, err := s.claim(min(s.from.Buffered(), s.st.s.chunk))
	if err != nil {
		return nil, 0, err
	}
	f := getFrameBuf()
	n, err = s.from.Read(f.payload()[:n])
	if err != nil {
		putFrameBuf(f)
		s.st.unclaim()
		return nil, 0, readFailed(s.from, err)
	}
	return f, n, nil
}

// broken returns why the stream that is read has broken, although bytes of it are left. If
// it did so behind its end they are waited for as socketSource.wasReset does.
func (s *streamSource) broken() error {
	s.from.recv.mu.Lock()
	defer s.from.recv.mu.Unlock()
	if err := s.from.recv.broken; err != nil && !(s.from.recv.ended && s.patient()) {
		return readFailed(s.from, err)
	}
	return nil
}

// socketSource is a socket: what st cannot send stays unread in it.
type socketSource struct {
	claimer
	c    net.Conn
	sock socket
	sink *sink                 // of c
	read func(fd uintptr) bool // attempt, with its results

	f       *frameBuf
	n       int // bytes in f; without f, bytes that can be read and not be sent
	claimed int // bytes
	err     error
	short   bool // the last read has brought a small message, and less than it might have
}

func newSocketSource(k *sink) *socketSource {
	s := &socketSource{claimer: claimer{st: k.st}, c: k.c, sock: k.sock, sink: k}
	s.read, s.lost = s.attempt, s.wasReset
	return s
}

func (s *socketSource) next() (*frameBuf, int, error) {
	for {
		s.f, s.n, s.err = nil, 0, nil
		if err := s.sock.raw.Read(s.read); err != nil {
			s.giveBack()
			return nil, 0, readFailed(s.c, err)
		}
		if s.f != nil || s.err != nil {
			return s.f, s.n, s.err
		}
		if s.claimed, s.err = s.awaitClaim(min(s.n, s.st.s.chunk)); s.err != nil {
			return nil, 0, s.err
		}
	}
}

// attempt reads if st can send something, and otherwise looks what there is to be
// read. It returns false to be called again when there may be more.
func (s *socketSource) attempt(fd uintptr) bool {
	if s.claimed == 0 && s.short { // most likely that was all: not worth a claim
		s.short = false
		if s.sock.empty(fd) {
			return false
		}
	}
	if s.claimed == 0 {
		if s.claimed, s.err = s.st.tryClaim(s.st.s.chunk); s.err != nil {
			return true
		}
	}
	if s.claimed == 0 {
		s.n, s.err = s.sock.readable(fd)
		return s.done(fd, s.n)
	}
	f := getFrameBuf()
	n, err := s.sock.read(fd, f.payload()[:s.claimed])
	if n > 0 {
		s.short = n < min(s.claimed, flow.BulkPiece)
		s.f, s.n, s.claimed = f, n, 0
		return true
	}
	putFrameBuf(f)
	s.giveBack()
	s.err = err
	return s.done(fd, n)
}

// done says what n bytes and s.err mean. An end is one of a connection that was not
// reset before: a socket tells of its reset once, and that may have been to a write of the
// sink, which has not yet got to say so. A reset behind the end is found by awaitReset.
func (s *socketSource) done(fd uintptr, n int) bool {
	switch {
	case s.err == syscall.EAGAIN:
		s.err = nil
		return false
	case s.err != nil:
		s.err = readFailed(s.c, s.err)
	case n <= 0 && s.sink.wasReset(fd) && !s.sink.endedFirst(fd):
		s.err = readFailed(s.c, syscall.ECONNRESET)
	case n <= 0:
		s.err = io.EOF
	}
	return true
}

func (s *socketSource) giveBack() {
	if s.claimed > 0 {
		s.claimed = 0
		s.st.unclaim()
	}
}

// wasReset tells of a reset behind bytes that are left unread. Those that a FIN came
// behind are all there was to come: they are waited for as for an application that is
// slow to read.
func (s *socketSource) wasReset() error {
	if s.sink.wasResetNow() && !(s.sink.endedFirstNow() && s.patient()) {
		return readFailed(s.c, syscall.ECONNRESET)
	}
	return nil
}
