package overload

import "time"

// Parameters of a trial.
const (
	// part of what is under way stays so in a trial.
	part = 0.6
	// asSlow is the share of its delay that even the fastest still has when it did not
	// wait for those that are no longer under way.
	asSlow = 0.9
	// betweenTrials is from the end of one until the next while all are slow.
	betweenTrials = time.Second
	// longestTrial is when one is given up that shows nothing, as everything hangs.
	longestTrial = 2 * hanging
)

// trial finds out why even the fastest are slow: a queue becomes shorter when fewer are
// under way, and a way that is longer than it was, since a failover to another region
// perhaps, does not. The zero value has not begun.
type trial struct {
	running bool
	window  float64
	lasted  time.Duration // since it began, or ended
	settled time.Duration // since no more than the window were under way
	slowest time.Duration // that the fastest of three ticks became; what was under way at first shows late
}

// verdict is what a trial shows.
type verdict uint8

const (
	open   verdict = iota // nothing yet
	queue                 // fewer at once are served sooner
	longer                // they are not: it is the way
)

// begin starts a trial with so many under way.
func (t *trial) begin(underWay int) {
	*t = trial{running: true, window: part * float64(underWay)}
}

// due reports whether it is time for one.
func (t *trial) due() bool { return !t.running && (t.window == 0 || t.lasted >= betweenTrials) }

// step is called every tick, and ends the trial when there is a verdict. Three ticks are
// enough not to take the stragglers of a burst for everybody, and few beside a queue that grows.
func (t *trial) step(underWay int, took *times) verdict {
	t.lasted += tick
	if !t.running {
		return open
	}
	t.slowest = max(t.slowest, took.fastestOf(3))
	if t.settled > 0 || float64(underWay) <= t.window+floor {
		t.settled += tick
	}
	// Then the newest of those lately began when the window was kept.
	ripe := t.settled > t.slowest+2*tick
	switch {
	case ripe && took.fastest() > 0:
		t.running, t.lasted = false, 0
		base := took.base()
		if float64(took.fastest()-base) > asSlow*float64(t.slowest-base) {
			return longer
		}
		return queue
	case t.lasted >= longestTrial:
		t.running, t.lasted = false, 0
	}
	return open
}
