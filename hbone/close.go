package hbone

import (
	"net"
	"os"

	"github.com/isthmus-mesh/isthmus/hbone/wire"
	"golang.org/x/net/http2"
)

// CloseWrite sends END_STREAM after everything written so far. Reading goes on.
func (st *Stream) CloseWrite() error {
	s := st.s
	s.mu.Lock()
	defer s.mu.Unlock()
	for st.send.writing && !st.send.stopped {
		st.send.cond.Wait()
	}
	if st.send.ended {
		return nil
	}
	if st.send.err != nil {
		return st.send.err
	}
	st.endLocked()
	s.kickLocked()
	return nil
}

// endLocked queues END_STREAM, on the last DATA frame if that is still queued.
func (st *Stream) endLocked() {
	st.send.ended = true
	q := &st.s.send.data
	if n := len(q.segs); n > 0 && q.segs[n-1].st == st && q.segs[n-1].last > 0 {
		g := &q.segs[n-1]
		q.buf[len(q.buf)-g.last-wire.HeaderLen+4] |= wire.FlagEndStream
		g.note |= noteEnd
		return
	}
	q.addData(st, wire.AppendHeader(nil, 0, wire.FrameData, wire.FlagEndStream, st.id), noteEnd)
}

// Close implements net.Conn; see [Stream]. It does not wait.
func (st *Stream) Close() error {
	s := st.s
	s.mu.Lock()
	if st.closed {
		s.mu.Unlock()
		return net.ErrClosed
	}
	if st.send.writing && !st.send.ended && !st.send.stopped {
		// Somebody's Write is cut short: that must not look like a normal end.
		s.mu.Unlock()
		st.abort(http2.ErrCodeConnect, net.ErrClosed) // CANCEL may count as an end: see Config.CancelEnds
		return nil
	}
	st.closed = true
	st.send.deadline.stop()
	if st.send.err == nil {
		st.send.err = net.ErrClosed
	}
	if !st.send.stopped {
		st.awaitNoResponseLocked()
		if !st.send.ended {
			st.endLocked()
		}
		if !st.endReceived {
			s.send.data.addData(st, wire.AppendRST(nil, st.id, http2.ErrCodeCancel), noteRST)
		}
		s.kickLocked()
	}
	st.send.cond.Broadcast()
	s.mu.Unlock()
	st.closeRead()
	return nil
}

// Reset ends the stream at once with RST_STREAM(code), dropping what is queued
// in both directions. It does nothing on a stream that has ended.
func (st *Stream) Reset(code http2.ErrCode) {
	st.abort(code, &ResetError{Code: code})
}

// ResetBehind is Reset behind what is queued to be sent. It does not wait.
func (st *Stream) ResetBehind(code http2.ErrCode) {
	st.resetBehind(code, &ResetError{Code: code})
}

// Broken returns why the stream was reset or lost, behind its peer's end too; nil if it was not.
func (st *Stream) Broken() error {
	st.recv.mu.Lock()
	defer st.recv.mu.Unlock()
	return st.recv.broken
}

// AwaitReset waits until the peer has reset the stream, behind its end too, and returns how.
// It returns net.ErrClosed once this end has closed the stream, and os.ErrDeadlineExceeded behind the
// read deadline.
func (st *Stream) AwaitReset() error {
	h := &st.recv
	h.mu.Lock()
	defer h.mu.Unlock()
	for {
		switch {
		case h.closed:
			return net.ErrClosed
		case h.broken != nil:
			return h.broken
		case h.peerLeft:
			return &ResetError{Code: http2.ErrCodeCancel, Remote: true}
		case h.deadline.expired:
			return os.ErrDeadlineExceeded
		}
		h.cond.Wait()
	}
}

// resetBehind ends the stream with RST_STREAM(code) behind what is queued to be sent,
// as a kernel's RST comes behind what its peer has already received. It does not wait;
// abort may still drop what is queued.
func (st *Stream) resetBehind(code http2.ErrCode, cause error) {
	s := st.s
	s.mu.Lock()
	if !st.send.stopped && !st.closed {
		st.send.deadline.stop()
		if st.send.err == nil {
			st.send.err = cause
		}
		st.awaitNoResponseLocked()
		s.send.data.addData(st, wire.AppendRST(nil, st.id, code), noteRST)
		s.kickLocked()
		st.send.cond.Broadcast()
	}
	st.closed = true
	s.mu.Unlock()
	st.recv.fail(cause, false) // and no end of the handler's context, which would abort: the handler is about to return
	st.closeRead()
}

func (st *Stream) abort(code http2.ErrCode, cause error) {
	st.abortIf(func(*Stream) bool { return true }, code, cause)
}

// abortIf aborts the stream if ok, which is called with the session's mu held.
func (st *Stream) abortIf(ok func(*Stream) bool, code http2.ErrCode, cause error) {
	s := st.s
	s.mu.Lock()
	if !ok(st) {
		s.mu.Unlock()
		return
	}
	if !st.send.stopped {
		s.send.dropData(st)
		s.send.control.add(st, wire.AppendRST(nil, st.id, code), 0)
		st.stopSendingLocked(cause)
		s.removeIfEndedLocked(st)
		s.kickLocked()
	}
	st.closed = true
	s.mu.Unlock()
	st.failed(cause)
	st.closeRead()
}
