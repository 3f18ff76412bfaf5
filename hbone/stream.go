package hbone

import (
	"net"
	"time"

	"golang.org/x/net/http2"

	"github.com/isthmus-mesh/isthmus/hbone/flow"
	"github.com/isthmus-mesh/isthmus/internal/memory"
)

// Stream is one CONNECT: a net.Conn with true half-close. Read returns io.EOF
// once the peer's END_STREAM is reached, Write goes on until CloseWrite. Reads
// and writes may run concurrently; several writers take turns.
//
// Close ends a stream in order: what was written is delivered, then END_STREAM,
// and if the peer has not ended its half RST_STREAM(CANCEL) behind it. Reset
// ends it at once and drops what is queued. One of the two must be called.
type Stream struct {
	s  *Session
	id uint32

	send sendHalf // guarded by s.mu
	recv recvHalf // has a lock of its own

	// Guarded by s.mu.
	connect     exchange
	endReceived bool // END_STREAM was received, and perhaps not yet delivered
	closed      bool // Close was called
	eofEnds     bool // see EndAtEOF

	// Of the session's reading goroutine.
	touched     bool // in the batch that is being read
	smallFrames flow.SmallFrames
}

var _ net.Conn = (*Stream)(nil)

func (s *Session) newStreamLocked(id uint32) *Stream {
	st := &Stream{s: s, id: id}
	st.send.init(&s.mu, s.peer.Window)
	use := s.cfg.Memory.Open(s.cfg.Owner, memory.Stream, func() bool {
		st.abort(http2.ErrCodeEnhanceYourCalm, ErrMemory)
		return true
	})
	st.recv.init(&s.path, s.cfg.FirstWindow, s.cfg.StreamWindow, use)
	s.streams[id] = st
	return st
}

// ID is the HTTP/2 stream identifier.
func (st *Stream) ID() uint32 { return st.id }

// Session is the session that carries the stream.
func (st *Stream) Session() *Session { return st.s }

// LocalAddr and RemoteAddr are those of the session.
func (st *Stream) LocalAddr() net.Addr  { return st.s.LocalAddr() }
func (st *Stream) RemoteAddr() net.Addr { return st.s.RemoteAddr() }

// Read implements net.Conn. Bytes that arrived before a reset are still
// delivered; then the error is a *ResetError, or the session's.
func (st *Stream) Read(p []byte) (int, error) {
	n, due, err := st.recv.read(p)
	if err != nil {
		return 0, err
	}
	st.release(n, due)
	return n, nil
}

// release gives n bytes back to the connection's window and tells the peer of due
// bytes of the stream's.
func (st *Stream) release(n, due int) {
	st.s.release(n)
	st.s.creditStream(st, due)
}

// WaitReadable blocks until Read would not, without holding a buffer. It
// returns the error that Read would return, io.EOF included.
func (st *Stream) WaitReadable() error { return st.recv.wait(1) }

// Buffered is how many received bytes wait to be read.
func (st *Stream) Buffered() int { return st.recv.buffered() }

// Ready reports, without waiting, whether Read would return bytes or io.EOF, or
// the error that it would return instead.
func (st *Stream) Ready() (bool, error) { return st.recv.ready() }

// Watch has changed called after each event on the stream: its response, bytes, the
// end, a failure. It runs in the session's own goroutine and must not block or
// use the stream. Nil ends it; a call that is under way may still come.
func (st *Stream) Watch(changed func()) {
	st.recv.mu.Lock()
	st.recv.watch = changed
	st.recv.mu.Unlock()
}

// changed tells the watcher.
func (st *Stream) changed() {
	st.recv.mu.Lock()
	watch := st.recv.watch
	st.recv.mu.Unlock()
	if watch != nil {
		watch()
	}
}

// failed ends the receiving half with err and frees whoever waits. The sending
// half has been ended by stopSendingLocked. An END_STREAM of the batch that is being
// read has come before.
func (st *Stream) failed(err error) {
	st.s.mu.Lock()
	ended := st.endReceived
	st.s.mu.Unlock()
	st.recv.fail(err, ended)
	if st.connect.cancel != nil {
		st.connect.cancel(err)
	}
	st.recv.notify()
}

// closeRead ends the receiving half: nobody will read.
func (st *Stream) closeRead() {
	st.s.release(st.recv.close())
	st.recv.notify()
}

// stopSendingLocked ends the sending half at once. Called at most once per stream.
func (st *Stream) stopSendingLocked(err error) {
	st.send.stop(err)
	st.awaitNoResponseLocked()
}

// awaitNoResponseLocked ends the wait for a response that nobody waits for.
func (st *Stream) awaitNoResponseLocked() {
	if st.connect.pending != nil && st.connect.response == nil {
		close(st.connect.pending)
		st.connect.pending = nil
		st.s.alive.Lost()
	}
}

// removeIfEndedLocked forgets the stream once nothing can happen on it.
func (s *Session) removeIfEndedLocked(st *Stream) {
	if !st.send.stopped && (!st.send.endSent || !st.endReceived) {
		return
	}
	if s.streams[st.id] != st {
		return
	}
	delete(s.streams, st.id)
	st.send.stopped = true
	s.notifyObserver()
	if len(s.streams) > 0 {
		return
	}
	s.life.idleSince = time.Now()
	s.life.changed.Broadcast()
	if s.life.closeWhenIdle {
		go s.Close(nil)
	}
}

// SetDeadline implements net.Conn.
func (st *Stream) SetDeadline(t time.Time) error {
	st.SetReadDeadline(t)
	return st.SetWriteDeadline(t)
}

// SetReadDeadline implements net.Conn.
func (st *Stream) SetReadDeadline(t time.Time) error {
	st.recv.mu.Lock()
	defer st.recv.mu.Unlock()
	if !st.recv.closed {
		st.recv.deadline.set(t, &st.recv.cond)
	}
	return nil
}

// SetWriteDeadline implements net.Conn.
func (st *Stream) SetWriteDeadline(t time.Time) error {
	st.s.mu.Lock()
	defer st.s.mu.Unlock()
	if !st.send.stopped && !st.closed {
		st.send.deadline.set(t, &st.send.cond)
	}
	return nil
}
