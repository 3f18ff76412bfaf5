package overload

import (
	"context"
	"errors"
	"math"
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
	waiters row // all of them
	direct  row // those of Admit; those of AdmitOnce are in that of their client
	came    uint64
	clients clients
	kept    keeping
	patient bool // who waits, of Admit, is refused later: whether there is a queue is not known yet
}

// Work is one piece of work that was admitted. The zero value is none.
type Work struct {
	g      *gate
	client *client   // whose it is; nil: this process's
	tick   uint64    // when it was admitted
	since  time.Time // likewise
	opened bool      // the connection is established
}

type answer struct {
	tick uint64
	ok   bool
}

const (
	// maxWait is how long Admit holds work back before it refuses it. Bursts are
	// smoothed by it; nobody should wait who could try elsewhere.
	maxWait = 300 * time.Millisecond
	// maxPatience is how much longer it may be held back while it is not known whether there
	// is a queue at all.
	maxPatience = 1200 * time.Millisecond
	// onceWait is the same of AdmitOnce: longer than a process is without processors
	// now and then; stock clients have no limit of their own, and give a TCP connect as long.
	onceWait = 10 * time.Second
	// leastWaiting may wait at once, and what is done lately in a twelfth of the time that
	// they wait, if that is more: enough that somebody waits whenever there is room. More
	// would wait in vain, and cost more than if they were refused at once.
	leastWaiting = 64
	// leastOnce is the same by AdmitOnce, and half of the time.
	leastOnce = 512
)

// Admit returns the work when it may begin, at once if there is no overload; its Done
// must then be called. It returns ErrOverloaded when it is not to begin, at the latest
// a little more than maxWait after since, when it was asked for first, or up to maxPatience
// later when the first trial of a destination is over, and ctx's cause
// when ctx ends first. The newest waiter goes first: the oldest is the one that is most likely no longer waited for.
func (g *gate) Admit(ctx context.Context, since time.Time) (Work, error) {
	return g.wait(ctx, since.Add(maxWait), false, "")
}

// AdmitOnce is Admit for work of a client that does not ask for it again: what is refused
// has failed for good. It waits for up to onceWait. Clients that wait are admitted in
// turn, each as long as it leaves room to others, and when no more may wait the one with
// the most loses its oldest to others.
func (g *gate) AdmitOnce(ctx context.Context, who string) (Work, error) {
	return g.wait(ctx, time.Now().Add(onceWait), true, who)
}

func (g *gate) wait(ctx context.Context, until time.Time, once bool, who string) (Work, error) {
	g.mu.Lock()
	var c *client
	if once {
		c = g.clients.asks(who, g.recent.now)
	}
	if g.waiters.len == 0 && g.leaves(c, g.places()) {
		tick := g.beginOf(c)
		g.mu.Unlock()
		return g.work(tick, c), nil
	}
	g.held = true
	if g.crowded(once) && !(once && g.displace(c)) {
		g.mu.Unlock()
		return g.answered(answer{}, c)
	}
	w := &waiter{until: until, client: c, answer: make(chan answer, 1)}
	g.enter(w)
	if c != nil {
		g.admit() // those that wait may be of clients that have too much
	}
	g.mu.Unlock()
	select {
	case a := <-w.answer:
		return g.answered(a, c)
	case <-ctx.Done():
	}
	if g.leave(w) {
		return Work{}, context.Cause(ctx)
	}
	return g.answered(<-w.answer, c)
}

// TryAdmit is Admit without a wait, for work of the client who: what may not begin at once
// is refused, and so is what would leave too little room to other clients. It is
// for work that somebody else holds back already, and would wait here in vain.
func (g *gate) TryAdmit(who string) (Work, error) {
	g.mu.Lock()
	g.recent.tried++
	c := g.clients.asks(who, g.recent.now)
	if !g.leaves(c, g.places()) {
		g.held = true
		g.mu.Unlock()
		return g.answered(answer{}, c)
	}
	g.kept.taken()
	tick := g.beginOf(c)
	g.mu.Unlock()
	return g.work(tick, c), nil
}

// Refuse reports whether Admit would refuse at once, when as many as coming have asked
// before. It is for whoever has spent nothing on the work yet, not even a goroutine.
func (g *gate) Refuse(coming int) bool {
	g.mu.Lock()
	defer g.mu.Unlock()
	over := coming - g.control.room(g.recent.underWay, g.recent.begun())
	if over < 0 || g.direct.len+over < g.mostWaiting(false) {
		return false
	}
	g.held = true
	return true
}

// crowded reports whether nobody more may wait in this way. Called with mu held.
func (g *gate) crowded(once bool) bool {
	if once {
		return g.waiters.len-g.direct.len >= g.mostWaiting(once)
	}
	return g.direct.len >= g.mostWaiting(once)
}

// mostWaiting is how many may wait in this way. Called with mu held.
func (g *gate) mostWaiting(once bool) int {
	if once {
		return max(leastOnce, int(onceWait.Seconds()/2*g.recent.rate()))
	}
	if g.patient { // as many as can come until that is known
		return max(leastWaiting, int(2*g.recent.lately))
	}
	return max(leastWaiting, int(maxWait.Seconds()/12*g.recent.rate()))
}

func (g *gate) work(tick uint64, c *client) Work {
	return Work{g: g, client: c, tick: tick, since: time.Now()}
}

