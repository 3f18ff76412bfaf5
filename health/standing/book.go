package standing

import (
	"sync"
	"sync/atomic"
	"time"

	"github.com/isthmus-mesh/isthmus/health"
)

// Book holds the cells of one kind of thing.
type Book[K comparable] struct {
	config health.Config
	jitter func() float64
	epoch  atomic.Pointer[time.Time] // what answered counts from: the first answer of all

	mu    sync.Mutex
	cells map[K]*Cell[K]
	// marked are those that Prune looks at: of whom something bad was known, and
	// those that nobody holds.
	marked map[K]*Cell[K]
}

// NewBook returns an empty Book whose cells judge by config; see
// [health.NewTracker].
func NewBook[K comparable](config health.Config, jitter func() float64) *Book[K] {
	return &Book[K]{config: config, jitter: jitter, cells: map[K]*Cell[K]{}, marked: map[K]*Cell[K]{}}
}

// Hold returns the cell of k, which stays in the book until it is released as
// often as it was held.
func (b *Book[K]) Hold(k K) *Cell[K] {
	b.mu.Lock()
	defer b.mu.Unlock()
	c := b.cells[k]
	if c == nil {
		c = &Cell[K]{key: k, book: b}
		b.cells[k] = c
	}
	c.holders++
	return c
}

// Release ends one Hold.
func (b *Book[K]) Release(c *Cell[K]) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if c.holders--; c.holders == 0 {
		b.marked[c.key] = c
		b.drop(c)
	}
}

// Find returns the cell of k, nil if there is none: nothing is known of it.
func (b *Book[K]) Find(k K) *Cell[K] {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.cells[k]
}

// Troubled returns, in no order, the cells of which something bad is known or was.
func (b *Book[K]) Troubled() []*Cell[K] {
	b.mu.Lock()
	defer b.mu.Unlock()
	out := make([]*Cell[K], 0, len(b.marked))
	for _, c := range b.marked {
		if c.troubled.Load() {
			out = append(out, c)
		}
	}
	return out
}

// Open is how many connections are open at all of its cells.
func (b *Book[K]) Open() int {
	b.mu.Lock()
	defer b.mu.Unlock()
	n := 0
	for _, c := range b.cells {
		n += c.Open()
	}
	return n
}

// Each calls f for every cell, with its lock held.
func (b *Book[K]) Each(f func(k K, open int)) {
	b.mu.Lock()
	defer b.mu.Unlock()
	for k, c := range b.cells {
		f(k, c.Open())
	}
}

// Len is how many cells the book has.
func (b *Book[K]) Len() int {
	b.mu.Lock()
	defer b.mu.Unlock()
	return len(b.cells)
}

// Prune forgets what is known of the keys that keep rejects, and drops the cells
// that say nothing and that nobody holds. What it costs is in proportion to the
// number of troubled ones.
func (b *Book[K]) Prune(keep func(K) bool, now time.Time) {
	b.mu.Lock()
	var cleared []*Cell[K]
	for k, c := range b.marked {
		if !keep(k) && c.forget() {
			cleared = append(cleared, c)
		}
		c.expire(now)
		b.drop(c)
	}
	b.mu.Unlock()
	for _, c := range cleared {
		c.Tell(now)
	}
}

func (b *Book[K]) mark(c *Cell[K]) {
	b.mu.Lock()
	if b.cells[c.key] == c {
		b.marked[c.key] = c
	}
	b.mu.Unlock()
}

// drop takes c out of the lists that it need not be on; the caller holds mu.
func (b *Book[K]) drop(c *Cell[K]) {
	if c.troubled.Load() || c.holders == 0 && c.Open() > 0 {
		return
	}
	delete(b.marked, c.key)
	if c.holders == 0 && b.cells[c.key] == c {
		delete(b.cells, c.key)
	}
}

// Watcher is told that a cell says something else than before. It is called with
// no lock held.
type Watcher interface{ Changed(now time.Time) }

