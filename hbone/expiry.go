package hbone

import (
	"context"
	"math/rand/v2"
	"time"
)

// How a session ends with the certificates it rests on: its own (Config.NotAfter)
// and its peer's (Peer.NotAfter). Before the earlier of the two expires the session
// is drained, so that nothing new begins on it afterwards; what is open then may go
// on for Config.ExpiryGrace. Many sessions rest on the same certificate: they leave
// one after the other, within the last tenth of its life as the session knew it, at
// most expirySpread, and all of them on time to announce it.
const expirySpread = 5 * time.Minute

// expiresAt is when the first certificate of the session expires; zero: never.
func (s *Session) expiresAt() time.Time {
	own, peer := s.cfg.NotAfter, s.peerID.NotAfter
	if own.IsZero() || !peer.IsZero() && peer.Before(own) {
		return peer
	}
	return own
}

// armExpiryLocked starts the timer that retires the session. Called with mu held.
func (s *Session) armExpiryLocked() {
	at := s.expiresAt()
	if at.IsZero() || s.life.err != nil {
		return
	}
	left := time.Until(at)
	early := min(left/10, s.cfg.PingTimeout)
	if spread := min(left/10, expirySpread); spread > 0 {
		early += rand.N(spread)
	}
	s.life.expiryTimer = time.AfterFunc(left-early, s.expire)
}

// stopExpiryLocked is called with mu held when the session ends.
func (s *Session) stopExpiryLocked() {
	if s.life.expiryTimer != nil {
		s.life.expiryTimer.Stop()
	}
}

// expire drains the session and, when the grace is over, closes it. It runs in a
// goroutine of the timer and ends with the session at the latest.
func (s *Session) expire() {
	end := s.expiresAt()
	if s.cfg.ExpiryGrace > 0 {
		end = end.Add(s.cfg.ExpiryGrace)
	}
	ctx, cancel := context.WithTimeoutCause(context.Background(), time.Until(end), ErrCertificateExpired)
	defer cancel()
	select {
	case <-s.life.settingsReceived: // a GOAWAY in front of the SETTINGS breaks the protocol
	case <-s.life.done:
		return
	}
	s.drainChildren()
	if s.Drain(ctx) != nil {
		s.Close(ErrCertificateExpired)
	}
}
