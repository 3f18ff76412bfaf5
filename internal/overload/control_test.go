//go:build !race

// The simulations are of one goroutine in virtual time: the race detector would find
// nothing, and take ten times as long.

package overload

import (
	"math/rand/v2"
	"testing"
	"time"
)

// station is a process as the control loop sees it: what is under way stands in one
// line for processors that do capacity pieces a second, and then waits elsewhere,
// for a peer, for path.
type station struct {
	control
	capacity float64
	turns    float64       // how often each piece waits for a processor
	path     time.Duration // time of a piece that is not spent here
	other    int           // goroutines of established connections that want to run

	queue, away, carry float64
	recent             recent
}

// run offers rate pieces a second for d and returns how many were done, how many
// held back, and the longest that a piece was under way.
func (s *station) run(rng *rand.Rand, rate float64, d time.Duration) (done, heldBack float64, longest time.Duration) {
	dt := tick.Seconds()
	for range int(d / tick) {
		s.carry += rate * dt * (0.5 + rng.Float64())
		asked := int(s.carry)
		s.carry -= float64(asked)
		admitted := min(asked, s.room(int(s.queue+s.away), 0))
		heldBack += float64(asked - admitted)
		s.queue += float64(admitted)
		did := min(s.queue, s.capacity*dt)
		s.queue += -did
		s.away += did
		back := s.away * min(1, dt/max(dt, s.path.Seconds()))
		s.away -= back
		done += back
		line := time.Duration(s.queue / s.capacity * float64(time.Second))
		longest = max(longest, line+s.path)
		for range int(done) - int(done-back) { // recent counts only what is done
			s.recent.end(s.recent.begin(), true)
		}
		seen := scheduling{processors: 2, runnable: int(s.queue) + s.other, wait: time.Duration(float64(line) / s.turns)}
		s.step(load{processors: 2, late: seen.late(int(s.queue + s.away)), underWay: int(s.queue + s.away), rate: s.recent.rate(), held: asked > admitted})
		s.recent.step()
	}
	return done, heldBack, longest
}

func draw(rng *rand.Rand) station {
	return station{control: control{short: shortHere}, capacity: 200 + rng.Float64()*5000, turns: 1 + 9*rng.Float64(), path: time.Duration(rng.IntN(100)) * time.Millisecond}
}

func TestOverloadServesNearlyWhatThereIsAndKeepsTheLineShort(t *testing.T) {
	for seed := range uint64(300) {
		rng := rand.New(rand.NewPCG(seed, 0))
		s := draw(rng)
		s.run(rng, s.capacity/2, 5*time.Second)
		if s.bounded {
			t.Fatalf("seed %d: bounded at half the capacity", seed)
		}
		factor := 1.2 + 4*rng.Float64()
		_, _, longest := s.run(rng, factor*s.capacity, 2*time.Second)
		done, _, later := s.run(rng, factor*s.capacity, 10*time.Second)
		if share := done / (10 * s.capacity); share < 0.8 {
			t.Errorf("seed %d: at %.1f times a capacity of %.0f/s only %.0f %% of it are served (turns %.1f, path %v)", seed, factor, s.capacity, 100*share, s.turns, s.path)
		}
		if worst := max(longest, later); worst > time.Second {
			t.Errorf("seed %d: at %.1f times a capacity of %.0f/s a piece takes %v", seed, factor, s.capacity, worst)
		}
		s.run(rng, s.capacity/2, 3*time.Second)
		if _, heldBack, _ := s.run(rng, s.capacity/2, 5*time.Second); heldBack > 0 || s.bounded {
			t.Errorf("seed %d: %v are held back at half the capacity, afterwards", seed, heldBack)
		}
	}
}

func TestCapacityThatChangesIsFollowed(t *testing.T) {
	for seed := range uint64(100) {
		rng := rand.New(rand.NewPCG(seed, 1))
		s := draw(rng)
		s.capacity = 2000
		s.run(rng, 4000, 5*time.Second)
		s.capacity = 400 // another process takes the machine
		s.run(rng, 4000, 5*time.Second)
		if done, _, longest := s.run(rng, 4000, 10*time.Second); done < 0.9*4000 || longest > time.Second {
			t.Errorf("seed %d: of 4000 that could be served %.0f were, and one took %v", seed, done, longest)
		}
		s.capacity = 2000
		s.run(rng, 4000, 5*time.Second)
		if done, _, _ := s.run(rng, 4000, 10*time.Second); done < 0.9*20000 {
			t.Errorf("seed %d: of 20000 that could be served %.0f were", seed, done)
		}
	}
}

// When established connections take the processors, fewer new ones would not help.
func TestBusyTransfersBoundNobody(t *testing.T) {
	rng := rand.New(rand.NewPCG(1, 3))
	s := station{control: control{short: shortHere}, capacity: 2000, turns: 1, path: 10 * time.Millisecond, other: 2000}
	if _, heldBack, _ := s.run(rng, 1000, 20*time.Second); heldBack > 0 {
		t.Errorf("%v are held back", heldBack)
	}
}
