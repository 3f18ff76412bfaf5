//go:build linux

package main

import (
	"math"
	"slices"
	"time"
)

// quantile returns, in microseconds, the smallest of the sorted times that at
// least the share q of them do not exceed; 0 when there are none.
func quantile(sorted []time.Duration, q float64) float64 {
	if len(sorted) == 0 {
		return 0
	}
	i := max(0, int(math.Ceil(q*float64(len(sorted))))-1)
	return float64(sorted[i]) / float64(time.Microsecond)
}

// spread is a figure over all runs. Without values it is zero.
type spread struct {
	Median, Min, Max float64
	N                int
}

// spreadOf takes the values in any order. The median of an even number is the
// mean of the two in the middle.
func spreadOf(values []float64) spread {
	n := len(values)
	if n == 0 {
		return spread{}
	}
	v := slices.Sorted(slices.Values(values))
	return spread{(v[(n-1)/2] + v[n/2]) / 2, v[0], v[n-1], n}
}
