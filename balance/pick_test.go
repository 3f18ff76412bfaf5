package balance

import (
	"fmt"
	"math"
	"math/rand/v2"
	"slices"
	"testing"
)

// well is a healthy idle candidate.
func well(weight float64, rank int) Candidate {
	return Candidate{Weight: weight, Rank: rank, Usable: true}
}

// shares picks n times and counts.
func shares(c []Candidate, d *Draws, n int) []int {
	counts := make([]int, len(c))
	for range n {
		if i, _, ok := Pick(c, first(d.Next()), 0); ok {
			counts[i]++
		}
	}
	return counts
}

func first(u, _ float64) float64 { return u }

func TestSharesFollowWeights(t *testing.T) {
	for _, weights := range [][]float64{{8, 4}, {4, 8}, {1, 1, 1}, {10, 4, 4}, {1, 0.3}, {100, 1}} {
		for seed := range uint64(100) {
			d := NewDraws(seed)
			c := make([]Candidate, len(weights))
			total := 0.0
			for i, w := range weights {
				c[i] = well(w, 1)
				total += w
			}
			counts := make([]int, len(c))
			for range 300 {
				u, v := d.Next()
				i, dazed, ok := Pick(c, u, v)
				if dazed || !ok {
					t.Fatalf("weights %v: dazed %t, ok %t", weights, dazed, ok)
				}
				counts[i]++
			}
			for i, w := range weights {
				if got, want := float64(counts[i])/300, w/total; math.Abs(got-want) > 0.02 {
					t.Errorf("seed %d, weights %v: shares %v of 300, want %.1f %% of candidate %d within 2", seed, weights, counts, 100*want, i)
				}
			}
		}
	}
}

func TestLoadsUpToOnePerWeightAreEqual(t *testing.T) {
	idle := []Candidate{well(8, 1), well(4, 1)}
	busy := slices.Clone(idle)
	busy[0].Load, busy[1].Load = 8, 0.5
	for seed := range uint64(20) {
		d, e := NewDraws(seed), NewDraws(seed)
		for range 300 {
			u, v := d.Next()
			a, _, _ := Pick(idle, u, v)
			u, v = e.Next()
			if b, _, _ := Pick(busy, u, v); a != b {
				t.Fatalf("seed %d: a load below one connection per weight changed the choice from %d to %d", seed, a, b)
			}
		}
	}
}

func TestLoadsThatDifferByLessThanHalfDoNotBendShares(t *testing.T) {
	// Weights just fell from 10 to 8 under connections that stay.
	c := []Candidate{well(8, 1), well(4, 1)}
	c[0].Load, c[1].Load = 100, 40
	even := []Candidate{well(8, 1), well(4, 1)}
	d := NewDraws(5)
	for range 300 {
		u, v := d.Next()
		got, _, _ := Pick(c, u, v)
		if want, _, _ := Pick(even, u, v); got != want {
			t.Fatalf("loads of 12.5 and 10 per weight changed the choice from %d to %d", want, got)
		}
	}
}

func TestStronglyLoadedCandidateIsAvoided(t *testing.T) {
	c := []Candidate{well(1, 1), well(1, 1), well(1, 1)}
	c[1].Load = 50
	counts := make([]int, 3)
	d := NewDraws(3)
	for range 900 {
		u, v := d.Next()
		i, _, _ := Pick(c, u, v)
		counts[i]++
	}
	// Only when both draws hit it: a ninth instead of a third.
	if counts[1] > 120 || counts[1] == 0 {
		t.Errorf("shares %v of 900: want the loaded one at about 100", counts)
	}
}

// With connections that last, load per weight evens out by itself.
func TestLoadsEvenOutPerWeight(t *testing.T) {
	c := []Candidate{well(8, 1), well(4, 1), well(1, 1)}
	d := NewDraws(5)
	for range 13 * 20 {
		u, v := d.Next()
		i, _, _ := Pick(c, u, v)
		c[i].Load++
	}
	for i, x := range c {
		if per := x.Load / x.Weight; per < 16 || per > 24 {
			t.Errorf("candidate %d has %.1f connections per unit of weight, want about 20", i, per)
		}
	}
}

