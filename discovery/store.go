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
	subs map[chan struct{}]struct{}
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

// Swap makes next the current snapshot and notifies all subscribers. It never
// blocks. A nil next is an empty mesh.
func (s *Store) Swap(next *mesh.Snapshot) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.current.Store(next)
	for c := range s.subs {
		select {
		case c <- struct{}{}:
		default: // one notification is waiting already
		}
	}
}

// Subscribe returns a channel that has a value whenever the snapshot has
// changed since the last receive; several changes are one value, so read
// Current after receiving. The channel is never closed. cancel ends the
// subscription and may be called more than once.
func (s *Store) Subscribe() (changed <-chan struct{}, cancel func()) {
	c := make(chan struct{}, 1)
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.subs == nil {
		s.subs = map[chan struct{}]struct{}{}
	}
	s.subs[c] = struct{}{}
	return c, func() {
		s.mu.Lock()
		defer s.mu.Unlock()
		delete(s.subs, c)
	}
}
