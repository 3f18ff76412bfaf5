package picker

import (
	"sync"
	"sync/atomic"
	"time"

	"github.com/isthmus-mesh/isthmus/internal/answer"
)

// maxAttempts is how many things one book of attempts remembers failures of.
const maxAttempts = 256

// attempts remembers, of each thing, what failed there since something succeeded, also
// when that is held against nobody. It is for people; nothing is decided by it. The
// zero value is empty. Safe for concurrent use.
type attempts[K comparable] struct {
	some atomic.Bool // of is not empty: while nothing fails, successes cost no lock

	mu sync.Mutex
	of map[K]answer.Attempts
}

// failed counts one more; of too many, the one that failed longest ago is forgotten.
func (a *attempts[K]) failed(k K, o Outcome, now time.Time) {
	a.mu.Lock()
	defer a.mu.Unlock()
	x, known := a.of[k]
	if !known && len(a.of) >= maxAttempts {
		a.forgetOldest()
	}
	if a.of == nil {
		a.of = map[K]answer.Attempts{}
	}
	a.of[k] = answer.Attempts{Times: x.Times + 1, Reason: o.Reason, Error: o.Error, Last: now, Fault: o.Fault}
	a.some.Store(true)
}

func (a *attempts[K]) forgetOldest() {
	var oldest K
	first := time.Time{}
	for k, x := range a.of {
		if first.IsZero() || x.Last.Before(first) {
			oldest, first = k, x.Last
		}
	}
	delete(a.of, oldest)
}

func (a *attempts[K]) succeeded(k K) {
	if a.some.Load() {
		a.retain(func(x K) bool { return x != k })
	}
}

// retain forgets those that keep rejects.
func (a *attempts[K]) retain(keep func(K) bool) {
	a.mu.Lock()
	defer a.mu.Unlock()
	for k := range a.of {
		if !keep(k) {
			delete(a.of, k)
		}
	}
	a.some.Store(len(a.of) > 0)
}

// get returns what failed at k; nil: nothing since it succeeded.
func (a *attempts[K]) get(k K) *answer.Attempts {
	a.mu.Lock()
	defer a.mu.Unlock()
	x, ok := a.of[k]
	if !ok {
		return nil
	}
	return &x
}

// remember takes in for people what came of c.
func (p *Picker) remember(c *Choice, o Outcome, now time.Time) {
	if c.gate != nil {
		p.reached(c, o, now)
	}
	switch failed := o.Reason != "" && !o.Left; {
	case c.gate == nil && failed:
		p.attempts.failed(c.cell.Key(), o, now)
	case failed:
		c.share.attempts.failed("", o, now)
		c.share.attempts.failed(c.Gateway.Name, o, now)
	case !c.opened:
	case c.gate == nil:
		p.attempts.succeeded(c.cell.Key())
	default:
		c.share.attempts.succeeded("")
		c.share.attempts.succeeded(c.Gateway.Name)
	}
}

// reached remembers for people whether c has reached its gateway.
func (p *Picker) reached(c *Choice, o Outcome, now time.Time) {
	switch {
	case o.Reason != "" && o.At == AtGateway && !o.Left:
		p.unreached.failed(c.gate.key, o, now)
	case c.opened && o.Reason == "", o.Responded:
		p.unreached.succeeded(c.gate.key)
	}
}

// Unreached is what failed last on the way to the gateway of key since it was reached, by
// whatever service, or a question of our own; nil: nothing.
func (p *Picker) Unreached(key string) *answer.Attempts { return p.unreached.get(key) }
