package nodeproxy

import "time"

// silence is how long the attempts through one gateway have been waiting.
type silence struct {
	waiting int
	since   time.Time // when one of them started, or the last one got a response
}

// silentAfter is when new connections prefer another way to one whose attempts
// all wait: a line that was cut says nothing, and an attempt on it fails only when
// its time is up.
const silentAfter = time.Second

func (s silence) asked(now time.Time) silence {
	if s.waiting == 0 {
		s.since = now
	}
	s.waiting++
	return s
}

func (s silence) long(now time.Time) bool {
	return s.waiting > 0 && now.Sub(s.since) > silentAfter
}

// responded takes in the end of an attempt through a gateway: whether anything
// came back through it, or the attempt just failed.
func (v *view) responded(gateway string, something bool, now time.Time) {
	v.mu.Lock()
	defer v.mu.Unlock()
	s := v.waits[gateway]
	if s.waiting--; s.waiting <= 0 {
		delete(v.waits, gateway)
		return
	}
	if something {
		s.since = now
	}
	v.waits[gateway] = s
}
