package discovery

import (
	"sync"
	"sync/atomic"

	"github.com/isthmus-mesh/isthmus/mesh"
)

// Store holds the current snapshot and tells who asked that it has changed.
// The zero value is ready and holds an empty mesh. Safe for concurrent use;
// do not copy.
type Store struct {
	current atomic.Pointer[mesh.Snapshot]

	mu   sync.Mutex
	subs map[*Subscription]struct{}
}

var empty = new(mesh.Snapshot)

// Current returns the current snapshot, never nil. Load it once per connection
// and keep it: two calls may see two states.
func (s *Store) Current() *mesh.Snapshot {
	if c := s.current.Load(); c != nil {
		return c
	}
	return empty
}

// Swap makes next the current snapshot, everything of which may be different. A
// nil next is an empty mesh.
func (s *Store) Swap(next *mesh.Snapshot) { s.Publish(next, Everything()) }

// Publish makes next the current snapshot, which differs from the last one in
// changes, and notifies all subscribers. It never blocks.
func (s *Store) Publish(next *mesh.Snapshot, changes Changes) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.current.Store(next)
	for sub := range s.subs {
		sub.changes.merge(changes)
		select {
		case sub.c <- struct{}{}:
		default: // one notification is waiting already
		}
	}
}

// Subscription tells one reader of a Store what changes.
type Subscription struct {
	store   *Store
	c       chan struct{} // one slot
	changes Changes       // under store.mu
}

// Subscribe begins a subscription, which knows of no change yet.
func (s *Store) Subscribe() *Subscription {
	sub := &Subscription{store: s, c: make(chan struct{}, 1)}
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.subs == nil {
		s.subs = map[*Subscription]struct{}{}
	}
	s.subs[sub] = struct{}{}
	return sub
}

// C has a value whenever the snapshot has changed since the last receive; several
// changes are one value, so Take and read Current after receiving. It is never
// closed.
func (s *Subscription) C() <-chan struct{} { return s.c }

// Take returns the snapshot as it is now and what is different in it from the one
// that the last Take returned. More than some thousand objects are Everything.
func (s *Subscription) Take() (*mesh.Snapshot, Changes) {
	s.store.mu.Lock()
	defer s.store.mu.Unlock()
	changes := s.changes
	s.changes = Changes{}
	return s.store.Current(), changes
}

// Close ends the subscription; it may be called more than once.
func (s *Subscription) Close() {
	s.store.mu.Lock()
	defer s.store.mu.Unlock()
	delete(s.store.subs, s)
}
