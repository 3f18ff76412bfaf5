package flow

import "time"

// Liveness is what a client session knows of its peer being there. Questions are
// CONNECTs and PINGs. Not safe for concurrent use.
type Liveness struct {
	LastAnswer   time.Time     // when the peer last answered anything
	Waiting      int           // questions without an answer
	waitingSince time.Time     // when one of them was asked, or another one answered; valid while waiting
	missed       bool          // the last question to end was not answered
	LastRequest  time.Time     // when the last CONNECT was sent
	smoothed     time.Duration // smoothed time to the answer of a CONNECT; zero: none yet
	SilentSince  time.Time     // since when what is asked in child sessions has no answer at all; zero: it has
}

// Limits of what counts as lively. A peer that answers later than usual may be
// slow or gone, and one that was not heard of for a while may be gone.
const (
	FreshFor    = 1500 * time.Millisecond
	LateAtLeast = 50 * time.Millisecond
	lateAtFirst = 500 * time.Millisecond // before anything is usual
	lateFactor  = 1.5                    // times the usual time to an answer
	PingActive  = time.Second            // pause between PINGs of a connection in use
	ActiveFor   = 15 * time.Second       // how long after its last CONNECT a connection is in use
)

// Requested counts a question.
func (l *Liveness) Requested(now time.Time) {
	if l.Waiting == 0 {
		l.waitingSince = now
	}
	l.Waiting++
}

// Responded counts an answer.
func (l *Liveness) Responded(now time.Time) {
	l.LastAnswer, l.waitingSince, l.missed = now, now, false
	l.Waiting = max(0, l.Waiting-1)
}

// Lost counts a question that will not be answered.
func (l *Liveness) Lost() {
	l.missed = true
	l.Waiting = max(0, l.Waiting-1)
}

// Observe notes how long the answer to a CONNECT has taken.
func (l *Liveness) Observe(d time.Duration) {
	if l.smoothed == 0 {
		l.smoothed = d
		return
	}
	l.smoothed += (d - l.smoothed) / 8
}

// Unanswered returns since when a question has waited and no other one was answered;
// zero: none waits.
func (l *Liveness) Unanswered() (since time.Time) {
	if l.Waiting > 0 {
		since = l.waitingSince
	}
	if since.IsZero() || !l.SilentSince.IsZero() && l.SilentSince.Before(since) {
		since = l.SilentSince
	}
	return since
}

// Late reports whether a question waits for longer than is usual, or the last
// one waited in vain.
func (l *Liveness) Late(now time.Time) bool {
	return l.missed || l.Waiting > 0 && now.Sub(l.waitingSince) > l.Limit()
}

// Limit is how long an answer may take before its peer is in doubt.
func (l *Liveness) Limit() time.Duration {
	if l.smoothed == 0 {
		return lateAtFirst
	}
	return max(LateAtLeast, time.Duration(lateFactor*float64(l.smoothed)))
}

// Lively reports whether the peer of a session with liveness own has lately shown
// that it is there. base is that of the session that is on the connection, which may
// be the same.
func Lively(now time.Time, own, base Liveness) bool {
	silent := !base.SilentSince.IsZero() && now.Sub(base.SilentSince) > own.Limit()
	return !silent && !own.Late(now) && !base.Late(now) && now.Sub(base.LastAnswer) < FreshFor
}

// PingPause is how long to wait before the next PING when one is due every so often:
// shorter on a connection on which streams were opened lately, so that it is known
// whether the peer is there.
func PingPause(every time.Duration, sinceRequest time.Duration) time.Duration {
	if sinceRequest < ActiveFor {
		return min(every, PingActive)
	}
	return every
}
