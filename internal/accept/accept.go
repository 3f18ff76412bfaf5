// Package accept has what accept loops do when Accept fails for lack of descriptors or
// memory: pause, longer after each failure, and log now and then.
package accept

import (
	"time"

	"github.com/rs/zerolog"

	"github.com/isthmus-mesh/isthmus/internal/backoff"
	"github.com/isthmus-mesh/isthmus/internal/logging"
)

// pauses are the pauses of a loop: connections that end free descriptors.
var pauses = backoff.Backoff{First: 5 * time.Millisecond, Limit: time.Second}

// every is the time between two lines of a loop that keeps failing.
const every = 10 * time.Second

// Failures are those of one accept loop. The zero value is ready for use by the
// goroutine of the loop.
type Failures struct {
	inARow int
	lines  logging.PeerLimits
}

// Failed records a failure at now, logs err at most once in ten seconds, and returns the
// pause before the next Accept.
func (f *Failures) Failed(log zerolog.Logger, err error, now time.Time) time.Duration {
	f.inARow++
	f.lines.Every = every
	if n, ok := f.lines.Allow("", "", now); ok {
		logging.Suppressed(log.Warn(), n).Err(err).Msg("accept failed")
	}
	return pauses.Next(f.inARow)
}

// Succeeded records that Accept works again.
func (f *Failures) Succeeded() { f.inARow = 0 }