func TestPickBuckets(t *testing.T) {
	sick := func(c Candidate) Candidate { c.Usable = false; return c }
	drained := func(c Candidate) Candidate { c.Drained = true; return c }
	avoid := func(c Candidate) Candidate { c.Avoid = true; return c }
	faint := func(c Candidate) Candidate { c.Faint, c.Weight = true, 0.05*c.Weight; return c }
	cases := []struct {
		name  string
		c     []Candidate
		want  []int // whoever is chosen at least once, sorted; nil: ok is false
		dazed bool
	}{
		{"nobody", nil, nil, false},
		{"the highest rank alone", []Candidate{well(1, 0), well(1, 5), well(9, 4), well(1, 5)}, []int{1, 3}, false},
		{"ranks may be negative", []Candidate{well(1, -3), well(1, -2)}, []int{1}, false},
		{"no spill while one of the bucket is healthy", []Candidate{sick(well(9, 5)), well(0.01, 5), well(100, 4)}, []int{1}, false},
		{"spill when the bucket has nobody healthy", []Candidate{sick(well(9, 5)), sick(well(1, 5)), well(1, 4), well(1, 3)}, []int{2}, false},
		{"spill when the bucket is drained", []Candidate{drained(well(9, 5)), well(1, 4)}, []int{1}, false},
		{"a weight of nothing is not healthy", []Candidate{well(0, 5), well(-1, 5), well(math.NaN(), 5), well(math.Inf(1), 5), well(1, 4)}, []int{4}, false},
		{"avoided only beside another in the bucket", []Candidate{avoid(well(9, 5)), well(1, 5)}, []int{1}, false},
		{"avoided spill to the next bucket", []Candidate{avoid(well(9, 5)), well(1, 4)}, []int{1}, false},
		{"avoid is advisory: ignored when nobody else is healthy", []Candidate{avoid(well(1, 5)), avoid(well(1, 5)), avoid(well(1, 4)), sick(well(1, 5))}, []int{0, 1}, false},
		{"dazed: everybody of every rank", []Candidate{sick(well(1, 5)), sick(well(9, 4)), sick(well(1, 0))}, []int{0, 1, 2}, true},
		{"dazed: a single endpoint", []Candidate{sick(well(1, 5))}, []int{0}, true},
		{"dazed never sends to the drained", []Candidate{sick(drained(well(1, 5))), sick(well(1, 4))}, []int{1}, true},
		{"dazed: avoided last", []Candidate{sick(avoid(well(1, 5))), sick(well(1, 4)), sick(well(1, 3))}, []int{1, 2}, true},
		{"dazed: avoided if there is nobody else", []Candidate{sick(avoid(well(1, 5))), sick(avoid(well(1, 4)))}, []int{0, 1}, true},
		{"avoided and healthy before dazed", []Candidate{avoid(well(1, 1)), sick(well(1, 5))}, []int{0}, false},
		{"drained beats dazed", []Candidate{drained(well(1, 5)), sick(drained(well(1, 4)))}, nil, false},
		{"faint beside a healthy one keeps its trickle", []Candidate{faint(well(1, 5)), well(1, 5), well(1, 4)}, []int{0, 1}, false},
		{"a bucket of faint ones counts as empty but stays in the draw", []Candidate{faint(well(1, 5)), well(1, 4), well(1, 3), faint(well(1, 2))}, []int{0, 1}, false},
		{"only faint ones anywhere: dazed", []Candidate{faint(well(1, 5)), faint(well(1, 4)), sick(well(1, 4))}, []int{0, 1, 2}, true},
	}
	for _, c := range cases {
		var got []int
		d := NewDraws(11)
		for range 2000 {
			u, v := d.Next()
			i, dazed, ok := Pick(c.c, u, v)
			if ok != (c.want != nil) || dazed != c.dazed {
				t.Fatalf("%s: ok %t, dazed %t; want %t, %t", c.name, ok, dazed, c.want != nil, c.dazed)
			}
			if ok && !slices.Contains(got, i) {
				got = append(got, i)
			}
		}
		if slices.Sort(got); !slices.Equal(got, c.want) {
			t.Errorf("%s: chosen %v, want %v", c.name, got, c.want)
		}
	}
}

// Dazed ignores weight and load: a sick endpoint has no connections because it
// refuses them all.
func TestDazedSharesAreEqual(t *testing.T) {
	c := []Candidate{{Weight: 9, Rank: 5}, {Weight: 1, Rank: 0, Load: 500}, {Weight: 0}}
	for i, n := range shares(c, NewDraws(1), 900) {
		if n < 290 || n > 310 {
			t.Errorf("candidate %d was chosen %d times of 900, want 300", i, n)
		}
	}
}

func TestFaintShareIsItsWeight(t *testing.T) {
	c := []Candidate{well(1, 5), well(1, 5), {Weight: 0.05, Rank: 5, Usable: true, Faint: true}}
	n := shares(c, NewDraws(1), 4100)[2]
	if n < 80 || n > 120 {
		t.Errorf("chosen %d times of 4100, want 100: 0.05 of 2.05", n)
	}
}

