package health

import (
	"math"
	"math/rand/v2"
	"testing"
	"time"
)

// twin is the slow and obvious Tracker: it writes down everything that happens
// to a key and plays it all again for each question.
type twin struct {
	cfg Config
	log []event
}

type event struct {
	kind    string // begin, end, readmit, allow, look
	attempt int    // which begin an end belongs to
	outcome Outcome
	jitter  float64 // what the dice show if this ejects
	at      time.Time
}

type replay struct {
	cfg       Config
	state     State
	changedAt int // index of the event that last ejected or readmitted; -1
	quiet     time.Time
	holder    int // attempt with the probe token; -1
	heldSince time.Time
	begunAt   map[int]int // attempt → index of its begin
	lastEdge  Edge
}

func (w *twin) play() *replay {
	r := &replay{cfg: w.cfg, state: State{Health: 1}, changedAt: -1, holder: -1, begunAt: map[int]int{}}
	for i, ev := range w.log {
		r.lastEdge = NoEdge
		r.pass(ev.at)
		r.forget()
		switch ev.kind {
		case "begin":
			r.begunAt[ev.attempt] = i
			if r.state.Phase == Probing && r.holder < 0 {
				r.holder, r.heldSince = ev.attempt, ev.at
			}
		case "end":
			r.end(i, ev)
		case "readmit":
			if r.state.Phase != Healthy {
				r.readmit(i, ev.at)
			}
			r.state.Health, r.state.Consecutive = max(r.state.Health, 0.3), 0
		case "allow":
			if r.state.Phase == Ejected {
				r.state.Phase, r.state.Until = Probing, ev.at
			}
		}
		r.forget()
	}
	return r
}

// forget makes a key in the default state one without a past.
func (r *replay) forget() {
	if r.state == (State{Health: 1}) {
		r.changedAt = -1
	}
}

// pass lets time do its work.
func (r *replay) pass(now time.Time) {
	s := &r.state
	if s.Phase == Ejected && !now.Before(s.Until) {
		s.Phase = Probing
	}
	if r.holder >= 0 && now.Sub(r.heldSince) >= time.Minute {
		r.holder = -1
	}
	base := time.Duration(r.cfg.BaseBackoffSecs * 1e9)
	for s.Phase == Healthy && s.Ejections > 0 && now.Sub(r.quiet) >= base {
		s.Ejections--
		r.quiet = r.quiet.Add(base)
	}
}

func (r *replay) end(i int, ev event) {
	s, probe := &r.state, r.holder == ev.attempt
	if probe {
		r.holder = -1
	}
	if ev.outcome == Neutral || r.begunAt[ev.attempt] < r.changedAt {
		return
	}
	if ev.outcome == Failure && s.Phase != Healthy && !probe {
		return
	}
	x := 0.0
	if ev.outcome == Success {
		x = 1
	}
	if r.cfg.EWMA() {
		s.Health = r.cfg.EWMAAlpha*x + (1-r.cfg.EWMAAlpha)*s.Health
		if s.Health > 1-1e-6 {
			s.Health = 1
		}
	}
	switch {
	case ev.outcome == Success && s.Phase != Healthy:
		r.readmit(i, ev.at)
		s.Health = max(s.Health, 0.3)
	case ev.outcome == Success:
		s.Consecutive = 0
	case s.Phase == Healthy && s.Consecutive+1 < r.cfg.FailureThreshold, !r.cfg.Breaker():
		s.Consecutive++
	default:
		if s.Phase == Healthy {
			s.Consecutive++
		}
		r.eject(i, ev)
	}
}

func (r *replay) readmit(i int, now time.Time) {
	r.state.Phase, r.state.Until, r.state.Consecutive = Healthy, time.Time{}, 0
	r.quiet, r.changedAt, r.holder, r.lastEdge = now, i, -1, EdgeReadmitted
}

