package hbone

import (
	"time"

	"github.com/isthmus-mesh/isthmus/hbone/flow"
)

// noteRequest notes a CONNECT, for the session that is on the connection too.
func (s *Session) noteRequest(now time.Time) {
	if b := s.Base(); b != s {
		b.mu.Lock()
		if b.alive.SilentSince.IsZero() && !b.alive.LastAnswer.After(now) { // the answer may have been faster than this note
			b.alive.SilentSince = now
		}
		b.wakePingsLocked(now)
		b.alive.LastRequest = now
		b.mu.Unlock()
	}
}

// noteResponse notes an answer for the session that is on the connection too.
func (s *Session) noteResponse(now time.Time) {
	if b := s.Base(); b != s {
		b.mu.Lock()
		b.alive.LastAnswer, b.alive.SilentSince = now, time.Time{}
		b.mu.Unlock()
	}
}

// HeardSince reports whether the peer has answered anything after t.
func (s *Session) HeardSince(t time.Time) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.alive.LastAnswer.After(t)
}

// Lively reports whether the peer has lately shown that it is there: the
// connection has heard of it within flow.FreshFor, and nothing it was asked, on this
// session or through the same connection, waits for longer than usual. Bytes that
// an application cannot say twice are sent ahead of an answer only on such a
// session: they are lost if the peer turns out to be gone.
func (s *Session) Lively() bool {
	if s.cfg.Disable.Lively {
		return false
	}
	now := time.Now()
	s.mu.Lock()
	own, ended := s.alive, s.life.err != nil
	s.mu.Unlock()
	b := s.Base()
	b.mu.Lock()
	base := b.alive
	ended = ended || b.life.err != nil
	b.mu.Unlock()
	return !ended && flow.Lively(now, own, base)
}
