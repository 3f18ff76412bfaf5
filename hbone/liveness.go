package hbone

import "time"

// liveness is what a client session knows of its peer being there. Questions are
// CONNECTs and PINGs. Guarded by the session's mu.
type liveness struct {
	lastHeard    time.Time     // when the peer last answered anything
	waiting      int           // questions without an answer
	waitingSince time.Time     // when one of them was asked, or another one answered; valid while waiting
	missed       bool          // the last question to end was not answered
	lastRequest  time.Time     // when the last CONNECT was sent
	smoothed     time.Duration // smoothed time to the answer of a CONNECT; zero: none yet
	silentSince  time.Time     // since when what is asked in child sessions has no answer at all; zero: it has
}

// Limits of what counts as lively. A peer that answers later than usual may be
// slow or gone, and one that was not heard of for a while may be gone.
const (
	freshFor    = 1500 * time.Millisecond
	lateAtLeast = 50 * time.Millisecond
	lateAtFirst = 500 * time.Millisecond // before anything is usual
	lateFactor  = 1.5                    // times the usual time to an answer
	pingActive  = time.Second            // pause between PINGs of a connection in use
	activeFor   = 15 * time.Second       // how long after its last CONNECT a connection is in use
)

func (l *liveness) requested(now time.Time) {
	if l.waiting == 0 {
		l.waitingSince = now
	}
	l.waiting++
}

func (l *liveness) responded(now time.Time) {
	l.lastHeard, l.waitingSince, l.missed = now, now, false
	l.waiting = max(0, l.waiting-1)
}

// lost counts a question that will not be answered.
func (l *liveness) lost() {
	l.missed = true
	l.waiting = max(0, l.waiting-1)
}

// observe notes how long the answer to a CONNECT has taken.
func (l *liveness) observe(d time.Duration) {
	if l.smoothed == 0 {
		l.smoothed = d
		return
	}
	l.smoothed += (d - l.smoothed) / 8
}

// late reports whether a question waits for longer than is usual, or the last
// one waited in vain.
func (l *liveness) late(now time.Time) bool {
	return l.missed || l.waiting > 0 && now.Sub(l.waitingSince) > l.limit()
}

// limit is how long an answer may take before its peer is in doubt.
func (l *liveness) limit() time.Duration {
	if l.smoothed == 0 {
		return lateAtFirst
	}
	return max(lateAtLeast, time.Duration(lateFactor*float64(l.smoothed)))
}

// noteRequest notes a CONNECT, for the session that is on the connection too.
func (s *Session) noteRequest(now time.Time) {
	if b := s.Base(); b != s {
		b.mu.Lock()
		if b.alive.silentSince.IsZero() && !b.alive.lastHeard.After(now) { // the answer may have been faster than this note
			b.alive.silentSince = now
		}
		b.wakePingsLocked(now)
		b.alive.lastRequest = now
		b.mu.Unlock()
	}
}

// noteResponse notes an answer for the session that is on the connection too.
func (s *Session) noteResponse(now time.Time) {
	if b := s.Base(); b != s {
		b.mu.Lock()
		b.alive.lastHeard, b.alive.silentSince = now, time.Time{}
		b.mu.Unlock()
	}
}

// HeardSince reports whether the peer has answered anything after t.
func (s *Session) HeardSince(t time.Time) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.alive.lastHeard.After(t)
}

// Lively reports whether the peer has lately shown that it is there: the
// connection has heard of it within freshFor, and nothing it was asked, on this
// session or through the same connection, waits for longer than usual. Bytes that
// an application cannot say twice are sent ahead of an answer only on such a
// session: they are lost if the peer turns out to be gone.
func (s *Session) Lively() bool {
	if s.cfg.Disable.Lively {
		return false
	}
	now := time.Now()
	s.mu.Lock()
	ok, limit := s.life.err == nil && !s.alive.late(now), s.alive.limit()
	s.mu.Unlock()
	b := s.Base()
	b.mu.Lock()
	defer b.mu.Unlock()
	silent := !b.alive.silentSince.IsZero() && now.Sub(b.alive.silentSince) > limit
	return ok && !silent && b.life.err == nil && !b.alive.late(now) && now.Sub(b.alive.lastHeard) < freshFor
}
