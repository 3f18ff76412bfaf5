package overload

import "time"

// Parameters of a trial.
const (
	// part of what is under way stays so in a trial.
	part = 0.6
	// asSlow is the part of what openings took before the trial that they take in it all
	// the same if there is no queue. Of a queue it is part: as many are served as before,
	// so each takes as much less time as fewer are under way (Little's law).
	asSlow = 0.85
	// gathering is how many ticks those are begun in that are compared: until there are
	// as many; in the trial until there are enough, and no longer than longestGathering.
	many             = 40
	gathering        = 5
	longestGathering = 25
	// betweenTrials is from the end of one until the next while all are slow. Twice as
	// long after each further one without a gain, up to mostBetween.
	betweenTrials = time.Second
	mostBetween   = time.Minute
	// longestTrial is when one is given up that shows nothing, as everything hangs.
	longestTrial = 2 * hanging
)

// trial finds out why openings are slow: a queue becomes shorter when fewer are under
// way, and a way that is longer than it was, since a failover to another region
// perhaps, does not. It compares those that were begun just before with those that were
// begun when no more than the window were under way. The zero value has not begun.
type trial struct {
	running bool
	settled bool // no more than the window are under way
	closed  bool // those begun in it are gathered
	window  float64
	lasted  time.Duration // since it began, or ended
	vain    int           // those without a gain in succession
	proved  bool          // the one before showed a queue
	bounded bool          // before it began
}

// verdict is what a trial shows.
type verdict uint8

const (
	open     verdict = iota // nothing yet
	queue                   // fewer at once are served sooner
	longer                  // they are not: it is the way
	doubtful                // they are not, and there was a queue just before: another one is to show it
	none                    // those begun just before the trial were not late any more
)

// due reports whether it is time for one.
func (t *trial) due(bounded bool) bool {
	switch {
	case t.running:
		return false
	case t.vain > 0:
		return t.lasted >= t.pause()
	}
	return !bounded || t.lasted >= betweenTrials
}

// pause is how long no trial begins after some in vain: none after the first.
func (t *trial) pause() time.Duration {
	if t.vain < 2 {
		return 0
	}
	return min(betweenTrials<<min(t.vain-2, 10), mostBetween)
}

// begin starts a trial.
func (t *trial) begin(r *recent, took *times, bounded bool) {
	*t = trial{running: true, window: part * float64(r.underWay), vain: t.vain, proved: t.proved && bounded, bounded: bounded}
	took.within = cohort{}
	took.before = r.lastBegun(took)
}

// lastBegun are those begun in the last ticks, of which each in a queue that grows waits
// longer than the one before, or that succeeded then if few were begun.
func (r *recent) lastBegun(took *times) cohort {
	c := cohort{from: r.now + 1, to: r.now + 1}
	for c.begun < many && c.to-c.from < gathering && c.from > 0 {
		c.from--
		c.begun += r.at(c.from).begun - r.at(c.from).failed
	}
	for at := c.from; at < c.to; at++ {
		for i, n := range took.at(at).many {
			one := spent{n: int(n)}
			one.many[i] = n
			if long := one.quantile(mid); n > 0 && at-min(at, uint64(long/tick)) >= c.from {
				c.took.merge(&one)
			}
		}
	}
	if c.begun < enough {
		all := took.recent()
		return cohort{begun: all.n, took: all}
	}
	return c
}

// step is called every tick, and ends the trial when there is a verdict.
func (t *trial) step(r *recent, took *times) verdict {
	t.lasted += tick
	if !t.running {
		if t.lasted >= 2*mostBetween {
			t.vain = 0
		}
		return open
	}
	t.gather(r, &took.within)
	v := t.judge(r.now, took)
	if v == open && t.lasted < longestTrial {
		return open
	}
	t.running, t.lasted = false, 0
	if v == longer && t.proved {
		v = doubtful
	}
	t.proved = v == queue || (v == open || v == none) && t.proved
	switch {
	case v == longer, v == doubtful, v == none && !t.bounded:
		t.vain++
	case v == queue:
		t.vain = 0
	}
	return v
}

// gather counts those that are begun in the trial.
func (t *trial) gather(r *recent, c *cohort) {
	switch {
	case t.closed:
	case t.settled:
		c.begun += r.begun()
		n := r.now + 1 - c.from
		if t.closed = n >= gathering && c.begun >= enough || n >= longestGathering; t.closed {
			c.to = r.now + 1
		}
	case float64(r.underWay) <= t.window+floor:
		t.settled = true
		*c = cohort{from: r.now + 1, to: 1<<64 - 1}
	}
}

// judge compares those begun before the trial with those begun in it.
func (t *trial) judge(now uint64, took *times) verdict {
	if m := took.before.quantile(mid); m > 0 && !took.late(took.before.quantile(low), m) {
		return none
	}
	if !t.closed {
		return open
	}
	sooner := 0
	for _, q := range []float64{low, mid} {
		before, within := took.before.quantile(q), took.within.quantile(q)
		if before == 0 || took.within.begun == 0 {
			continue
		}
		least := within
		if within == 0 { // longer than any of them has been under way
			least = time.Duration(now-took.within.to) * tick
		}
		if float64(least) > asSlow*float64(before) {
			return longer
		}
		if within > 0 {
			sooner++
		}
	}
	if sooner == 2 || sooner > 0 && t.lasted >= longestTrial {
		return queue
	}
	return open
}
