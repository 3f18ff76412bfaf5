package health

import (
	"math"
	"math/rand/v2"
	"slices"
	"testing"
	"time"
)

var t0 = time.Unix(1000, 0)

// try is one attempt that ends at once.
func try[K comparable](tr *Tracker[K], k K, o Outcome, now time.Time) Edge {
	return tr.End(k, tr.Begin(k, now), o, now)
}

func only(mode Mode) Config {
	c := DefaultConfig()
	c.Mode = mode
	return c
}

// The worked values of the published arithmetic at alpha 0.3.
func TestEWMAValues(t *testing.T) {
	near := func(got, want float64) bool { return math.Abs(got-want) < 0.0006 }
	tr := NewTracker[int](only(ModeEWMA), nil)
	for i, want := range []float64{0.70, 0.49, 0.343, 0.240, 0.168, 0.118, 0.082, 0.058, 0.040} {
		try(tr, 1, Failure, t0)
		if got := tr.State(1, t0).Health; !near(got, want) {
			t.Errorf("after %d failures: health %.4f, want %.3f", i+1, got, want)
		}
		if got, want := tr.Weight(1, t0), max(want, 0.05); !near(got, want) {
			t.Errorf("after %d failures: weight %.4f, want %.3f", i+1, got, want)
		}
		if got, want := tr.Faint(1), i == 8; got != want {
			t.Errorf("after %d failures: faint %t, want %t: the ninth crosses the floor", i+1, got, want)
		}
	}
	tr.entries[1].health = 0.05
	for i, want := range []float64{0.335, 0.535, 0.674, 0.772, 0.840, 0.888, 0.922} {
		try(tr, 1, Success, t0)
		if got := tr.State(1, t0).Health; !near(got, want) {
			t.Errorf("after %d successes from 0.05: health %.4f, want %.3f", i+1, got, want)
		}
	}
}

// At a steady failure rate p health settles at 1−p ± √(α/(2−α)·p(1−p)).
func TestEWMASettlesAtTheSuccessRate(t *testing.T) {
	const seed, p, n = 7, 0.2, 200_000
	rng := rand.New(rand.NewPCG(seed, 0))
	tr := NewTracker[int](only(ModeEWMA), nil)
	var sum, squares float64
	for range n {
		o := Success
		if rng.Float64() < p {
			o = Failure
		}
		try(tr, 1, o, t0)
		h := tr.State(1, t0).Health
		sum, squares = sum+h, squares+h*h
	}
	mean := sum / n
	deviation := math.Sqrt(squares/n - mean*mean)
	if math.Abs(mean-0.8) > 0.005 || math.Abs(deviation-0.168) > 0.005 {
		t.Errorf("seed %d: health %.3f ± %.3f, want 0.80 ± 0.17", seed, mean, deviation)
	}
}

// Bounds of the first, second, third and every later ejection with jitter 0.2.
func TestEjectionLengths(t *testing.T) {
	bounds := [][2]float64{{48, 72}, {96, 144}, {192, 288}, {240, 360}, {240, 360}}
	for _, dice := range []float64{0, 0.25, 0.5, 0.75, math.Nextafter(1, 0)} {
		tr := NewTracker[int](DefaultConfig(), func() float64 { return dice })
		now := t0
		try(tr, 1, Failure, now)
		for n, b := range bounds {
			if edge := try(tr, 1, Failure, now); edge != EdgeEjected {
				t.Fatalf("dice %v, ejection %d: edge %v, want ejected", dice, n+1, edge)
			}
			got := tr.State(1, now).Until.Sub(now).Seconds()
			if want := b[0] + dice*(b[1]-b[0]); math.Abs(got-want) > 1e-6 {
				t.Errorf("dice %v, ejection %d lasts %.3f s, want %.3f of %v", dice, n+1, got, want, b)
			}
			now = tr.State(1, now).Until
		}
	}
}

func TestMaxBelowBaseIsTheLength(t *testing.T) {
	c := DefaultConfig()
	c.MaxBackoffSecs, c.FailureThreshold = 10, 1
	tr := NewTracker[int](c, nil)
	try(tr, 1, Failure, t0)
	if got := tr.State(1, t0).Until.Sub(t0); got != 10*time.Second {
		t.Errorf("ejection lasts %v, want 10s", got)
	}
}

func TestZeroBackoffEjectsForNoTime(t *testing.T) {
	c := DefaultConfig()
	c.BaseBackoffSecs, c.MaxBackoffSecs = 0, 0
	tr := NewTracker[int](c, nil)
	for range 5 {
		try(tr, 1, Failure, t0)
		try(tr, 1, Failure, t0)
		if s := tr.State(1, t0); s.Phase != Probing || !tr.Usable(1, t0) {
			t.Fatalf("state %+v, want probing and usable at once", s)
		}
		if edge := try(tr, 1, Success, t0); edge != EdgeReadmitted {
			t.Fatalf("probe succeeded with edge %v, want readmitted", edge)
		}
	}
}

