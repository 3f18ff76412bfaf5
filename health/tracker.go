package health

import (
	"math"
	"time"
)

const (
	// readmitHealth is the least health after a readmission: enough for a third
	// of the usual share, so that a recovered endpoint starts slowly.
	readmitHealth = 0.3
	// whole is the distance from 1 below which health counts as 1 again and the
	// entry can go: 36 successes after a single failure, at the default alpha.
	whole = 1e-6
	// faintest is the smallest weight factor: a weight must be positive even
	// with a floor of 0.
	faintest = 1e-9
	// tokenLease is how long a probe may be under way before another may start.
	// Every attempt is bounded by shorter timeouts; the lease keeps an Attempt
	// that was never ended from leaving its key out for ever.
	tokenLease = time.Minute
)

// Tracker keeps the health of the keys that one observer has seen misbehave.
// Not safe for concurrent use. Times must come from one clock; one that stands
// still or steps back delays decay and probes and breaks nothing.
type Tracker[K comparable] struct {
	ewma, breaker bool
	alpha, floor  float64
	threshold     int
	base, limit   time.Duration
	jitterFrac    float64
	jitter        func() float64

	entries map[K]*entry
	changes uint64 // ejections and readmissions so far, plus one
	tokens  uint64 // probe tokens handed out so far
}

type entry struct {
	health      float64
	phase       Phase
	consecutive int
	ejections   int
	until       time.Time // end of the ejection
	quiet       time.Time // healthy: start of the current quiet base period
	since       uint64    // Tracker.changes after the last change of phase edge
	token       uint64    // the probe under way, or 0
	leased      time.Time // when token was handed out
}

// NewTracker returns an empty Tracker. It expects a config that Validate
// accepts; of others it takes the nearest that works, and an unknown mode as
// off. jitter returns values drawn evenly from [0, 1); nil means no jitter.
func NewTracker[K comparable](cfg Config, jitter func() float64) *Tracker[K] {
	if jitter == nil {
		jitter = func() float64 { return 0.5 }
	}
	return &Tracker[K]{
		ewma: cfg.EWMA(), breaker: cfg.Breaker(),
		alpha: min(cfg.EWMAAlpha, 1), floor: cfg.EWMAHealthFloor, threshold: max(cfg.FailureThreshold, 1),
		base: seconds(cfg.BaseBackoffSecs), limit: seconds(cfg.MaxBackoffSecs),
		jitterFrac: min(max(cfg.JitterFrac, 0), 1), jitter: jitter,
		entries: map[K]*entry{}, changes: 1,
	}
}

// Begin notes that a connection attempt to k starts. If k is due for a probe
// and none is under way, this attempt is it.
func (t *Tracker[K]) Begin(k K, now time.Time) Attempt {
	a := Attempt{begun: t.changes}
	if e := t.entry(k, now); e != nil && e.phase == Probing && e.token == 0 {
		t.tokens++
		a.token, e.token, e.leased = t.tokens, t.tokens, now
	}
	return a
}

// End takes in what came of attempt a to k. An attempt that began before the
// last ejection or readmission of k changes nothing (until k is back in its
// default state, long after, and has no past). One that began during an
// ejection without being its probe (all others were out too) readmits k by a
// success and changes nothing by a failure. End may be called again for the
// same attempt if more is learnt: each call is one outcome.
func (t *Tracker[K]) End(k K, a Attempt, o Outcome, now time.Time) Edge {
	e := t.entry(k, now)
	probe := e != nil && a.token != 0 && a.token == e.token
	if probe {
		e.token = 0
	}
	switch {
	case o != Success && o != Failure, !t.ewma && !t.breaker, e != nil && a.begun < e.since:
		return NoEdge
	case o == Success:
		return t.succeeded(k, e, now)
	case e == nil:
		e = &entry{health: 1}
		t.entries[k] = e
	}
	return t.failed(e, probe, now)
}

func (t *Tracker[K]) succeeded(k K, e *entry, now time.Time) Edge {
	if e == nil {
		return NoEdge
	}
	t.sample(e, 1)
	e.consecutive = 0
	if e.phase != Healthy {
		return t.readmit(e, now)
	}
	t.dropDefault(k, e)
	return NoEdge
}

func (t *Tracker[K]) failed(e *entry, probe bool, now time.Time) Edge {
	switch {
	case e.phase == Healthy:
		e.consecutive++
	case !probe:
		return NoEdge
	}
	t.sample(e, 0)
	if !t.breaker || e.phase == Healthy && e.consecutive < t.threshold {
		return NoEdge
	}
	t.eject(e, now)
	return EdgeEjected
}

