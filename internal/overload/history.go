package overload

import (
	"sync"
	"time"
)

// kept is how far back a history reaches, in ticks of normal length: longer than
// any timeout whose expiry is judged by it.
const kept = 1000

// history is how late a process was lately. The zero value is empty. Safe for
// concurrent use.
type history struct {
	mu   sync.Mutex
	ring [kept]span
	next int
}

// span is some time during which the process was late by so much.
type span struct {
	from, to time.Time
	late     time.Duration
}

func (h *history) add(from, to time.Time, late time.Duration) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.ring[h.next] = span{from, to, late}
	h.next = (h.next + 1) % kept
}

// worst is the greatest lateness of the spans that meet [since, now], and how long
// ago the last one ended if that is more than a few ticks: then whoever adds them
// is late itself.
func (h *history) worst(since, now time.Time) (late time.Duration) {
	h.mu.Lock()
	defer h.mu.Unlock()
	for i := range kept {
		s := h.ring[(h.next-1-i+kept)%kept]
		if s.to.IsZero() {
			return late
		}
		if i == 0 {
			late = max(0, now.Sub(s.to)-2*tick)
		}
		if s.to.Before(since) {
			return late
		}
		late = max(late, s.late)
	}
	return late
}
