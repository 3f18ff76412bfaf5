package overload

import (
	"context"
	"math"
	"runtime"
	"sync/atomic"
	"time"

	"github.com/prometheus/client_golang/prometheus"
)

// Limiter admits the new work of this process. Its methods are safe for concurrent use.
// It bounds nothing until Run is called, and then until that returns.
type Limiter struct {
	gate
	wait atomic.Int64 // mean wait for a processor lately, in nanoseconds
	past history
}

// New returns a limiter and registers its metrics.
func New(r prometheus.Registerer) *Limiter {
	l := &Limiter{gate: gate{control: control{short: shortHere},
		refused: prometheus.NewCounter(prometheus.CounterOpts{Name: "isthmus_overload_refused_total", Help: "New connections refused because of overload: this process had too little processor time, or the way to their destination a queue."})}}
	gauge := func(name, help string, value func() float64) {
		r.MustRegister(prometheus.NewGaugeFunc(prometheus.GaugeOpts{Name: name, Help: help}, value))
	}
	r.MustRegister(l.refused)
	gauge("isthmus_scheduling_wait_seconds", "Mean time that goroutines lately waited for a processor.", func() float64 { return time.Duration(l.wait.Load()).Seconds() })
	gauge("isthmus_opening_connections", "New connections that are not yet established.", func() float64 { return l.sees(func() float64 { return float64(l.all) }) })
	gauge("isthmus_opening_connections_limit", "How many new connections may be under way; +Inf without a bound.", func() float64 { return l.sees(l.limit) })
	return l
}

// shortHere is how long new work may be under way in a process without being too much.
const shortHere = 750 * time.Millisecond

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
	l.mu.Lock()
	defer l.mu.Unlock()
	l.gate.step(now, l.load(s.processors, s.late(l.recent.underWay)))
}
