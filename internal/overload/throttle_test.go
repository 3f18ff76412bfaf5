package overload

import (
	"fmt"
	"math/rand/v2"
	"testing"
	"time"
)

// However much is asked for, a peer is asked for little more than it accepts; nothing is
// kept from one that accepts all; and soon after the overload nothing is held back.
func TestAPeerIsAskedForLittleMoreThanItAccepts(t *testing.T) {
	for seed := range uint64(50) {
		rng := rand.New(rand.NewPCG(seed, 0))
		var th Throttle
		now := time.Unix(1000, 0)
		capacity, rate := 200+2000*rng.Float64(), 0.0
		room := 0.0
		second := func() (made, accepted, held float64) {
			for end := now.Add(time.Second); now.Before(end); now = now.Add(time.Duration(float64(time.Second) / rate)) {
				room = min(room+capacity/rate, 10)
				if !th.Allow("a", now, rng.Float64()) {
					held++
					continue
				}
				made++
				ok := room >= 1
				if ok {
					room--
					accepted++
				}
				th.Answered("a", ok, now)
			}
			return made, accepted, held
		}
		rate = capacity / 2
		if _, _, held := second(); held > 0 || len(th.keys) > 0 {
			t.Fatalf("seed %d: %v are held back, %d keys are kept, at half the capacity", seed, held, len(th.keys))
		}
		rate = capacity * (2 + 6*rng.Float64())
		second()
		second()
		made, accepted, _ := second()
		if made > 1.05*excess*accepted+1.5*slack/memory.Seconds() || accepted < 0.9*capacity {
			t.Errorf("seed %d: %.0f are asked for and %.0f accepted of a capacity of %.0f", seed, made, accepted, capacity)
		}
		rate = capacity / 2
		second()
		second()
		if _, _, held := second(); held > 0 {
			t.Errorf("seed %d: %v are held back 2 s after the overload", seed, held)
		}
	}
}

func TestOnlyWhatIsRefusedIsRemembered(t *testing.T) {
	var th Throttle
	now := time.Unix(1000, 0)
	for i := range 1000 {
		th.Answered(fmt.Sprint(i), true, now)
	}
	if len(th.keys) != 0 {
		t.Errorf("%d keys are kept though nothing was refused", len(th.keys))
	}
	for i := range 1000 {
		th.Answered(fmt.Sprint(i), false, now)
	}
	th.Answered("later", false, now.Add(time.Minute))
	if len(th.keys) != 1 {
		t.Errorf("%d keys are kept; want one", len(th.keys))
	}
}
