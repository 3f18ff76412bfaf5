package gossip

import (
	"sync"

	"github.com/isthmus-mesh/isthmus/federation/ledger"
)

// maxPending is how many changed subjects a Subscription tells apart; beyond
// them it only knows which networks have changed.
const maxPending = 4096

// Subscription collects what has changed in the ledger since it was last taken.
// A slow reader loses no change and holds bounded memory: changes coalesce.
type Subscription struct {
	federation *Federation
	signal     chan struct{}

	mu      sync.Mutex
	changes map[ledger.Change]struct{}
}

// Read shows the ledger to read, which must be quick and must keep no reference to it.
func (f *Federation) Read(read func(*ledger.Ledger)) {
	f.mu.Lock()
	defer f.mu.Unlock()
	read(f.node.Ledger())
}

// Health is [ledger.Ledger.Health].
func (f *Federation) Health(network, service string, port uint16) (h ledger.Health, known bool) {
	f.Read(func(l *ledger.Ledger) { h, known = l.Health(network, service, port) })
	return h, known
}

// Subscribe returns a subscription in which everything that is held has just
// changed. Close it after use.
func (f *Federation) Subscribe() *Subscription {
	s := &Subscription{federation: f, signal: make(chan struct{}, 1), changes: map[ledger.Change]struct{}{}}
	f.mu.Lock()
	defer f.mu.Unlock()
	f.subs[s] = struct{}{}
	for _, n := range f.node.Ledger().Networks() {
		s.add([]ledger.Change{{Network: n, All: true}})
	}
	return s
}

// Close ends the subscription.
func (s *Subscription) Close() {
	s.federation.mu.Lock()
	defer s.federation.mu.Unlock()
	delete(s.federation.subs, s)
}

// C is signalled when there is something to take.
func (s *Subscription) C() <-chan struct{} { return s.signal }

// Take returns what has changed since the last Take, in no order.
func (s *Subscription) Take() []ledger.Change {
	s.mu.Lock()
	defer s.mu.Unlock()
	out := make([]ledger.Change, 0, len(s.changes))
	for c := range s.changes {
		out = append(out, c)
	}
	clear(s.changes)
	return out
}

func (s *Subscription) add(changes []ledger.Change) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, c := range changes {
		if all := (ledger.Change{Network: c.Network, All: true}); len(s.changes) >= maxPending {
			c = all
		} else if _, known := s.changes[all]; known {
			continue
		}
		s.changes[c] = struct{}{}
	}
	select {
	case s.signal <- struct{}{}:
	default:
	}
}
