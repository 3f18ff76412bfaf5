//go:build !race

// The simulations are of one goroutine in virtual time: the race detector would find
// nothing, and take ten times as long.

package overload

import (
	"math"
	"math/rand/v2"
	"testing"
	"time"
)

// wayOf is way with any distribution of times.
func (w *way) wayOf(rng *rand.Rand, rate float64, took func() time.Duration, d time.Duration) (held, asked int) {
	for range int(d / tick) {
		w.now += tick
		left := w.going[:0]
		for _, o := range w.going {
			if o.end > w.now {
				left = append(left, o)
				continue
			}
			w.gate.times.add(o.end-o.begun, w.gate.control.bounded)
			w.gate.recent.end(o.tick, true)
		}
		w.going = left
		for w.carry += rate * tick.Seconds() * (0.5 + rng.Float64()); w.carry >= 1; w.carry-- {
			asked++
			if !w.gate.room() {
				w.gate.held = true
				held++
				continue
			}
			w.going = append(w.going, opening{w.gate.begin(), w.now, w.now + took()})
		}
		w.gate.turn(time.Time{}, w.processors)
	}
	return held, asked
}

// After a failover to a longer way whose times vary, in whatever manner, hardly anything is
// held back once that has been found out.
func TestJitterIsNoQueue(t *testing.T) {
	for name, f := range map[string]func(*rand.Rand, time.Duration) func() time.Duration{
		"its shortest and on average a fifth more": func(r *rand.Rand, far time.Duration) func() time.Duration {
			return func() time.Duration { return far + time.Duration(0.2*float64(far)*r.ExpFloat64()) }
		},
		"normal, deviation a tenth": func(r *rand.Rand, far time.Duration) func() time.Duration {
			return func() time.Duration { return time.Duration(float64(far) * max(0.5, 1+0.1*r.NormFloat64())) }
		},
		"one round trip, one in five three": func(r *rand.Rand, far time.Duration) func() time.Duration {
			return func() time.Duration {
				d := float64(far) * (1 + 0.05*r.Float64())
				if r.IntN(5) == 0 {
					d *= 3
				}
				return time.Duration(d)
			}
		},
		"wanders by a tenth": func(r *rand.Rand, far time.Duration) func() time.Duration {
			x := 0.0
			return func() time.Duration {
				x = 0.999*x + 0.1*math.Sqrt(1-0.999*0.999)*r.NormFloat64()
				return time.Duration(float64(far) * math.Exp(x))
			}
		},
		"lognormal 0.3": func(r *rand.Rand, far time.Duration) func() time.Duration {
			return func() time.Duration { return time.Duration(float64(far) * math.Exp(0.3*r.NormFloat64())) }
		},
	} {
		for _, rate := range []float64{300, 1000, 3000} {
			for _, far := range []time.Duration{80, 150, 250, 400} {
				rng := rand.New(rand.NewPCG(1, 2))
				w := way{processors: 2}
				w.wayOf(rng, rate, f(rng, 2*time.Millisecond), 10*time.Second)
				long := f(rng, far*time.Millisecond)
				h1, _ := w.wayOf(rng, rate, long, 10*time.Second)
				h2, a2 := w.wayOf(rng, rate, long, time.Minute)
				if h2 > a2/200 {
					t.Errorf("%s, %v a second, 2 ms to %v ms: %d held back in the first 10 s, %.1f %% of %d in the minute after", name, rate, int(far), h1, 100*float64(h2)/float64(a2), a2)
				}
			}
		}
	}
}

// Whatever is held back after a failover ends, at a load that stays as it is.
func TestAGateOpensAgainAfterAFailover(t *testing.T) {
	for _, c := range []struct {
		rate      float64
		far       time.Duration
		deviation float64
	}{{1000, 400, 0.1}, {1000, 400, 0.05}, {3000, 250, 0.1}, {1000, 250, 0.2}, {3000, 150, 0.2}, {1000, 150, 0.3}} {
		rng := rand.New(rand.NewPCG(1, 2))
		w := way{processors: 2}
		w.wayOf(rng, c.rate, func() time.Duration { return 2 * time.Millisecond }, 10*time.Second)
		long := func() time.Duration {
			return time.Duration(float64(c.far*time.Millisecond) * max(0.3, 1+c.deviation*rng.NormFloat64()))
		}
		var parts []int
		for range 5 {
			held, asked := w.wayOf(rng, c.rate, long, time.Minute)
			parts = append(parts, 100*held/asked)
		}
		t.Logf("%v a second, 2 ms to %d±%.0f ms: held back, %% of each minute: %v", c.rate, int(c.far), c.deviation*float64(c.far), parts)
		if parts[4] > 1 {
			t.Errorf("after 5 minutes %d %% are held back of what nobody is overloaded by", parts[4])
		}
	}
}

// Nothing changes at all: a destination whose openings always took 250±50 ms.
func TestASteadyWayIsNeverBounded(t *testing.T) {
	for _, c := range []struct {
		rate, far, deviation float64
	}{{300, 250, 0.2}, {1000, 250, 0.2}, {3000, 250, 0.2}, {1000, 150, 0.3}, {1000, 400, 0.15}, {1000, 400, 0.1}} {
		rng := rand.New(rand.NewPCG(1, 2))
		w := way{processors: 2}
		long := func() time.Duration {
			return time.Duration(c.far * float64(time.Millisecond) * max(0.3, 1+c.deviation*rng.NormFloat64()))
		}
		w.wayOf(rng, c.rate, long, 10*time.Second)
		held, asked := w.wayOf(rng, c.rate, long, 2*time.Minute)
		t.Logf("%v a second, %v±%.0f ms: %.1f %% held back in 2 min", c.rate, c.far, c.deviation*c.far, 100*float64(held)/float64(asked))
		if held > asked/100 {
			t.Errorf("%d %% are held back of what nobody is overloaded by", 100*held/asked)
		}
	}
}

// A service has a few pods here and most of them far away: nobody is overloaded.
func TestAFewNearPodsMakeNoQueue(t *testing.T) {
	for _, near := range []float64{0.2, 0.1, 0.05, 0.02, 0.01, 0.003} {
		for _, rate := range []float64{300, 1000, 3000} {
			for _, far := range []float64{80, 150, 250} {
				rng := rand.New(rand.NewPCG(1, 2))
				w := way{processors: 2}
				long := func() time.Duration {
					d := far
					if rng.Float64() < near {
						d = 2
					}
					return time.Duration(d * float64(time.Millisecond) * (1 + 0.05*rng.Float64()))
				}
				w.wayOf(rng, rate, long, 10*time.Second)
				held, asked := w.wayOf(rng, rate, long, time.Minute)
				if held > asked/100 {
					t.Errorf("%v a second, %v %% of pods 2 ms away and the others %v ms: %.1f %% held back in a minute", rate, 100*near, far, 100*float64(held)/float64(asked))
				}
			}
		}
	}
}
