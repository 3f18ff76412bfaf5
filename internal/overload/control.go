package overload

import "time"

// Parameters of the control loop.
const (
	tick = 20 * time.Millisecond
	// A process is late when so many goroutines per processor want to run, and
	// waits for a processor lately took so long on average; or, as waits are known
	// only when they are over, when very many want to run.
	manyRunnable = 32
	longWait     = 10 * time.Millisecond
	veryMany     = 256
	// share is how many of those that want to run may belong to one piece of new
	// work: if there are more, it is not new work that makes the process late, and
	// less of it would not help.
	share = 4
	// While late the window is shrink times what is under way, at most; otherwise
	// it grows by growth. It is never below leastWindow per processor.
	shrink      = 0.8
	growth      = 1.05
	leastWindow = 16
	// floor is how many pieces may begin in each tick whatever the window: those that
	// hang, and that nobody else's are to wait for, may fill it.
	floor = 2
	// quietBeforeRelease is how long nothing was held back until there is no bound any more.
	quietBeforeRelease = time.Second
)

// load is what the control loop sees of a process at one tick.
type load struct {
	processors int
	runnable   int           // goroutines that want to run, now
	wait       time.Duration // mean wait for a processor, lately
	underWay   int           // pieces of new work, without those that hang
	held       bool          // some were held back since the last tick
}

// late reports whether the process has too little processor time for its new work.
func (l load) late() bool {
	many := l.runnable > manyRunnable*l.processors && l.wait > longWait || l.runnable > veryMany*l.processors
	return many && l.runnable < share*l.underWay
}

// control decides how much new work may be under way. The zero value has no bound.
// It is pure: time passes with step.
type control struct {
	bounded bool
	window  float64
	quiet   time.Duration // how long nothing was held back
}

// step is called every tick.
func (c *control) step(l load) {
	if c.quiet += tick; l.held {
		c.quiet = 0
	}
	least := float64(leastWindow * l.processors)
	switch {
	case l.late():
		if !c.bounded {
			c.bounded, c.window = true, float64(l.underWay)
		}
		c.window = max(least, shrink*min(c.window, float64(l.underWay)))
		c.quiet = 0
	case c.bounded && l.held:
		c.window = max(least, growth*c.window)
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
