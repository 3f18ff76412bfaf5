package hbone

import (
	"time"

	"github.com/isthmus-mesh/isthmus/hbone/wire"
)

// Availability is what somebody who shares a session between callers needs to
// know of it, as of one moment.
type Availability struct {
	Streams          int           // open now
	Limit            int           // how many may be open at once, by the peer's limit and Config.MaxStreams; 0: none may
	SettingsReceived bool          // the peer's SETTINGS are in: before that Limit is assumed
	Retired          bool          // no stream will ever be opened again, here or on the session that carries it
	Silent           bool          // see Session.Silent
	Bulk             bool          // large pieces of data follow each other closely: small messages would wait behind them
	Crowded          bool          // streams that are not read hold half of what the session lends them: see connWindow
	Halted           time.Duration // how long no stream could receive, or send, for want of the connection's window, here or on a session that carries it; zero: all can
	HaltedHere       time.Duration // the same without the sessions that carry it
	Idle             time.Duration // how long no stream has been open, zero while one is
}

// Free is how many streams can be opened now if no more than limit may be open.
func (a Availability) Free(limit int) int {
	if a.Retired {
		return 0
	}
	return max(0, min(a.Limit, limit)-a.Streams)
}

// Availability reports the state of a client session.
func (s *Session) Availability(now time.Time) Availability {
	retired := s.parent != nil && s.parent.retired()
	a := Availability{Silent: s.Silent(), HaltedHere: s.haltedHere(now)}
	a.Halted = a.HaltedHere
	for p := s.parent; p != nil; p = p.parent {
		a.Halted = max(a.Halted, p.haltedHere(now))
	}
	a.Crowded, _ = s.window.lack()
	s.mu.Lock()
	defer s.mu.Unlock()
	a.SettingsReceived = s.hasSettings()
	a.Streams, a.Limit = len(s.streams), s.streamLimit()
	a.Retired = retired || s.retiredLocked()
	a.Bulk = s.bulk.Congested(now)
	if a.Streams == 0 {
		a.Idle = now.Sub(s.life.idleSince)
	}
	return a
}

// haltedHere is Availability.HaltedHere. A stream that nobody reads keeps its part of the
// connection's window, so enough of them keep all of it, at either end, and whatever is
// opened on the session is accepted, and then neither gets nor sends a byte.
func (s *Session) haltedHere(now time.Time) (d time.Duration) {
	_, receive := s.window.lack()
	s.mu.Lock()
	send := s.send.halted()
	s.mu.Unlock()
	for _, since := range [...]time.Time{receive, send} {
		if !since.IsZero() {
			d = max(d, now.Sub(since))
		}
	}
	return d
}

func (s *Session) hasSettings() bool {
	select {
	case <-s.life.settingsReceived:
		return true
	default:
		return false
	}
}

// streamLimit is how many streams may be open at once. Called with mu held.
func (s *Session) streamLimit() int {
	if n := s.cfg.MaxStreams; n > 0 && uint64(n) < uint64(s.peer.MaxStreams) {
		return n
	}
	return int(min(uint64(s.peer.MaxStreams), wire.MaxStreamID))
}

// Leaving reports whether the peer has sent GOAWAY.
func (s *Session) Leaving() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.life.goAway != nil
}

// observer is told about a session; see Observe. Guarded by the session's mu.
type observer struct {
	changed chan<- struct{}
	silent  func()
}

// Observe has a token put into changed, if there is room for it, after a stream
// has ended, the peer has changed its limit, the session has retired, a silent
// peer has sent something, or there is window again where there was none; with a channel of capacity one no change goes by
// unseen. It has silent called, in a goroutine that holds no lock, when the peer
// has become Silent. A session has one observer, set before it is shared.
func (s *Session) Observe(changed chan<- struct{}, silent func()) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.observer = observer{changed, silent}
	s.notifyObserver()
}

// notifyObserver is called with mu held, and waits for nothing.
func (s *Session) notifyObserver() {
	if s.observer.changed == nil {
		return
	}
	select {
	case s.observer.changed <- struct{}{}:
	default: // the observer has not yet looked after the last one
	}
}
