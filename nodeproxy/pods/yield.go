package pods

import (
	"fmt"
	"time"
)

// yielding is that a pod is left to another node proxy.
type yielding struct {
	since time.Time
	seen  time.Time // when it was so last
	said  bool
}

// yieldEvery is how often pods that are left to another node proxy are looked at, whether they are still: nothing in them
// changes when that ends.
const yieldEvery = 2 * time.Second

// yieldsStill reports whether it is time to see whether a pod is still left to another node proxy.
func (c *Set) yieldsStill(uid string, now time.Time) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	y := c.yielded[uid]
	return y != nil && now.Sub(y.seen) >= yieldEvery
}

// yields notes whether a pod is left to another node proxy. For longer than that has to take over that is said.
func (c *Set) yields(uid string, to bool) {
	c.mu.Lock()
	if c.yielded == nil {
		c.yielded = map[string]*yielding{}
	}
	y := c.yielded[uid]
	switch {
	case !to:
		delete(c.yielded, uid)
	case y == nil:
		y = &yielding{since: time.Now()}
		c.yielded[uid] = y
	}
	if to {
		y.seen = time.Now()
	}
	say := to && !y.said && c.long(y, time.Now())
	if say {
		y.said = true
	}
	c.mu.Unlock()
	if say {
		c.p.Log.Warn().Str("workload", uid).Dur("after", c.cfg.Drain).Msg("a pod is left to another node proxy for longer than an upgrade takes (timeouts.drain): " + yieldRemedy)
	}
}

func (c *Set) long(y *yielding, now time.Time) bool {
	return now.Sub(y.since) > c.cfg.Drain
}

const yieldRemedy = "run one node proxy on a node; if this one is alone there, a process of that pod pretends to be one"

// yieldedLong says that a pod is left to another node proxy for longer than an upgrade takes; "" if not. The caller holds mu.
func (c *Set) yieldedLong(uid string, now time.Time) string {
	y := c.yielded[uid]
	if y == nil || !c.long(y, now) {
		return ""
	}
	return fmt.Sprintf("another node proxy, which began later, has captured it for %v: %s", now.Sub(y.since).Round(time.Second), yieldRemedy)
}