// Cell is what is known of one thing.
type Cell[K comparable] struct {
	key      K
	book     *Book[K]
	holders  int // under book.mu
	open     atomic.Int64
	troubled atomic.Bool  // something bad is known, or was; see below
	answered atomic.Int64 // when it last answered somebody, in nanoseconds of Book.since; 0: never

	mu         sync.Mutex
	tracker    *health.Tracker[struct{}] // nil until something failed; kept then, because attempts are dated by it
	last       Turn
	failed     time.Time // when it last failed
	unanswered bool      // it failed since it last was good, and an attempt never got as far as to ask it
	refused    bool      // it failed since it last was good, by its own word or for another reason
	watchers   []Watcher // copied on write
}

// Turn is the last edge of a cell.
type Turn struct {
	At     time.Time // zero: there was none
	Out    bool
	Reason string
}

// Score is how a cell counts in a choice.
type Score struct {
	Weight float64 // factor of the capacity, in (0, 1]
	Faint  bool
	Usable bool
	Next   time.Time // when Usable may change by the passing of time alone; zero: never
}

// Answered notes that it has answered.
func (c *Cell[K]) Answered(now time.Time) { c.answered.Store(c.book.since(now)) }

// AnsweredSince reports whether it has answered after t.
func (c *Cell[K]) AnsweredSince(t time.Time) bool {
	a := c.answered.Load()
	return a != 0 && a > c.book.since(t)
}

// since is when t was, in nanoseconds by the monotonic clock: a wall clock that is set
// back must not make an answer newer than the questions after it. It is 1 at the epoch,
// since 0 is never.
func (b *Book[K]) since(t time.Time) int64 {
	epoch := b.epoch.Load()
	if epoch == nil {
		first := t // t itself stays off the heap
		b.epoch.CompareAndSwap(nil, &first)
		epoch = b.epoch.Load()
	}
	return int64(t.Sub(*epoch)) + 1
}

// Key returns what the cell is about.
func (c *Cell[K]) Key() K { return c.key }

// Troubled reports whether something bad is known, or was: without, successes say
// nothing.
func (c *Cell[K]) Troubled() bool { return c.troubled.Load() }

// Open is how many connections are open.
func (c *Cell[K]) Open() int { return int(c.open.Load()) }

// Begin opens a connection, and notes that an attempt starts. If that is a probe,
// which leaves the cell unusable for others, the caller calls Tell: watchers are
// not told here, so that one of them may call Begin.
func (c *Cell[K]) Begin(now time.Time) health.Attempt {
	c.open.Add(1)
	return c.Again(now)
}

