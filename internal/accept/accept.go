// Package accept is what accept loops do when Accept fails for want of descriptors
// or memory: wait a little, longer each time, and say so now and then.
package accept

import (
	"time"

	"github.com/rs/zerolog"

	"github.com/isthmus-mesh/isthmus/internal/backoff"
)

// pauses is how long a loop waits: what frees descriptors are connections that end.
var pauses = backoff.Backoff{First: 5 * time.Millisecond, Limit: time.Second}

// every is how often a loop that goes on failing says so.
const every = 10 * time.Second

// Failures are those of one accept loop. The zero value is ready to use, by the
// loop's goroutine alone.
type Failures struct {
	inARow, untold int
	told           time.Time
}

// Failed notes one at now, logs err with what log has, at most once in ten seconds,
// and returns how long to wait until the next Accept.
func (f *Failures) Failed(log zerolog.Logger, err error, now time.Time) time.Duration {
	f.inARow++
	f.untold++
	if f.told.IsZero() || now.Sub(f.told) >= every {
		log.Warn().Err(err).Int("times", f.untold).Msg("accept failed")
		f.untold, f.told = 0, now
	}
	return pauses.Next(f.inARow)
}

// Succeeded notes that Accept works again.
func (f *Failures) Succeeded() { f.inARow = 0 }
