package scenario

import (
	"fmt"
	"time"
)

// Surge is a span in which clients open more connections than before and
// after, whatever becomes of them. The zero value is none.
type Surge struct {
	At    time.Duration `yaml:"at" json:"at" doc:"start, from the first arrival"`
	Until time.Duration `yaml:"until" json:"until" doc:"end"`
	Rate  float64       `yaml:"rate" json:"rate" doc:"new connections per second during the surge, instead of traffic.rate; they are neither kept open nor aborted"`
}

// Limits of a surge: one process makes all of its connections, and may run out
// of neither descriptors nor ports.
const (
	maxSurgeRate = 20_000
	maxSurge     = 30 * time.Second
	maxSurgeOpen = 16_000 // connections that wait for an answer: rate times timeout
)

// Given reports whether the scenario has a surge.
func (g Surge) Given() bool { return g != Surge{} }

// Has reports whether a connection that is to begin at t belongs to the surge.
func (g Surge) Has(t time.Duration) bool { return t >= g.At && t < g.Until }

// Open is how many connections of the surge may wait for an answer at once.
func (t Traffic) Open() int { return int(t.Surge.Rate * t.Timeout.Seconds()) }

func (c *checker) surge() {
	t, g := c.s.Traffic, c.s.Traffic.Surge
	if !g.Given() && !c.doc.Has("traffic", "surge") {
		return
	}
	field := func(key string) []any { return []any{"traffic", "surge", key} }
	if g.At < minBaseline {
		c.fail(g.At, fmt.Sprintf("must be at least %v, so that there is a baseline", minBaseline), field("at")...)
	}
	switch {
	case g.Until <= g.At:
		c.fail(g.Until, fmt.Sprintf("must be after at (%v)", g.At), field("until")...)
	case g.Until-g.At > maxSurge:
		c.fail(g.Until, fmt.Sprintf("must be at most %v after at (%v)", maxSurge, g.At), field("until")...)
	case g.Until > c.s.Duration:
		c.fail(g.Until, fmt.Sprintf("is after the end of the drill: duration is %v", c.s.Duration), field("until")...)
	}
	switch {
	case !(g.Rate > t.Rate && g.Rate <= maxSurgeRate):
		c.fail(g.Rate, fmt.Sprintf("must be above traffic.rate (%g) and at most %d connections per second", t.Rate, maxSurgeRate), field("rate")...)
	case t.Open() > maxSurgeOpen:
		c.fail(g.Rate, fmt.Sprintf("with a timeout of %v up to %d connections wait for an answer at once; at most %d may: lower the rate or traffic.timeout", t.Timeout, t.Open(), maxSurgeOpen), field("rate")...)
	}
}
