//go:build !race

// The simulations are of one goroutine in virtual time: the race detector would find
// nothing, and take ten times as long.

package overload

import (
	"fmt"
	"math"
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
		if _, _, held := second(); held > 0 || len(th.ends) > 0 {
			t.Fatalf("seed %d: %v are held back, %d keys are kept, at half the capacity", seed, held, len(th.ends))
		}
		rate = capacity * (2 + 6*rng.Float64())
		second()
		second()
		made, accepted, _ := second()
		if made > 1.05*excess*accepted+1.5*slack/answersFor.Seconds() || accepted < 0.9*capacity {
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
		if n := float64(rude); made > 1.05*(excess*accepted+2*(max(slack, n)+n)/answersFor.Seconds()) {
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
	if n := len(th.ends); n != 0 {
		t.Errorf("%d accounts are kept though nothing was refused", n)
	}
	for i := range 2 * mostAsked {
		th.Answered(fmt.Sprint(i%10), fmt.Sprint(i), false, now)
	}
	if n := len(th.ends); n != mostAsked {
		t.Errorf("%d accounts are kept; want at most %d", n, mostAsked)
	}
	th.Answered("later", "one", false, now.Add(time.Minute))
	if len(th.ends) != 1 || len(th.peers) != 1 {
		t.Errorf("%d accounts are kept of %d peers; want one", len(th.ends), len(th.peers))
	}
}

// slowThrottle is the obvious twin: of each account it holds all requests since it began.
type slowThrottle map[[2]string][]slowRequest

type slowRequest struct {
	at       time.Time
	accepted bool
}

// sums are the requests and the accepted ones of an account, decayed to now.
func (s slowThrottle) sums(k [2]string, now time.Time) (requests, accepted float64) {
	for _, r := range s[k] {
		left := math.Exp(-now.Sub(r.at).Seconds() / answersFor.Seconds())
		requests += left
		if r.accepted {
			accepted += left
		}
	}
	return requests, accepted
}

// forget drops accounts without refusals; sharp is false if one of them hardly differs
// from one that is kept.
func (s slowThrottle) forget(now time.Time) (sharp bool) {
	sharp = true
	for k := range s {
		requests, accepted := s.sums(k, now)
		if left := requests - accepted; left < hardly {
			delete(s, k)
			sharp = sharp && left < hardly-1e-6
		} else {
			sharp = sharp && left > hardly+1e-6
		}
	}
	return sharp
}

// surplus is what of the requests of k is not to be made; those that were refused at the
// same peer lately, and nobody else, share the slack.
func (s slowThrottle) surplus(k [2]string, now time.Time) float64 {
	if s[k] == nil {
		return math.Inf(-1)
	}
	share := 0.0
	for other := range s {
		if other[0] == k[0] {
			share++
		}
	}
	requests, accepted := s.sums(k, now)
	return (requests - excess*accepted - max(1, slack/share)) / (requests + 1)
}

// Under random schedules, of crowds that come and go too, a throttle decides as its twin
// does, and keeps the same accounts.
func TestTheThrottleDecidesAsItsSlowTwin(t *testing.T) {
	denied := 0
	for seed := range uint64(200) {
		rng := rand.New(rand.NewPCG(seed, 7))
		var th Throttle
		twin := slowThrottle{}
		now := time.Unix(1000, 0)
		peers, who, refuses, pause := 1+rng.IntN(3), 1+rng.IntN(30), rng.Float64(), 20*time.Millisecond
		for step := range 1500 {
			now = now.Add(time.Duration(rng.ExpFloat64() * float64(pause)))
			if rng.IntN(100) == 0 { // somebody else's turn, at another pace
				who, refuses, pause = 1+rng.IntN(30), rng.Float64(), []time.Duration{0, time.Millisecond, 20 * time.Millisecond, 100 * time.Millisecond}[rng.IntN(4)]
			}
			k := [2]string{fmt.Sprint("peer ", rng.IntN(peers)), fmt.Sprint("who ", rng.IntN(who))}
			if !twin.forget(now) {
				break // rounding decides from here on
			}
			if rng.IntN(2) == 0 {
				draw, surplus := rng.Float64(), twin.surplus(k, now)
				if math.Abs(draw-surplus) < 1e-6 {
					continue
				}
				allowed := th.Allow(k[0], k[1], now, draw)
				if allowed != (draw >= surplus) {
					t.Fatalf("seed %d, step %d: %v is allowed: %v; it draws %v, and the surplus is %v", seed, step, k, allowed, draw, surplus)
				}
				if !allowed {
					denied++
					twin[k] = append(twin[k], slowRequest{now, false})
				}
			} else {
				accepted := rng.Float64() >= refuses
				th.Answered(k[0], k[1], accepted, now)
				if !accepted || twin[k] != nil {
					twin[k] = append(twin[k], slowRequest{now, accepted})
				}
			}
			kept := 0
			for _, those := range th.peers {
				kept += len(those)
			}
			if kept != len(twin) || kept != len(th.ends) {
				t.Fatalf("seed %d, step %d: %d accounts are kept, %d of them with an end; want %d", seed, step, kept, len(th.ends), len(twin))
			}
			for i, a := range th.ends {
				if a.index != i || i > 0 && a.end.Before(th.ends[(i-1)/2].end) || th.peers[a.peer][a.who] != a {
					t.Fatalf("seed %d, step %d: account %d of the heap is out of place", seed, step, i)
				}
			}
		}
	}
	if denied < 1000 {
		t.Errorf("%d were held back in all: this shows nothing", denied)
	}
}

// A crowd that was refused and has gone takes no slack from who comes later.
func TestWhoHasGoneTakesNoSlack(t *testing.T) {
	now := time.Unix(1000, 0)
	heldBack := func(crowd int) (after int) {
		var th Throttle
		th.Answered("a", "one", false, now) // begins, and with it what is looked at when others do
		for i := range crowd {
			th.Answered("a", fmt.Sprint("gone ", i), false, now)
		}
		then := now.Add(150 * time.Millisecond) // they count no more
		for after = 0; after < 100 && th.Allow("a", "one", then, 0); after++ {
			th.Answered("a", "one", false, then)
		}
		return after
	}
	if alone, beside := heldBack(0), heldBack(30); alone != beside || alone < slack {
		t.Errorf("one is held back after %d refusals alone, and after %d where a crowd has gone; want %d or more both times", alone, beside, slack)
	}
}
