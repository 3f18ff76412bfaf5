package hbone

import (
	"context"
	"io"
	"net"
	"os"
	"sync"
	"time"
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

	// Guarded by s.mu.
	sendAvail int  // may be negative after the peer shrank it
	localEnd  bool // END_STREAM is queued or sent, no more data
	endTaken  bool // END_STREAM is on the wire
	remoteEnd bool // END_STREAM received
	dead      bool // not one more frame: reset by either side, or the session ended
	closed    bool // Close was called
	writing   bool // somebody is in Write
	turn      bool // space in the data queue is reserved
	credited  bool // connection window is promised
	waits     waiting
	werr      error
	wcond     sync.Cond
	wdl       deadline
	authority string        // client: of the request
	asked     time.Time     // client: when it was sent
	harmless  bool          // client: see Request
	spoke     bool          // client: payload was written before the answer
	answer    *Response     // client: the peer's answer
	answered  chan struct{} // client: closed when answer or werr is set, then nil
	decided   chan struct{} // the same channel, never changed
	cancel    context.CancelCauseFunc
	accepted  bool // server: 200 is queued
	refused   bool // server: another status is queued
	eofEnds   bool // see EndAtEOF

	small int // DATA frames in a row that were small

	touched bool // of the reading goroutine

	mu       sync.Mutex
	rcond    sync.Cond
	rq       recvQueue
	rEnd     bool  // io.EOF after rq
	rerr     error // after rq
	rclosed  bool  // nobody will read
	window   recvWindow
	taken    int // bytes that the sink has taken from rq and not delivered
	rdl      deadline
	sink     *sink
	watch    func() // see Watch
	cleanEnd bool   // the peer left: RST_STREAM(CANCEL or NO_ERROR) came behind END_STREAM or stands for it
}

type waiting uint8

const (
	waitsNothing waiting = iota
	waitsCredit
	waitsRoom
)

var _ net.Conn = (*Stream)(nil)

// newStream is called with mu held.
func (s *Session) newStream(id uint32) *Stream {
	st := &Stream{s: s, id: id, sendAvail: s.peer.window}
	st.window.init(s.cfg.FirstWindow)
	st.wcond.L = &s.mu
	st.rcond.L = &st.mu
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
	st.mu.Lock()
	if err := st.readableLocked(min(len(p), 1)); err != nil {
		st.mu.Unlock()
		return 0, err
	}
	n := st.rq.read(p)
	due := st.consumedLocked(n)
	st.mu.Unlock()
	st.s.release(n)
	st.s.creditStream(st, due)
	return n, nil
}

// WaitReadable blocks until Read would not, without holding a buffer. It
// returns the error that Read would return, io.EOF included.
func (st *Stream) WaitReadable() error {
	st.mu.Lock()
	defer st.mu.Unlock()
	return st.readableLocked(1)
}

// Buffered is how many received bytes wait to be read.
func (st *Stream) Buffered() int {
	st.mu.Lock()
	defer st.mu.Unlock()
	return st.rq.n
}

// readableLocked waits until rq has n bytes.
func (st *Stream) readableLocked(n int) error {
	for {
		switch {
		case st.rclosed:
			return net.ErrClosed
		case st.rdl.expired:
			return os.ErrDeadlineExceeded
		case st.rq.n >= n:
			return nil
		case st.rEnd:
			return io.EOF
		case st.rerr != nil:
			return st.rerr
		}
		st.rcond.Wait()
	}
}

// consumedLocked notes that n bytes were taken in and returns how much stream
// window is due.
func (st *Stream) consumedLocked(n int) (due int) {
	if st.rEnd {
		return 0
	}
	return st.window.consumed(n, st.s)
}

// padding counts n bytes that carry nothing.
func (st *Stream) padding(n int) {
	st.mu.Lock()
	due := st.consumedLocked(n)
	st.mu.Unlock()
	st.s.release(n)
	st.s.creditStream(st, due)
}

// takeLocked hands the first chunk of the queue to the sink. Its bytes stay with
// the stream until they are delivered, or until nobody will read.
func (st *Stream) takeLocked() *chunk {
	c := st.rq.takeHead()
	if c != nil {
		st.taken += c.w - c.r
	}
	return c
}

