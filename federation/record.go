package federation

import (
	"slices"
	"strconv"
	"time"

	"github.com/isthmus-mesh/isthmus/mesh"
)

// Origin is one running process that publishes records. Name is unique in the
// mesh and says the network: "west/gw-1", "west/node-2" (see [OriginName]).
// Incarnation grows with every start of that process; a higher one replaces
// everything that a lower one has said.
type Origin struct {
	Name        string
	Incarnation uint64
}

// OriginName is the name under which the gateway or node name of network
// publishes.
func OriginName(network, name string) string { return network + "/" + name }

// Record is one fact as published by one origin. Exactly one of Endpoint and
// Summary is set. Both are shared: treat them as immutable.
type Record struct {
	Network  string
	Origin   Origin
	Sequence uint64 // grows with every stamp of this origin, over all its keys

	// Age is how old the evidence is: the time since somebody saw what the
	// fact says. A refresh repeats a fact and keeps its evidence's age.
	Age time.Duration
	// Silence is the time since the origin stamped this Sequence: how long
	// nobody has vouched for the fact. Decay counts from here.
	Silence time.Duration

	Endpoint *EndpointFact
	Summary  *SummaryFact

	// unknown keeps the fields of newer writers: of the record and of its fact.
	unknown, unknownFact string
}

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
	Endpoint mesh.EndpointID `json:"endpoint"`         // whom it is about
	Port     uint16          `json:"port"`             // target port
	State    FactState       `json:"state"`            // what the witness says
	Reason   string          `json:"reason,omitempty"` // token of the isthmus-reason list, or empty
	Health   float64         `json:"health"`           // score in [0, 1]
}

// SummaryFact is the health of one network service on one service port.
type SummaryFact struct {
	Service         string            `json:"service"`         // hostname
	Port            uint16            `json:"port"`            // service port
	Ready           uint32            `json:"ready"`           // endpoints
	Healthy         uint32            `json:"healthy"`         // endpoints, at most as many as are ready
	ReadyCapacity   uint32            `json:"readyCapacity"`   // the weights of those that are ready, together
	HealthyCapacity uint32            `json:"healthyCapacity"` // the weights of those that are healthy, together
	Exceptions      []mesh.EndpointID `json:"exceptions"`      // ready and left out, sorted
	Draining        bool              `json:"draining"`        // its owner takes no new connections for it
}

// Kind tells the subjects of keys apart.
type Kind uint8

const (
	KindEndpoint Kind = iota + 1
	KindSummary
)

// Key is what a newer record replaces: one origin's word on one subject. With
// an empty Origin it is the subject itself, whoever speaks of it.
type Key struct {
	Network  string
	Kind     Kind
	Service  string          // KindSummary
	Endpoint mesh.EndpointID // KindEndpoint
	Port     uint16          // target port of an endpoint, service port of a summary
	Origin   string
}

// Subject returns the key without its origin.
func (k Key) Subject() Key { k.Origin = ""; return k }

// EndpointSubject is the subject of an endpoint on a target port.
func EndpointSubject(network string, id mesh.EndpointID, port uint16) Key {
	return Key{Network: network, Kind: KindEndpoint, Endpoint: id, Port: port}
}

// SummarySubject is the subject of a network service on a service port.
func SummarySubject(network, service string, port uint16) Key {
	return Key{Network: network, Kind: KindSummary, Service: service, Port: port}
}

// Key returns the key of r; the zero Key if r has no fact.
func (r Record) Key() Key {
	var k Key
	switch {
	case r.Endpoint != nil:
		k = EndpointSubject(r.Network, r.Endpoint.Endpoint, r.Endpoint.Port)
	case r.Summary != nil:
		k = SummarySubject(r.Network, r.Summary.Service, r.Summary.Port)
	default:
		return Key{}
	}
	k.Origin = r.Origin.Name
	return k
}

// Default says whether r says no more than what silence means: everything that
// is ready is usable. Such records travel with the full state; only the others
// are worth a refresh of their own.
func (r Record) Default() bool {
	if e := r.Endpoint; e != nil {
		return e.State == Healthy && e.Health >= 1
	}
	if s := r.Summary; s != nil {
		return !s.Draining && s.Healthy == s.Ready && s.HealthyCapacity == s.ReadyCapacity && len(s.Exceptions) == 0
	}
	return true
}

// SameFact says whether a and b say the same, whoever says it and when.
func SameFact(a, b Record) bool {
	switch {
	case a.Network != b.Network || a.unknownFact != b.unknownFact:
		return false
	case a.Endpoint != nil && b.Endpoint != nil:
		return *a.Endpoint == *b.Endpoint
	case a.Summary != nil && b.Summary != nil:
		return a.Summary.equal(b.Summary)
	}
	return false
}

func (s *SummaryFact) equal(o *SummaryFact) bool {
	return s.Service == o.Service && s.Port == o.Port && s.Ready == o.Ready && s.Healthy == o.Healthy &&
		s.ReadyCapacity == o.ReadyCapacity && s.HealthyCapacity == o.HealthyCapacity &&
		s.Draining == o.Draining && slices.Equal(s.Exceptions, o.Exceptions)
}
