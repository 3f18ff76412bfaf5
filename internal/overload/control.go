package overload

import "time"

// Parameters of the control loop.
const (
	tick = 20 * time.Millisecond
	// While late the window is shrink times what is under way, at most; otherwise
	// it grows by growth. It is never below leastWindow per processor.
	shrink      = 0.8
	growth      = 1.05
	leastWindow = 64
	// floor is how many pieces may begin in each tick whatever the window: those that
	// hang, and that nobody else's are to wait for, may fill it.
	floor = 2
	// quietBeforeRelease is how long nothing was held back until there is no bound any more.
	quietBeforeRelease = time.Second
)

// load is what the control loop sees at one tick.
type load struct {
	processors int
	late       bool    // new work takes too long, and less of it would help
	underWay   int     // pieces of new work, without those that hang
	rate       float64 // pieces a second that have come to their end with success, lately
	held       bool    // some were held back or refused since the last tick
	tried      bool    // the window is to stay: what it does is being watched
}

// control decides how much new work may be under way. The zero value has no bound.
// It is pure: time passes with step.
type control struct {
	// short is how long a piece may be under way without being late: the window is not
	// shrunk below what is done in that time, and nobody refused for a queue as short.
	short   time.Duration
	bounded bool
	window  float64
	quiet   time.Duration // how long nothing was held back
}

// least is how far the window is shrunk at most.
func (c *control) least(l load) float64 {
	return max(float64(leastWindow*l.processors), c.short.Seconds()*l.rate)
}

// step is called every tick.
func (c *control) step(l load) {
	if c.quiet += tick; l.held {
		c.quiet = 0
	}
	switch {
	case l.tried:
		c.quiet = 0
	case l.late:
		if !c.bounded {
			if l.underWay == 0 {
				return // it is somebody else's doing
			}
			c.bounded, c.window = true, float64(l.underWay)
		}
		// What is above the window was admitted before it was shrunk. Whether that was
		// enough is seen when it is gone.
		if n := float64(l.underWay); n <= c.window+floor {
			c.window = max(c.least(l), shrink*n)
		}
		c.quiet = 0
	case c.bounded && l.held:
		c.window = max(c.least(l), growth*c.window)
	case c.bounded && c.quiet >= quietBeforeRelease:
		c.bounded = false
	}
}

// room is how many more pieces may begin when n are under way, and begun of them
// have begun in this tick.
func (c *control) room(n, begun int) int {
	if !c.bounded {
		return 1 << 30
	}
	return max(int(c.window)-n, floor-begun)
}
