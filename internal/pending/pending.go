// Package pending bounds the connections that have not yet proved who they are, in
// all and for each address. When a bound is reached the oldest that is silent makes
// room. One that has spoken costs us work already, so that a storm of clients is
// served one after the other instead of not at all: it makes room only when nobody is
// silent and it has spoken longer than Patience ago. Otherwise the newest is refused.
package pending

import (
	"container/list"
	"io"
	"net/netip"
	"sync"
	"time"
)

// Patience is how long one that has spoken is safe from making room: half of the
// default timeouts.handshake. Who has not finished by then leaves it to us to wait;
// much less would cut off, in a storm, those that are nearly done.
const Patience = 2500 * time.Millisecond

// Set holds what is pending. Make one with New. Safe for concurrent use.
type Set struct {
	limit, perAddress int
	now               func() time.Time

	mu      sync.Mutex
	n       int
	quiet   list.List // of *Entry, silent ones, oldest first
	talking list.List // of *Entry, the others, in the order of their first messages
	from    map[netip.Prefix]*address
}

// address is what is pending from one address.
type address struct {
	n       int
	quiet   list.List // of *Entry, silent ones, oldest first
	talking list.List // of *Entry, the others, in the order of their first messages
}

// Entry is one pending connection, until Leave.
type Entry struct {
	s       *Set
	c       io.Closer
	from    netip.Prefix
	in      bool
	spoke   time.Time     // zero: silent
	all, of *list.Element // in the lists of silent ones, or of the others
}

// New returns a set for at most limit connections, and at most perAddress of one
// address; zero is no bound of its own.
func New(limit, perAddress int) *Set {
	return &Set{limit: limit, perAddress: perAddress, now: time.Now, from: map[netip.Prefix]*address{}}
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
		victim = s.oldest(&a.quiet, &a.talking)
	case s.n >= s.limit:
		victim = s.oldest(&s.quiet, &s.talking)
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

// oldest returns who makes room: nil for nobody.
func (s *Set) oldest(quiet, talking *list.List) *list.Element {
	if e := quiet.Front(); e != nil {
		return e
	}
	e := talking.Front()
	if e == nil || s.now().Sub(e.Value.(*Entry).spoke) < Patience {
		return nil
	}
	return e
}

func (s *Set) enter(c io.Closer, from netip.Prefix, a *address) *Entry {
	e := &Entry{s: s, c: c, from: from, in: true}
	s.from[from] = a
	s.n++
	a.n++
	e.all, e.of = s.quiet.PushBack(e), a.quiet.PushBack(e)
	return e
}

// FirstMessage notes that the peer has sent a complete first message.
func (e *Entry) FirstMessage() {
	e.s.mu.Lock()
	defer e.s.mu.Unlock()
	if e.in && e.spoke.IsZero() {
		e.s.unlist(e)
		e.spoke = e.s.now()
		e.all, e.of = e.s.talking.PushBack(e), e.s.from[e.from].talking.PushBack(e)
	}
}

func (s *Set) unlist(e *Entry) {
	all, of := &s.quiet, &s.from[e.from].quiet
	if !e.spoke.IsZero() {
		all, of = &s.talking, &s.from[e.from].talking
	}
	all.Remove(e.all)
	of.Remove(e.of)
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
	s.unlist(e)
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
