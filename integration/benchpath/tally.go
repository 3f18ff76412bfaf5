//go:build linux

package main

import (
	"slices"
	"sync"
	"time"
)

// reply is what a load did and met, as the generator counted it.
type reply struct {
	Seconds float64 // from the first byte to the last
	Bytes   int64   // of bulk, at the end that received them
	Ops     int64   // connections or echoes that came to their end
	Errors  int64
	First   string // the first error

	// Of connections from dial to the byte back, of echoes from send to receive;
	// for paced ones from the moment at which they should have been sent.
	P50, P99 float64 // microseconds
}

// tally collects a reply. Its methods may be called at the same time.
type tally struct {
	mu    sync.Mutex
	r     reply
	times []time.Duration
}

func (t *tally) fail(err error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.r.Errors++; t.r.Errors == 1 {
		t.r.First = err.Error()
	}
}

func (t *tally) moved(bytes int64) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.r.Bytes += bytes
}

// took takes the times of operations that came to their end.
func (t *tally) took(times ...time.Duration) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.r.Ops += int64(len(times))
	t.times = append(t.times, times...)
}

func (t *tally) reply(seconds float64) reply {
	t.mu.Lock()
	defer t.mu.Unlock()
	slices.Sort(t.times)
	t.r.Seconds, t.r.P50, t.r.P99 = seconds, quantile(t.times, 0.50), quantile(t.times, 0.99)
	return t.r
}