func TestOnePortFailsAlone(t *testing.T) {
	tr := NewTracker[Key](DefaultConfig(), nil)
	sick, well := Key{7, 8080}, Key{7, 9090}
	for range 5 {
		try(tr, sick, Failure, t0)
		try(tr, well, Success, t0)
	}
	if tr.Usable(sick, t0) || !tr.Usable(well, t0) || tr.Weight(well, t0) != 1 {
		t.Errorf("sick port usable %t, well port usable %t with weight %v; want false, true, 1",
			tr.Usable(sick, t0), tr.Usable(well, t0), tr.Weight(well, t0))
	}
	if got := tr.Ejected(t0); !slices.Equal(got, []Key{sick}) {
		t.Errorf("ejected %v, want only %v", got, sick)
	}
}

func TestProbingCountsAsOutUntilReadmitted(t *testing.T) {
	tr := NewTracker[int](DefaultConfig(), nil)
	try(tr, 1, Failure, t0)
	try(tr, 1, Failure, t0)
	due := t0.Add(time.Hour)
	if got := tr.Ejected(due); !slices.Equal(got, []int{1}) {
		t.Errorf("ejected while due for a probe: %v, want [1]", got)
	}
	try(tr, 1, Success, due)
	if got := tr.Ejected(due); len(got) != 0 {
		t.Errorf("ejected after the probe's success: %v, want none", got)
	}
}

func TestModesAndNegativeKnobs(t *testing.T) {
	cases := map[string]struct {
		set            func(*Config)
		ejects, weighs bool
	}{
		"hybrid":                        {func(c *Config) {}, true, true},
		"circuitBreaker":                {func(c *Config) { c.Mode = ModeCircuitBreaker }, true, false},
		"ewma":                          {func(c *Config) { c.Mode = ModeEWMA }, false, true},
		"off":                           {func(c *Config) { c.Mode = ModeOff }, false, false},
		"negative floor":                {func(c *Config) { c.EWMAHealthFloor = -1 }, true, false},
		"negative alpha":                {func(c *Config) { c.EWMAAlpha = -0.3 }, true, false},
		"negative base":                 {func(c *Config) { c.BaseBackoffSecs = -1 }, false, true},
		"negative max":                  {func(c *Config) { c.MaxBackoffSecs = -1 }, false, true},
		"both":                          {func(c *Config) { c.EWMAAlpha, c.MaxBackoffSecs = -1, -1 }, false, false},
		"ewma mode with negative alpha": {func(c *Config) { c.Mode, c.EWMAAlpha = ModeEWMA, -1 }, false, false},
		"circuitBreaker mode with negative backoff": {func(c *Config) { c.Mode, c.BaseBackoffSecs = ModeCircuitBreaker, -1 }, false, false},
	}
	for name, c := range cases {
		cfg := DefaultConfig()
		c.set(&cfg)
		tr := NewTracker[int](cfg, nil)
		for range 3 {
			try(tr, 1, Failure, t0)
		}
		if got := !tr.Usable(1, t0); got != c.ejects {
			t.Errorf("%s: ejects %t, want %t", name, got, c.ejects)
		}
		if got := tr.Weight(1, t0) < 1; got != c.weighs {
			t.Errorf("%s: lowers the weight %t, want %t", name, got, c.weighs)
		}
		if !c.ejects && !c.weighs && tr.Len() != 0 {
			t.Errorf("%s: keeps %d entries although it is off", name, tr.Len())
		}
	}
}

func TestNeutralMovesNothing(t *testing.T) {
	tr := NewTracker[int](DefaultConfig(), nil)
	for range 10 {
		try(tr, 1, Neutral, t0)
	}
	try(tr, 1, Failure, t0)
	before := tr.State(1, t0)
	try(tr, 1, Neutral, t0)
	if got := tr.State(1, t0); got != before {
		t.Errorf("a neutral outcome changed %+v to %+v", before, got)
	}
}

func TestDefaultStateCostsNothing(t *testing.T) {
	tr := NewTracker[int](DefaultConfig(), nil)
	for k := range 1000 {
		try(tr, k, Success, t0)
		try(tr, k, Neutral, t0)
		tr.Usable(k, t0)
		tr.Readmit(k, t0)
	}
	if tr.Len() != 0 {
		t.Fatalf("%d entries for keys that never failed", tr.Len())
	}
	try(tr, 1, Failure, t0)
	n := 0
	for ; tr.Len() > 0 && n < 100; n++ {
		try(tr, 1, Success, t0)
	}
	if n > 40 {
		t.Errorf("the entry of one failure went after %d successes, want about 36", n)
	}
}

