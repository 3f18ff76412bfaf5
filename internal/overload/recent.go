package overload

import "time"

// hanging is how long a piece of work is under way until it counts no more: whatever
// it waits for then, processors it is not. It is longer than what is admitted waits
// while the control loop finds its window.
const hanging = time.Second

// recent counts the pieces of work under way that began within the time of hanging,
// by the tick in which they did.
type recent struct {
	underWay int
	now      uint64 // tick
	ticks    [hanging / tick]struct{ underWay, begun int }
}

func (r *recent) begin() (tick uint64) {
	r.underWay++
	t := &r.ticks[r.now%uint64(len(r.ticks))]
	t.underWay++
	t.begun++
	return r.now
}

// end is called with what begin returned.
func (r *recent) end(tick uint64) {
	if r.now-tick >= uint64(len(r.ticks)) {
		return // it counts no more
	}
	r.ticks[tick%uint64(len(r.ticks))].underWay--
	r.underWay--
}

// begun is how many pieces began in this tick.
func (r *recent) begun() int { return r.ticks[r.now%uint64(len(r.ticks))].begun }

// step begins the next tick.
func (r *recent) step() {
	r.now++
	t := &r.ticks[r.now%uint64(len(r.ticks))]
	r.underWay -= t.underWay
	t.underWay, t.begun = 0, 0
}
