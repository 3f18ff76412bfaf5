package hbone

import (
	"github.com/isthmus-mesh/isthmus/hbone/flow"
	"github.com/isthmus-mesh/isthmus/hbone/wire"
	"golang.org/x/net/http2"
)

// receiveData accounts a DATA frame against both windows. It returns the stream
// to deliver to, nil if the payload is to be thrown away.
func (s *Session) receiveData(h wire.Header) (*Stream, error) {
	low, ok := s.window.receive(h.Length)
	if s.recv.windowLow = low; !ok {
		return nil, wire.ConnError(http2.ErrCodeFlowControl, "DATA beyond the connection window")
	}
	s.mu.Lock()
	s.noteBulkLocked(h.Length)
	st := s.streams[h.ID]
	if st == nil {
		idle := s.isIdleLocked(h.ID)
		s.mu.Unlock()
		if idle {
			return nil, wire.ConnError(http2.ErrCodeProtocol, "DATA on idle stream %d", h.ID)
		}
		return nil, nil // closed; the peer may not know of it yet
	}
	ended, answered, refused := st.endReceived, st.connect.response != nil, st.connect.refused
	s.mu.Unlock()
	s.path.noteFrame(st, h.Length)
	if refused {
		return nil, nil
	}
	if ended {
		return nil, &wire.StreamError{ID: h.ID, Code: http2.ErrCodeStreamClosed, Reason: "DATA after END_STREAM"}
	}
	if s.client && !answered {
		return nil, &wire.StreamError{ID: h.ID, Code: http2.ErrCodeProtocol, Reason: "DATA before the response"}
	}
	if !st.recv.charge(h.Length) {
		return nil, &wire.StreamError{ID: h.ID, Code: http2.ErrCodeFlowControl, Reason: "DATA beyond the stream's window"}
	}
	return st, nil
}

// arrived queues p for st. The reader is told after the batch.
func (s *Session) arrived(st *Stream, p []byte) {
	if ok, noMemory := st.recv.push(p); !ok {
		s.release(len(p))
		if noMemory {
			st.abort(http2.ErrCodeEnhanceYourCalm, ErrMemory)
		}
		return
	}
	if s.recv.windowLow {
		s.creditConn(s.window.lend())
	}
	if !st.touched {
		st.touched = true
		s.recv.batch.touched = append(s.recv.batch.touched, st)
	}
}

// release gives n received bytes back to the connection window. Whoever holds them
// calls it, once.
func (s *Session) release(n int) {
	if n > 0 {
		s.creditConn(s.window.release(n))
	}
}

// creditConn tells the peer of n bytes of connection window.
func (s *Session) creditConn(n int) {
	if n == 0 {
		return
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.life.err != nil {
		return
	}
	s.send.control.add(nil, wire.AppendWindowUpdate(nil, 0, n), 0)
	s.kickLocked()
	s.notifyObserver() // it may have been halted
}

// openWholeWindowLocked gives a new stream on a long path its whole window, when the peer is
// about to know the stream.
func (s *Session) openWholeWindowLocked(st *Stream) {
	first := s.cfg.FirstWindow
	size := flow.FirstWindow(s.path.roundTrip(), first, s.cfg.StreamWindow)
	if size = st.recv.queue.use.Window(first, size); size == first || s.cfg.Disable.LongPath {
		return
	}
	st.recv.window.Init(size) // nobody else has the stream yet
	st.recv.queue.use.SetWindow(first, size)
	s.send.control.add(st, wire.AppendWindowUpdate(nil, st.id, size-first), 0)
}

// creditStream sends n bytes of window for st, if it can still use them.
func (s *Session) creditStream(st *Stream, n int) {
	if n == 0 {
		return
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.life.err != nil || st.send.stopped || st.endReceived {
		return
	}
	s.send.control.add(st, wire.AppendWindowUpdate(nil, st.id, n), 0)
	s.kickLocked()
}

func (s *Session) onWindowUpdate(f *http2.WindowUpdateFrame) error {
	n := int(f.Increment)
	s.mu.Lock()
	defer s.mu.Unlock()
	if f.StreamID == 0 {
		if s.send.window <= 0 {
			defer s.notifyObserver() // it may have been halted
		}
		if s.send.window += n; s.send.window+s.send.claimed > wire.MaxWindow { // what is claimed was not sent
			return wire.ConnError(http2.ErrCodeFlowControl, "connection window overflows")
		}
		s.send.wakeCredit()
		return nil
	}
	st := s.streams[f.StreamID]
	if st == nil {
		if s.isIdleLocked(f.StreamID) {
			return wire.ConnError(http2.ErrCodeProtocol, "WINDOW_UPDATE on idle stream %d", f.StreamID)
		}
		return nil
	}
	if st.send.widen(n); st.send.window+st.send.claimed > wire.MaxWindow {
		return &wire.StreamError{ID: f.StreamID, Code: http2.ErrCodeFlowControl, Reason: "window overflows"}
	}
	return nil
}

// isIdleLocked reports whether the peer may not yet have used id.
func (s *Session) isIdleLocked(id uint32) bool {
	if id%2 == 0 {
		return true
	}
	if s.client {
		return id >= s.nextID
	}
	return id > s.lastID
}
