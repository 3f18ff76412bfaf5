//go:build !race

// The simulations are of one goroutine in virtual time: the race detector would find
// nothing, and take ten times as long.

package overload

import (
	"math/rand/v2"
	"testing"
	"time"
)

// stage is one process on the way of a connection: a line in front of capacity pieces a second.
type stage struct {
	capacity float64
	line     float64
}

// chain is a client that opens connections to one destination, by way of a gateway and
// the destination's node proxy. Every stage has its own capacity; what is in the lines
// passes them one after the other.
type chain struct {
	gate   destination
	path   time.Duration // without a queue
	stages []stage
	hung   float64 // share of the connections that never come to their end

	carry, opening float64
	now            time.Duration
	works, passed  []opening // in the lines, and behind them, oldest first
}

// run offers rate connections a second for d and returns how many were opened a second,
// and the longest time that opening one took.
func (c *chain) run(rng *rand.Rand, rate float64, d time.Duration) (opened float64, longest time.Duration) {
	dt := tick.Seconds()
	done := 0.0
	for range int(d / tick) {
		c.carry += rate * dt * (0.5 + rng.Float64())
		asked := int(c.carry)
		c.carry -= float64(asked)
		into := 0.0
		for range asked {
			if !c.gate.room() {
				c.gate.held = true
				continue
			}
			work := c.gate.begin()
			if rng.Float64() < c.hung {
				continue
			}
			c.works = append(c.works, opening{tick: work, begun: c.now})
			into++
		}
		c.now += tick
		for i := range c.stages {
			s := &c.stages[i]
			s.line += into
			into = min(s.line, s.capacity*dt)
			s.line -= into
		}
		for c.opening += into; c.opening >= 1 && len(c.works) > 0; c.opening-- {
			c.works[0].end = c.now + c.path
			c.passed = append(c.passed, c.works[0])
			c.works = c.works[1:]
		}
		for ; len(c.passed) > 0 && c.passed[0].end <= c.now; c.passed = c.passed[1:] {
			o := c.passed[0]
			longest = max(longest, o.end-o.begun)
			c.gate.times.add(o.end-o.begun, c.gate.control.bounded)
			c.gate.recent.end(o.tick, true)
			done++
		}
		c.gate.turn(time.Time{}, 2)
	}
	return done / d.Seconds(), longest
}

// Whichever stage is too slow: its line is noticed by the client, and stays short.
func TestTheClientKeepsEveryLineOnTheWayShort(t *testing.T) {
	for seed := range uint64(200) {
		rng := rand.New(rand.NewPCG(seed, 4))
		c := chain{path: time.Duration(rng.IntN(80)) * time.Millisecond}
		slowest := 1e9
		for range 3 {
			s := stage{capacity: 800 + 5000*rng.Float64()}
			slowest = min(slowest, s.capacity)
			c.stages = append(c.stages, s)
		}
		if c.run(rng, slowest/2, 5*time.Second); c.gate.control.bounded {
			t.Fatalf("seed %d: bounded at half the capacity", seed)
		}
		factor := 1.2 + 4*rng.Float64()
		_, longest := c.run(rng, factor*slowest, 3*time.Second)
		opened, later := c.run(rng, factor*slowest, 20*time.Second)
		if opened < 0.9*slowest {
			t.Errorf("seed %d: at %.1f times a capacity of %.0f/s %.0f are opened", seed, factor, slowest, opened)
		}
		if limit := c.path + 600*time.Millisecond; longest > 1100*time.Millisecond+c.path || later > limit {
			t.Errorf("seed %d: at %.1f times a capacity of %.0f/s opening takes up to %v at first and %v later, on a path of %v", seed, factor, slowest, longest, later, c.path)
		}
		c.run(rng, slowest/2, 3*time.Second)
		if c.run(rng, slowest/2, 3*time.Second); c.gate.control.bounded {
			t.Errorf("seed %d: still bounded at half the capacity, afterwards", seed)
		}
	}
}

// A destination of which some pods hang is slow for those that get them, and for nobody
// else: it is not bounded.
func TestPodsThatHangBoundNobody(t *testing.T) {
	rng := rand.New(rand.NewPCG(1, 5))
	c := chain{path: 2 * time.Millisecond, stages: []stage{{capacity: 4000}}, hung: 0.6}
	opened, _ := c.run(rng, 1000, 20*time.Second)
	if c.gate.control.bounded || opened < 380 {
		t.Errorf("bounded: %v; %.0f a second are opened of 400 that do not hang", c.gate.control.bounded, opened)
	}
}

// A way that becomes longer while there is a bound is no queue: with hardly any work it
// is as slow, and learnt.
func TestALongerWayIsNotTakenForAQueueForEver(t *testing.T) {
	var g destination
	turn := func(took time.Duration) {
		begun := g.begin()
		g.times.add(took, g.control.bounded)
		g.recent.end(begun, true)
		g.held = true
		g.turn(time.Time{}, 2)
	}
	for range 50 {
		turn(time.Millisecond)
	}
	g.control.bounded, g.control.window = true, leastWindow
	turn(400 * time.Millisecond)
	for range lately {
		turn(400 * time.Millisecond)
	}
	if !g.times.slow() {
		t.Fatal("400 times as long is not slow")
	}
	for range int(notOurs / tick) {
		turn(400 * time.Millisecond)
	}
	if g.times.slow() {
		t.Errorf("still slow after %v; the time without a queue is taken for %v", notOurs, g.times.base(mid))
	}
}

// way is a client that opens connections to one destination that has room for all: each
// takes as long as the way is.
type way struct {
	gate       destination
	processors int

	now   time.Duration
	carry float64
	going []opening
}

type opening struct {
	tick       uint64
	begun, end time.Duration
}

// run offers rate connections a second for d, burst of them at once at its beginning, and
// returns how many were not begun.
func (w *way) run(rng *rand.Rand, rate float64, burst int, long, d time.Duration) (held int) {
	w.carry += float64(burst)
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
			if !w.gate.room() {
				w.gate.held = true
				held++
				continue
			}
			w.going = append(w.going, opening{w.gate.begin(), w.now, w.now + long + time.Duration(rng.Int64N(int64(long/4)))})
		}
		w.gate.turn(time.Time{}, w.processors)
	}
	return held
}

// After a failover the way is longer by far, and nobody is overloaded: that is found out
// soon, before more are held back than may wait, and remembered.
func TestAFailoverToALongerWayIsNoQueue(t *testing.T) {
	for _, processors := range []int{1, 2, 8} {
		for _, rate := range []float64{300, 1500, 3000, 12000} {
			for _, far := range []time.Duration{60, 75, 85, 95, 120, 160, 250, 400} {
				far *= time.Millisecond
				rng := rand.New(rand.NewPCG(1, 2))
				w := way{processors: processors}
				if held := w.run(rng, rate, 0, 2*time.Millisecond, 10*time.Second); held > 0 {
					t.Fatalf("%v a second: %d are held back on a way of 2 ms", rate, held)
				}
				if held := w.run(rng, rate, 0, far, 3*time.Second); float64(held) > 0.5*rate {
					t.Errorf("%d processors, %v a second, 2 ms to %v: %d are held back at first", processors, rate, far, held)
				}
				held := 0
				for range 10 {
					held += w.run(rng, rate, int(rate/2), far, time.Second)
				}
				if held > 0 || w.gate.control.bounded {
					t.Errorf("%d processors, %v a second, 2 ms to %v: %d are held back later; bounded: %v", processors, rate, far, held, w.gate.control.bounded)
				}
			}
		}
	}
}
