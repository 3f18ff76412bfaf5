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
	done     int     // with success, in as many ticks
	justDone int     // in the last soon of them
	now      uint64  // tick
	lately   float64 // begun in the last second
	tried    float64 // of those that may not wait, likewise
	ticks    *spans  // nil: nothing was counted yet
}

// spans are the ticks of the time of hanging.
type spans [hanging / tick]counts

// counts are those of one tick.
type counts struct{ underWay, begun, failed, done int }

// soon is how many ticks tell of a rate that has just risen.
const soon = 10

func (r *recent) begin() (tick uint64) {
	r.underWay++
	r.lately++
	t := r.at(r.now)
	t.underWay++
	t.begun++
	return r.now
}

// end is called with what begin returned.
func (r *recent) end(tick uint64, success bool) {
	if success {
		r.done++
		r.justDone++
		r.at(r.now).done++
	}
	if r.now-tick >= uint64(len(r.ticks)) {
		return // it counts no more
	}
	t := r.at(tick)
	t.underWay--
	r.underWay--
	if !success {
		t.failed++
	}
}

// begun is how many pieces began in this tick.
func (r *recent) begun() int { return r.at(r.now).begun }

// rate is how many pieces a second have been done lately, by the last second or the last
// 200 ms, whichever is more.
func (r *recent) rate() float64 {
	return max(float64(r.done)/hanging.Seconds(), float64(r.justDone)/(soon*tick).Seconds())
}

// step begins the next tick.
func (r *recent) step() {
	r.now++
	r.lately -= r.lately / float64(len(r.ticks))
	r.tried -= r.tried / float64(len(r.ticks))
	if r.now >= soon {
		r.justDone -= r.at(r.now - soon).done
	}
	t := r.at(r.now)
	r.underWay -= t.underWay
	r.done -= t.done
	*t = counts{}
}

func (r *recent) at(tick uint64) *counts {
	if r.ticks == nil {
		r.ticks = &spans{}
	}
	return &r.ticks[tick%uint64(len(r.ticks))]
}
