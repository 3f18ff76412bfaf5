package hbone

import (
	"golang.org/x/net/http2"
)

// receiveData accounts a DATA frame against both windows. It returns the stream
// to deliver to, nil if the payload is to be thrown away.
func (s *Session) receiveData(h header) (*Stream, error) {
	s.mu.Lock()
	if s.recvAvail -= h.length; s.recvAvail < 0 {
		s.mu.Unlock()
		return nil, connFault(http2.ErrCodeFlowControl, "DATA beyond the connection window")
	}
	st := s.streams[h.id]
	if st == nil {
		idle := s.isIdle(h.id)
		s.mu.Unlock()
		if idle {
			return nil, connFault(http2.ErrCodeProtocol, "DATA on idle stream %d", h.id)
		}
		return nil, nil // closed; the peer may not have heard of it yet
	}
	ended, answered, refused := st.remoteEnd, st.answer != nil, st.refused
	s.mu.Unlock()
	if refused {
		return nil, nil
	}
	if ended {
		return nil, &streamFault{h.id, http2.ErrCodeStreamClosed, "DATA after END_STREAM"}
	}
	if s.client && !answered {
		return nil, &streamFault{h.id, http2.ErrCodeProtocol, "DATA before the answer"}
	}
	st.mu.Lock()
	st.recvAvail -= h.length
	over := st.recvAvail < 0
	st.mu.Unlock()
	if over {
		return nil, &streamFault{h.id, http2.ErrCodeFlowControl, "DATA beyond the stream's window"}
	}
	return st, nil
}

// arrived queues p for st. The reader is told after the batch.
func (s *Session) arrived(st *Stream, p []byte) {
	if !st.push(p) {
		s.creditConn(len(p))
		return
	}
	if !st.touched {
		st.touched = true
		s.inbox.touched = append(s.inbox.touched, st)
	}
}

// creditConn gives n consumed bytes back to the connection window, in steps of a
// quarter of it.
func (s *Session) creditConn(n int) {
	if s.recvUnacked.Add(int64(n)) < int64(s.cfg.ConnWindow/4) {
		return
	}
	due := int(s.recvUnacked.Swap(0))
	if due == 0 {
		return
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.err != nil {
		return
	}
	s.recvAvail += due
	s.w.control.add(nil, appendWindowUpdate(nil, 0, due), 0)
	s.kick()
}

// creditStream sends n bytes of window for st, if it can still use them.
func (s *Session) creditStream(st *Stream, n int) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.err != nil || st.dead || st.remoteEnd {
		return
	}
	s.w.control.add(st, appendWindowUpdate(nil, st.id, n), 0)
	s.kick()
}

func (s *Session) onWindowUpdate(f *http2.WindowUpdateFrame) error {
	n := int(f.Increment)
	s.mu.Lock()
	defer s.mu.Unlock()
	if f.StreamID == 0 {
		if s.w.sendAvail += n; s.w.sendAvail > maxWindow {
			return connFault(http2.ErrCodeFlowControl, "connection window overflows")
		}
		s.w.wakeCredit()
		return nil
	}
	st := s.streams[f.StreamID]
	if st == nil {
		if s.isIdle(f.StreamID) {
			return connFault(http2.ErrCodeProtocol, "WINDOW_UPDATE on idle stream %d", f.StreamID)
		}
		return nil
	}
	if st.sendAvail += n; st.sendAvail > maxWindow {
		return &streamFault{f.StreamID, http2.ErrCodeFlowControl, "window overflows"}
	}
	st.wcond.Broadcast()
	return nil
}

// isIdle reports whether the peer may not yet have used id. Called with mu held.
func (s *Session) isIdle(id uint32) bool {
	if id%2 == 0 {
		return true
	}
	if s.client {
		return id >= s.nextID
	}
	return id > s.lastID
}