// sample moves the average: h ← α·x + (1−α)·h.
func (t *Tracker[K]) sample(e *entry, x float64) {
	if !t.ewma {
		return
	}
	e.health = t.alpha*x + (1-t.alpha)*e.health
	if 1-e.health < whole {
		e.health = 1
	}
}

func (t *Tracker[K]) eject(e *entry, now time.Time) {
	if e.ejections == 0 || t.price(e.ejections) < t.limit {
		e.ejections++
	}
	u := 2*t.jitter() - 1
	wait := seconds(t.price(e.ejections).Seconds() * (1 + t.jitterFrac*u))
	t.changes++
	e.phase, e.until, e.since, e.token = Ejected, now.Add(wait), t.changes, 0
}

// price is the length of the n-th ejection before jitter: min(max, base·2^(n−1)).
func (t *Tracker[K]) price(n int) time.Duration {
	if p := math.Ldexp(float64(t.base), n-1); p < float64(t.limit) {
		return time.Duration(p)
	}
	return t.limit
}

func (t *Tracker[K]) readmit(e *entry, now time.Time) Edge {
	t.changes++
	e.health = max(e.health, readmitHealth)
	e.phase, e.until, e.quiet, e.since, e.token, e.consecutive = Healthy, time.Time{}, now, t.changes, 0, 0
	return EdgeReadmitted
}

// Readmit takes in evidence from outside the attempts that k works now: a probe
// of its own side, or a report of its owner. Attempts under way that began
// before it change nothing any more. The count of ejections is kept.
func (t *Tracker[K]) Readmit(k K, now time.Time) Edge {
	e := t.entry(k, now)
	switch {
	case e == nil:
		return NoEdge
	case e.phase != Healthy:
		return t.readmit(e, now)
	}
	e.health, e.consecutive = max(e.health, readmitHealth), 0
	t.dropDefault(k, e)
	return NoEdge
}

// AllowProbe ends the wait of an ejected k at once, for one probe: discovery
// saw it turn ready. It does nothing to a key that is not ejected.
func (t *Tracker[K]) AllowProbe(k K, now time.Time) {
	if e := t.entry(k, now); e != nil && e.phase == Ejected {
		e.phase, e.until = Probing, now
	}
}

// State returns what is known of k.
func (t *Tracker[K]) State(k K, now time.Time) State {
	e := t.entry(k, now)
	if e == nil {
		return State{Health: 1}
	}
	return State{Health: e.health, Phase: e.phase, Until: e.until, Ejections: e.ejections, Consecutive: e.consecutive}
}

// Usable reports whether k may be offered a connection: it is healthy, or due
// for a probe that nobody has started.
func (t *Tracker[K]) Usable(k K, now time.Time) bool {
	e := t.entry(k, now)
	return e == nil || e.phase == Healthy || e.phase == Probing && e.token == 0
}

// Weight returns the factor for the capacity of k: its health, and at least the
// floor; 1 if EWMA is off.
func (t *Tracker[K]) Weight(k K, now time.Time) float64 {
	if e := t.entries[k]; e != nil && t.ewma {
		return max(e.health, t.floor, faintest)
	}
	return 1
}

// Faint reports whether k fails so often that its health is below the floor: it
// keeps its trickle of connections, but it does not count as a healthy endpoint
// when a bucket is checked for being empty.
func (t *Tracker[K]) Faint(k K) bool {
	e := t.entries[k]
	return e != nil && t.ewma && e.health < t.floor
}

// entry returns what is kept of k, brought up to now, or nil if k is in its
// default state.
func (t *Tracker[K]) entry(k K, now time.Time) *entry {
	e := t.entries[k]
	if e == nil {
		return nil
	}
	if e.phase == Ejected && !now.Before(e.until) {
		e.phase = Probing
	}
	if e.token != 0 && now.Sub(e.leased) >= tokenLease {
		e.token = 0
	}
	if e.phase == Healthy && e.ejections > 0 {
		t.decay(e, now)
		if t.dropDefault(k, e) {
			return nil
		}
	}
	return e
}

// decay takes one ejection off for each base period spent healthy.
func (t *Tracker[K]) decay(e *entry, now time.Time) {
	if t.base <= 0 {
		e.ejections = 0
		return
	}
	if n := int64(now.Sub(e.quiet) / t.base); n > 0 {
		e.ejections = max(0, e.ejections-int(min(n, math.MaxInt32)))
		e.quiet = e.quiet.Add(time.Duration(n) * t.base)
	}
}
