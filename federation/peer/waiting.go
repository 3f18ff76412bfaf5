package peer

import (
	"time"

	"github.com/isthmus-mesh/isthmus/federation"
)

// Waiting is a record and since when it waits, which adds to its ages.
type Waiting struct {
	Record federation.Record
	Since  time.Time
}

// At returns the record with the time that it has waited added to its ages.
func (w Waiting) At(now time.Time) federation.Record {
	r := w.Record
	r.Age += now.Sub(w.Since)
	r.Silence += now.Sub(w.Since)
	return r
}
