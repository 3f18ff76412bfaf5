package hbone

import "golang.org/x/net/http2"

// receiveData accounts a DATA frame against both windows. It returns the stream
// to deliver to, nil if the payload is to be thrown away.
func (s *Session) receiveData(h header) (*Stream, error) {
	low, ok := s.recv.receive(h.length)
	if s.recvLow = low; !ok {
		return nil, connFault(http2.ErrCodeFlowControl, "DATA beyond the connection window")
	}
	s.mu.Lock()
	s.bulk.add(h.length)
	st := s.streams[h.id]
	if st == nil {
		idle := s.isIdle(h.id)
		s.mu.Unlock()
		if idle {
			return nil, connFault(http2.ErrCodeProtocol, "DATA on idle stream %d", h.id)
		}
		return nil, nil // closed; the peer may not have heard of it yet
	}
	s.meet(st, h.length)
	ended, answered, refused := st.remoteEnd, st.answer != nil, st.refused
	s.mu.Unlock()
	if refused {
		return nil, nil
	}
	if ended {
		return nil, &streamFault{id: h.id, code: http2.ErrCodeStreamClosed, reason: "DATA after END_STREAM"}
	}
	if s.client && !answered {
		return nil, &streamFault{id: h.id, code: http2.ErrCodeProtocol, reason: "DATA before the answer"}
	}
	st.mu.Lock()
	st.window.avail -= h.length
	over := st.window.avail < 0
	st.mu.Unlock()
	if over {
		return nil, &streamFault{id: h.id, code: http2.ErrCodeFlowControl, reason: "DATA beyond the stream's window"}
	}
	return st, nil
}

// arrived queues p for st. The reader is told after the batch.
func (s *Session) arrived(st *Stream, p []byte) {
	if !st.push(p) {
		s.release(len(p))
		return
	}
	if s.recvLow {
		s.creditConn(s.recv.lend())
	}
	if !st.touched {
		st.touched = true
		s.inbox.touched = append(s.inbox.touched, st)
	}
}

// release gives n received bytes back to the connection window. Whoever holds them
// calls it, once.
func (s *Session) release(n int) {
	if n > 0 {
		s.creditConn(s.recv.release(n))
	}
}

// creditConn tells the peer of n bytes of connection window.
func (s *Session) creditConn(n int) {
	if n == 0 {
		return
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.err != nil {
		return
	}
	s.w.control.add(nil, appendWindowUpdate(nil, 0, n), 0)
	s.kick()
}

// creditStream sends n bytes of window for st, if it can still use them.
func (s *Session) creditStream(st *Stream, n int) {
	if n == 0 {
		return
	}
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
		return &streamFault{id: f.StreamID, code: http2.ErrCodeFlowControl, reason: "window overflows"}
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
