package boundtoken

import (
	"context"
	"maps"
	"net/netip"
	"sync"
	"time"

	"github.com/isthmus-mesh/isthmus/internal/fairqueue"
)

// A stranger's token is one that no known key has signed, and that was not accepted before. It
// can be made up by anybody, so that it has bounds of its own.
const (
	// strangersBurst and strangersPerSecond bound the strangers' tokens of one address.
	strangersBurst, strangersPerSecond = 20, 2
	// strangersReviewed are under way at the API server at once, one of each address; those
	// of several addresses take turns.
	strangersReviewed = 8
	// maxAddresses bounds for how many addresses tokens are counted; those beyond share a count.
	maxAddresses = 4096
)

// strangersRefill is when a bucket that is empty is full again.
const strangersRefill = strangersBurst * time.Second / strangersPerSecond

// strangers bounds what tokens of strangers cost. Make it with newStrangers; safe for
// concurrent use.
type strangers struct {
	turns *fairqueue.Queue[struct{}]

	mu      sync.Mutex
	buckets map[netip.Addr]*bucket
	swept   time.Time
}

type bucket struct {
	left float64
	at   time.Time
}

func newStrangers() *strangers {
	return &strangers{turns: fairqueue.New[struct{}](1, strangersReviewed), buckets: map[netip.Addr]*bucket{}}
}

// site is by what addresses are counted: of IPv6 the /64, which one host has.
func site(a netip.Addr) netip.Addr {
	a = a.Unmap().WithZone("")
	if p, err := a.Prefix(64); err == nil && a.Is6() {
		return p.Addr()
	}
	return a
}

// allow takes one token from an address, if it may have one looked at now.
func (s *strangers) allow(from netip.Addr, now time.Time) bool {
	from = site(from)
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.buckets[from] == nil && len(s.buckets) >= maxAddresses {
		if now.Sub(s.swept) >= strangersRefill {
			s.swept = now
			maps.DeleteFunc(s.buckets, func(_ netip.Addr, b *bucket) bool { return now.Sub(b.at) >= strangersRefill })
		}
		if len(s.buckets) >= maxAddresses {
			from = netip.Addr{}
		}
	}
	b := s.buckets[from]
	if b == nil {
		b = &bucket{left: strangersBurst, at: now}
		s.buckets[from] = b
	}
	b.left = min(strangersBurst, b.left+max(0, now.Sub(b.at).Seconds())*strangersPerSecond)
	b.at = now
	if b.left < 1 {
		return false
	}
	b.left--
	return true
}

// enter waits for the turn of an address. The caller calls leave.
func (s *strangers) enter(ctx context.Context, from netip.Addr) (leave func(), err error) {
	slot, _ := s.turns.Enter(struct{}{}, site(from).String())
	if err := slot.Wait(ctx, turnTime); err != nil {
		slot.Release()
		return nil, err
	}
	return slot.Release, nil
}
