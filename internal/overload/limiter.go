package overload

import (
	"context"
	"fmt"
	"runtime"
	"sync/atomic"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/isthmus-mesh/isthmus/internal/memory"
)

// Limiter admits new work of local and remote clients, each within a separate bound. Its
// methods are safe for concurrent use. It bounds nothing before Run and after Run returns.
type Limiter struct {
	gate              // of what others ask for
	own  gate         // of what this process's own clients ask for
	wait atomic.Int64 // mean wait for a processor lately, in nanoseconds
	past history

	// Memory is the process's budget for buffers of connections. While it is nearly used
	// up, identities above their share wait or are refused. Nil: no bound.
	Memory *memory.Budget
}

// New returns a limiter and registers its metrics.
func New(r prometheus.Registerer) *Limiter {
	l := &Limiter{gate: gate{control: control{short: shortHere},
		refused: prometheus.NewCounter(prometheus.CounterOpts{Name: "isthmus_overload_refused_total", Help: "New connections refused because of overload: this process had too little processor time, or the way to their destination a queue."})}}
	l.own = gate{control: control{short: shortOwn}, refused: l.refused}
	gauge := func(name, help string, value func() float64) {
		r.MustRegister(prometheus.NewGaugeFunc(prometheus.GaugeOpts{Name: name, Help: help}, value))
	}
	r.MustRegister(l.refused)
	gauge("isthmus_scheduling_wait_seconds", "Mean time that goroutines lately waited for a processor.", func() float64 { return time.Duration(l.wait.Load()).Seconds() })
	gauge("isthmus_opening_connections", "New connections that are not yet established.", func() float64 { return l.gate.opening() + l.own.opening() })
	gauge("isthmus_opening_connections_limit", "How many new connections may be under way, of this process's own clients or of others, whichever are fewer; +Inf without a bound.", func() float64 { return min(l.gate.limit(), l.own.limit()) })
	return l
}

// shortHere is how long new work of others may be under way in a process without being
// too much: it is refused late, as their clients have held back before. A client may have
// let it wait for maxWait, and a fifth of a second is left for the way and for handshakes,
// of what within which it is to be open. That of this
// process's own clients, who wait for their turn and are served the sooner, may be so for
// shortBeyond longer than it takes without a queue, and for shortOwn at most. What is
// under way beyond that is served no sooner, and drives the rest out of the caches: with
// 128, 300, 600 and 900 at once, and no bound, a node proxy on one processor opened 6300,
// 5680, 5170 and 4980 a second (November 2026).
const (
	within      = time.Second
	shortHere   = within - maxWait - 200*time.Millisecond
	shortOwn    = 250 * time.Millisecond
	shortBeyond = 15 * time.Millisecond
)

// Admit admits the work of who, a client of this process; see gate.Admit.
func (l *Limiter) Admit(ctx context.Context, since time.Time, who string) (Work, error) {
	w, err := l.own.Admit(ctx, since)
	return l.withRoom(w, err, who)
}

// TryAdmit admits or refuses the work of a remote identity at once; see gate.TryAdmit.
func (l *Limiter) TryAdmit(who string) (Work, error) {
	w, err := l.gate.TryAdmit(who)
	return l.withRoom(w, err, who)
}

// AdmitOnce admits the work of a remote identity that does not retry; see gate.AdmitOnce.
func (l *Limiter) AdmitOnce(ctx context.Context, who string) (Work, error) {
	if err := l.Memory.Await(ctx, who); err != nil {
		return Work{}, err
	}
	w, err := l.gate.AdmitOnce(ctx, who)
	return l.withRoom(w, err, who)
}

// withRoom makes room in memory for w, which the gate admitted: work that it refuses must not
// cost streams that are open.
func (l *Limiter) withRoom(w Work, err error, who string) (Work, error) {
	if err != nil {
		return Work{}, err
	}
	if err := l.Memory.Admit(who); err != nil {
		w.Done()
		return Work{}, fmt.Errorf("%w: %w", ErrOverloaded, err)
	}
	return w, nil
}

// Refuse reports whether Admit would refuse at once; see gate.Refuse.
func (l *Limiter) Refuse(coming int) bool { return l.own.Refuse(coming) }

// Refused counts a connection that Refuse kept from starting.
func (l *Limiter) Refused() { l.refused.Inc() }

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
			l.own.unbound()
			l.wait.Store(0)
			return
		}
		now := time.Now()
		runnable, wait := scheduler.read()
		smooth := (3*time.Duration(l.wait.Load()) + wait) / 4
		l.wait.Store(int64(smooth))
		l.past.add(last, now, max(wait, now.Sub(last)-tick))
		l.step(now, scheduling{processors: runtime.GOMAXPROCS(0), runnable: runnable, wait: smooth})
		last = now
	}
}

// step is one turn of the control loop.
func (l *Limiter) step(now time.Time, s scheduling) {
	gates := [...]*gate{&l.gate, &l.own}
	underWay := 0
	for _, g := range gates {
		g.mu.Lock()
		underWay += g.recent.underWay
		g.mu.Unlock()
	}
	late := s.late(underWay)
	l.own.mu.Lock()
	if base := l.own.times.base(mid); base > 0 {
		l.own.control.short = min(base+shortBeyond, shortOwn)
	}
	l.own.mu.Unlock()
	for _, g := range gates {
		g.mu.Lock()
		g.step(now, g.load(s.processors, late))
		g.mu.Unlock()
	}
}
