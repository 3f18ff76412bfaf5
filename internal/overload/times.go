package overload

import "time"

const (
	// lately is for how many ticks a time counts.
	lately = 5
	// epoch is for how many ticks at least, and twice as many at most, a time counts as
	// one that was taken without a queue.
	epoch = 250
	// queueing is how much longer than that the fastest may take, and half as long again
	// in any case.
	queueing = 50 * time.Millisecond
)

// times is how long pieces of work took. It tells a queue that all of them stand in from
// some that are slow: by the fastest of them lately, as CoDel does (RFC 8289, section
// 3.2). The zero value knows none.
type times struct {
	ticks  [lately]time.Duration // the fastest of each; 0: none
	now    int
	age    int              // of epochs[0], in ticks
	epochs [2]time.Duration // the fastest of this one and the one before; 0: none
}

// add notes a piece that is done.
func (t *times) add(took time.Duration) {
	took = max(took, 1)
	t.ticks[t.now] = fastest(t.ticks[t.now], took)
}

// slow reports whether even the fastest of those done lately has waited.
func (t *times) slow() bool {
	f, base := t.fastest(), t.base()
	return f != 0 && base != 0 && f > base+max(queueing, base/2)
}

// base is how long a piece takes that waits for no other; 0: not known.
func (t *times) base() time.Duration { return fastest(t.epochs[0], t.epochs[1]) }

// step begins the next tick. What is taken while the work is bounded shows no time
// without a queue, unless it is shorter than any.
func (t *times) step(bounded bool) {
	if f := t.fastest(); f != 0 && (!bounded || f < t.base()) {
		t.epochs[0] = fastest(t.epochs[0], f)
	}
	if !bounded {
		if t.age++; t.age >= epoch {
			t.epochs, t.age = [2]time.Duration{0, t.epochs[0]}, 0
		}
	}
	t.now = (t.now + 1) % lately
	t.ticks[t.now] = 0
}

// relearn takes the time of now for one without a queue.
func (t *times) relearn() { t.epochs, t.age = [2]time.Duration{t.fastest(), 0}, 0 }

// fastest is that of those done lately; 0: none.
func (t *times) fastest() time.Duration { return t.fastestOf(lately) }

// fastestOf is that of the last n ticks.
func (t *times) fastestOf(n int) (f time.Duration) {
	for i := range n {
		f = fastest(f, t.ticks[(t.now-i+lately)%lately])
	}
	return f
}

// fastest is the smaller one; 0 is none.
func fastest(a, b time.Duration) time.Duration {
	if a == 0 || b != 0 && b < a {
		return b
	}
	return a
}
