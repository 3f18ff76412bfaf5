package balance

import (
	"math"
	"sync"
	"testing"
)

func TestDrawsSpreadEvenly(t *testing.T) {
	const n = 300
	for seed := range uint64(200) {
		d := NewDraws(seed)
		var us, vs [3]int
		for range n {
			u, v := d.Next()
			if u < 0 || u >= 1 || v < 0 || v >= 1 {
				t.Fatalf("seed %d: drew (%v, %v), want both in [0, 1)", seed, u, v)
			}
			us[int(3*u)]++
			vs[int(3*v)]++
		}
		for i := range 3 {
			if math.Abs(float64(us[i])-n/3) > 6 || math.Abs(float64(vs[i])-n/3) > 6 {
				t.Errorf("seed %d: thirds hold %v and %v of %d draws, want %d ± 6 each", seed, us, vs, n, n/3)
			}
		}
	}
}

func TestDrawsOfTwoSeedsDiffer(t *testing.T) {
	first := map[float64]uint64{}
	for seed := range uint64(1000) {
		u, _ := NewDraws(seed).Next()
		if other, taken := first[u]; taken {
			t.Errorf("seeds %d and %d both begin with %v", seed, other, u)
		}
		first[u] = seed
	}
}

// Concurrent callers share out one sequence: nothing is drawn twice or left out.
func TestDrawsConcurrently(t *testing.T) {
	const callers, each = 4, 500
	d, want := NewDraws(1), NewDraws(1)
	var mu sync.Mutex
	seen := map[[2]float64]int{}
	var wg sync.WaitGroup
	for range callers {
		wg.Go(func() {
			for range each {
				u, v := d.Next()
				mu.Lock()
				seen[[2]float64{u, v}]++
				mu.Unlock()
			}
		})
	}
	wg.Wait()
	for i := range callers * each {
		u, v := want.Next()
		if seen[[2]float64{u, v}] != 1 {
			t.Fatalf("pair %d was drawn %d times, want once", i, seen[[2]float64{u, v}])
		}
	}
}
