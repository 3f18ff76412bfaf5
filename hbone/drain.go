package hbone

import (
	"context"
	"time"

	"github.com/isthmus-mesh/isthmus/hbone/wire"
	"golang.org/x/net/http2"
)

// Drain takes the session out of use without losing a stream. A server sends
// GOAWAY(2^31-1) and a PING, so that CONNECTs under way are still served, and
// when the PING is answered the final GOAWAY (after PingTimeout, or when a certificate
// expires, without the answer); a client just opens no more. When
// the last stream has ended the session closes. Drain waits for that, or for
// ctx, whose cause it then returns with the session still open: the caller
// decides when to Close.
func (s *Session) Drain(ctx context.Context) error {
	stop := context.AfterFunc(ctx, func() {
		s.mu.Lock()
		s.life.changed.Broadcast()
		s.mu.Unlock()
	})
	defer stop()
	s.mu.Lock()
	if !s.client && !s.life.draining {
		s.announceDrainLocked(ctx)
	}
	s.life.draining = true
	s.notifyObserver()
	for s.life.err == nil && len(s.streams) > 0 && ctx.Err() == nil {
		s.life.changed.Wait()
	}
	left := len(s.streams)
	s.mu.Unlock()
	if left > 0 {
		return context.Cause(ctx)
	}
	s.Close(nil)
	return nil
}

// announceDrainLocked is the two-step GOAWAY. Called with mu held, which it gives up
// while it waits.
func (s *Session) announceDrainLocked(ctx context.Context) {
	s.life.draining = true
	b := wire.AppendGoAway(nil, wire.MaxStreamID, http2.ErrCodeNo, "")
	s.send.control.add(nil, wire.AppendPing(b, false, drainPing), 0)
	s.kickLocked()
	wait := s.cfg.PingTimeout
	if at := s.expiresAt(); !at.IsZero() {
		wait = min(wait, max(0, time.Until(at)))
	}
	overdue := false
	timer := time.AfterFunc(wait, func() {
		s.mu.Lock()
		overdue = true
		s.life.changed.Broadcast()
		s.mu.Unlock()
	})
	defer timer.Stop()
	for s.life.err == nil && !s.ping.drained && !overdue && ctx.Err() == nil {
		s.life.changed.Wait()
	}
	if s.life.err != nil {
		return
	}
	s.life.finalID = s.lastID
	s.send.control.add(nil, wire.AppendGoAway(nil, s.life.finalID, http2.ErrCodeNo, ""), 0)
	s.kickLocked()
}
