package pathcheck

import (
	"context"
	"math/rand/v2"
	"sync/atomic"
	"testing"
)

func TestSearchFindsLargestSegment(t *testing.T) {
	for seed := range uint64(2000) {
		rng := rand.New(rand.NewPCG(seed, 1))
		full := 500 + rng.IntN(1+[]int{1000, 8500, 33000}[seed%3])
		limit := 400 + rng.IntN(full-399) // largest that passes, below full
		if limit >= full {
			limit = full - 1
		}
		var tries atomic.Int64
		largest, dropped := search(t.Context(), full, func(segment int) bool {
			if tries.Add(1); segment < leastSegment || segment >= full {
				t.Errorf("seed %d: %d is tried, want %d to %d", seed, segment, leastSegment, full-1)
			}
			return segment <= limit
		})
		want := limit
		if limit < leastSegment {
			want = 0
		}
		if largest != want || want > 0 && dropped != limit+1 {
			t.Errorf("seed %d: %d of %d pass: found %d, and %d dropped", seed, limit, full, largest, dropped)
		}
		if most := int64(6 * atOnce); tries.Load() > most {
			t.Errorf("seed %d: %d tries, want at most %d", seed, tries.Load(), most)
		}
	}
}

func TestSearchKeepsWhatPassedInTime(t *testing.T) {
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	largest, dropped := search(ctx, 1460, func(segment int) bool {
		if segment < 1200 && segment > 1130 { // of the second round
			cancel()
		}
		return segment <= 1170 && ctx.Err() == nil
	})
	if largest > 1170 || largest < leastSegment || dropped <= 1170 || dropped > 1460 {
		t.Errorf("%d passes and %d is dropped, want 1170 between them", largest, dropped)
	}
}
