// Package pending bounds the connections that have not yet proved who they
// are. When the bound is reached the oldest makes room: whoever opens sockets
// and stays silent loses them, and those who speak at once get through.
package pending

import (
	"container/list"
	"io"
	"sync"
)

// Set holds what is pending. Make one with New. Safe for concurrent use.
type Set struct {
	limit int

	mu  sync.Mutex
	all list.List // of io.Closer, oldest first
}

// New returns a set for at most limit connections.
func New(limit int) *Set { return &Set{limit: limit} }

// Enter adds c, closing the oldest if the set is full; evicted says so. leave
// takes c out again, and must be called once.
func (s *Set) Enter(c io.Closer) (leave func(), evicted bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.all.Len() >= s.limit {
		oldest := s.all.Front()
		s.all.Remove(oldest)
		oldest.Value.(io.Closer).Close()
		evicted = true
	}
	e := s.all.PushBack(c)
	return func() {
		s.mu.Lock()
		defer s.mu.Unlock()
		s.all.Remove(e)
	}, evicted
}

// Len returns how many are pending.
func (s *Set) Len() int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.all.Len()
}