// The obvious Pick: lists instead of passes.
func naivePick(c []Candidate, u, v float64) (int, bool, bool) {
	choose := func(heed bool) ([]int, bool) {
		var healthy, all []int
		rank := math.MinInt
		for i, x := range c {
			if x.Usable && !x.Drained && !(heed && x.Avoid) && x.Weight > 0 {
				all = append(all, i)
				if !x.Faint {
					healthy = append(healthy, i)
					rank = max(rank, x.Rank)
				}
			}
		}
		return slices.DeleteFunc(all, func(i int) bool {
			return c[i].Rank < rank || c[i].Rank > rank && !c[i].Faint
		}), len(healthy) > 0
	}
	for _, heed := range []bool{true, false} {
		pool, ok := choose(heed)
		if !ok {
			continue
		}
		weighted := func(x float64) int {
			total := 0.0
			for _, i := range pool {
				total += c[i].Weight
			}
			left := x * total
			for _, i := range pool {
				if left -= c[i].Weight; left < 0 {
					return i
				}
			}
			return pool[len(pool)-1]
		}
		a, b := weighted(u), weighted(v)
		if 1.5*max(1, c[b].Load/c[b].Weight) < max(1, c[a].Load/c[a].Weight) {
			a = b
		}
		return a, false, true
	}
	for _, heed := range []bool{true, false} {
		var pool []int
		for i, x := range c {
			if !x.Drained && !(heed && x.Avoid) {
				pool = append(pool, i)
			}
		}
		if len(pool) > 0 {
			return pool[int(u*float64(len(pool)))], true, true
		}
	}
	return 0, false, false
}

func TestPickAgreesWithNaivePick(t *testing.T) {
	for seed := range uint64(5000) {
		rng := rand.New(rand.NewPCG(seed, 5))
		c := randomCandidates(rng)
		u, v := rng.Float64(), rng.Float64()
		i, dazed, ok := Pick(c, u, v)
		j, wantDazed, wantOK := naivePick(c, u, v)
		if i != j || dazed != wantDazed || ok != wantOK {
			t.Fatalf("seed %d: Pick(%+v, %v, %v) = %d, %t, %t; want %d, %t, %t", seed, c, u, v, i, dazed, ok, j, wantDazed, wantOK)
		}
	}
}

func randomCandidates(rng *rand.Rand) []Candidate {
	c := make([]Candidate, rng.IntN(8))
	sick := rng.IntN(4)
	for i := range c {
		c[i] = Candidate{
			Weight: float64(rng.IntN(5)), Load: float64(rng.IntN(30)), Rank: rng.IntN(3),
			Usable: rng.IntN(4) >= sick, Faint: rng.IntN(4) == 0, Drained: rng.IntN(4) == 0, Avoid: rng.IntN(3) == 0,
		}
	}
	return c
}

// Whatever the numbers, Pick answers with somebody who is not drained.
func FuzzPick(f *testing.F) {
	f.Add(1.0, 2.0, 0.5, 0.5, uint32(0x0101))
	f.Add(math.NaN(), math.Inf(1), 1.0, -1.0, uint32(0xffff))
	f.Add(math.MaxFloat64, math.MaxFloat64, 0.999, 0.0, uint32(0x0303))
	f.Fuzz(func(t *testing.T, w0, w1, u, v float64, bits uint32) {
		c := []Candidate{{Weight: w0, Load: w1}, {Weight: w1, Load: w0}, {Weight: 1, Load: u}}
		for i := range c {
			b := bits >> (8 * i)
			c[i].Usable, c[i].Drained, c[i].Avoid, c[i].Faint, c[i].Rank = b&1 != 0, b&2 != 0, b&4 != 0, b&8 != 0, int(b>>4&3)
		}
		i, _, ok := Pick(c, u, v)
		if want := !(c[0].Drained && c[1].Drained && c[2].Drained); ok != want || ok && c[i].Drained {
			t.Errorf("Pick(%+v, %v, %v) = %d, %t", c, u, v, i, ok)
		}
	})
}

func thousand() []Candidate {
	c := make([]Candidate, 1000)
	for i := range c {
		c[i] = Candidate{Weight: 1 + float64(i%3), Load: float64(i % 7), Rank: i % 2, Usable: i%10 > 0, Avoid: i%60 == 0}
	}
	return c
}

func TestPickDoesNotAllocate(t *testing.T) {
	c, d := thousand(), NewDraws(1)
	if n := testing.AllocsPerRun(100, func() {
		u, v := d.Next()
		Pick(c, u, v)
	}); n != 0 {
		t.Errorf("%v allocations per pick at 1 000 candidates, want 0", n)
	}
}

func BenchmarkPick(b *testing.B) {
	for _, n := range []int{3, 30, 1000} {
		b.Run(fmt.Sprintf("candidates=%d", n), func(b *testing.B) {
			c, d := thousand()[:n], NewDraws(1)
			b.ReportAllocs()
			for b.Loop() {
				u, v := d.Next()
				Pick(c, u, v)
			}
		})
	}
}
