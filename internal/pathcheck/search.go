package pathcheck

import (
	"context"
	"sync"
)

const (
	// leastSegment is what each IPv4 host receives (RFC 1122), and the least value of lines.maxSegment.
	leastSegment = 536
	// atOnce is how many segment sizes are tried at the same time: with 1460 bytes four rounds find the largest.
	atOnce = 7
)

// search returns the largest segment that passes, and the smallest that was found to be dropped. full is dropped. 0: none
// of leastSegment or more passes. If ctx ends before, there may be others between the two.
func search(ctx context.Context, full int, passes func(segment int) bool) (largest, dropped int) {
	dropped = full
	for dropped-max(largest, leastSegment-1) > 1 {
		sizes := between(max(largest, leastSegment-1), dropped)
		if largest == 0 {
			sizes[0] = leastSegment
		}
		passed := make([]bool, len(sizes))
		var all sync.WaitGroup
		for i, size := range sizes {
			all.Go(func() { passed[i] = passes(size) })
		}
		all.Wait()
		if ctx.Err() != nil { // then what did not pass proves nothing
			return largest, dropped
		}
		for i, size := range sizes {
			if !passed[i] {
				dropped = size
				break
			}
			largest = size
		}
		if largest == 0 {
			break
		}
	}
	return largest, dropped
}

// between returns up to atOnce sizes between two that differ by more than 1, evenly and without these.
func between(low, high int) (sizes []int) {
	n := min(atOnce, high-low-1)
	for i := range n {
		sizes = append(sizes, low+(i+1)*(high-low)/(n+1))
	}
	return sizes
}
