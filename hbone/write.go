package hbone

import (
	"fmt"
	"net"
	"os"
	"slices"
)

func writeError(s *Session, err error) error {
	return fmt.Errorf("hbone: write to %v: %w", s.t.RemoteAddr(), err)
}

// Write implements net.Conn. It returns when p is on its way or in the bounded
// queue of the session.
func (st *Stream) Write(p []byte) (int, error) {
	if err := st.beginWrite(); err != nil {
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
		st.s.mu.Lock()
		if err := st.writableLocked(); err != nil {
			st.s.mu.Unlock()
			return total, err
		}
		n, direct := st.grantNow(len(p) - total)
		if n == 0 || st.writing {
			st.s.mu.Unlock()
			return total, nil
		}
		st.writing = true
		n, err := st.sendLocked(p[total:total+n], direct, nil, 0)
		st.endWrite()
		total += n
		if err != nil {
			return total, err
		}
	}
	return total, nil
}

// writeFrame writes the n payload bytes at f.b[off:], laying out frames in
// place. f may be reused when it returns.
func (st *Stream) writeFrame(f *frameBuf, off, n int) (int, error) {
	if err := st.beginWrite(); err != nil {
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

// beginWrite makes the caller the stream's only writer.
func (st *Stream) beginWrite() error {
	st.s.mu.Lock()
	defer st.s.mu.Unlock()
	for st.writing {
		if err := st.writableLocked(); err != nil {
			return err
		}
		st.wcond.Wait()
	}
	if err := st.writableLocked(); err != nil {
		return err
	}
	st.writing = true
	return nil
}

func (st *Stream) endWrite() {
	st.s.mu.Lock()
	st.writing = false
	st.wcond.Broadcast()
	st.s.mu.Unlock()
}

// broken returns why the stream takes no more, if it does not.
func (st *Stream) broken() error {
	st.s.mu.Lock()
	defer st.s.mu.Unlock()
	return st.writableLocked()
}

func (st *Stream) writableLocked() error {
	switch {
	case st.werr != nil:
		return st.werr
	case st.localEnd:
		return net.ErrClosed
	case st.wdl.expired:
		return os.ErrDeadlineExceeded
	}
	return nil
}

// writeChunk sends some of p: as much as the windows, one burst and the queue
// allow. When f is given, p is f.b[off:off+len(p)]. Called by the stream's one
// writer.
func (st *Stream) writeChunk(p []byte, f *frameBuf, off int) (int, error) {
	st.s.mu.Lock()
	n, direct, err := st.grant(len(p))
	if err != nil {
		st.s.mu.Unlock()
		return 0, err
	}
	return st.sendLocked(p[:n], direct, f, off)
}

// sendLocked sends p, which was granted. It releases s.mu.
func (st *Stream) sendLocked(p []byte, direct bool, f *frameBuf, off int) (int, error) {
	s, n := st.s, len(p)
	st.sendAvail -= n
	s.w.sendAvail -= n
	s.bulk.add(n)
	s.w.wakeCredit()
	if !direct {
		s.w.data.payload(st, p, s.peer.maxFrame)
		s.w.admit()
		s.kick()
		s.mu.Unlock()
		return n, nil
	}
	s.w.busy = true
	s.w.admit() // a turn that went unused, now that the writer was free
	control := s.take(true)
	s.w.speak(st)
	max := s.peer.maxFrame
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

// grant waits until some of want bytes may be sent, and says how many and
// whether the caller is to write them itself. Called with s.mu held.
func (st *Stream) grant(want int) (n int, direct bool, err error) {
	w := &st.s.w
	want = min(want, st.s.chunk)
	w.setLimit(st.s.queueLimit())
	for {
		turn := st.takeTurn()
		if err := st.writableLocked(); err != nil {
			w.leave(st)
			return 0, false, err
		}
		n = min(want, st.sendAvail, w.sendAvail)
		switch {
		case st.sendAvail <= 0:
		case w.sendAvail <= 0:
			w.wait(st, waitsCredit)
		case !w.busy && len(w.data.segs) == 0 && !st.wdl.armed:
			w.unlist(st) // it may have been woken out of turn
			return n, true, nil
		case n < bulkPiece && w.data.size()+w.reserved+n <= pendingFront+pendingMax:
			w.unlist(st) // a small message waits for no turn
			return n, false, nil
		case w.fits(n) && (turn || len(w.room) == 0):
			w.unlist(st)
			return n, false, nil
		default:
			w.wait(st, waitsRoom)
		}
		w.admit()      // the space and
		w.wakeCredit() // the window that it was woken for and does not use
		st.wcond.Wait()
	}
}

// grantNow is grant that does not wait: 0 if it would have to. Called with s.mu held.
func (st *Stream) grantNow(want int) (n int, direct bool) {
	w := &st.s.w
	w.setLimit(st.s.queueLimit())
	n = min(want, st.s.chunk, st.sendAvail, w.sendAvail)
	switch {
	case n <= 0:
	case !w.busy && len(w.data.segs) == 0 && !st.wdl.armed:
		return n, true
	case n < bulkPiece && w.data.size()+w.reserved+n <= pendingFront+pendingMax, w.fits(n) && len(w.room) == 0:
		return n, false
	}
	return 0, false
}

// takeTurn gives back what was promised to a stream when it was woken, and reports
// whether that was its turn for space in the queue.
func (st *Stream) takeTurn() bool {
	if st.credited {
		st.credited = false
		st.s.w.promised -= maxPayload
	}
	if !st.turn {
		return false
	}
	st.turn = false
	st.s.w.reserved -= maxPayload
	return true
}

// wait enlists st, once.
func (w *writer) wait(st *Stream, what waiting) {
	if st.waits == what {
		return
	}
	w.unlist(st)
	st.waits = what
	if what == waitsCredit {
		w.credit = append(w.credit, st)
	} else {
		w.room = append(w.room, st)
	}
}

// leave strikes st, whose write has failed, off the lists and lets others go on.
func (w *writer) leave(st *Stream) {
	w.unlist(st)
	w.admit()
	w.wakeCredit()
}

func (w *writer) unlist(st *Stream) {
	is := func(o *Stream) bool { return o == st }
	switch st.waits {
	case waitsCredit:
		w.credit = slices.DeleteFunc(w.credit, is)
	case waitsRoom:
		w.room = slices.DeleteFunc(w.room, is)
	}
	st.waits = waitsNothing
}

// payload appends p as DATA frames of st.
func (q *queue) payload(st *Stream, p []byte, max int) {
	q.reserve()
	size, data, last := 0, len(p), 0
	for len(p) > 0 {
		last = min(len(p), max)
		q.buf = appendHeader(q.buf, last, frameData, 0, st.id)
		q.buf = append(q.buf, p[:last]...)
		size += frameHeaderLen + last
		p = p[last:]
	}
	q.segs = append(q.segs, segment{st: st, n: size, data: data, last: last})
}
