package overload

import (
	"container/heap"
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
	// answersFor is how long answers count: 1/e of them after that time.
	answersFor = 200 * time.Millisecond
	// slack is how many requests to one peer may be refused before any is held back. Those
	// that were refused there lately share it, so that they are as many however many ask;
	// one refusal by itself holds nobody back.
	slack = 16
	// hardly is how many refusals, decayed, are as good as none.
	hardly = 0.5
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
	ends  ends                         // of all of those, the first first
}

// asked is what became of the requests of one that asks a peer lately, decayed to at.
type asked struct {
	peer, who          string
	at                 time.Time
	requests, accepted float64
	end                time.Time // when it counts no more, unless something is refused again
	index              int       // in ends
}

// Allow reports whether who is to make one more request to peer; draw is even in [0, 1).
// One that is not made counts as a request all the same.
func (t *Throttle) Allow(peer, who string, now time.Time, draw float64) bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.forget(now)
	a := t.peers[peer][who]
	if a == nil {
		return true
	}
	a.decay(now)
	if draw >= a.surplus(max(1, slack/float64(len(t.peers[peer])))) {
		return true
	}
	a.requests++
	t.refused(a)
	return false
}

// Answered notes that a request of who to peer was accepted, or refused for overload.
func (t *Throttle) Answered(peer, who string, accepted bool, now time.Time) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.forget(now)
	a := t.peers[peer][who]
	if a == nil {
		if accepted || len(t.ends) >= mostAsked {
			return
		}
		a = t.begin(peer, who, now)
	}
	a.decay(now)
	a.requests++
	if accepted {
		a.accepted++ // what is left of refusals, and so the end, stays as it is
		return
	}
	t.refused(a)
}

// begin makes an account. Called with mu held.
func (t *Throttle) begin(peer, who string, now time.Time) *asked {
	if t.peers == nil {
		t.peers = map[string]map[string]*asked{}
	}
	if t.peers[peer] == nil {
		t.peers[peer] = map[string]*asked{}
	}
	a := &asked{peer: peer, who: who, at: now, end: now}
	t.peers[peer][who] = a
	heap.Push(&t.ends, a)
	return a
}

// refused sets the end of a, of which one more request was refused, there or here.
// Called with mu held.
func (t *Throttle) refused(a *asked) {
	a.end = a.at.Add(time.Duration(float64(answersFor) * math.Log((a.requests-a.accepted)/hardly)))
	heap.Fix(&t.ends, a.index)
}

// forget drops what counts no more: it would have a part of the slack. Called with mu held.
func (t *Throttle) forget(now time.Time) {
	for len(t.ends) > 0 && t.ends[0].end.Before(now) {
		a := heap.Pop(&t.ends).(*asked)
		those := t.peers[a.peer]
		if delete(those, a.who); len(those) == 0 {
			delete(t.peers, a.peer)
		}
	}
}

func (a *asked) decay(now time.Time) {
	if d := now.Sub(a.at); d > 0 {
		left := math.Exp(-d.Seconds() / answersFor.Seconds())
		a.requests *= left
		a.accepted *= left
		a.at = now
	}
}

// surplus is the share of requests that are not to be made, with so much slack.
func (a *asked) surplus(slack float64) float64 {
	return (a.requests - excess*a.accepted - slack) / (a.requests + 1)
}

// ends are accounts by their ends: a heap.
type ends []*asked

func (e ends) Len() int           { return len(e) }
func (e ends) Less(i, j int) bool { return e[i].end.Before(e[j].end) }
func (e ends) Swap(i, j int) {
	e[i], e[j] = e[j], e[i]
	e[i].index, e[j].index = i, j
}

// Push and Pop implement heap.Interface.
func (e *ends) Push(x any) {
	a := x.(*asked)
	a.index = len(*e)
	*e = append(*e, a)
}

func (e *ends) Pop() any {
	last := len(*e) - 1
	a := (*e)[last]
	(*e)[last] = nil
	*e = (*e)[:last]
	return a
}
