package overload

import (
	"context"
	"errors"
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"
)

// ErrOverloaded is what is returned for work that is not to be begun.
var ErrOverloaded = errors.New("overloaded: more new connections than can be served")

// gate lets work begin as its control allows. Safe for concurrent use.
type gate struct {
	refused prometheus.Counter

	mu      sync.Mutex
	control control
	recent  recent
	times   times
	all     int // pieces of work that were admitted and are neither established nor done
	held    bool
	waiters []*waiter // oldest first
}

// Work is one piece of work that was admitted. The zero value is none.
type Work struct {
	g      *gate
	tick   uint64    // when it was admitted
	since  time.Time // likewise
	opened bool      // the connection is established
}

// waiter is one caller of Admit that has to wait.
type waiter struct {
	since  time.Time
	answer chan answer // buffered
}

type answer struct {
	tick uint64
	ok   bool
}

const (
	// maxWait is how long Admit holds work back before it refuses it. Bursts are
	// smoothed by it; nobody should wait who could try elsewhere.
	maxWait = 500 * time.Millisecond
	// waitingRoom is what may wait at once: what is done in that time, lately, and
	// leastWaiting in any case.
	waitingRoom  = 250 * time.Millisecond
	leastWaiting = 512
)

// Admit returns the work when it may begin, at once if there is no overload; its Done
// must then be called. It returns ErrOverloaded when it is not to begin, after at
// most a little more than maxWait, and ctx's cause when ctx ends first. The newest
// waiter goes first: the oldest is the one that is most likely no longer waited for.
func (g *gate) Admit(ctx context.Context) (Work, error) {
	g.mu.Lock()
	if len(g.waiters) == 0 && g.room() {
		tick := g.begin()
		g.mu.Unlock()
		return g.work(tick), nil
	}
	g.held = true
	if g.crowded() {
		g.mu.Unlock()
		return g.answered(answer{})
	}
	w := &waiter{since: time.Now(), answer: make(chan answer, 1)}
	g.waiters = append(g.waiters, w)
	g.mu.Unlock()
	select {
	case a := <-w.answer:
		return g.answered(a)
	case <-ctx.Done():
	}
	if g.leave(w) {
		return Work{}, context.Cause(ctx)
	}
	return g.answered(<-w.answer)
}

// TryAdmit is Admit without a wait: work that may not begin at once is refused. It is
// for work that somebody else holds back already, and would wait here in vain.
func (g *gate) TryAdmit() (Work, error) {
	g.mu.Lock()
	if !g.room() {
		g.held = true
		g.mu.Unlock()
		return g.answered(answer{})
	}
	tick := g.begin()
	g.mu.Unlock()
	return g.work(tick), nil
}

// Refuse reports whether Admit would refuse at once, and counts that as a refusal. It is
// for whoever has spent nothing on the work yet, not even a goroutine.
func (g *gate) Refuse() bool {
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.room() || !g.crowded() {
		return false
	}
	g.held = true
	g.refused.Inc()
	return true
}

// crowded reports whether nobody more may wait. Called with mu held.
func (g *gate) crowded() bool {
	return len(g.waiters) >= max(leastWaiting, int(waitingRoom.Seconds()*g.recent.rate()))
}

func (g *gate) work(tick uint64) Work { return Work{g: g, tick: tick, since: time.Now()} }

func (g *gate) answered(a answer) (Work, error) {
	if !a.ok {
		g.refused.Inc()
		return Work{}, ErrOverloaded
	}
	return g.work(a.tick), nil
}

// room reports whether one more piece may begin. Called with mu held.
func (g *gate) room() bool { return g.control.room(g.recent.underWay, g.recent.begun()) > 0 }

// begin counts one more piece. Called with mu held.
func (g *gate) begin() (tick uint64) {
	g.all++
	return g.recent.begin()
}

// Opened notes that the connection is established, and how long that took. It counts as
// new work until Done all the same: what it does first takes time too.
func (w *Work) Opened() {
	g := w.g
	if g == nil || w.opened {
		return
	}
	w.opened = true
	took := time.Since(w.since)
	g.mu.Lock()
	defer g.mu.Unlock()
	g.all--
	g.times.add(took)
}

// Done ends the work; a second call, or one on the zero value, does nothing.
func (w *Work) Done() {
	g := w.g
	if g == nil {
		return
	}
	w.g = nil
	g.mu.Lock()
	defer g.mu.Unlock()
	if !w.opened {
		g.all--
	}
	g.recent.end(w.tick, w.opened)
	g.admit()
}

// admit lets the newest waiters begin while there is room. Called with mu held.
func (g *gate) admit() {
	for n := len(g.waiters); n > 0 && g.room(); n-- {
		g.waiters[n-1].answer <- answer{g.begin(), true}
		g.waiters[n-1] = nil
		g.waiters = g.waiters[:n-1]
	}
}

// refuseOldest refuses the n oldest waiters. Called with mu held.
func (g *gate) refuseOldest(n int) {
	for i, w := range g.waiters[:n] {
		w.answer <- answer{}
		g.waiters[i] = nil
	}
	g.waiters = g.waiters[n:]
}

// leave strikes out a waiter whose context has ended; false if it has its answer.
func (g *gate) leave(w *waiter) bool {
	g.mu.Lock()
	defer g.mu.Unlock()
	for i, o := range g.waiters {
		if o == w {
			g.waiters = append(g.waiters[:i], g.waiters[i+1:]...)
			return true
		}
	}
	return false
}

// load is what is under way. Called with mu held.
func (g *gate) load(processors int, late bool) load {
	return load{processors: processors, late: late, underWay: g.recent.underWay, rate: g.recent.rate(), held: g.held || len(g.waiters) > 0}
}

// step is one turn of the control loop. Called with mu held.
func (g *gate) step(now time.Time, l load) {
	g.held = false
	g.control.step(l)
	g.recent.step()
	g.times.step(g.control.bounded)
	g.admit()
	old := 0
	for old < len(g.waiters) && now.Sub(g.waiters[old].since) >= maxWait {
		old++
	}
	g.refuseOldest(old)
}

// unbound ends the bound.
func (g *gate) unbound() {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.control = control{short: g.control.short}
	g.admit()
}
