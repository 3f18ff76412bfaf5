package hbone

import (
	"maps"
	"slices"

	"golang.org/x/net/http2"
)

// receiveData accounts a DATA frame against both windows. It returns the stream
// to deliver to, nil if the payload is to be thrown away.
func (s *Session) receiveData(h header) (*Stream, error) {
	s.mu.Lock()
	s.recvAvail -= h.length
	s.bulk.add(h.length)
	s.recvLow = s.recvAvail < s.cfg.ConnWindow/4
	if s.recvAvail < 0 {
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
	s.meet(st, h.length)
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
	st.window.avail -= h.length
	over := st.window.avail < 0
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
	if s.recvLow {
		s.borrow()
	}
	if !st.touched {
		st.touched = true
		s.inbox.touched = append(s.inbox.touched, st)
	}
}

// maxLoan is how many connection windows' worth of unread bytes a session takes
// on besides the window itself, so that streams which nobody reads do not starve
// the others: with 4 MiB per stream and 16 MiB per session, sixteen such streams
// and not four. What one stream can hold its own window bounds.
const maxLoan = 3

// borrow gives the connection window back, before anybody has read them, the
// bytes that lie in the streams' queues. It is called when the window runs low:
// with readers that keep up there is next to nothing in the queues then.
func (s *Session) borrow() {
	room := int64(maxLoan*s.cfg.ConnWindow) - s.loans.Load()
	if room <= 0 {
		return
	}
	s.mu.Lock()
	streams := slices.Collect(maps.Values(s.streams))
	s.mu.Unlock()
	total := 0
	for _, st := range streams {
		st.mu.Lock()
		n := max(0, min(st.rq.n-st.loan, int(room)-total))
		st.loan += n
		st.mu.Unlock()
		total += n
	}
	s.loans.Add(int64(total))
	s.creditConn(total)
}

// repayLocked returns how many of n bytes that left the queue are still to be
// given back to the connection window.
func (st *Stream) repayLocked(n int) int {
	paid := min(n, st.loan)
	st.loan -= paid
	st.s.loans.Add(int64(-paid))
	return n - paid
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