func (r *replay) eject(i int, ev event) {
	s := &r.state
	seconds := func(n int) float64 {
		d := r.cfg.BaseBackoffSecs
		for range n - 1 {
			d *= 2
		}
		return min(d, r.cfg.MaxBackoffSecs)
	}
	if s.Ejections == 0 || seconds(s.Ejections) < r.cfg.MaxBackoffSecs {
		s.Ejections++
	}
	wait := seconds(s.Ejections) * (1 - r.cfg.JitterFrac + 2*r.cfg.JitterFrac*ev.jitter)
	s.Phase, s.Until = Ejected, ev.at.Add(time.Duration(wait*1e9))
	r.changedAt, r.holder, r.lastEdge = i, -1, EdgeEjected
}

func TestTrackerAgreesWithTwin(t *testing.T) {
	for seed := range uint64(400) {
		compareWithTwin(t, seed)
	}
}

func compareWithTwin(t *testing.T, seed uint64) {
	rng := rand.New(rand.NewPCG(seed, 1))
	cfg := randomConfig(rng)
	dice := 0.0
	tr := NewTracker[int](cfg, func() float64 { return dice })
	type open struct {
		key, id int
		a       Attempt
	}
	var inFlight []open
	twins := []*twin{{cfg: cfg}, {cfg: cfg}, {cfg: cfg}}
	sick := []float64{rng.Float64(), rng.Float64(), rng.Float64()} // chance to fail
	now, next := time.Unix(1000, 0), 0
	for step := range 120 {
		if rng.IntN(4) > 0 { // the clock may stand still
			now = now.Add(time.Duration(rng.ExpFloat64() * 0.3 * cfg.BaseBackoffSecs * 1e9))
		}
		k := rng.IntN(len(twins))
		w := twins[k]
		edge, ev := NoEdge, event{kind: "look", at: now}
		switch n := rng.IntN(20); {
		case n < 8 || len(inFlight) == 0 && n < 18:
			ev.kind, ev.attempt = "begin", next
			inFlight = append(inFlight, open{k, next, tr.Begin(k, now)})
			next++
		case n < 17:
			i := rng.IntN(len(inFlight))
			f := inFlight[i]
			inFlight = append(inFlight[:i], inFlight[i+1:]...)
			k, w = f.key, twins[f.key]
			ev.kind, ev.attempt, ev.jitter = "end", f.id, rng.Float64()
			switch {
			case rng.IntN(8) == 0:
				ev.outcome = Neutral
			case rng.Float64() < sick[k]:
				ev.outcome = Failure
			}
			dice = ev.jitter
			edge = tr.End(k, f.a, ev.outcome, now)
		case n == 17:
			ev.kind = "readmit"
			edge = tr.Readmit(k, now)
		case n == 18:
			ev.kind = "allow"
			tr.AllowProbe(k, now)
		default:
			for i, w := range twins {
				if i != k {
					w.log = append(w.log, ev)
				}
			}
			tr.Prune(now, func(int) bool { return true })
		}
		w.log = append(w.log, ev)
		r := w.play()
		got, want := tr.State(k, now), r.state
		if edge != r.lastEdge || !alike(got, want) || tr.Usable(k, now) != (want.Phase == Healthy || want.Phase == Probing && r.holder < 0) {
			t.Fatalf("seed %d, step %d (%+v), config %+v:\ngot  %v %+v usable %t\nwant %v %+v holder %d", seed, step, ev, cfg, edge, got, tr.Usable(k, now), r.lastEdge, want, r.holder)
		}
	}
}

// alike compares states; whole and rounding of durations are allowed for.
func alike(a, b State) bool {
	return math.Abs(a.Health-b.Health) < 1e-5 && a.Phase == b.Phase && a.Until.Sub(b.Until).Abs() < time.Microsecond &&
		a.Ejections == b.Ejections && a.Consecutive == b.Consecutive
}

func randomConfig(rng *rand.Rand) Config {
	c := DefaultConfig()
	c.Mode = []Mode{ModeHybrid, ModeHybrid, ModeCircuitBreaker, ModeEWMA}[rng.IntN(4)]
	c.FailureThreshold = 1 + rng.IntN(4)
	c.EWMAAlpha = 0.01 + 0.99*rng.Float64()
	c.BaseBackoffSecs = 1 + float64(rng.IntN(100))
	c.MaxBackoffSecs = c.BaseBackoffSecs * (0.5 + 10*rng.Float64())
	c.JitterFrac = 0.9 * rng.Float64()
	return c
}