// Again is Begin on a connection that is open already.
func (c *Cell[K]) Again(now time.Time) health.Attempt {
	if !c.troubled.Load() {
		return health.Attempt{}
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.tracker.Begin(struct{}{}, now)
}

// Close ends a connection that Begin opened.
func (c *Cell[K]) Close() {
	if c.open.Add(-1) > 0 {
		return
	}
	c.book.mu.Lock()
	if c.holders == 0 {
		c.book.marked[c.key] = c
		c.book.drop(c)
	}
	c.book.mu.Unlock()
}

// End takes in what came of an attempt. It returns an edge only if the cell went
// out or came back, and not when it stays out because a probe failed.
func (c *Cell[K]) End(a health.Attempt, o health.Outcome, reason string, now time.Time) health.Edge {
	return c.end(a, o, false, reason, now)
}

// Unanswered is End of an attempt that failed before the thing itself could say anything: what
// stands before it did not answer.
func (c *Cell[K]) Unanswered(a health.Attempt, reason string, now time.Time) health.Edge {
	return c.end(a, health.Failure, true, reason, now)
}

// UnansweredOnly reports whether it has failed since it last was good, and never otherwise than
// by [Cell.Unanswered].
func (c *Cell[K]) UnansweredOnly() bool {
	if !c.troubled.Load() {
		return false
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.unanswered && !c.refused
}

func (c *Cell[K]) end(a health.Attempt, o health.Outcome, unanswered bool, reason string, now time.Time) health.Edge {
	if !c.troubled.Load() && o != health.Failure {
		return health.NoEdge
	}
	c.mu.Lock()
	if c.tracker == nil {
		c.tracker = health.NewTracker[struct{}](c.book.config, c.book.jitter)
	}
	before := c.tracker.State(struct{}{}, now).Phase
	edge := c.tracker.End(struct{}{}, a, o, now)
	switch {
	case o == health.Failure:
		c.failed = now
		c.unanswered, c.refused = c.unanswered || unanswered, c.refused || !unanswered
	case o == health.Success && c.tracker.State(struct{}{}, now).Phase == health.Healthy: // else it began before the ejection
		c.unanswered, c.refused = false, false
	}
	return c.turned(before, edge, reason, now)
}

// Fail takes in a failure that was seen outside of any attempt.
func (c *Cell[K]) Fail(reason string, now time.Time) health.Edge {
	return c.End(c.Again(now), health.Failure, reason, now)
}

// Readmit takes in evidence from elsewhere that it works now.
func (c *Cell[K]) Readmit(reason string, now time.Time) health.Edge {
	if !c.troubled.Load() {
		return health.NoEdge
	}
	c.mu.Lock()
	before := c.tracker.State(struct{}{}, now).Phase
	edge := c.tracker.Readmit(struct{}{}, now)
	c.unanswered, c.refused = false, false
	return c.turned(before, edge, reason, now)
}

// turned ends a change: the caller holds mu, which is released.
func (c *Cell[K]) turned(before health.Phase, edge health.Edge, reason string, now time.Time) health.Edge {
	if edge == health.EdgeEjected && before != health.Healthy {
		edge, c.last.Reason = health.NoEdge, reason // a probe failed: it stays out
	} else if edge != health.NoEdge {
		c.last = Turn{At: now, Out: edge == health.EdgeEjected, Reason: reason}
	}
	bad := c.tracker.Len() > 0
	was := c.troubled.Swap(bad)
	c.mu.Unlock()
	if bad && !was {
		c.book.mark(c)
	}
	if bad || was {
		c.Tell(now)
	}
	return edge
}

// forget drops what is known; cleared if that was something.
func (c *Cell[K]) forget() (cleared bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.tracker != nil {
		c.tracker.Forget(struct{}{})
	}
	c.last, c.failed = Turn{}, time.Time{}
	c.unanswered, c.refused = false, false
	c.answered.Store(0)
	return c.troubled.Swap(false)
}

// expire takes note that what was bad has been forgiven by time.
func (c *Cell[K]) expire(now time.Time) {
	if !c.troubled.Load() {
		return
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	c.tracker.State(struct{}{}, now)
	if c.tracker.Len() == 0 {
		c.troubled.Store(false)
		c.unanswered, c.refused = false, false
	}
}

// Score returns how the cell counts now.
func (c *Cell[K]) Score(now time.Time) Score {
	if !c.troubled.Load() {
		return Score{Weight: 1, Usable: true}
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	return Score{Weight: c.tracker.Weight(struct{}{}, now), Faint: c.tracker.Faint(struct{}{}), Usable: c.tracker.Usable(struct{}{}, now), Next: c.tracker.Next(struct{}{}, now)}
}

// State returns what is known, and the last edge.
func (c *Cell[K]) State(now time.Time) (health.State, Turn) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.tracker == nil {
		return health.State{Health: 1}, c.last
	}
	return c.tracker.State(struct{}{}, now), c.last
}

// Failed returns when it last failed; zero if it never did.
func (c *Cell[K]) Failed() time.Time {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.failed
}

// Watch has w told of changes until Unwatch.
func (c *Cell[K]) Watch(w Watcher) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.watchers = append(c.watchers[:len(c.watchers):len(c.watchers)], w)
}

// Unwatch ends Watch.
func (c *Cell[K]) Unwatch(w Watcher) {
	c.mu.Lock()
	defer c.mu.Unlock()
	var left []Watcher
	for _, x := range c.watchers {
		if x != w {
			left = append(left, x)
		}
	}
	c.watchers = left
}

// Tell tells the watchers that c says something else.
func (c *Cell[K]) Tell(now time.Time) {
	c.mu.Lock()
	watchers := c.watchers
	c.mu.Unlock()
	for _, w := range watchers {
		w.Changed(now)
	}
}
