package overload

import (
	"math"
	"sync"
	"time"
)

// Parameters of Throttle.
const (
	// excess is how many times what was accepted lately is asked for, at most. More
	// finds room sooner when there is some again; less leaves more of a peer's time for
	// what it accepts.
	excess = 1.25
	// memory is how long answers count: 1/e of them after that time.
	memory = 200 * time.Millisecond
	// slack is how many requests may be refused before any is held back.
	slack = 16
)

// Throttle keeps a client from asking for much more than it gets: a peer that refuses
// for overload spends its time on refusals otherwise. What is refused here is what
// would have been refused there ("Client-Side Throttling", Site Reliability Engineering,
// O'Reilly 2016, chapter 21). The zero value allows everything. Safe for concurrent use.
type Throttle struct {
	mu   sync.Mutex
	keys map[string]*asked // only those that were refused lately
}

// asked is what became of the requests of one key lately, decayed to at.
type asked struct {
	at                 time.Time
	requests, accepted float64
}

// Allow reports whether one more request of key is to be made; draw is even in [0, 1).
// One that is not made counts as a request all the same.
func (t *Throttle) Allow(key string, now time.Time, draw float64) bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	a := t.keys[key]
	if a == nil {
		return true
	}
	a.decay(now)
	if draw >= a.surplus() {
		return true
	}
	a.requests++
	return false
}

// Answered notes that a request of key was accepted, or refused for overload.
func (t *Throttle) Answered(key string, accepted bool, now time.Time) {
	t.mu.Lock()
	defer t.mu.Unlock()
	a := t.keys[key]
	if a == nil {
		if accepted {
			return
		}
		t.forget(now)
		a = &asked{at: now}
		t.keys[key] = a
	}
	a.decay(now)
	a.requests++
	if accepted {
		a.accepted++
	}
	if a.forgotten() {
		delete(t.keys, key)
	}
}

// forget drops what counts no more. Called with mu held.
func (t *Throttle) forget(now time.Time) {
	if t.keys == nil {
		t.keys = map[string]*asked{}
	}
	for key, a := range t.keys {
		if a.decay(now); a.forgotten() {
			delete(t.keys, key)
		}
	}
}

func (a *asked) decay(now time.Time) {
	if d := now.Sub(a.at); d > 0 {
		left := math.Exp(-d.Seconds() / memory.Seconds())
		a.requests *= left
		a.accepted *= left
		a.at = now
	}
}

// surplus is the share of requests that are not to be made.
func (a *asked) surplus() float64 {
	return (a.requests - excess*a.accepted - slack) / (a.requests + 1)
}

// forgotten reports whether hardly anything was refused lately.
func (a *asked) forgotten() bool { return a.requests-a.accepted < 0.5 }
