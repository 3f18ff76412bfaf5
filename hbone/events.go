package hbone

import (
	"fmt"
	"time"

	"github.com/isthmus-mesh/isthmus/hbone/wire"
	"golang.org/x/net/http2"
)

// onFrame handles a frame other than DATA. It runs in the reading goroutine.
func (s *Session) onFrame(f http2.Frame) error {
	switch f := f.(type) {
	case *http2.MetaHeadersFrame:
		if t := s.traced(); t != nil {
			s.traceFields(t, "<", f.StreamID, f.Fields)
		}
		if reason := wire.Malformed(f); reason != "" {
			return &wire.StreamError{ID: f.StreamID, Code: http2.ErrCodeProtocol, Reason: reason, Opens: true}
		}
		if s.client {
			return s.onResponse(f)
		}
		return s.onRequest(f)
	case *http2.SettingsFrame:
		return s.onSettings(f)
	case *http2.WindowUpdateFrame:
		return s.onWindowUpdate(f)
	case *http2.RSTStreamFrame:
		return s.onReset(f)
	case *http2.PingFrame:
		return s.onPing(f)
	case *http2.GoAwayFrame:
		s.onGoAway(f)
		return s.countIdleFrame("GOAWAY frames", 1)
	case *http2.PushPromiseFrame:
		return wire.ConnError(http2.ErrCodeProtocol, "PUSH_PROMISE, which we have disabled")
	}
	return s.countIdleFrame(fmt.Sprintf("%v frames", f.Header().Type), 1)
}

// peerEnded notes END_STREAM. The application learns of it after the batch.
func (s *Session) peerEnded(st *Stream) {
	s.mu.Lock()
	known := s.streams[st.id] == st && !st.endReceived
	if known {
		st.endReceived = true
		s.removeIfEndedLocked(st)
	}
	s.mu.Unlock()
	if known {
		s.recv.batch.ended = append(s.recv.batch.ended, st)
	}
}

// onReset takes everything of the stream out of the queues: after RST_STREAM
// not one frame may follow (a stock peer ends the whole session after 1024 of
// them). Behind the peer's END_STREAM, CANCEL and NO_ERROR are a normal end, with
// Config.CancelEnds without it too.
func (s *Session) onReset(f *http2.RSTStreamFrame) error {
	s.mu.Lock()
	st := s.streams[f.StreamID]
	if st == nil {
		idle := s.isIdleLocked(f.StreamID)
		s.mu.Unlock()
		if idle {
			return wire.ConnError(http2.ErrCodeProtocol, "RST_STREAM on idle stream %d", f.StreamID)
		}
		return nil
	}
	s.send.dropData(st)
	s.send.control.drop(st)
	clean := (st.endReceived || s.cfg.CancelEnds && st.connect.accepted) && (f.ErrCode == http2.ErrCodeCancel || f.ErrCode == http2.ErrCodeNo)
	unanswered := !s.client && !st.connect.accepted
	err := error(&ResetError{Code: f.ErrCode, Remote: true})
	if s.client && st.connect.response == nil && f.ErrCode == http2.ErrCodeRefusedStream {
		err = &retryable{err}
	}
	if clean {
		err = &orderlyReset{err}
	}
	st.stopSendingLocked(err)
	s.removeIfEndedLocked(st)
	s.mu.Unlock()
	st.resetByPeer(err, clean)
	if unanswered && s.recv.resets.Add(time.Now(), 1) > maxResets {
		return wire.ConnError(http2.ErrCodeEnhanceYourCalm, "too many CONNECTs reset before their response")
	}
	return nil
}

// orderlyReset is the reset by a peer that has left in order. Whoever writes gets it
// before recvHalf.peerLeft is set.
type orderlyReset struct{ error }

func (d *orderlyReset) Unwrap() error { return d.error }

// resetByPeer ends both halves. After a clean end what was received, and the
// io.EOF behind it, stay readable.
func (st *Stream) resetByPeer(err error, clean bool) {
	if clean {
		st.recv.leave()
		return
	}
	st.failed(err)
}

// onPriority ignores what a PRIORITY frame says, which may come in any state of
// a stream.
func (s *Session) onPriority(h wire.Header) error {
	if h.ID == 0 {
		return wire.ConnError(http2.ErrCodeProtocol, "PRIORITY on stream 0")
	}
	if h.Length != 5 {
		s.mu.Lock()
		open := s.streams[h.ID] != nil
		s.mu.Unlock()
		if open {
			return &wire.StreamError{ID: h.ID, Code: http2.ErrCodeFrameSize, Reason: "PRIORITY of a wrong length"}
		}
	}
	return s.countIdleFrame("PRIORITY frames", 1)
}

// resetStream answers a rule broken on one stream with RST_STREAM.
func (s *Session) resetStream(f *wire.StreamError) error {
	s.mu.Lock()
	st := s.streams[f.ID]
	if st == nil && s.isIdleLocked(f.ID) {
		if s.client || f.ID%2 == 0 || !f.Opens {
			s.mu.Unlock()
			return wire.ConnError(http2.ErrCodeProtocol, "stream %d is idle, and %s", f.ID, f.Reason)
		}
		s.lastID = f.ID // a request that could not even be read
		s.send.control.add(nil, wire.AppendRST(nil, f.ID, f.Code), 0)
		s.kickLocked()
	}
	s.mu.Unlock()
	if st != nil {
		st.abort(f.Code, &ResetError{Code: f.Code})
	}
	return s.countIdleFrame("frames that break a rule", 1)
}

func (s *Session) onGoAway(f *http2.GoAwayFrame) {
	debug := f.DebugData()
	e := &GoAwayError{Code: f.ErrCode, Debug: string(debug[:min(len(debug), 256)])}
	s.mu.Lock()
	s.life.goAway, s.life.draining = e, true
	s.notifyObserver()
	s.life.goAwayID = min(s.life.goAwayID, f.LastStreamID)
	var lost []*Stream
	err := &retryable{e}
	if s.client {
		for id, st := range s.streams {
			if id > s.life.goAwayID {
				s.send.dropData(st)
				st.stopSendingLocked(err)
				s.removeIfEndedLocked(st)
				lost = append(lost, st)
			}
		}
		s.life.closeWhenIdle = true
	}
	idle := s.client && len(s.streams) == 0
	s.mu.Unlock()
	for _, st := range lost {
		st.failed(err)
	}
	if idle {
		s.Close(e)
	}
	s.drainChildren()
}
