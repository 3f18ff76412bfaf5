package hbone

import (
	"time"

	"github.com/isthmus-mesh/isthmus/hbone/flow"
	"github.com/isthmus-mesh/isthmus/hbone/wire"
	"golang.org/x/net/http2"
)

// pinger sends a PING, waits for its answer, pauses, and begins again. All
// fields are guarded by the session's mu.
type pinger struct {
	timer   *time.Timer
	pause   time.Duration // before the next PING
	next    time.Time     // when pause is over
	looks   bool          // the timer fires before that, if CONNECTs are not answered by then
	count   uint64
	waiting bool // for the answer to count
	sent    time.Time
	due     time.Time // when the timer fires, while waiting
	drained bool      // the PING between the two GOAWAYs was answered
	stopped bool
}

// drainPing is the payload of the PING between the two GOAWAYs.
var drainPing = [8]byte{'d', 'r', 'a', 'i', 'n'}

func (p *pinger) stop() {
	p.stopped = true
	if p.timer != nil {
		p.timer.Stop()
	}
}

func (p *pinger) payload() [8]byte {
	var b [8]byte
	for i := range b {
		b[i] = byte(p.count >> (56 - 8*i))
	}
	return b
}

// startPings starts the timer of the first PING. A client may have opened streams before.
func (s *Session) startPings() {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.cfg.PingEvery > 0 && !s.ping.stopped {
		s.ping.timer = time.AfterFunc(s.cfg.PingEvery, s.pingDue)
		s.pauseLocked()
	}
}

// pauseLocked begins the wait for the next PING: short while a client opens
// streams on a connection, so that it knows whether its peer is there.
func (s *Session) pauseLocked() {
	s.ping.pause = s.cfg.PingEvery
	if s.client && s.parent == nil {
		s.ping.pause = flow.PingPause(s.cfg.PingEvery, time.Since(s.alive.LastRequest))
	}
	s.ping.next, s.ping.looks = time.Now().Add(s.ping.pause), false
	s.ping.timer.Reset(s.ping.pause)
}

// wakePingsLocked is called with mu held when a stream is about to be opened, here or on
// a session that this one carries. If nothing was heard of the peer lately a PING
// goes out with it, which needs no application for its answer: a peer that has
// gone without a word is soon known to be silent. If something was, one goes out when the
// stream is not answered, nor anything else, for as long as an answer to it would take.
func (s *Session) wakePingsLocked(now time.Time) {
	p := &s.ping
	switch {
	case p.timer == nil || p.stopped || p.waiting:
		return
	case now.Sub(s.alive.LastAnswer) >= flow.PingActive:
		p.next = now
		p.timer.Reset(time.Nanosecond) // not 0: in a bubble of synctest a timer that is due at once crashes the race detector (go 1.26)
		return
	case s.parent == nil && p.pause > flow.PingActive:
		s.alive.LastRequest = now
		s.pauseLocked()
	}
	if p.looks || s.cfg.Disable.Silent {
		return
	}
	p.looks = true
	if after := flow.SilentAfter(s.path.roundTrip()); now.Add(after).Before(p.next) {
		p.timer.Reset(after)
	}
}

// pingDue runs when the timer fires: a PING is due, or is not answered yet.
func (s *Session) pingDue() {
	now := time.Now()
	s.mu.Lock()
	p := &s.ping
	if p.stopped {
		s.mu.Unlock()
		return
	}
	if p.waiting {
		verdict := s.overduePing(now)
		s.mu.Unlock()
		switch verdict {
		case flow.PingSilent:
			s.tellSilent()
		case flow.PingDead:
			s.fail(ErrPingTimeout)
		}
		return
	}
	defer s.mu.Unlock()
	wait := p.next.Sub(now)
	if left := p.pause - now.Sub(s.alive.LastAnswer); p.pause < s.cfg.PingEvery && left > 0 {
		wait = left // it has just answered something else
	}
	if since := s.alive.Unanswered(); since.IsZero() {
		p.looks = false
	} else if p.looks {
		wait = min(wait, since.Add(flow.SilentAfter(s.path.roundTrip())).Sub(now))
	}
	if wait > 0 {
		p.timer.Reset(wait)
		return
	}
	p.looks = false
	s.sendPing(now)
}

// sendPing is called with mu held.
func (s *Session) sendPing(now time.Time) {
	p := &s.ping
	p.count++
	p.waiting = true
	p.sent = now
	s.alive.Requested(now)
	s.send.control.add(nil, wire.AppendPing(nil, false, p.payload()), 0)
	again := s.cfg.PingTimeout
	if s.client {
		again = min(again, flow.SilentAfter(s.path.roundTrip()))
		s.notice.Store(noticeAny)
	}
	s.pingAgain(now, again)
	s.kickLocked()
}

// pingAgain plans the next look at the PING that was sent. Called with mu held.
func (s *Session) pingAgain(now time.Time, wait time.Duration) {
	s.ping.due = now.Add(wait)
	s.ping.timer.Reset(wait)
}

func (s *Session) onPing(f *http2.PingFrame) error {
	if f.IsAck() && s.pinged(f.Data) {
		return nil
	}
	if err := s.countIdleFrame("PING frames", 1); err != nil || f.IsAck() {
		return err
	}
	data := f.Data // the frame is reused
	answer := func() {
		s.mu.Lock()
		defer s.mu.Unlock()
		s.send.control.add(nil, wire.AppendPing(nil, true, data), 0)
		s.kickLocked()
	}
	if s.cfg.AnswerPing != nil {
		s.cfg.AnswerPing(answer)
		return nil
	}
	answer()
	return nil
}

// pinged takes in an answer and reports whether there was a PING that it is to.
func (s *Session) pinged(data [8]byte) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	p := &s.ping
	switch {
	case data == drainPing && !p.drained:
		p.drained = true
		s.life.changed.Broadcast()
	case p.waiting && data == p.payload() && !p.stopped:
		p.waiting = false
		now := time.Now()
		s.alive.Responded(now)
		s.alive.SilentSince = time.Time{}
		s.path.observeRTT(now.Sub(p.sent))
		s.pauseLocked()
	default:
		return false
	}
	return true
}
