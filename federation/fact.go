package federation

import (
	"fmt"
	"slices"
	"strconv"

	"github.com/spiffe/go-spiffe/v2/spiffeid"

	"github.com/isthmus-mesh/isthmus/mesh"
)

// MaxName is the longest name of a network, a service or a node, in bytes.
const MaxName = 253

// FactState is the verdict on one endpoint and port.
type FactState uint8

const (
	Healthy FactState = iota
	Ejected
	Terminating
)

// MarshalText writes s as String, for JSON.
func (s FactState) MarshalText() ([]byte, error) { return []byte(s.String()), nil }

func (s FactState) String() string {
	switch s {
	case Healthy:
		return "healthy"
	case Ejected:
		return "ejected"
	case Terminating:
		return "terminating"
	}
	return "factState(" + strconv.Itoa(int(s)) + ")"
}

// EndpointFact is the health of one endpoint on one target port.
type EndpointFact struct {
	Endpoint mesh.EndpointID `json:"endpoint"`         // endpoint ID
	Port     uint16          `json:"port"`             // target port
	State    FactState       `json:"state"`            // health reported by the witness
	Reason   string          `json:"reason,omitempty"` // a reason from the isthmus-reason list, flapping, stalled, or empty
	Health   float64         `json:"health"`           // score in [0, 1]
}

// SummaryFact is the health of one network service on one service port.
type SummaryFact struct {
	Service         string            `json:"service"`         // hostname
	Port            uint16            `json:"port"`            // service port
	Ready           uint32            `json:"ready"`           // ready endpoints
	Healthy         uint32            `json:"healthy"`         // healthy ones of these
	ReadyCapacity   uint32            `json:"readyCapacity"`   // total weight of the ready endpoints
	HealthyCapacity uint32            `json:"healthyCapacity"` // total weight of the healthy endpoints
	Exceptions      []mesh.EndpointID `json:"exceptions"`      // ready endpoints that are ejected, sorted
	Draining        bool              `json:"draining"`        // its network takes no new connections for it
}

// Equal says whether both say the same.
func (s *SummaryFact) Equal(o *SummaryFact) bool {
	return s.Service == o.Service && s.Port == o.Port && s.Ready == o.Ready && s.Healthy == o.Healthy &&
		s.ReadyCapacity == o.ReadyCapacity && s.HealthyCapacity == o.HealthyCapacity &&
		s.Draining == o.Draining && slices.Equal(s.Exceptions, o.Exceptions)
}

// ForeignError is a word from somebody who may not speak of its subject.
type ForeignError struct {
	Signer  spiffeid.ID
	Origin  string
	Subject string
	Reason  string
}

func (e *ForeignError) Error() string {
	return fmt.Sprintf("federation: word about %s from %q with the identity %q: %s", e.Subject, e.Origin, e.Signer, e.Reason)
}