func TestPruneDropsTheGoneAndTheRecovered(t *testing.T) {
	tr := NewTracker[int](only(ModeCircuitBreaker), nil)
	for k := range 3 {
		try(tr, k, Failure, t0)
		try(tr, k, Failure, t0)
	}
	tr.Readmit(1, t0)
	tr.Prune(t0.Add(time.Minute), func(k int) bool { return k != 0 })
	if tr.Len() != 1 || tr.State(2, t0).Phase != Probing {
		t.Errorf("%d entries are left, 2 is %v; want 2 alone, due for a probe", tr.Len(), tr.State(2, t0).Phase)
	}
}

// A gateway learns of a connection twice: that it was accepted, and at its end
// whether a byte ever came back.
func TestOneAttemptMayEndTwice(t *testing.T) {
	tr := NewTracker[int](DefaultConfig(), nil)
	try(tr, 1, Failure, t0)
	try(tr, 1, Failure, t0)
	due := t0.Add(time.Minute)
	probe := tr.Begin(1, due)
	if !probe.Probe() {
		t.Fatal("the first attempt after the wait is not the probe")
	}
	if edge := tr.End(1, probe, Success, due); edge != EdgeReadmitted {
		t.Fatalf("edge %v, want readmitted", edge)
	}
	before := tr.State(1, due)
	for _, o := range []Outcome{Failure, Neutral, Success} {
		if edge := tr.End(1, probe, o, due); edge != NoEdge || tr.State(1, due) != before {
			t.Errorf("the probe's second end (%v): edge %v, state %+v, want none and %+v", o, edge, tr.State(1, due), before)
		}
	}
}

func TestZeroAttemptIsOlderThanEverything(t *testing.T) {
	tr := NewTracker[int](DefaultConfig(), nil)
	if a := tr.Begin(1, t0); a == (Attempt{}) {
		t.Error("Begin returned the zero Attempt")
	}
	try(tr, 1, Failure, t0)
	try(tr, 1, Failure, t0)
	if edge := tr.End(1, Attempt{}, Success, t0); edge != NoEdge {
		t.Errorf("edge %v, want none", edge)
	}
}

func TestClockMayStepBack(t *testing.T) {
	tr := NewTracker[int](DefaultConfig(), nil)
	try(tr, 1, Failure, t0)
	try(tr, 1, Failure, t0)
	try(tr, 1, Success, t0.Add(time.Minute))
	tr.State(1, t0.Add(-time.Hour))
	if s := tr.State(1, t0.Add(90*time.Second)); s.Phase != Healthy || s.Ejections != 1 {
		t.Errorf("state %+v, want healthy with one ejection", s)
	}
}

// However attempts are interleaved, no two hold the probe token at once while
// they are younger than its lease, and readmission needs one of them.
func TestOneProbeAtATime(t *testing.T) {
	for seed := range uint64(100) {
		rng := rand.New(rand.NewPCG(seed, 2))
		tr := NewTracker[int](DefaultConfig(), rng.Float64)
		now, inFlight := t0, []Attempt{}
		for step := range 300 {
			now = now.Add(time.Duration(rng.IntN(2000)) * time.Millisecond)
			if len(inFlight) < 5 && rng.IntN(2) == 0 {
				inFlight = append(inFlight, tr.Begin(1, now))
			} else if len(inFlight) > 0 {
				i := rng.IntN(len(inFlight))
				tr.End(1, inFlight[i], Outcome(rng.IntN(3)), now)
				inFlight = slices.Delete(inFlight, i, i+1)
			}
			probes := 0
			for _, a := range inFlight {
				if e := tr.entries[1]; a.Probe() && e != nil && e.token == a.token {
					probes++
				}
			}
			if probes > 1 {
				t.Fatalf("seed %d, step %d: %d probes at once", seed, step, probes)
			}
			if w := tr.Weight(1, now); w < 0.05 || w > 1 {
				t.Fatalf("seed %d, step %d: weight %v is not in [0.05, 1]", seed, step, w)
			}
		}
	}
}

func TestHotPathDoesNotAllocate(t *testing.T) {
	tr := NewTracker[Key](DefaultConfig(), nil)
	known, fresh := Key{1, 80}, Key{2, 80}
	try(tr, known, Failure, t0)
	for _, k := range []Key{known, fresh} {
		if n := testing.AllocsPerRun(100, func() {
			if tr.Usable(k, t0) && tr.Weight(k, t0) > 0 && !tr.Faint(k) {
				try(tr, k, Neutral, t0)
			}
		}); n != 0 {
			t.Errorf("%v: %v allocations per choice, want 0", k, n)
		}
	}
	if n := testing.AllocsPerRun(100, func() { try(tr, fresh, Success, t0) }); n != 0 {
		t.Errorf("%v allocations per success of a healthy key, want 0", n)
	}
}

func BenchmarkTrackerSuccess(b *testing.B) {
	tr := NewTracker[Key](DefaultConfig(), nil)
	for i := range 1000 {
		try(tr, Key{1, uint16(i)}, Failure, t0)
	}
	for i := 0; b.Loop(); i++ {
		try(tr, Key{2, uint16(i)}, Success, t0)
	}
}
