package hbone

import (
	"context"

	"golang.org/x/net/http2"
)

// Drain takes the session out of use without losing a stream. A server sends
// GOAWAY(2^31-1) and a PING, so that CONNECTs under way are still served, and
// when the PING is answered the final GOAWAY; a client just opens no more. When
// the last stream has ended the session closes. Drain waits for that, or for
// ctx, whose cause it then returns with the session still open: the caller
// decides when to Close.
func (s *Session) Drain(ctx context.Context) error {
	stop := context.AfterFunc(ctx, func() {
		s.mu.Lock()
		s.changed.Broadcast()
		s.mu.Unlock()
	})
	defer stop()
	s.mu.Lock()
	if !s.client && !s.draining {
		s.announceDrain(ctx)
	}
	s.draining = true
	s.tellChanged()
	for s.err == nil && len(s.streams) > 0 && ctx.Err() == nil {
		s.changed.Wait()
	}
	left := len(s.streams)
	s.mu.Unlock()
	if left > 0 {
		return context.Cause(ctx)
	}
	s.Close(nil)
	return nil
}

// announceDrain is the two-step GOAWAY. Called with mu held, which it gives up
// while it waits.
func (s *Session) announceDrain(ctx context.Context) {
	s.draining = true
	b := appendGoAway(nil, maxStreamID, http2.ErrCodeNo, "")
	s.w.control.add(nil, appendPing(b, false, drainPing), 0)
	s.kick()
	for s.err == nil && !s.ping.drained && ctx.Err() == nil {
		s.changed.Wait()
	}
	if s.err != nil {
		return
	}
	s.finalID = s.lastID
	s.w.control.add(nil, appendGoAway(nil, s.finalID, http2.ErrCodeNo, ""), 0)
	s.kick()
}
