// Package acceptqueue tells an application that no longer accepts connections from one
// that is slow, by what the kernel says of its listener's accept queue. It is pure:
// time and what was seen are arguments.
//
// The length of a queue alone does not say it: one that never gets shorter may be
// emptied as fast as it is filled. So lengths only raise a suspicion, for nothing, and two
// censuses settle it: the same connections are waiting, and the queue has grown by
// as many as are new, so nobody was accepted in between. [Queue] says Stalled only then;
// what could still deceive it are clients that connect and reset between the two, each
// of which can hide one accept.
//
// A stall ends by draining: the kernel goes on completing handshakes until the queue is
// full, so that a connect says nothing. An application that serves one connection
// after the other also stops accepting now and then. What it has once recovered from is waited for
// twice as long the next time; see [Queue.Patience].
package acceptqueue

import "time"

const (
	// Stall is how long a queue must not drain, at first.
	Stall = 250 * time.Millisecond
	// LongestStall bounds what is waited for after stalls that ended by themselves.
	LongestStall = 2 * time.Second
	// Memory is how long a stall that ended by itself is remembered.
	Memory = time.Minute
	// fullShare is the part of these two which a full queue must not drain: whoever
	// comes then is dropped, and tries again after a second.
	fullShare = 5
)

// Verdict is what a look or a census leads to.
type Verdict uint8

// Verdicts.
const (
	Nothing  Verdict = iota
	Count            // a census is due, now
	Stalled          // nobody is accepted any more
	Drained          // a stalled queue drains again
	Replaced         // a stalled queue is gone: another listener is there
)

// Look is what one exact query says of a listener.
type Look struct {
	Cookie         uint64
	Queue, Backlog uint32
	// Wanted says that somebody's connect has had no answer for a while.
	Wanted bool
}

// Census says who waits in the queues of all listeners that share one address.
type Census struct {
	Before, After map[uint64]uint32   // length of each queue, by cookie: before and after Waiting was taken
	Waiting       map[uint64]struct{} // cookies of connections that nobody has accepted: all of these, and perhaps others
}

// Queue is the accept queue of one listener. The zero value has seen nothing. Not safe
// for concurrent use.
type Queue struct {
	cookie uint64
	last   uint32 // length at the last look

	// A spell is time in which the queue was never seen empty or shorter than before.
	since time.Time // zero: none
	base  uint32    // length at its start
	first *Census
	taken time.Time // first

	stalled bool
	held    uint32 // length when it stalled

	patience time.Duration // learnt; zero: none
	learnt   time.Time
}

// Stalled says whether the last verdict of consequence was that.
func (q *Queue) Stalled() bool { return q.stalled }

// Empty says whether the last look saw nothing in the queue.
func (q *Queue) Empty() bool { return q.last == 0 }

// Patience is how long the queue must not drain to be called stalled: Stall, or twice
// as long as the last stall that ended by itself within Memory, and at most LongestStall. A full queue
// is given a fifth of these bounds.
func (q *Queue) Patience(now time.Time, full bool) time.Duration {
	least, most := Stall, LongestStall
	if full {
		least, most = Stall/fullShare, LongestStall/fullShare
	}
	if q.patience == 0 || now.Sub(q.learnt) >= Memory {
		return least
	}
	return min(max(q.patience, least), most)
}

// Look takes in one look. After Count the caller calls Census at once.
func (q *Queue) Look(now time.Time, l Look) Verdict {
	if l.Cookie != q.cookie {
		was := q.stalled
		*q = Queue{cookie: l.Cookie}
		if was {
			q.last = l.Queue
			return Replaced
		}
	}
	shorter := l.Queue < q.last
	q.last = l.Queue
	switch {
	case q.stalled:
		return q.drained(now)
	case l.Queue == 0:
		q.end()
		return Nothing
	case q.since.IsZero(), shorter:
		q.begin(now)
	}
	full := l.Wanted && l.Queue > l.Backlog
	wait := q.Patience(now, full)
	apart := wait * 2 / 5 // the census that a stall is proven from
	switch lasted := now.Sub(q.since); {
	case q.first == nil:
		if lasted >= apart {
			return Count
		}
	case lasted >= wait && now.Sub(q.taken) >= apart && (full || l.Queue > q.base):
		return Count
	}
	return Nothing
}

// Interrupt forgets a suspicion: what was seen meanwhile may have had another cause.
func (q *Queue) Interrupt() { q.end() }

func (q *Queue) begin(now time.Time) { q.since, q.base, q.first = now, q.last, nil }

func (q *Queue) end() { q.since, q.first = time.Time{}, nil }

// drained says whether a stalled queue has become so much shorter that it is one no
// more. Half is more than what an application that takes one connection a second does
// at once.
func (q *Queue) drained(now time.Time) Verdict {
	if q.last > q.held/2 {
		return Nothing
	}
	q.patience, q.learnt, q.stalled = 2*now.Sub(q.since), now, false
	q.end()
	return Drained
}

// Census takes in one that Look has asked for.
func (q *Queue) Census(now time.Time, c Census) Verdict {
	if q.since.IsZero() || q.stalled {
		return Nothing
	}
	if q.first != nil && stuck(*q.first, c) {
		q.stalled, q.held, q.first = true, q.last, nil
		return Stalled
	}
	if q.first != nil || !everyWaits(c) {
		q.begin(now)
	}
	q.first, q.taken = &c, now
	return Nothing
}

// everyWaits says whether there is somebody in each queue. Where processes share a port
// (SO_REUSEPORT) one that is empty may be that of a process that accepts.
func everyWaits(c Census) bool {
	for _, n := range c.After {
		if n == 0 {
			return false
		}
	}
	return len(c.After) > 0 && len(c.Waiting) > 0
}

// stuck says whether nobody was accepted between two censuses. With a arrivals and e
// accepted the queues grow by a-e. Whoever has waited since the first census has
// been passed by nobody, so all who arrived and live are among those that are new: a is
// at most their number, and e at most that less the growth.
func stuck(first, second Census) bool {
	if !everyWaits(first) || !everyWaits(second) || len(first.After) != len(second.Before) {
		return false
	}
	before, after := 0, 0
	for cookie, n := range first.After {
		now, ok := second.Before[cookie]
		if !ok || now < n {
			return false
		}
		before, after = before+int(n), after+int(now)
	}
	fresh, stayed := 0, false
	for cookie := range second.Waiting {
		if _, ok := first.Waiting[cookie]; ok {
			stayed = true
		} else {
			fresh++
		}
	}
	return stayed && after-before >= fresh
}
