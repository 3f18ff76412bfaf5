package balance

import (
	"fmt"
	"math"
	"math/rand/v2"
	"slices"
	"testing"
)

type idle struct{}

func (idle) Load(int) float64 { return 0 }

// round is n candidates that take turns as giver k gives them.
func round(k int, weights ...float64) *Index {
	x := &Index{}
	c := make([]Candidate, len(weights))
	for i, w := range weights {
		c[i] = well(w, 0)
	}
	x.Reset(c)
	x.TakeTurns(func(i int) Turn { return NewTurn(PlaceInRound(uint64(i), k)) })
	return x
}

func equal(n int) []float64 { return slices.Repeat([]float64{1}, n) }

// give gives one turn.
func (x *Index) give(t testing.TB, loads Loads) int {
	i, ok := x.PickInTurn(0.5, loads)
	if !ok {
		t.Fatal("nobody is chosen")
	}
	x.Took(i)
	return i
}

func TestNobodyHasASecondTurnBeforeEverybodyHadOne(t *testing.T) {
	for _, n := range []int{1, 2, 3, 60, 1000} {
		x, got := round(0, equal(n)...), make([]int, n)
		for step := range 5 * n {
			i := x.give(t, idle{})
			if got[i]++; got[i] > step/n+1 {
				t.Fatalf("%d candidates: %d has its turn number %d of %d turns", n, i, got[i], step+1)
			}
		}
	}
}

// Two givers who know nothing of each other, in whatever part each gives.
func TestTwoGiversTogetherGiveEvenly(t *testing.T) {
	for seed := range uint64(20) {
		rng := rand.New(rand.NewPCG(seed, 1))
		const n = 100
		x, got, part := [2]*Index{round(0, equal(n)...), round(1, equal(n)...)}, make([]int, n), rng.Float64()
		for step := range 10 * n {
			k := 0
			if rng.Float64() < part {
				k = 1
			}
			got[x[k].give(t, idle{})]++
			if most, least := slices.Max(got), slices.Min(got); most-least > 1 {
				t.Fatalf("seed %d: after %d turns somebody had %d and somebody %d", seed, step+1, most, least)
			}
		}
	}
}

func TestGiversOfDifferentPairsAreNotInStep(t *testing.T) {
	const n = 1000
	first := map[int]int{}
	for k := range 6 {
		x := round(k, equal(n)...)
		for range n / 10 {
			first[x.give(t, idle{})]++
		}
	}
	if len(first) < n*4/10 {
		t.Errorf("six givers gave their first %d turns to %d of %d; want nearly six tenths", n/10, len(first), n)
	}
}

// After any number of turns each has had its part of them, to less than one.
func TestTurnsFollowWeights(t *testing.T) {
	for seed := range uint64(50) {
		rng := rand.New(rand.NewPCG(seed, 2))
		w, total := make([]float64, 2+rng.IntN(30)), 0.0
		for i := range w {
			w[i] = []float64{0.1, 1, 1, 2, 5}[rng.IntN(5)]
			total += w[i]
		}
		x, got := round(rng.IntN(4), w...), make([]float64, len(w))
		for range 2000 {
			got[x.give(t, idle{})]++
			for i := range w {
				if by := got[i] - w[i]*x.clock; by > 1+1e-9 || by < -1-1e-9 {
					t.Fatalf("seed %d: weight %v has had %v turns of %v", seed, w[i], got[i], w[i]*x.clock)
				}
			}
		}
		if by := x.clock*total - 2000; math.Abs(by) > float64(len(w)) {
			t.Fatalf("seed %d: the clock is off by %v turns", seed, by)
		}
	}
}

// Who comes back after it was out has one turn at most at once, and then its part.
func TestWhoComesBackHasNoTurnsMadeGood(t *testing.T) {
	for seed := range uint64(50) {
		rng := rand.New(rand.NewPCG(seed, 3))
		x := round(0, equal(20)...)
		away := well(1, 0)
		away.Usable = false
		back := []float64{1, 0.1, 3}[rng.IntN(3)]
		x.Set(7, away)
		for range 500 + rng.IntN(40) {
			if x.give(t, idle{}) == 7 {
				t.Fatal("who is out has a turn")
			}
		}
		x.Set(7, well(back, 0))
		n := 0
		for range 190 {
			if x.give(t, idle{}) == 7 {
				n++
			}
		}
		if want := 190 * back / (19 + back); math.Abs(float64(n)-want) > 2 {
			t.Errorf("seed %d: back with weight %v it has %d turns of 190, want about %.1f", seed, back, n, want)
		}
	}
}

// A ramp changes the weight very often; what it has waited for counts.
func TestARampKeepsItsPlace(t *testing.T) {
	for seed := range uint64(50) {
		rng := rand.New(rand.NewPCG(seed, 4))
		x, n, want := round(0, equal(10)...), 0.0, 0.0
		for step := range 1000 {
			w := 0.1 + 0.9*float64(step)/1000 + 0.01*rng.Float64()
			x.Set(3, well(w, 0))
			want += w / (9 + w)
			if x.give(t, idle{}) == 3 {
				n++
			}
		}
		if math.Abs(n-want) > 2 {
			t.Errorf("seed %d: %v turns along a ramp, want %.1f", seed, n, want)
		}
	}
}

