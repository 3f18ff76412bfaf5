//go:build linux

package main

import (
	"math/rand/v2"
	"slices"
	"testing"
	"time"
)

func TestQuantileIsTheSmallestThatEnoughDoNotExceed(t *testing.T) {
	var hundred []time.Duration
	for i := range 100 {
		hundred = append(hundred, time.Duration(i+1)*time.Microsecond)
	}
	for _, c := range []struct {
		times []time.Duration
		q     float64
		want  float64
	}{
		{nil, 0.5, 0},
		{hundred[:1], 0.99, 1},
		{hundred[:2], 0.5, 1},
		{hundred[:3], 0.5, 2},
		{hundred, 0.5, 50},
		{hundred, 0.99, 99},
		{hundred, 1, 100},
		{hundred, 0, 1},
	} {
		if got := quantile(c.times, c.q); got != c.want {
			t.Errorf("quantile(%v, %v) = %v, want %v", c.times, c.q, got, c.want)
		}
	}
}

func TestSpread(t *testing.T) {
	for _, c := range []struct {
		values []float64
		want   spread
	}{
		{nil, spread{}},
		{[]float64{3}, spread{3, 3, 3, 1}},
		{[]float64{3, 1}, spread{2, 1, 3, 2}},
		{[]float64{5, 1, 4, 2, 3}, spread{3, 1, 5, 5}},
	} {
		if got := spreadOf(c.values); got != c.want {
			t.Errorf("spreadOf(%v) = %v, want %v", c.values, got, c.want)
		}
	}
	const seed = 7
	rng := rand.New(rand.NewPCG(seed, seed))
	for range 1000 {
		v := make([]float64, 1+rng.IntN(20))
		for i := range v {
			v[i] = rng.NormFloat64()
		}
		given := slices.Clone(v)
		s := spreadOf(v)
		below, above := 0, 0
		for _, x := range v {
			if x < s.Median {
				below++
			}
			if x > s.Median {
				above++
			}
		}
		if below > len(v)/2 || above > len(v)/2 || s.Min != slices.Min(v) || s.Max != slices.Max(v) || !slices.Equal(v, given) {
			t.Fatalf("seed %d: the spread of %v is %v", seed, v, s)
		}
	}
}
