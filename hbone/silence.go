package hbone

import (
	"errors"
	"time"

	"github.com/isthmus-mesh/isthmus/hbone/flow"
	"golang.org/x/net/http2"
)

// A peer whose packets a firewall drops, or whose machine has lost its power, is
// silent: no reset tells of it. A client session that has sent a PING looks
// whether anything at all has been received since, every flow.SilentAfter, until the
// PING is answered or Config.PingTimeout ends the session. A silent peer may
// still be there and slow: nothing that is open ends because of it. It is only a
// reason to prefer another session.

// ErrSilent is why a session's unanswered CONNECTs were abandoned: its peer sent
// nothing while another connection to the same address was answered.
var ErrSilent = errors.New("peer is silent, and answers a new connection")

// notice is what the reading goroutine has to do when it receives something.
const (
	noticeNothing = iota // nothing: no PING is unanswered, or something was received already
	noticeAny            // note that something was received
	noticeReturn         // tell that the peer is no longer silent
)

// Silent reports whether the peer, or that of a session that carries this one,
// owes the answer to a PING and has sent nothing at all for several round trips.
func (s *Session) Silent() bool {
	return s.notice.Load() == noticeReturn || s.parent != nil && s.parent.Silent()
}

// received notes that the peer has sent something. Called by the reader.
func (s *Session) received() {
	if s.notice.Load() != noticeNothing && s.notice.Swap(noticeNothing) == noticeReturn {
		s.eachNested(func(c *Session) {
			c.mu.Lock()
			c.notifyObserver()
			c.mu.Unlock()
		})
	}
}

// overduePing looks at a PING that is not answered. Called with mu held; the caller
// ends the session or calls tellSilent without it.
func (s *Session) overduePing(now time.Time) flow.PingVerdict {
	p := &s.ping
	after := flow.SilentAfter(s.path.roundTrip())
	u := flow.UnansweredPing{Sent: p.sent, Due: p.due, Received: s.notice.Load() == noticeNothing, After: after, Timeout: s.cfg.PingTimeout}
	v, again := u.Judge(now)
	if v == flow.PingSilent && (s.cfg.Disable.Silent || !s.notice.CompareAndSwap(noticeAny, noticeReturn)) {
		v, again = flow.PingWaits, min(after, again) // heard at this moment, or known to be silent
	}
	switch v {
	case flow.PingDead:
		s.send.broken = true // nobody listens
		return v
	case flow.PingWaits:
		s.notice.CompareAndSwap(noticeNothing, noticeAny)
	}
	s.pingAgain(now, again)
	return v
}

// tellSilent tells the observers of s, and of what it carries.
func (s *Session) tellSilent() {
	s.eachNested(func(c *Session) {
		c.mu.Lock()
		silent := c.observer.silent
		c.mu.Unlock()
		if silent != nil {
			silent()
		}
	})
}

// eachNested calls f for s and for all that it carries, without a lock.
func (s *Session) eachNested(f func(*Session)) {
	f(s)
	for _, c := range s.childrenNow() {
		c.eachNested(f)
	}
}

// Abandon ends the CONNECTs that have no answer, on s and on what it carries, with
// cause, so that they can be repeated: their errors match ErrRetryable. Those on
// which the application has sent already stay: the peer may have passed that on.
func (s *Session) Abandon(cause error) {
	s.eachNested(func(c *Session) {
		c.mu.Lock()
		open := make([]*Stream, 0, len(c.streams))
		for _, st := range c.streams {
			open = append(open, st)
		}
		c.mu.Unlock()
		for _, st := range open {
			st.abortIf((*Stream).repeatable, http2.ErrCodeCancel, cause)
		}
	})
}

// repeatable reports that st has no answer, and that nothing is lost if it gets
// none. Called with the session's mu held.
func (st *Stream) repeatable() bool {
	return st.connect.pending != nil && (st.connect.replayable || !st.connect.dataSent)
}
