//go:build !race

// The simulation is of one goroutine in virtual time: the race detector would find
// nothing, and take ten times as long.

package overload

import (
	"math/rand/v2"
	"testing"
	"time"
)

// A machine that others use too serves now more and now less. What a trial compares then
// differs for other reasons than the queue: a destination that has shown one is not taken
// for a longer way by one trial, or everything that is offered would be opened at once.
func TestACapacityThatVariesEndsNoBound(t *testing.T) {
	unbound, longest := 0, time.Duration(0)
	for seed := range uint64(60) {
		rng := rand.New(rand.NewPCG(seed, 6))
		c := chain{path: 10 * time.Millisecond, stages: []stage{{capacity: 3000}}}
		c.run(rng, 1000, 5*time.Second)
		c.run(rng, 6000, 3*time.Second)
		for range 100 {
			c.stages[0].capacity = 3000 * (0.3 + 1.2*rng.Float64())
			_, took := c.run(rng, 6000, time.Duration(1+rng.IntN(20))*tick)
			if longest = max(longest, took); !c.gate.control.bounded {
				unbound++
			}
		}
	}
	t.Logf("of 6000 spells %d ended without a bound; an opening took up to %v", unbound, longest)
	if unbound > 10 || longest > time.Second {
		t.Errorf("of 6000 spells at twice the capacity %d ended without a bound; an opening took up to %v", unbound, longest)
	}
}
