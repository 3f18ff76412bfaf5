package pods

import (
	"errors"
	"os"
	"time"

	"github.com/isthmus-mesh/isthmus/internal/backoff"
	"github.com/isthmus-mesh/isthmus/mesh"
)

// lack is why a workload is not captured.
type lack struct {
	err   error
	since time.Time
	tries int
	again time.Time
}

// enterAgain are the tries of what could not be captured.
var enterAgain = backoff.Backoff{First: 250 * time.Millisecond, Limit: 10 * time.Second}

// due reports whether it is time to try a workload again.
func (c *Set) due(uid string, now time.Time) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	l := c.failing[uid]
	return l == nil || !now.Before(l.again)
}

// fail notes why a workload is not captured, and says it when that is news.
func (c *Set) fail(uid string, err error) {
	now := time.Now()
	c.mu.Lock()
	l := c.failing[uid]
	news := l == nil || l.err.Error() != err.Error()
	if l == nil {
		l = &lack{since: now}
		c.failing[uid] = l
	}
	l.err = err
	l.tries++
	if errors.Is(err, errYounger) {
		l.tries = 1 // nothing is wrong, and nobody has it as soon as that one is killed
	}
	l.again = now.Add(enterAgain.Next(l.tries))
	c.mu.Unlock()
	var misnamed misnamedError
	if news && (errors.As(err, &misnamed) || !errors.Is(err, os.ErrNotExist)) && !errors.Is(err, errYounger) && !errors.Is(err, errStops) {
		c.p.Log.Error().Str("workload", uid).Err(err).Msg("cannot capture a local pod: it reaches nothing of the mesh")
	}
}

// forget drops what is known of workloads that are not here.
func (c *Set) forget(wanted map[string]*mesh.Workload) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.works.forget(func(uid string) bool { return wanted[uid] != nil })
	for uid := range c.failing {
		if wanted[uid] == nil {
			delete(c.failing, uid)
		}
	}
	for uid := range c.yielded {
		if wanted[uid] == nil {
			delete(c.yielded, uid)
		}
	}
}