func (g *gate) answered(a answer, c *client) (Work, error) {
	if !a.ok {
		g.refused.Inc()
		return Work{}, ErrOverloaded
	}
	return g.work(a.tick, c), nil
}

// places is how many more pieces may begin. Called with mu held.
func (g *gate) places() int { return g.control.room(g.recent.underWay, g.recent.begun()) }

// room reports whether one more piece may begin. Called with mu held.
func (g *gate) room() bool { return g.places() > 0 }

// leaves reports whether c may take one of so many places. Called with mu held.
func (g *gate) leaves(c *client, places int) bool {
	return g.clients.leaves(c, places, g.recent.now)
}

// begin counts one more piece. Called with mu held.
func (g *gate) begin() (tick uint64) {
	g.all++
	return g.recent.begin()
}

// beginOf is begin for a piece of c. Called with mu held.
func (g *gate) beginOf(c *client) (tick uint64) {
	if c != nil {
		c.pieces.begin(g.recent.now)
	}
	return g.begin()
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
	g.times.add(took, g.control.bounded)
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
		g.times.failed(w.tick)
	}
	g.recent.end(w.tick, w.opened)
	if w.client != nil {
		w.client.pieces.end(w.tick, g.recent.now)
	}
	g.admit()
}

// admit lets waiters begin while there is room that is not kept for TryAdmit. Called with
// mu held.
func (g *gate) admit() {
	for g.waiters.len > 0 {
		places := g.places()
		if places <= g.kept.now(g.recent.tried) {
			return
		}
		w := g.next(places)
		if w == nil {
			return
		}
		if g.kept.keep(g.recent.tried, g.recent.lately) {
			continue
		}
		w.answer <- answer{g.beginOf(w.client), true}
		if w.client != nil {
			g.clients.served(w.client)
		}
		g.strike(w)
	}
}

// next is whose turn it is to have one of so many places: the newest one's, and if that
// is by AdmitOnce, that of the client that was served the longest ago of those that leave
// enough to others, its newest first; nil: nobody's. It takes time for each client that
// waits, and none for each piece that does. Called with mu held.
func (g *gate) next(places int) *waiter {
	newest := g.waiters.newest
	if newest.client == nil || len(g.clients.waiting) == 1 && g.leaves(newest.client, places) {
		return newest
	}
	var first *client
	for c := range g.clients.waiting {
		if (first == nil || c.before(first)) && g.leaves(c, places) {
			first = c
		}
	}
	if first == nil {
		return nil
	}
	return first.waiters.newest
}

// displace refuses the oldest waiter of the client that has the most, if that are more
// than c would have. Called with mu held.
func (g *gate) displace(c *client) bool {
	most := g.clients.crowd()
	if most == nil || most.waiters.len <= c.waiters.len+1 {
		return false
	}
	g.refuse(most.waiters.oldest)
	return true
}

// refuseOverdue refuses who has waited for as long as it may. Called with mu held.
func (g *gate) refuseOverdue(now time.Time) {
	g.waiters.each(func(w *waiter) {
		patience := time.Duration(0)
		if w.client == nil && g.patient {
			patience = maxPatience
		}
		if !now.Before(w.until.Add(patience)) {
			g.refuse(w)
		}
	})
}

// refuse ends the wait of w. Called with mu held.
func (g *gate) refuse(w *waiter) {
	w.answer <- answer{}
	g.strike(w)
}

// enter has w wait. Called with mu held.
func (g *gate) enter(w *waiter) {
	g.came++
	w.came, w.queued = g.came, true
	g.waiters.push(w, ofAll)
	if w.client == nil {
		g.direct.push(w, ofClient)
	} else {
		g.clients.enter(w)
	}
}

// strike takes w out. Called with mu held.
func (g *gate) strike(w *waiter) {
	w.queued = false
	g.waiters.remove(w, ofAll)
	if w.client == nil {
		g.direct.remove(w, ofClient)
	} else {
		g.clients.leave(w)
	}
}

// leave strikes out a waiter whose context has ended; false if it has its answer.
func (g *gate) leave(w *waiter) bool {
	g.mu.Lock()
	defer g.mu.Unlock()
	if !w.queued {
		return false
	}
	g.strike(w)
	return true
}

// opening is how many were admitted and are not established.
func (g *gate) opening() float64 {
	g.mu.Lock()
	defer g.mu.Unlock()
	return float64(g.all)
}

// limit is the window, if there is one.
func (g *gate) limit() float64 {
	g.mu.Lock()
	defer g.mu.Unlock()
	if !g.control.bounded {
		return math.Inf(1)
	}
	return g.control.window
}

// load is what is under way. Called with mu held.
func (g *gate) load(processors int, late bool) load {
	return load{processors: processors, late: late, underWay: g.recent.underWay, rate: g.recent.rate(), held: g.held || g.waiters.len > 0}
}

// step is one turn of the control loop. Called with mu held.
func (g *gate) step(now time.Time, l load) {
	g.held = false
	if g.clients.step(g.places(), g.control.window); !g.control.bounded {
		g.clients.times = 0
	}
	g.control.step(l)
	g.recent.step()
	if g.recent.now%ticksToForget == 0 {
		g.clients.forget(g.recent.now)
	}
	g.times.step(g.control.bounded)
	g.admit()
	g.refuseOverdue(now)
}

// unbound ends the bound.
func (g *gate) unbound() {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.control = control{short: g.control.short}
	g.admit()
}
