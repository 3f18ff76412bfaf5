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
	// slack is how many requests to one peer may be refused before any is held back. Those
	// that are refused there share it, so that they are as many however many ask; one
	// refusal by itself holds nobody back.
	slack = 16
	// mostAsked is how many are kept account of. Beyond it nobody is held back.
	mostAsked = 16384
)

// Throttle keeps those that ask for much more than they get from asking: a peer that
// refuses for overload spends its time on refusals otherwise. What is refused here is what
// would have been refused there ("Client-Side Throttling", Site Reliability Engineering,
// O'Reilly 2016, chapter 21). A peer refuses each identity by itself, by its limits and by
// its turn ([Limiter.TryAdmit]), so what it answers one says nothing of what it would answer
// another. The zero value allows everything. Safe for concurrent use.
type Throttle struct {
	mu    sync.Mutex
	peers map[string]map[string]*asked // by peer and who asks: only those that were refused lately
	all   int                          // of those
	swept time.Time                    // when all were looked at
}

// asked is what became of the requests of one that asks a peer lately, decayed to at.
type asked struct {
	at                 time.Time
	requests, accepted float64
}

// Allow reports whether who is to make one more request to peer; draw is even in [0, 1).
// One that is not made counts as a request all the same.
func (t *Throttle) Allow(peer, who string, now time.Time, draw float64) bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	a := t.peers[peer][who]
	if a == nil {
		return true
	}
	a.decay(now)
	if a.forgotten() {
		t.drop(peer, who)
		return true
	}
	if draw >= a.surplus(max(1, slack/float64(len(t.peers[peer])))) {
		return true
	}
	a.requests++
	return false
}

// Answered notes that a request of who to peer was accepted, or refused for overload.
func (t *Throttle) Answered(peer, who string, accepted bool, now time.Time) {
	t.mu.Lock()
	defer t.mu.Unlock()
	a := t.peers[peer][who]
	if a == nil {
		if accepted {
			return
		}
		if a = t.begin(peer, who, now); a == nil {
			return
		}
	}
	a.decay(now)
	a.requests++
	if accepted {
		a.accepted++
	}
	if a.forgotten() {
		t.drop(peer, who)
	}
}

// begin makes an account; nil if there are too many. Called with mu held.
func (t *Throttle) begin(peer, who string, now time.Time) *asked {
	if now.Sub(t.swept) >= memory {
		t.swept = now
		t.forget(now)
	}
	if t.all >= mostAsked {
		return nil
	}
	if t.peers == nil {
		t.peers = map[string]map[string]*asked{}
	}
	if t.peers[peer] == nil {
		t.peers[peer] = map[string]*asked{}
	}
	a := &asked{at: now}
	t.peers[peer][who] = a
	t.all++
	return a
}

// forget drops what counts no more. Called with mu held.
func (t *Throttle) forget(now time.Time) {
	for peer, those := range t.peers {
		for who, a := range those {
			if a.decay(now); a.forgotten() {
				t.drop(peer, who)
			}
		}
	}
}

// drop drops an account that there is. Called with mu held.
func (t *Throttle) drop(peer, who string) {
	those := t.peers[peer]
	delete(those, who)
	t.all--
	if len(those) == 0 {
		delete(t.peers, peer)
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

// surplus is the share of requests that are not to be made, with so much slack.
func (a *asked) surplus(slack float64) float64 {
	return (a.requests - excess*a.accepted - slack) / (a.requests + 1)
}

// forgotten reports whether hardly anything was refused lately.
func (a *asked) forgotten() bool { return a.requests-a.accepted < 0.5 }
