package federation

import (
	"fmt"
	"math"
	"time"
)

// Limits of one record and of one message. They bound what a faulty or hostile
// member can make others keep.
const (
	MaxName       = 253  // bytes of a network, a service or a reason; an origin has two names
	MaxExceptions = 4096 // endpoints left out of one network service
	MaxRecords    = 50_000
	MaxMessage    = 8 << 20 // bytes

	// MaxAge is where ages stop growing on the wire.
	MaxAge = 30 * 24 * time.Hour

	// NoEvidence is the age of a summary that rests on silence alone, so that any
	// real evidence of a sibling gateway is younger. From here on an age tells
	// people nothing.
	NoEvidence = 24 * time.Hour
)

// InvalidError is a record that breaks a rule of its form.
type InvalidError struct {
	Field  string
	Value  any
	Remedy string
}

func (e *InvalidError) Error() string {
	return fmt.Sprintf("federation record: %s %v: %s", e.Field, quoted(e.Value), e.Remedy)
}

func quoted(v any) any {
	if s, ok := v.(string); ok {
		return fmt.Sprintf("%.80q", s)
	}
	return v
}

// Validate checks the form of r, not who may say it. The error is an
// [*InvalidError].
func (r Record) Validate() error {
	switch {
	case r.Network == "" || len(r.Network) > MaxName:
		return &InvalidError{"network", r.Network, "want 1 to 253 bytes"}
	case r.Origin.Name == "" || len(r.Origin.Name) > 2*MaxName+1:
		return &InvalidError{"origin", r.Origin.Name, "want 1 to 507 bytes"}
	case r.Sequence == 0:
		return &InvalidError{"sequence", r.Sequence, "sequences start at 1"}
	case r.Age < 0:
		return &InvalidError{"age", r.Age, "must not be negative"}
	case r.Silence < 0:
		return &InvalidError{"silence", r.Silence, "must not be negative"}
	case (r.Endpoint == nil) == (r.Summary == nil):
		return &InvalidError{"fact", "", "want exactly one of endpoint and summary"}
	case r.Endpoint != nil:
		return r.Endpoint.validate()
	}
	return r.Summary.validate()
}

func (e *EndpointFact) validate() error {
	switch {
	case e.Endpoint == 0:
		return &InvalidError{"endpoint", 0, "zero means unknown; want an endpoint id"}
	case e.Port == 0:
		return &InvalidError{"port", e.Port, "want 1 to 65535"}
	case e.State > Terminating:
		return &InvalidError{"state", e.State, "want healthy, ejected or terminating"}
	case len(e.Reason) > MaxName:
		return &InvalidError{"reason", e.Reason, "want at most 253 bytes"}
	case math.IsNaN(e.Health) || e.Health < 0 || e.Health > 1:
		return &InvalidError{"health", e.Health, "want a score in [0, 1]"}
	}
	return nil
}

func (s *SummaryFact) validate() error {
	switch {
	case s.Service == "" || len(s.Service) > MaxName:
		return &InvalidError{"service", s.Service, "want 1 to 253 bytes"}
	case s.Port == 0:
		return &InvalidError{"port", s.Port, "want 1 to 65535"}
	case s.Healthy > s.Ready:
		return &InvalidError{"healthy", s.Healthy, fmt.Sprintf("must not exceed ready %d", s.Ready)}
	case s.HealthyCapacity > s.ReadyCapacity:
		return &InvalidError{"healthy capacity", s.HealthyCapacity, fmt.Sprintf("must not exceed ready capacity %d", s.ReadyCapacity)}
	case len(s.Exceptions) > MaxExceptions:
		return &InvalidError{"exceptions", len(s.Exceptions), fmt.Sprintf("want at most %d", MaxExceptions)}
	}
	return nil
}