// Who was masked for long, since each client wanted to avoid it, is next, and then one of
// all.
func TestWhoWasAvoidedIsNextAndOnlyOnce(t *testing.T) {
	x := round(0, equal(10)...)
	for range 200 {
		x.Mask(2)
		if x.give(t, idle{}) == 2 {
			t.Fatal("who is masked has a turn")
		}
		x.Unmask()
	}
	if i := x.give(t, idle{}); i != 2 {
		t.Errorf("next is %d, want 2, which has waited for longest", i)
	}
	n := 0
	for range 90 {
		if x.give(t, idle{}) == 2 {
			n++
		}
	}
	if n < 8 || n > 10 {
		t.Errorf("then it has %d turns of 90, want 9", n)
	}
}

// Those that stay keep their turns when others come and go.
func TestTurnsOutliveAReset(t *testing.T) {
	const n = 100
	x := round(0, equal(n)...)
	seen := map[int]bool{}
	for range n / 2 {
		seen[x.give(t, idle{})] = true
	}
	var left []int // without every tenth, and with ten new ones
	var turns []Turn
	var c []Candidate
	for i := range n + 10 {
		if i%10 == 0 && i < n {
			continue
		}
		turn := NewTurn(PlaceInRound(uint64(i), 0))
		if i < n {
			turn = x.Turn(i)
		}
		left, turns, c = append(left, i), append(turns, turn), append(c, well(1, 0))
	}
	x.Reset(c)
	x.TakeTurns(func(i int) Turn { return turns[i] })
	for range len(c) - len(seen) {
		if i := left[x.give(t, idle{})]; i < n && seen[i] {
			t.Fatalf("%d has a second turn before everybody had one", i)
		}
		if len(seen) == n {
			break
		}
	}
}

// A candidate on which connections last long has fewer turns than its part, and the
// others share them evenly.
func TestASlowOneIsProtectedThoughTurnsAreEven(t *testing.T) {
	const n, slow = 20, 2
	x, draws := round(0, equal(n)...), NewDraws(1)
	load, got := make(loads, n), make([]int, n)
	type ends struct{ at, i int }
	var open []ends
	for step := range 20000 {
		open = slices.DeleteFunc(open, func(e ends) bool {
			if e.at <= step {
				load[e.i]--
			}
			return e.at <= step
		})
		_, v := draws.Next()
		i, _ := x.PickInTurn(v, load)
		x.Took(i)
		got[i]++
		load[i]++
		lasts := 40 // two connections of each at a time
		if i < slow {
			lasts = 800
		}
		open = append(open, ends{step + lasts, i})
	}
	for i := range slow {
		if fair := 20000 / n; got[i] > fair/2 {
			t.Errorf("slow %d got %d connections, want at most half of the mean %d", i, got[i], fair)
		}
	}
	if most, least := slices.Max(got[slow:]), slices.Min(got[slow:]); float64(most) > 1.2*float64(least) {
		t.Errorf("of the others one got %d and one %d connections", most, least)
	}
}

// The tree does what a scan for whoever is due first does, whatever changes.
func TestTurnsAreGivenAsAScanWouldGiveThem(t *testing.T) {
	for seed := range uint64(300) {
		rng := rand.New(rand.NewPCG(seed, 8))
		c := make([]Candidate, 1+rng.IntN(40))
		for i := range c {
			c[i] = drawn(rng)
		}
		var x Index
		x.Reset(c)
		x.TakeTurns(func(i int) Turn { return NewTurn(rng.Float64()) })
		for range 200 {
			if rng.IntN(2) == 0 {
				x.Set(rng.IntN(len(c)), drawn(rng))
			}
			for range rng.IntN(3) {
				x.Mask(rng.IntN(len(c)))
			}
			rank, solid := x.Best()
			want := -1
			for i := range x.at {
				if e := &x.at[i]; solid && e.weight() > 0 && e.c.Rank >= rank && (want < 0 || e.turn.due < x.at[want].turn.due) {
					want = i
				}
			}
			got, ok := x.PickInTurn(rng.Float64(), idle{})
			if ok != solid || ok && x.at[got].turn.due != x.at[want].turn.due {
				t.Fatalf("seed %d: chosen %d, %t; want %d, %t", seed, got, ok, want, solid)
			}
			if ok && rng.IntN(4) > 0 {
				before := x.at[got].turn.due
				if x.Took(got); x.at[got].turn.due <= before || x.at[got].turn.due < x.clock {
					t.Fatalf("seed %d: due at %v after a turn at %v, the clock at %v", seed, x.at[got].turn.due, before, x.clock)
				}
			}
			x.Unmask()
		}
	}
}

func TestATurnAmongTenThousandAllocatesNothing(t *testing.T) {
	x := round(0, equal(10000)...)
	if n := testing.AllocsPerRun(200, func() {
		x.Mask(17)
		x.give(t, idle{})
		x.Unmask()
	}); n != 0 {
		t.Errorf("%v allocations for one turn", n)
	}
}

func BenchmarkPickInTurn(b *testing.B) {
	for _, n := range []int{10, 1000, 10000} {
		b.Run(fmt.Sprintf("candidates=%d", n), func(b *testing.B) {
			x := round(0, equal(n)...)
			b.ReportAllocs()
			for b.Loop() {
				x.give(b, idle{})
			}
		})
	}
}
