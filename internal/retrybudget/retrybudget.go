// Package retrybudget bounds how often work is repeated, so that what is down or
// overloaded is not also hammered: every new piece of work earns a share of a
// repeat, up to a burst (Finagle's RetryBudget, gRPC's retry throttling, A6). It
// knows nothing of what is repeated.
package retrybudget

import "sync"

// What one repeat costs. An attempt that timed out has held sockets, memory and a
// slot of the peer for as long as the timeout, and its peer is more likely to be
// overloaded than gone: repeating that is five times as dear as repeating a
// refusal, which cost nobody anything.
const (
	AfterRefusal = 1.0
	AfterTimeout = 5.0
	// AfterSlow is that of work which was taken back because it took long: its peer may be as
	// overloaded.
	AfterSlow = AfterTimeout
)

// Budget holds what may still be repeated, by key. Safe for concurrent use. It
// keeps an entry only for keys that are below the burst.
type Budget struct {
	burst, ratio float64

	mu    sync.Mutex
	saved map[string]float64 // absent: burst
}

// New returns a Budget whose keys start with burst repeats (at AfterRefusal) and
// earn ratio of one with each piece of work.
func New(burst int, ratio float64) *Budget {
	return &Budget{burst: float64(burst), ratio: ratio, saved: map[string]float64{}}
}

// Earn counts one new piece of work for key.
func (b *Budget) Earn(key string) {
	b.mu.Lock()
	defer b.mu.Unlock()
	saved, ok := b.saved[key]
	if !ok {
		return
	}
	if saved += b.ratio; saved >= b.burst {
		delete(b.saved, key)
		return
	}
	b.saved[key] = saved
}

// Spend takes cost if there is that much, and tells whether there was.
func (b *Budget) Spend(key string, cost float64) bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	saved, ok := b.saved[key]
	if !ok {
		saved = b.burst
	}
	if saved < cost {
		return false
	}
	b.saved[key] = saved - cost
	return true
}

// Keep drops the keys that keep refuses, which are then full again: the owner
// calls it when things are gone for good.
func (b *Budget) Keep(keep func(key string) bool) {
	b.mu.Lock()
	defer b.mu.Unlock()
	for k := range b.saved {
		if !keep(k) {
			delete(b.saved, k)
		}
	}
}