// delivered gives back n bytes of what the sink has taken.
func (st *Stream) delivered(n int) {
	st.mu.Lock()
	n = min(n, st.taken) // closeRead has given all of them back
	st.taken -= n
	due := st.consumedLocked(n)
	st.mu.Unlock()
	st.s.release(n)
	st.s.creditStream(st, due)
}

// closeRead ends the receiving half: nobody will read. What it still holds, queued
// or in the hands of the sink, is given back to the connection here.
func (st *Stream) closeRead() {
	st.mu.Lock()
	st.rclosed = true
	n := st.rq.drop() + st.taken
	st.taken = 0
	st.rdl.stop()
	st.mu.Unlock()
	st.s.release(n)
	st.notify()
}

// push queues received bytes; false if nobody will read them.
func (st *Stream) push(p []byte) bool {
	st.mu.Lock()
	defer st.mu.Unlock()
	if st.rclosed || st.rerr != nil {
		return false
	}
	st.rq.push(p)
	return true
}

// Ready reports, without waiting, whether Read would return bytes or io.EOF, or
// the error that it would return instead.
func (st *Stream) Ready() (bool, error) {
	st.mu.Lock()
	defer st.mu.Unlock()
	if st.rq.n > 0 || st.rEnd {
		return true, nil
	}
	if st.rclosed {
		return false, net.ErrClosed
	}
	return false, st.rerr
}

// Watch has changed called after each event on the stream: its answer, bytes, the
// end, a failure. It runs in the session's own goroutine and must not block or
// use the stream. Nil ends it; a call that is under way may still come.
func (st *Stream) Watch(changed func()) {
	st.mu.Lock()
	st.watch = changed
	st.mu.Unlock()
}

// changed tells the watcher.
func (st *Stream) changed() {
	st.mu.Lock()
	watch := st.watch
	st.mu.Unlock()
	if watch != nil {
		watch()
	}
}

// notify tells whoever consumes the stream that something changed.
func (st *Stream) notify() {
	st.mu.Lock()
	sink, watch := st.sink, st.watch
	st.rcond.Broadcast()
	st.mu.Unlock()
	if watch != nil {
		watch()
	}
	if sink != nil {
		sink.kick()
	}
}

// deliverEnd makes the peer's END_STREAM visible.
func (st *Stream) deliverEnd() {
	st.mu.Lock()
	if st.rerr == nil {
		st.rEnd = true
	}
	st.mu.Unlock()
	st.notify()
}

// failed ends the receiving half with err and frees whoever waits. The sending
// half has been ended by deadLocked.
func (st *Stream) failed(err error) {
	st.mu.Lock()
	if !st.rEnd && st.rerr == nil {
		st.rerr = err
	}
	st.mu.Unlock()
	if st.cancel != nil {
		st.cancel(err)
	}
	st.notify()
}

// deadLocked stops all sending. Called with s.mu held, at most once per stream.
func (st *Stream) deadLocked(err error) {
	st.dead = true
	st.wdl.stop()
	if st.werr == nil {
		st.werr = err
	}
	st.wcond.Broadcast()
	if st.answered != nil && st.answer == nil {
		close(st.answered)
		st.answered = nil
		st.s.alive.dropped()
	}
}

// settleLocked forgets the stream once nothing can happen on it. Called with
// s.mu held.
func (s *Session) settleLocked(st *Stream) {
	if !st.dead && (!st.endTaken || !st.remoteEnd) {
		return
	}
	if s.streams[st.id] != st {
		return
	}
	delete(s.streams, st.id)
	st.dead = true
	s.tellChanged()
	if len(s.streams) > 0 {
		return
	}
	s.idleSince = time.Now()
	s.changed.Broadcast()
	if s.whenIdle {
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
	st.mu.Lock()
	defer st.mu.Unlock()
	if !st.rclosed {
		st.rdl.set(t, &st.rcond)
	}
	return nil
}

// SetWriteDeadline implements net.Conn.
func (st *Stream) SetWriteDeadline(t time.Time) error {
	st.s.mu.Lock()
	defer st.s.mu.Unlock()
	if !st.dead && !st.closed {
		st.wdl.set(t, &st.wcond)
	}
	return nil
}
