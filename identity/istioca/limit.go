package istioca

import (
	"maps"
	"sync"
	"time"
)

const (
	// burst and perSecond bound the requests of one caller. A node proxy that starts on a
	// full node asks at once for one identity for each account of its pods, of which
	// there are seldom more than 250, and later twice in the life of each.
	burst     = 300
	perSecond = 10
	// maxCallers bounds for how many requests are counted; those beyond share a count.
	maxCallers = 20_000
)

// limiter counts requests by caller: a token bucket each. The zero value is ready; safe
// for concurrent use.
type limiter struct {
	mu      sync.Mutex
	buckets map[string]*bucket
	swept   time.Time
}

type bucket struct {
	left float64
	at   time.Time
}

// refill is when a bucket that is empty is full again.
const refill = burst * time.Second / perSecond

// allow takes one request of key, if it may have one now.
func (l *limiter) allow(key string, now time.Time) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	b := l.buckets[key]
	if b == nil {
		b = l.add(key, now)
	}
	b.left = min(burst, b.left+max(0, now.Sub(b.at).Seconds())*perSecond)
	b.at = now
	if b.left < 1 {
		return false
	}
	b.left--
	return true
}

// add makes room for key; the caller holds mu.
func (l *limiter) add(key string, now time.Time) *bucket {
	if l.buckets == nil {
		l.buckets = map[string]*bucket{}
	}
	if len(l.buckets) >= maxCallers && now.Sub(l.swept) >= refill {
		l.swept = now
		maps.DeleteFunc(l.buckets, func(_ string, b *bucket) bool { return now.Sub(b.at) >= refill })
	}
	if len(l.buckets) >= maxCallers {
		key = ""
	}
	if l.buckets[key] == nil {
		l.buckets[key] = &bucket{left: burst, at: now}
	}
	return l.buckets[key]
}
