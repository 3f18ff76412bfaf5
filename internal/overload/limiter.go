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
	gate              // admits work of remote clients
	own  gate         // admits work of this process's own clients
	wait atomic.Int64 // recent mean wait for a processor, in nanoseconds
	past history

	// Memory is the process's budget for buffers of connections. While it is nearly used
	// up, identities above their share wait or are refused. Nil means no limit.
	Memory *memory.Budget
}

// New returns a limiter and registers its metrics.
func New(r prometheus.Registerer) *Limiter {
	l := &Limiter{gate: gate{control: control{short: shortHere},
		refused: prometheus.NewCounter(prometheus.CounterOpts{Name: "isthmus_overload_refused_total", Help: "New connections refused for overload: this process was short of processor time, or connections to the destination queued."})}}
	l.own = gate{control: control{short: shortOwn}, refused: l.refused}
	gauge := func(name, help string, value func() float64) {
		r.MustRegister(prometheus.NewGaugeFunc(prometheus.GaugeOpts{Name: name, Help: help}, value))
	}
	r.MustRegister(l.refused)
	gauge("isthmus_scheduling_wait_seconds", "Recent mean time that goroutines waited for a processor.", func() float64 { return time.Duration(l.wait.Load()).Seconds() })
	gauge("isthmus_opening_connections", "New connections that are not yet established.", func() float64 { return l.gate.opening() + l.own.opening() })
	gauge("isthmus_opening_connections_limit", "Limit on connections being opened: the lower of those for local and for remote clients; +Inf without a limit.", func() float64 { return min(l.gate.limit(), l.own.limit()) })
	return l
}

// shortHere is how long new work of remote clients may be under way before it counts as too much.
// A connection is to be open within one second. Of that, its client may have held it back for
// maxWait, and 200 ms remain for the path and the handshakes. Remote work is refused late, as its
// clients have already held it back.
//
// Work of this process's own clients waits for its turn and is served the sooner. It may be under
// way for shortBeyond longer than without a queue, and for shortOwn at most. Beyond that, more
// work is not served sooner, and it evicts the rest from the processor caches. With 128, 300, 600
// and 900 connections at a time and no limit, a node proxy on one processor opened 6300, 5680,
// 5170 and 4980 per second (November 2026).
const (
	within      = time.Second
	shortHere   = within - maxWait - 200*time.Millisecond
	shortOwn    = 250 * time.Millisecond
	shortBeyond = 15 * time.Millisecond
)

// Admit admits work of a local client with the identity who; see gate.Admit.
func (l *Limiter) Admit(ctx context.Context, since time.Time, who string) (Work, error) {
	w, err := l.own.Admit(ctx, since)
	return l.withRoom(w, err, who)
}

// TryAdmit admits or refuses work of a remote identity without waiting; see gate.TryAdmit.
func (l *Limiter) TryAdmit(who string) (Work, error) {
	w, err := l.gate.TryAdmit(who)
	return l.withRoom(w, err, who)
}

// AdmitOnce admits work of a remote identity that does not retry; see gate.AdmitOnce.
func (l *Limiter) AdmitOnce(ctx context.Context, who string) (Work, error) {
	if err := l.Memory.Await(ctx, who); err != nil {
		return Work{}, err
	}
	w, err := l.gate.AdmitOnce(ctx, who)
	return l.withRoom(w, err, who)
}

// withRoom makes room in memory for w after the gate has admitted it: refused work must not cost
// open streams.
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

// Refuse reports whether Admit would refuse without waiting; see gate.Refuse.
func (l *Limiter) Refuse(coming int) bool { return l.own.Refuse(coming) }

// Refused counts a connection that was not started because of Refuse.
func (l *Limiter) Refused() { l.refused.Inc() }

// Late returns the largest scheduling delay of this process from since until now. A wait of that
// length may be this process's own doing.
func (l *Limiter) Late(since time.Time) time.Duration { return l.past.worst(since, time.Now()) }

// Run runs the control loop until ctx is done. Then it admits all waiting work.
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

// step is one iteration of the control loop.
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
