package healthstream

import (
	"encoding/hex"
	"fmt"
	"math"
	"strings"
	"time"

	"github.com/isthmus-mesh/isthmus/federation"
	pb "github.com/isthmus-mesh/isthmus/federation/federationpb"
	"github.com/isthmus-mesh/isthmus/federation/peer"
	"github.com/isthmus-mesh/isthmus/mesh"
)

// Instance is one life of a node proxy: 16 bytes drawn at random at its start.
type Instance [16]byte

// String returns 32 hexadecimal digits.
func (i Instance) String() string { return hex.EncodeToString(i[:]) }

// MarshalText writes i as String, for JSON.
func (i Instance) MarshalText() ([]byte, error) { return []byte(i.String()), nil }

// Target is a port of an endpoint: what a fact is about.
type Target struct {
	Endpoint mesh.EndpointID
	Port     uint16
}

// Fact is what a node proxy says of one port.
type Fact struct {
	federation.EndpointFact
	// Age is how old the evidence is.
	Age time.Duration
}

// Target returns what f is about.
func (f Fact) Target() Target { return Target{f.Endpoint, f.Port} }

const (
	// MaxFacts is how many facts of one instance are kept, and how many targets
	// are asked for at once.
	MaxFacts = 4096

	maxReason = 64 // bytes
	maxAge    = 100 * 365 * 24 * time.Hour
)

func factToWire(f Fact) *pb.PortHealth {
	return &pb.PortHealth{
		Endpoint: uint64(f.Endpoint), Port: uint32(f.Port), State: pb.PortState(f.State) + 1, Reason: f.Reason,
		Health: float32(f.Health), AgeMs: uint64(max(0, f.Age.Milliseconds())),
	}
}

// factFromWire reads one fact. A state of a newer version is known not to be
// healthy, and no more.
func factFromWire(m *pb.PortHealth) (Fact, error) {
	t, err := targetFromWire(m.GetEndpoint(), m.GetPort())
	if err != nil {
		return Fact{}, err
	}
	f := Fact{EndpointFact: federation.EndpointFact{Endpoint: t.Endpoint, Port: t.Port, Reason: m.GetReason(), Health: float64(m.GetHealth())}}
	switch s := m.GetState(); {
	case s == pb.PortState_PORT_STATE_UNSPECIFIED:
		return Fact{}, malformed("port health of %s has no state", t.Endpoint)
	case s <= pb.PortState_PORT_STATE_TERMINATING:
		f.State = federation.FactState(s - 1)
	default:
		f.State = federation.Ejected
	}
	if len(f.Reason) > maxReason {
		return Fact{}, malformed("reason of %d bytes: want at most %d", len(f.Reason), maxReason)
	}
	if i := strings.IndexFunc(f.Reason, func(r rune) bool { return r < ' ' || r > '~' }); i >= 0 { // people read it in terminals
		return Fact{}, malformed("reason %q: want printable ASCII", f.Reason)
	}
	if !(f.Health >= 0 && f.Health <= 1) {
		return Fact{}, malformed("health %v: want 0 to 1", f.Health)
	}
	f.Age = time.Duration(min(m.GetAgeMs(), uint64(maxAge.Milliseconds()))) * time.Millisecond
	return f, nil
}

func targetFromWire(endpoint uint64, port uint32) (Target, error) {
	if endpoint == 0 || port == 0 || port > math.MaxUint16 {
		return Target{}, malformed("target %016x:%d: want an endpoint and a port", endpoint, port)
	}
	return Target{mesh.EndpointID(endpoint), uint16(port)}, nil
}

func targetsToWire(targets []Target) []*pb.Target {
	out := make([]*pb.Target, len(targets))
	for i, t := range targets {
		out[i] = &pb.Target{Endpoint: uint64(t.Endpoint), Port: uint32(t.Port)}
	}
	return out
}

func targetsFromWire(in []*pb.Target) ([]Target, error) {
	if len(in) > MaxFacts {
		return nil, malformed("%d targets: want at most %d", len(in), MaxFacts)
	}
	out := make([]Target, 0, len(in))
	for _, m := range in {
		t, err := targetFromWire(m.GetEndpoint(), m.GetPort())
		if err != nil {
			return nil, err
		}
		out = append(out, t)
	}
	return out, nil
}

func factsFromWire(in []*pb.PortHealth) ([]Fact, error) {
	if len(in) > MaxFacts {
		return nil, malformed("report of %d ports: want at most %d", len(in), MaxFacts)
	}
	out := make([]Fact, 0, len(in))
	for _, m := range in {
		f, err := factFromWire(m)
		if err != nil {
			return nil, err
		}
		out = append(out, f)
	}
	return out, nil
}

func malformed(format string, args ...any) error {
	return &peer.MalformedError{Cause: fmt.Errorf(format, args...)}
}
