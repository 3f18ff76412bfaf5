package overload

import (
	"context"
	"runtime"
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"
)

// Destinations bounds, for each destination by itself, how many connections are being
// opened at once while all of them take longer than they used to: somewhere on the way
// there is a queue, and who fills it is here. A destination that hangs, or of which some
// pods are slow, is not bounded: its connections do not wait for each other. Safe for
// concurrent use. It bounds nothing until Run is called, and then until that returns.
type Destinations struct {
	refused prometheus.Counter

	mu    sync.Mutex
	gates map[string]*destination
	busy  []*destination // those that are visited each tick
	ticks int            // since those that are not were looked at
}

// destination is the gate of one key.
type destination struct {
	gate
	users int           // of the gate; with Destinations.mu held
	busy  bool          // likewise
	idle  time.Duration // since the last of them left; likewise
	least time.Duration // how long even the least has been slow; with gate.mu held
	trial trial         // likewise
	slow  bool          // by times, lately; likewise
}

// Parameters of Destinations.
const (
	// shortThere is how much longer the opening of a connection may take than without a
	// queue until fewer are opened at once.
	shortThere = 100 * time.Millisecond
	// notOurs is how long hardly any work may be slow until the way is taken for longer
	// than it was: then it is not our queue.
	notOurs = 2 * time.Second
	// keptIdle is how long a destination that nobody uses is remembered, and each
	// keptIdle/10 it is looked at whether it was so long.
	keptIdle = 10 * time.Second
	// resting is how long nobody has used one that has no turns any more: then nothing
	// that it counts is left.
	resting = hanging + lately*tick
	// mostGates is how many destinations have a gate; work towards more is not bounded.
	mostGates = 4096
)

// NewDestinations returns Destinations that counts what it refuses where l does.
func NewDestinations(l *Limiter) *Destinations {
	return &Destinations{refused: l.refused, gates: map[string]*destination{}}
}

// Toward is one piece of work towards a destination.
type Toward struct {
	Work
	d   *Destinations
	key *destination
}

// Admit is Limiter.Admit for work towards key.
func (d *Destinations) Admit(ctx context.Context, key string, since time.Time) (Toward, error) {
	d.mu.Lock()
	g := d.enter(key)
	d.mu.Unlock()
	if g == nil {
		return Toward{}, nil
	}
	w, err := g.Admit(ctx, since)
	t := Toward{Work: w, d: d, key: g}
	if err != nil {
		t.Done()
	}
	return t, err
}

// enter counts one more user of key's gate; nil: it has none. Called with mu held.
func (d *Destinations) enter(key string) *destination {
	g := d.gates[key]
	if g == nil {
		if len(d.gates) >= mostGates {
			return nil
		}
		g = &destination{gate: gate{refused: d.refused}}
		d.gates[key] = g
	}
	g.users++
	if !g.busy {
		g.busy, g.idle = true, 0
		d.busy = append(d.busy, g)
	}
	return g
}

// Refuse is Limiter.Refuse for work towards key.
func (d *Destinations) Refuse(key string, coming int) bool {
	d.mu.Lock()
	g := d.gates[key]
	d.mu.Unlock()
	return g != nil && g.gate.Refuse(coming)
}

// Done ends the work; a second call, or one on the zero value, does nothing.
func (t *Toward) Done() {
	if t.d == nil {
		return
	}
	t.Work.Done()
	t.d.mu.Lock()
	t.key.users--
	t.d.mu.Unlock()
	t.d = nil
}

// Run decides until ctx ends; then everybody who waits is admitted.
func (d *Destinations) Run(ctx context.Context) {
	t := time.NewTicker(tick)
	defer t.Stop()
	for {
		select {
		case <-t.C:
			d.step(time.Now(), runtime.GOMAXPROCS(0))
		case <-ctx.Done():
			d.mu.Lock()
			defer d.mu.Unlock()
			for _, g := range d.gates {
				g.unbound()
			}
			return
		}
	}
}

// step is one turn of the control loops.
func (d *Destinations) step(now time.Time, processors int) {
	for _, g := range d.visit() {
		g.turn(now, processors)
	}
}

// visit returns the gates that are to have a turn. Those that nobody has used for as long
// as work counts have none until somebody does.
func (d *Destinations) visit() []*destination {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.forget()
	still := make([]*destination, 0, len(d.busy))
	for _, g := range d.busy {
		if g.idle += tick; g.users > 0 {
			g.idle = 0
		}
		if g.idle >= resting && g.rest() {
			g.busy = false
			continue
		}
		still = append(still, g)
	}
	d.busy = still
	return still
}

// forget drops the gates that were not used for long. Called with mu held.
func (d *Destinations) forget() {
	const turn = keptIdle / 10
	if d.ticks++; d.ticks < int(turn/tick) {
		return
	}
	d.ticks = 0
	for key, g := range d.gates {
		if g.busy {
			continue
		}
		if g.idle += turn; g.idle >= keptIdle {
			delete(d.gates, key)
		}
	}
}

// rest drops what a gate counts that nobody uses, unless it is bounded.
func (g *destination) rest() bool {
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.control.bounded {
		return false
	}
	g.recent = recent{}
	g.times.rest()
	return true
}

// turn is one turn of the control loop of a destination.
func (g *destination) turn(now time.Time, processors int) {
	g.mu.Lock()
	defer g.mu.Unlock()
	much := g.recent.underWay > leastWindow*processors
	if much || g.control.bounded || g.times.clock%lately == 0 {
		g.slow = g.times.slow()
	}
	slow := g.slow
	if g.least += tick; !slow || much {
		g.least = 0
	}
	if slow && much && g.trial.due(g.control.bounded) {
		g.trial.begin(&g.recent, &g.times, g.control.bounded)
		g.control.bounded, g.control.window = true, g.trial.window
	}
	v := g.trial.step(&g.recent, &g.times)
	if v == longer || g.least >= notOurs {
		g.times.relearn()
		g.least, g.slow, slow = 0, false, false
	}
	if v == longer || v == none && !g.trial.bounded {
		g.control.bounded = false
	}
	// Most of what has waited for a queue that is none may begin when that is known.
	g.patient = g.trial.running && !g.trial.bounded
	g.control.short = g.times.base(mid) + shortThere
	l := g.load(processors, slow && much && g.control.bounded)
	l.tried = g.trial.running
	g.step(now, l)
}
