package overload

import (
	"context"
	"errors"
	"math"
	"runtime"
	"sync"
	"sync/atomic"
	"time"

	"github.com/prometheus/client_golang/prometheus"
)

// ErrOverloaded is what Admit returns for work that is not to be begun.
var ErrOverloaded = errors.New("overloaded: more new connections than the process can serve")

// Limiter admits new work. Its methods are safe for concurrent use. It bounds
// nothing until Run is called, and then until that returns.
type Limiter struct {
	mu      sync.Mutex
	control control
	recent  recent
	all     int // pieces of work that were admitted and are not done
	held    bool
	waiters []*waiter // oldest first

	wait    atomic.Int64 // mean wait for a processor lately, in nanoseconds
	past    history
	refused prometheus.Counter
}

// Work is one piece of work that was admitted. The zero value is none.
type Work struct {
	l    *Limiter
	tick uint64 // when it was admitted
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
	// maxWaiting bounds who waits at once; the oldest makes room.
	maxWaiting = 4096
)

// New returns a limiter and registers its metrics.
func New(r prometheus.Registerer) *Limiter {
	l := &Limiter{refused: prometheus.NewCounter(prometheus.CounterOpts{Name: "isthmus_overload_refused_total", Help: "New connections refused because this process had too little processor time."})}
	gauge := func(name, help string, value func() float64) {
		r.MustRegister(prometheus.NewGaugeFunc(prometheus.GaugeOpts{Name: name, Help: help}, value))
	}
	r.MustRegister(l.refused)
	gauge("isthmus_scheduling_wait_seconds", "Mean time that goroutines lately waited for a processor.", func() float64 { return time.Duration(l.wait.Load()).Seconds() })
	gauge("isthmus_opening_connections", "New connections that are not yet established.", func() float64 { return l.sees(func() float64 { return float64(l.all) }) })
	gauge("isthmus_opening_connections_limit", "How many new connections may be under way; +Inf without a bound.", func() float64 { return l.sees(l.limit) })
	return l
}

func (l *Limiter) sees(value func() float64) float64 {
	l.mu.Lock()
	defer l.mu.Unlock()
	return value()
}

func (l *Limiter) limit() float64 {
	if !l.control.bounded {
		return math.Inf(1)
	}
	return l.control.window
}

// Admit returns the work when it may begin, at once if the process keeps up; its Done
// must then be called. It returns ErrOverloaded when it is not to begin, after at
// most a little more than maxWait, and ctx's cause when ctx ends first. The newest
// waiter goes first: the oldest is the one that is most likely no longer waited for.
func (l *Limiter) Admit(ctx context.Context) (Work, error) {
	l.mu.Lock()
	if len(l.waiters) == 0 && l.room() {
		tick := l.begin()
		l.mu.Unlock()
		return Work{l, tick}, nil
	}
	w := &waiter{since: time.Now(), answer: make(chan answer, 1)}
	l.held = true
	if l.waiters = append(l.waiters, w); len(l.waiters) > maxWaiting {
		l.refuseOldest(1)
	}
	l.mu.Unlock()
	select {
	case a := <-w.answer:
		return l.answered(a)
	case <-ctx.Done():
	}
	if l.leave(w) {
		return Work{}, context.Cause(ctx)
	}
	return l.answered(<-w.answer)
}

func (l *Limiter) answered(a answer) (Work, error) {
	if !a.ok {
		l.refused.Inc()
		return Work{}, ErrOverloaded
	}
	return Work{l, a.tick}, nil
}

// room reports whether one more piece may begin. Called with mu held.
func (l *Limiter) room() bool { return l.control.room(l.recent.underWay, l.recent.begun()) > 0 }

// begin counts one more piece. Called with mu held.
func (l *Limiter) begin() (tick uint64) {
	l.all++
	return l.recent.begin()
}

// Done ends the work; a second call, or one on the zero value, does nothing.
func (w *Work) Done() {
	l := w.l
	if l == nil {
		return
	}
	w.l = nil
	l.mu.Lock()
	defer l.mu.Unlock()
	l.all--
	l.recent.end(w.tick)
	l.admit()
}

// admit lets the newest waiters begin while there is room. Called with mu held.
func (l *Limiter) admit() {
	for n := len(l.waiters); n > 0 && l.room(); n-- {
		l.waiters[n-1].answer <- answer{l.begin(), true}
		l.waiters[n-1] = nil
		l.waiters = l.waiters[:n-1]
	}
}

// refuseOldest refuses the n oldest waiters. Called with mu held.
func (l *Limiter) refuseOldest(n int) {
	for i, w := range l.waiters[:n] {
		w.answer <- answer{}
		l.waiters[i] = nil
	}
	l.waiters = l.waiters[n:]
}

// leave strikes out a waiter whose context has ended; false if it has its answer.
func (l *Limiter) leave(w *waiter) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	for i, o := range l.waiters {
		if o == w {
			l.waiters = append(l.waiters[:i], l.waiters[i+1:]...)
			return true
		}
	}
	return false
}

// Late is how late the process was, at the worst, at any time from since until
// now: what took so long meanwhile may be our own doing.
func (l *Limiter) Late(since time.Time) time.Duration { return l.past.worst(since, time.Now()) }

// Run measures and decides until ctx ends; then everybody who waits is admitted.
func (l *Limiter) Run(ctx context.Context) {
	t := time.NewTicker(tick)
	defer t.Stop()
	scheduler := newScheduler()
	last := time.Now()
	for {
		select {
		case <-t.C:
		case <-ctx.Done():
			l.unbound()
			return
		}
		now := time.Now()
		runnable, wait := scheduler.read()
		smooth := (3*time.Duration(l.wait.Load()) + wait) / 4
		l.wait.Store(int64(smooth))
		l.past.add(last, now, max(wait, now.Sub(last)-tick))
		l.step(now, load{processors: runtime.GOMAXPROCS(0), runnable: runnable, wait: smooth})
		last = now
	}
}

// step is one turn of the control loop; s is what the scheduler says.
func (l *Limiter) step(now time.Time, s load) {
	l.mu.Lock()
	defer l.mu.Unlock()
	s.underWay, s.held = l.recent.underWay, l.held || len(l.waiters) > 0
	l.held = false
	l.control.step(s)
	l.recent.step()
	l.admit()
	old := 0
	for old < len(l.waiters) && now.Sub(l.waiters[old].since) >= maxWait {
		old++
	}
	l.refuseOldest(old)
}

// unbound ends the bound.
func (l *Limiter) unbound() {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.control = control{}
	l.admit()
	l.wait.Store(0)
}
