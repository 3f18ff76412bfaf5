// Package pending bounds the connections that have not yet proved who they are, in
// all and for each address. When a bound is reached the oldest that is silent makes
// room; one that has spoken costs us work already and is never closed for another, so
// that a storm of clients is served one after the other instead of not at all. Then
// the newest is refused.
package pending

import (
	"container/list"
	"io"
	"net/netip"
	"sync"
)

// Set holds what is pending. Make one with New. Safe for concurrent use.
type Set struct {
	limit, perAddress int

	mu    sync.Mutex
	n     int
	quiet list.List // of *Entry, silent ones, oldest first
	from  map[netip.Prefix]*address
}

// address is what is pending from one address.
type address struct {
	n     int
	quiet list.List // of *Entry, silent ones, oldest first
}

// Entry is one pending connection, until Leave.
type Entry struct {
	s       *Set
	c       io.Closer
	from    netip.Prefix
	in      bool
	all, of *list.Element // in the lists of silent ones; nil once it has spoken
}

// New returns a set for at most limit connections, and at most perAddress of one
// address; zero is no bound of its own.
func New(limit, perAddress int) *Set {
	return &Set{limit: limit, perAddress: perAddress, from: map[netip.Prefix]*address{}}
}

// Enter adds c, which comes from an address, or from one without a bound of its own
// if that is not valid. It returns nil if nobody can make room: the caller closes c.
// evicted says that another connection was closed for it.
func (s *Set) Enter(c io.Closer, from netip.Prefix) (e *Entry, evicted bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	a := s.from[from]
	if a == nil {
		a = &address{}
	}
	var victim *list.Element
	switch {
	case from.IsValid() && s.perAddress > 0 && a.n >= s.perAddress:
		victim = a.quiet.Front()
	case s.n >= s.limit:
		victim = s.quiet.Front()
	default:
		return s.enter(c, from, a), false
	}
	if victim == nil {
		return nil, false
	}
	v := victim.Value.(*Entry)
	s.leave(v)
	v.c.Close()
	return s.enter(c, from, a), true
}

func (s *Set) enter(c io.Closer, from netip.Prefix, a *address) *Entry {
	e := &Entry{s: s, c: c, from: from, in: true}
	s.from[from] = a
	s.n++
	a.n++
	e.all, e.of = s.quiet.PushBack(e), a.quiet.PushBack(e)
	return e
}

// Speak notes that the peer has sent a complete first message.
func (e *Entry) Speak() {
	e.s.mu.Lock()
	defer e.s.mu.Unlock()
	if e.in {
		e.s.spoken(e)
	}
}

func (s *Set) spoken(e *Entry) {
	if e.all != nil {
		s.quiet.Remove(e.all)
		s.from[e.from].quiet.Remove(e.of)
		e.all, e.of = nil, nil
	}
}

// Leave takes the connection out of the set, if it was not evicted.
func (e *Entry) Leave() {
	e.s.mu.Lock()
	defer e.s.mu.Unlock()
	if e.in {
		e.s.leave(e)
	}
}

func (s *Set) leave(e *Entry) {
	s.spoken(e)
	e.in = false
	s.n--
	if a := s.from[e.from]; a.n > 1 {
		a.n--
	} else {
		a.n = 0
		delete(s.from, e.from)
	}
}

// Len returns how many are pending.
func (s *Set) Len() int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.n
}
