package overload

import (
	"math"
	"time"
)

const (
	// lately is for how many ticks a time counts.
	lately = 5
	// epoch is for how many ticks at least, and twice as many at most, a time counts as
	// one that was taken without a queue.
	epoch = 250
	// queueing is how much longer than that openings may take, and half as long again
	// in any case.
	queueing = 50 * time.Millisecond
	// enough is from how many on openings tell of all.
	enough = 20
	// plenty is how many tell of it at once, though they succeeded in fewer ticks.
	plenty = 100
)

// low and mid are the quantiles that are compared. A queue moves both. The lowest alone
// would tell of how many there are, or of one pod that is near; the median alone of which
// half of them was chosen; and neither of pods that are slow.
const (
	low = 0.1
	mid = 0.5
)

// times is how long openings took. It tells a queue that all of them stand in from some
// that are slow. The zero value knows none.
type times struct {
	clock  uint64        // ticks, as those of recent
	ticks  [lately]spent // by the tick in which they came to their end
	age    int           // of epochs[0], in ticks
	epochs [2]spent      // this one and the one before, without what was bounded
	before cohort        // began before the trial that is under way
	within cohort        // and in it
}

// add notes an opening that has just succeeded.
func (t *times) add(took time.Duration, bounded bool) {
	t.at(t.clock).add(took)
	if !bounded {
		t.epochs[0].add(took)
	}
	begun := t.clock - min(t.clock, uint64(took/tick))
	t.before.add(begun, took)
	t.within.add(begun, took)
}

// failed notes that an opening failed that was begun then: it tells of no time.
func (t *times) failed(begun uint64) {
	t.before.failed(begun)
	t.within.failed(begun)
}

func (t *times) at(clock uint64) *spent { return &t.ticks[clock%lately] }

// recent is how long those took that succeeded lately.
func (t *times) recent() (all spent) {
	for i := range t.ticks {
		all.merge(&t.ticks[i])
	}
	return all
}

// slow reports whether those done lately have waited for others, to all appearance.
func (t *times) slow() bool {
	var r spent
	for i := uint64(0); i < lately && r.n < plenty; i++ {
		r.merge(t.at(t.clock + lately - i))
	}
	return t.late(r.quantile(low), r.quantile(mid))
}

// late reports whether these are quantiles of some that have waited.
func (t *times) late(l, m time.Duration) bool {
	if l == 0 || t.base(mid) == 0 {
		return false
	}
	most := max(queueing, t.base(low)/2)
	return l > t.base(low)+most && m > t.base(mid)+most
}

// base is that quantile of what openings take that wait for no other; 0: not known.
func (t *times) base(q float64) time.Duration {
	now, before := &t.epochs[0], &t.epochs[1]
	switch {
	case before.n == 0:
		return now.quantile(q)
	case now.n < enough:
		return before.quantile(q)
	}
	return min(now.quantile(q), before.quantile(q))
}

// step begins the next tick. What is taken while the work is bounded shows no time
// without a queue, unless it is shorter.
func (t *times) step(bounded bool) {
	if !bounded {
		if t.age++; t.age >= epoch {
			t.age = 0
			if t.epochs[0].n > 0 {
				t.epochs[1] = t.epochs[0]
			}
			t.epochs[0] = spent{}
		}
	} else if r := t.recent(); r.n >= enough && r.quantile(low) < t.base(low) && float64(r.quantile(mid)) < asSlow*float64(t.base(mid)) {
		t.relearn()
	}
	t.clock++
	*t.at(t.clock) = spent{}
}

// relearn takes the time of now for one without a queue.
func (t *times) relearn() { t.epochs, t.age = [2]spent{t.recent(), {}}, 0 }

// rest drops what counts for ticks only; no work is under way.
func (t *times) rest() { *t = times{age: t.age, epochs: t.epochs} }

// spent is a histogram of times in steps of a ninth, from a millisecond to four seconds.
type spent struct {
	n    int
	many [12 * perOctave]uint32
}

const perOctave = 8

func (s *spent) add(took time.Duration) {
	i := 0
	if ms := took.Seconds() * 1000; ms > 1 {
		i = min(int(perOctave*math.Log2(ms)), len(s.many)-1)
	}
	s.many[i]++
	s.n++
}

func (s *spent) merge(o *spent) {
	if o.n == 0 {
		return
	}
	s.n += o.n
	for i, n := range o.many {
		s.many[i] += n
	}
}

// quantile is 0 of none.
func (s *spent) quantile(q float64) time.Duration { return s.rank(q * float64(s.n)) }

// rank is the time that so many took at most; 0: there are not as many.
func (s *spent) rank(r float64) time.Duration {
	if s.n == 0 || r > float64(s.n) {
		return 0
	}
	for i, n := range s.many {
		if r > float64(n) || n == 0 {
			r -= float64(n)
			continue
		}
		ms := math.Exp2((float64(i) + r/float64(n)) / perOctave)
		return time.Duration(ms * float64(time.Millisecond))
	}
	return 0
}

// cohort is all that were begun in some ticks. Their quantiles are those of all, whoever
// of them is done: those that are done first are the fastest. The zero value is none.
type cohort struct {
	from, to uint64 // begun in [from, to)
	begun    int    // without those that failed
	took     spent  // of those that succeeded
}

func (c *cohort) has(begun uint64) bool { return begun >= c.from && begun < c.to }

func (c *cohort) add(begun uint64, took time.Duration) {
	if c.has(begun) {
		c.took.add(took)
	}
}

func (c *cohort) failed(begun uint64) {
	if c.has(begun) {
		c.begun--
	}
}

// quantile is how long so large a part of them took at most; 0: too few are done.
func (c *cohort) quantile(q float64) time.Duration { return c.took.rank(q * float64(c.begun)) }
