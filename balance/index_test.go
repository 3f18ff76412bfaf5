package balance

import (
	"cmp"
	"fmt"
	"math/rand/v2"
	"slices"
	"testing"
)

type loads []float64

func (l loads) Load(i int) float64 { return l[i] }

// drawn is one random candidate; weights are whole numbers, whose sums are exact.
func drawn(rng *rand.Rand) Candidate {
	return Candidate{Weight: float64(rng.IntN(5)), Size: float64(rng.IntN(4)), Load: float64(rng.IntN(20)), Rank: rng.IntN(3),
		Usable: rng.IntN(3) > 0, Faint: rng.IntN(4) == 0, Drained: rng.IntN(4) == 0}
}

// choose is what an Index must give after Pick's rules: by the avoided first,
// then by all, then dazed.
func (x *Index) choose(c []Candidate, u, v float64) (index int, dazed, ok bool) {
	l := make(loads, len(c))
	for i := range c {
		l[i] = c[i].Load
	}
	for _, heedAvoid := range []bool{true, false} {
		for i := range c {
			if heedAvoid && c[i].Avoid {
				x.Mask(i)
			}
		}
		i, ok := x.Pick(u, v, l)
		x.Unmask()
		if ok {
			return i, false, true
		}
	}
	for _, heedAvoid := range []bool{true, false} {
		for i := range c {
			if heedAvoid && c[i].Avoid {
				x.Mask(i)
			}
		}
		i, ok := x.PickDazed(u)
		x.Unmask()
		if ok {
			return i, true, true
		}
	}
	return 0, false, false
}

func TestAnIndexChoosesAsTheScanDoesWhateverChanges(t *testing.T) {
	for seed := range uint64(300) {
		rng := rand.New(rand.NewPCG(seed, 7))
		c := make([]Candidate, rng.IntN(40))
		for i := range c {
			c[i] = drawn(rng)
		}
		slices.SortStableFunc(c, func(a, b Candidate) int { return cmp.Compare(b.Rank, a.Rank) })
		var x Index
		x.Reset(c)
		for step := range 60 {
			if len(c) > 0 && step > 0 {
				i := rng.IntN(len(c))
				rank := c[i].Rank
				c[i] = drawn(rng)
				c[i].Rank = rank
				x.Set(i, c[i])
			}
			for i := range c {
				c[i].Avoid = rng.IntN(3) == 0
			}
			u, v := rng.Float64(), rng.Float64()
			got, gotDazed, gotOK := x.choose(c, u, v)
			want, wantDazed, wantOK := Pick(c, u, v)
			if got != want || gotDazed != wantDazed || gotOK != wantOK {
				t.Fatalf("seed %d, step %d: index gives %d, %v, %v, the scan %d, %v, %v among %+v", seed, step, got, gotDazed, gotOK, want, wantDazed, wantOK, c)
			}
			sum := 0.0
			for i := range c {
				sum += x.Share(i)
			}
			if alive := slices.ContainsFunc(c, func(c Candidate) bool { return !c.Drained }); alive && (sum < 0.999999 || sum > 1.000001) {
				t.Fatalf("seed %d, step %d: the parts of all candidates make %v; want 1", seed, step, sum)
			}
		}
	}
}

func TestWhenEverythingIsSickAShareCountsWithItsCapacity(t *testing.T) {
	c := []Candidate{{Size: 1}, {Size: 1}, {Size: 98}}
	d, n := NewDraws(1), 0
	var x Index
	x.Reset(c)
	for range 10000 {
		u, v := d.Next()
		i, dazed, ok := Pick(c, u, v)
		if j, _ := x.PickDazed(u); !dazed || !ok || i != j {
			t.Fatalf("%d, dazed %v, ok %v; the index says %d", i, dazed, ok, j)
		}
		if i == 2 {
			n++
		}
	}
	if n < 9750 || n > 9850 {
		t.Errorf("a share of 98 of 100 got %d of 10000 choices while everything is sick; want 9800", n)
	}
}

func BenchmarkIndexPick(b *testing.B) {
	for _, n := range []int{10, 1000, 10000} {
		b.Run(fmt.Sprintf("candidates=%d", n), func(b *testing.B) {
			c, l := make([]Candidate, n), make(loads, n)
			for i := range c {
				c[i] = Candidate{Weight: 1, Usable: i%10 > 0}
			}
			var x Index
			x.Reset(c)
			d := NewDraws(1)
			b.ReportAllocs()
			for b.Loop() {
				u, v := d.Next()
				x.Pick(u, v, &l)
			}
		})
	}
}
