package hbone

import (
	"time"

	"golang.org/x/net/http2"
)

// pinger sends a PING, waits for its answer, pauses, and begins again. All
// fields are guarded by the session's mu.
type pinger struct {
	timer   *time.Timer
	pause   time.Duration // before the next PING
	count   uint64
	waiting bool // for the answer to count
	sent    time.Time
	drained bool // the PING between the two GOAWAYs was answered
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

func (s *Session) startPings() {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.cfg.PingEvery > 0 && !s.ping.stopped {
		s.ping.pause = s.cfg.PingEvery
		s.ping.timer = time.AfterFunc(s.ping.pause, s.pingDue)
	}
}

// pauseLocked begins the wait for the next PING: short while a client opens
// streams on a connection, so that it knows whether its peer is there.
func (s *Session) pauseLocked() {
	s.ping.pause = s.cfg.PingEvery
	if s.client && s.carrier == nil && time.Since(s.alive.opened) < activeFor {
		s.ping.pause = min(s.ping.pause, pingActive)
	}
	s.ping.timer.Reset(s.ping.pause)
}

// wakePings is called with mu held when a stream is opened.
func (s *Session) wakePings() {
	if p := &s.ping; p.timer != nil && !p.stopped && !p.waiting && s.carrier == nil && p.pause > pingActive {
		s.pauseLocked()
	}
}

// pingDue runs when the timer fires: a PING is due, or its answer is overdue.
func (s *Session) pingDue() {
	s.mu.Lock()
	p := &s.ping
	if p.stopped {
		s.mu.Unlock()
		return
	}
	if p.waiting {
		s.w.broken = true // nobody listens
		s.mu.Unlock()
		s.fail(ErrPingTimeout)
		return
	}
	if left := p.pause - time.Since(s.alive.heard); p.pause < s.cfg.PingEvery && left > 0 {
		p.timer.Reset(left) // it has just answered something else
		s.mu.Unlock()
		return
	}
	p.count++
	p.waiting = true
	p.sent = time.Now()
	s.alive.asked(p.sent)
	s.w.control.add(nil, appendPing(nil, false, p.payload()), 0)
	p.timer.Reset(s.cfg.PingTimeout)
	s.kick()
	s.mu.Unlock()
}

func (s *Session) onPing(f *http2.PingFrame) error {
	if !f.IsAck() {
		if err := s.spend("PING frames", 1); err != nil {
			return err
		}
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	p := &s.ping
	switch {
	case !f.IsAck():
		s.w.control.add(nil, appendPing(nil, true, f.Data), 0)
		s.kick()
	case f.Data == drainPing:
		p.drained = true
		s.changed.Broadcast()
	case p.waiting && f.Data == p.payload() && !p.stopped:
		p.waiting = false
		now := time.Now()
		s.alive.answered(now)
		s.alive.silent = time.Time{}
		s.tookRTT(now.Sub(p.sent))
		s.pauseLocked()
	}
	return nil
}
