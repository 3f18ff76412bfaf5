package retrybudget

import (
	"math/rand/v2"
	"testing"
)

// Whatever is asked in whatever order: no more is spent than the burst and what
// was earned, and an entry is kept only for a key below the burst.
func TestNoMoreIsSpentThanWasEarned(t *testing.T) {
	for seed := range uint64(50) {
		rng := rand.New(rand.NewPCG(seed, 0))
		burst, ratio := 1+rng.IntN(20), rng.Float64()
		b := New(burst, ratio)
		keys := []string{"a", "b", "c"}
		spent, earned := map[string]float64{}, map[string]float64{}
		for range 2000 {
			k := keys[rng.IntN(len(keys))]
			switch rng.IntN(3) {
			case 0:
				b.Earn(k)
				earned[k] += ratio
			case 1:
				if b.Spend(k, AfterRefusal) {
					spent[k] += AfterRefusal
				}
			case 2:
				if b.Spend(k, AfterTimeout) {
					spent[k] += AfterTimeout
				}
			}
			if spent[k] > float64(burst)+earned[k]+1e-9 {
				t.Fatalf("seed %d: %v spent of burst %d and %v earned", seed, spent[k], burst, earned[k])
			}
			for k, v := range b.saved {
				if v < 0 || v >= float64(burst)+1e-9 {
					t.Fatalf("seed %d: %v saved for %s with burst %d", seed, v, k, burst)
				}
			}
		}
	}
}

func TestATimeoutCostsAsMuchAsSeveralRefusals(t *testing.T) {
	count := func(cost float64) (n int) {
		for b := New(20, 0.5); b.Spend("svc", cost); n++ {
		}
		return n
	}
	if refused, timeouts := count(AfterRefusal), count(AfterTimeout); refused != 20 || timeouts != 4 {
		t.Errorf("a burst of 20 pays for %d repeats after refusals and %d after timeouts, want 20 and 4", refused, timeouts)
	}
}

func TestWhatIsGoneIsForgotten(t *testing.T) {
	b := New(1, 0.5)
	b.Spend("gone", 1)
	b.Spend("here", 1)
	b.Keep(func(k string) bool { return k == "here" })
	if !b.Spend("gone", 1) || b.Spend("here", 1) {
		t.Error("Keep dropped the wrong key")
	}
}
