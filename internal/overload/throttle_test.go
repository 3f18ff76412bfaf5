//go:build !race

// The simulations are of one goroutine in virtual time: the race detector would find
// nothing, and take ten times as long.

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
				if !th.Allow("a", "one", now, rng.Float64()) {
					held++
					continue
				}
				made++
				ok := room >= 1
				if ok {
					room--
					accepted++
				}
				th.Answered("a", "one", ok, now)
			}
			return made, accepted, held
		}
		rate = capacity / 2
		if _, _, held := second(); held > 0 || th.all > 0 {
			t.Fatalf("seed %d: %v are held back, %d keys are kept, at half the capacity", seed, held, th.all)
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

// What a peer refuses one says nothing of what it would refuse another: who asks for less
// than it gets is never held back, and all together ask for little more than they get.
func TestWhoIsRefusedHoldsNobodyElseBack(t *testing.T) {
	for seed := range uint64(10) {
		rng := rand.New(rand.NewPCG(seed, 0))
		var th Throttle
		now := time.Unix(1000, 0)
		rude := 1 + rng.IntN(30)
		limit := 5 + 45*rng.Float64() // a second, of each
		room := make([]float64, rude+1)
		made, accepted := 0.0, 0.0
		const step, each = time.Millisecond, 3 // requests of each that floods in a step
		for at := range 5000 {
			now = now.Add(step)
			for who := range room {
				room[who] = min(room[who]+limit*step.Seconds(), limit)
			}
			for who := range rude {
				for range each {
					name := fmt.Sprint("rude ", who)
					if !th.Allow("a", name, now, rng.Float64()) {
						continue
					}
					ok := room[who] >= 1
					if ok {
						room[who]--
					}
					if at >= 3000 {
						made++
						if ok {
							accepted++
						}
					}
					th.Answered("a", name, ok, now)
				}
			}
			if at%1000 == 0 {
				if !th.Allow("a", "polite", now, 0) {
					t.Fatalf("seed %d: one that was never refused is held back beside %d that are", seed, rude)
				}
				th.Answered("a", "polite", true, now)
			}
		}
		if n := float64(rude); made > 1.05*(excess*accepted+2*(max(slack, n)+n)/memory.Seconds()) {
			t.Errorf("seed %d: %d that flood ask for %.0f in two seconds and get %.0f", seed, rude, made, accepted)
		}
	}
}

func TestOnlyWhatIsRefusedIsRemembered(t *testing.T) {
	var th Throttle
	now := time.Unix(1000, 0)
	for i := range 1000 {
		th.Answered(fmt.Sprint(i%10), fmt.Sprint(i), true, now)
	}
	if th.all != 0 {
		t.Errorf("%d accounts are kept though nothing was refused", th.all)
	}
	for i := range 2 * mostAsked {
		th.Answered(fmt.Sprint(i%10), fmt.Sprint(i), false, now)
	}
	if th.all != mostAsked {
		t.Errorf("%d accounts are kept; want at most %d", th.all, mostAsked)
	}
	if !th.Allow("0", "0", now.Add(time.Minute), 0) || th.all != mostAsked-1 {
		t.Errorf("%d accounts are kept; want one less, as it is asked for long after", th.all)
	}
	th.Answered("later", "one", false, now.Add(time.Minute))
	if th.all != 1 || len(th.peers) != 1 {
		t.Errorf("%d accounts are kept of %d peers; want one", th.all, len(th.peers))
	}
}
