package health

import (
	"strconv"
	"time"

	"github.com/isthmus-mesh/isthmus/mesh"
)

// Key names what fails alone inside one network: one workload on one target
// port. Counters are never shared between ports.
type Key struct {
	Endpoint mesh.EndpointID
	Port     uint16 // the port of the application, not of the service
}

// Outcome is what one connection attempt says about its key.
type Outcome uint8

const (
	Success Outcome = iota
	Failure         // refused, reset, timed out
	// Neutral says nothing: the client left, a policy denied, we drained. It
	// moves no number and gives a probe token back.
	Neutral
)

func (o Outcome) String() string { return name(o, "success", "failure", "neutral") }

// Phase is what the breaker thinks of a key.
type Phase uint8

const (
	Healthy Phase = iota
	Ejected       // left out until State.Until
	Probing       // the wait is over; one attempt at a time may try
)

func (p Phase) String() string { return name(p, "healthy", "ejected", "probing") }

// Edge is a change that others are told of.
type Edge uint8

const (
	NoEdge      Edge = iota
	EdgeEjected      // also when a probe failed: the ejection goes on, longer
	EdgeReadmitted
)

func (e Edge) String() string { return name(e, "none", "ejected", "readmitted") }

func name[T ~uint8](v T, names ...string) string {
	if int(v) < len(names) {
		return names[v]
	}
	return "unknown(" + strconv.Itoa(int(v)) + ")"
}

// State is what a Tracker knows of one key. A key that was never seen is
// State{Health: 1}.
type State struct {
	Health float64 // moving average of outcomes, in (0, 1]; 1 if EWMA is off
	Phase  Phase
	Until  time.Time // end of the wait; zero unless Ejected or Probing
	// Ejections sets the price of the next ejection. It falls by one for each
	// base backoff spent healthy, and grows no further than where the price
	// reaches its limit.
	Ejections   int
	Consecutive int // failures since the last success
}

// Attempt is one connection attempt from Begin to End. It is comparable; the
// zero value is older than every ejection and readmission.
type Attempt struct {
	begun uint64 // Tracker.changes at Begin
	token uint64 // the probe token it holds, or 0
}

// Probe reports whether this attempt is the one probe of an ejected key.
func (a Attempt) Probe() bool { return a.token != 0 }
