// Package fairqueue bounds what is under way at each of many targets, of all clients
// and of each, and lets what finds no room wait for its turn. It knows nothing of what
// it counts, and starts nothing.
//
// It promises: nobody waits where there is room; those of one client go in the order
// in which they came; where the target itself is full its clients take turns, so that
// one with a thousand in the queue costs another with one no more than one turn; who is
// no longer waited for is struck out at once; and what has ended leaves no entry.
package fairqueue

import (
	"container/list"
	"context"
	"errors"
	"sync"
	"time"
)

// ErrTimeout is what Wait returns when no turn came in time.
var ErrTimeout = errors.New("no turn came in time")

// Bound is which bound made somebody wait.
type Bound string

// The bounds; empty if there was room.
const (
	ByClient Bound = "client"
	ByTarget Bound = "target"
)

// Queue holds the targets. Make one with New. Safe for concurrent use.
type Queue[K comparable] struct {
	perClient, perTarget int

	mu      sync.Mutex
	targets map[K]*target[K]
	held    int
	waiting int
}

// target is what is under way at one target and who waits for it.
type target[K comparable] struct {
	key     K
	held    int // slots
	clients map[string]*client[K]
	turns   list.List // of *client that wait and are below their bound, the next one first
}

// client is one client at one target.
type client[K comparable] struct {
	t       *target[K]
	id      string
	held    int           // slots
	waiting list.List     // of *Slot, the oldest first
	turn    *list.Element // in t.turns; nil if it is not there
}

// Slot is a place at a target, or in its queue, until Release.
type Slot[K comparable] struct {
	q       *Queue[K]
	granted chan struct{} // closed when it is a place at the target

	// Guarded by q.mu.
	c       *client[K]    // nil: released
	waiting *list.Element // in c.waiting; nil: it is a place at the target
}

// New returns a queue for at most perTarget slots of each target, and perClient of
// each client there; zero is no bound.
func New[K comparable](perClient, perTarget int) *Queue[K] {
	return &Queue[K]{perClient: perClient, perTarget: perTarget, targets: map[K]*target[K]{}}
}

// Enter takes a place at the target key for the client, or one in the queue if a bound
// is reached: that one is returned, and Wait tells when it has become a place at the
// target. The caller calls Release in either case.
func (q *Queue[K]) Enter(key K, id string) (*Slot[K], Bound) {
	q.mu.Lock()
	defer q.mu.Unlock()
	c := q.client(key, id)
	s := &Slot[K]{q: q, granted: make(chan struct{}), c: c}
	switch {
	case reached(c.held, q.perClient):
	case reached(c.t.held, q.perTarget):
	default:
		q.grant(s)
		return s, ""
	}
	s.waiting = c.waiting.PushBack(s)
	q.waiting++
	q.line(c)
	if c.turn == nil {
		return s, ByClient
	}
	return s, ByTarget
}

// Crowded reports whether Enter would find no room now for the client at the target key.
func (q *Queue[K]) Crowded(key K, id string) bool {
	q.mu.Lock()
	defer q.mu.Unlock()
	t := q.targets[key]
	if t == nil {
		return false
	}
	c := t.clients[id]
	return reached(t.held, q.perTarget) || c != nil && reached(c.held, q.perClient)
}

// reached reports whether n is at bound; zero is no bound.
func reached(n, bound int) bool { return bound > 0 && n >= bound }

// client returns the entry of a client; forget drops it.
func (q *Queue[K]) client(key K, id string) *client[K] {
	t := q.targets[key]
	if t == nil {
		t = &target[K]{key: key, clients: map[string]*client[K]{}}
		q.targets[key] = t
	}
	c := t.clients[id]
	if c == nil {
		c = &client[K]{t: t, id: id}
		t.clients[id] = c
	}
	return c
}

// Wait returns nil when s is a place at the target, ErrTimeout if it is not within
// limit, and ctx's cause when that ends first.
func (s *Slot[K]) Wait(ctx context.Context, limit time.Duration) error {
	timeout := time.NewTimer(limit)
	defer timeout.Stop()
	select {
	case <-s.granted:
		return nil
	case <-ctx.Done():
		return context.Cause(ctx)
	case <-timeout.C:
		return ErrTimeout
	}
}

// Release gives the place back, or leaves the queue. On nil, and when called again, it
// does nothing.
func (s *Slot[K]) Release() {
	if s == nil {
		return
	}
	q := s.q
	q.mu.Lock()
	defer q.mu.Unlock()
	c := s.c
	if c == nil {
		return
	}
	s.c = nil
	if s.waiting != nil {
		q.unwait(c, s)
	} else {
		c.held--
		c.t.held--
		q.held--
	}
	q.line(c)
	q.serve(c.t)
	q.forget(c)
}

// line brings c into the line of its target, as its last, if it waits for nothing but
// that, and out of it otherwise. Called with mu held.
func (q *Queue[K]) line(c *client[K]) {
	eligible := c.waiting.Len() > 0 && !reached(c.held, q.perClient)
	switch {
	case eligible && c.turn == nil:
		c.turn = c.t.turns.PushBack(c)
	case !eligible && c.turn != nil:
		c.t.turns.Remove(c.turn)
		c.turn = nil
	}
}

// serve grants places to those in line while there is room. Called with mu held.
func (q *Queue[K]) serve(t *target[K]) {
	for t.turns.Len() > 0 && !reached(t.held, q.perTarget) {
		c := t.turns.Front().Value.(*client[K])
		s := c.waiting.Front().Value.(*Slot[K])
		q.unwait(c, s)
		q.grant(s)
		t.turns.Remove(c.turn)
		c.turn = nil
		q.line(c)
	}
}

func (q *Queue[K]) unwait(c *client[K], s *Slot[K]) {
	c.waiting.Remove(s.waiting)
	s.waiting = nil
	q.waiting--
}

func (q *Queue[K]) grant(s *Slot[K]) {
	s.c.held++
	s.c.t.held++
	q.held++
	close(s.granted)
}

// forget drops the entries of who neither holds nor wants anything. Called with mu held.
func (q *Queue[K]) forget(c *client[K]) {
	if c.held > 0 || c.waiting.Len() > 0 {
		return
	}
	delete(c.t.clients, c.id)
	if len(c.t.clients) == 0 {
		delete(q.targets, c.t.key)
	}
}

// Counts returns how many slots are held and how many are waited for.
func (q *Queue[K]) Counts() (held, waiting int) {
	q.mu.Lock()
	defer q.mu.Unlock()
	return q.held, q.waiting
}
