package flow

import "time"

// A stream's window bounds what its peer may have sent and its reader has not
// taken. A large one keeps a long path full; but on a shared session everything
// in it lies in front of other streams' small messages. So a stream starts with
// a first window and has all of its window from its first credit on, on a long path
// from the start, as long as nobody sends small messages beside it. Beside those it
// has what the path needs, at least SharedWindow.
const (
	// SharedWindow is the least window of a stream beside small messages, in bytes.
	SharedWindow = 256 << 10
	// pathFactor is how many times the bytes of one round trip a window holds
	// beside small messages: with two, a sender that only the window limits
	// doubles what it sends with each round trip.
	pathFactor = 2
	// rateStep is how many bytes a reader takes between two looks at the clock.
	rateStep = 64 << 10
	// LongPath is the round trip from which on a stream has its whole window at
	// once: an object of a few MiB would pay one more round trip for less, and what
	// the path holds is more than what the window keeps from small messages.
	LongPath = 5 * time.Millisecond
)

// Path is what is known of the way to the peer, and of what shares it.
type Path struct {
	RTT         time.Duration // zero: not known
	Interactive bool          // small messages pass beside this
}

// Window is the receive window of a stream. Always
//
//	Avail + Unacked + what is received and not consumed == Size
//
// Not safe for concurrent use.
type Window struct {
	Avail   int       // left to the peer
	Size    int       // what it may have sent ahead of the reader
	Unacked int       // consumed and not credited
	since   time.Time // when taken was zero
	taken   int       // consumed since then
	path    int       // what the path needs; zero: not known
}

// Init makes all of size available.
func (w *Window) Init(size int) { w.Avail, w.Size = size, size }

// Consumed notes that n bytes were read. When it returns true Credit is worth a
// call: so often that small reads do not look at the clock.
func (w *Window) Consumed(n int) bool {
	w.Unacked += n
	w.taken += n
	return w.Unacked >= w.Size/4 || w.taken >= rateStep
}

// Credit returns how many bytes of window the peer is to be told of, and resizes
// the window, which may have most bytes: nothing until that is a quarter of the
// window, so that credit is not given in crumbs.
func (w *Window) Credit(now time.Time, p Path, most int) (due int) {
	limit := w.limit(now, p, most)
	due = w.Unacked + limit - w.Size
	if due < limit/4 {
		return 0
	}
	w.Unacked = 0
	w.Size = limit
	w.Avail += due
	return due
}

// limit is how large the window is to be now.
func (w *Window) limit(now time.Time, p Path, most int) int {
	if p.RTT == 0 || !p.Interactive {
		w.taken, w.path = 0, 0
		return most
	}
	if w.path == 0 {
		w.path, w.since, w.taken = w.Size/pathFactor, now, 0
	}
	if d := now.Sub(w.since); d >= p.RTT {
		w.path = int(float64(w.taken) * float64(p.RTT) / float64(d))
		w.since, w.taken = now, 0
	}
	return min(max(SharedWindow, pathFactor*w.path), most)
}

// FirstWindow is the window of a new stream that starts with first and may have
// most bytes.
func FirstWindow(rtt time.Duration, first, most int) int {
	if rtt >= LongPath {
		return most
	}
	return first
}

// RTT returns the round trip to believe in after one that took d: the shortest
// counts, as longer ones were spent in queues, until longer ones are all that there
// is.
func RTT(old, d time.Duration) time.Duration {
	if old > 0 && d > old {
		d = old + (d-old)/8
	}
	return max(d, 1)
}
