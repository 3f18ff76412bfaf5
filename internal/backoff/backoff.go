// Package backoff says how long to wait before something that failed is tried
// again. It keeps no time itself: who waits, owns the timer.
package backoff

import (
	"math/rand/v2"
	"time"
)

// Backoff is an exponential backoff: First before the first retry, twice as
// long before each further one, at most Limit.
type Backoff struct {
	First, Limit time.Duration
	// Bound is the longest of all for what has failed for long; see Lasting. Zero: Limit.
	Bound time.Duration
}

// patience is which part of the time that something has failed may pass between two
// retries: so much later, at most, is it seen to work.
const patience = 30

// Lasting is Longest for what has failed for the time failing: a thirtieth of that if
// it is more, and at most Bound. With a Limit of 2 s the first minute is as it was.
func (b Backoff) Lasting(n int, failing time.Duration) time.Duration {
	return max(b.Longest(n), min(failing/patience, b.Bound))
}

// Delay returns how long to wait before retry n (from 1; less is 1): a value
// from [d/2, d] with d = First·2^(n-1) and at most Limit, chosen by u in
// [0, 1). The draw keeps a fleet that failed together from returning together.
func (b Backoff) Delay(n int, u float64) time.Duration {
	return Spread(b.Longest(n), u)
}

// Next is Delay with a random u.
func (b Backoff) Next(n int) time.Duration { return b.Delay(n, rand.Float64()) }

// Longest returns the most that Delay returns: min(First·2^(n-1), Limit).
func (b Backoff) Longest(n int) time.Duration {
	d := b.First
	for ; n > 1 && d < b.Limit; n-- {
		d *= 2 // d < Limit ≤ MaxInt64 before it, so that at most one step overflows
		if d <= 0 {
			return b.Limit
		}
	}
	return min(d, b.Limit)
}

// Spread returns a value from [d/2, d], chosen by u in [0, 1).
func Spread(d time.Duration, u float64) time.Duration {
	return d/2 + time.Duration(u*float64(d-d/2))
}

// Jitter is Spread with a random u.
func Jitter(d time.Duration) time.Duration { return Spread(d, rand.Float64()) }
