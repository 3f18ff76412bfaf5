package hbone

import (
	"fmt"
	"net"
	"os"
	"sync"
)

// sendHalf is the sending half of a stream: the window that the peer has left it,
// whose turn it is to write, and its end. Every byte enters by writeChunk and
// leaves through the session's sender.
//
// Guarded by the session's mu, with which all methods are called.
type sendHalf struct {
	window   int  // may be negative after the peer shrank it
	ended    bool // END_STREAM is queued or sent, no more data
	endSent  bool // END_STREAM is on the wire
	stopped  bool // not one more frame: reset by either side, or over, or the session ended
	writing  bool // somebody is in Write
	turn     bool // space in the data queue is reserved
	promised bool // connection window is promised
	claimed  int  // bytes that the one who is in Write has claimed: see claim.go
	waits    waiting
	err      error     // why it takes nothing any more
	cond     sync.Cond // window, room, a turn, the end, a deadline
	deadline deadline
}

func (h *sendHalf) init(mu *sync.Mutex, window int) {
	h.window = window
	h.cond.L = mu
}

// takes returns why the half takes nothing now, nil if it does.
func (h *sendHalf) takes() error {
	switch {
	case h.err != nil:
		return h.err
	case h.ended:
		return net.ErrClosed
	case h.deadline.expired:
		return os.ErrDeadlineExceeded
	}
	return nil
}

// lock makes the caller the only writer, once it may be.
func (h *sendHalf) lock() error {
	for h.writing {
		if err := h.takes(); err != nil {
			return err
		}
		h.cond.Wait()
	}
	if err := h.takes(); err != nil {
		return err
	}
	h.writing = true
	return nil
}

func (h *sendHalf) unlock() {
	h.writing = false
	h.cond.Broadcast()
}

// stop ends the half at once with err, unless it has ended before.
func (h *sendHalf) stop(err error) {
	h.stopped = true
	h.deadline.stop()
	if h.err == nil {
		h.err = err
	}
	h.cond.Broadcast()
}

// widen moves the window by n bytes, which may be negative, and wakes a writer that
// it frees.
func (h *sendHalf) widen(n int) {
	waits := h.window <= 0
	if h.window += n; waits && h.window > 0 {
		h.cond.Broadcast()
	}
}

func writeError(s *Session, err error) error {
	return fmt.Errorf("hbone: write to %v: %w", s.t.RemoteAddr(), err)
}

// Write implements net.Conn. It returns when p is on its way or in the bounded
// queue of the session.
func (st *Stream) Write(p []byte) (int, error) {
	if err := st.startWrite(); err != nil {
		return 0, err
	}
	defer st.endWrite()
	total := 0
	for total < len(p) {
		n, err := st.writeChunk(p[total:], nil, 0)
		total += n
		if err != nil {
			return total, err
		}
	}
	return total, nil
}

// TryWrite is Write that waits neither for a window nor for room in the queue: it
// returns how much it has taken, which may be less than p without an error.
func (st *Stream) TryWrite(p []byte) (int, error) {
	total := 0
	for total < len(p) {
		n, err := st.tryChunk(p[total:])
		total += n
		if n == 0 || err != nil {
			return total, err
		}
	}
	return total, nil
}

// tryChunk is writeChunk that does not wait, for a caller that is not the stream's
// writer yet.
func (st *Stream) tryChunk(p []byte) (int, error) {
	s := st.s
	s.mu.Lock()
	if err := st.send.takes(); err != nil || st.send.writing {
		s.mu.Unlock()
		return 0, err
	}
	s.send.setLimit(s.queueLimit())
	n, direct, _ := s.send.tryGrant(&st.send, min(len(p), s.chunk), false)
	if n == 0 {
		s.mu.Unlock()
		return 0, nil
	}
	st.send.writing = true
	defer st.endWrite()
	return st.sendGranted(p[:n], direct, nil, 0)
}

// writeFrame writes the n payload bytes at f.b[off:], laying out frames in
// place. f may be reused when it returns.
func (st *Stream) writeFrame(f *frameBuf, off, n int) (int, error) {
	if err := st.startWrite(); err != nil {
		return 0, err
	}
	defer st.endWrite()
	total := 0
	for total < n {
		k, err := st.writeChunk(f.b[off:off+n-total], f, off)
		total += k
		off += k
		if err != nil {
			return total, err
		}
	}
	return total, nil
}

// startWrite makes the caller the stream's only writer.
func (st *Stream) startWrite() error {
	st.s.mu.Lock()
	defer st.s.mu.Unlock()
	return st.send.lock()
}

func (st *Stream) endWrite() {
	st.s.mu.Lock()
	st.send.unlock()
	st.s.mu.Unlock()
}

// broken returns why the stream takes no more, if it does not.
func (st *Stream) broken() error {
	st.s.mu.Lock()
	defer st.s.mu.Unlock()
	return st.send.takes()
}

// writeChunk sends some of p: as much as the windows, one burst and the queue
// allow. When f is given, p is f.b[off:off+len(p)]. Called by the stream's one
// writer.
func (st *Stream) writeChunk(p []byte, f *frameBuf, off int) (int, error) {
	s := st.s
	s.mu.Lock()
	s.send.setLimit(s.queueLimit())
	n, direct, err := s.send.grant(&st.send, min(len(p), s.chunk))
	if err != nil {
		s.mu.Unlock()
		return 0, err
	}
	return st.sendGranted(p[:n], direct, f, off)
}

// sendGranted sends p, which was granted. It is called with s.mu held, and releases
// it.
func (st *Stream) sendGranted(p []byte, direct bool, f *frameBuf, off int) (int, error) {
	s, n := st.s, len(p)
	s.noteBulkLocked(n)
	if !direct {
		s.send.data.payload(st, p, s.peer.MaxFrame)
		s.send.admit()
		s.kickLocked()
		s.mu.Unlock()
		return n, nil
	}
	s.send.busy = true
	s.send.admit() // a turn that went unused, now that the writer was free
	control := s.takeLocked(true)
	s.send.dataSent(st)
	max := s.peer.MaxFrame
	s.mu.Unlock()
	own := f == nil
	if own {
		f, off = getFrameBuf(), frameFront
		copy(f.b[off:], p)
	}
	err := s.writeDirect(control, f.layout(st.id, off, n, max))
	if own {
		putFrameBuf(f)
	}
	if err != nil {
		return 0, err
	}
	return n, nil
}
