package health

import (
	"encoding/hex"
	"fmt"
	"math"
	"slices"
	"strings"
	"time"

	"google.golang.org/protobuf/proto"

	pb "github.com/isthmus-mesh/isthmus/control/health/healthpb"
	"github.com/isthmus-mesh/isthmus/mesh"
)

const (
	// MaxPorts is how many ports one request has, and one instance reports.
	MaxPorts = 4096
	maxAge   = 100 * 365 * 24 * time.Hour
)

// Instance is one process of a node proxy: 16 bytes drawn at random when it starts.
type Instance [16]byte

func (i Instance) String() string { return hex.EncodeToString(i[:]) }

// Target is a port of an endpoint.
type Target struct {
	Endpoint mesh.EndpointID
	Port     uint16
}

// PortState is the verdict on a port.
type PortState uint8

// The verdicts.
const (
	Healthy PortState = iota
	EjectedPort
	TerminatingPort
)

// PortHealth is the health of one port of an endpoint.
type PortHealth struct {
	Target
	State  PortState
	Reason string        // at most 64 bytes of printable ASCII
	Score  float64       // in [0, 1]
	Age    time.Duration // of the evidence; orders nothing
}

// Hello names a node proxy, in its first request.
type Hello struct {
	Node, Network string
	Instance      Instance
}

// Request is one message of a node proxy.
type Request struct {
	Hello     *Hello // of the first request only
	Sequence  uint64 // of a transition: 1, 2, …; 0 in the full state
	Ports     []PortHealth
	Forgotten []Target // nothing is known of these anymore
	Complete  bool     // end of the full state: older facts that it did not repeat are void
	Draining  bool     // another instance takes over
}

// Welcome is in the first response of a gateway.
type Welcome struct {
	Gateway string
	Resumed bool          // another instance reported for this node before
	Spread  time.Duration // over which to spread reconnects
}

// Response is one message of a gateway.
type Response struct {
	Welcome *Welcome
	Ask     []Target // to report now, or forget
}

// EncodeRequest returns r on the wire.
func EncodeRequest(r Request) ([]byte, error) {
	if err := r.validate(); err != nil {
		return nil, err
	}
	m := &pb.ReportRequest{Sequence: r.Sequence, Forgotten: targetsToWire(r.Forgotten), Complete: r.Complete, Draining: r.Draining}
	if h := r.Hello; h != nil {
		m.Hello = &pb.Hello{Node: h.Node, Network: h.Network, Instance: h.Instance[:]}
	}
	for _, p := range r.Ports {
		m.Ports = append(m.Ports, &pb.PortHealth{Endpoint: uint64(p.Endpoint), Port: uint32(p.Port), State: pb.PortState(p.State) + 1, Reason: p.Reason, Score: float32(p.Score), AgeMs: uint64(max(0, p.Age.Milliseconds()))})
	}
	return proto.MarshalOptions{Deterministic: true}.Marshal(m)
}

// DecodeRequest reads one message of a node proxy. [Stream.Accept] checks their order.
func DecodeRequest(b []byte) (r Request, err error) {
	var m pb.ReportRequest
	if err := read(b, &m); err != nil {
		return r, err
	}
	r = Request{Sequence: m.GetSequence(), Complete: m.GetComplete(), Draining: m.GetDraining()}
	if h := m.GetHello(); h != nil {
		r.Hello = &Hello{Node: h.GetNode(), Network: h.GetNetwork()}
		if copy(r.Hello.Instance[:], h.GetInstance()); len(h.GetInstance()) != len(r.Hello.Instance) {
			return r, invalid("hello.instance", len(h.GetInstance()), "want 16 bytes")
		}
	}
	if r.Forgotten, err = targetsFromWire("forgotten", m.GetForgotten()); err != nil {
		return r, err
	}
	if len(m.GetPorts()) > MaxPorts {
		return r, invalid("ports", len(m.GetPorts()), "too many: at most 4096")
	}
	for i, x := range m.GetPorts() {
		field := fmt.Sprintf("ports[%d]", i)
		t, err := targetFromWire(field, x.GetEndpoint(), x.GetPort())
		if err != nil {
			return r, err
		}
		p := PortHealth{Target: t, Reason: x.GetReason(), Score: float64(x.GetScore()), State: EjectedPort, Age: time.Duration(min(x.GetAgeMs(), uint64(maxAge.Milliseconds()))) * time.Millisecond}
		switch s := x.GetState(); {
		case s == pb.PortState_PORT_STATE_UNSPECIFIED:
			return r, invalid(field+".state", s, "missing")
		case s > 0 && s <= pb.PortState_PORT_STATE_TERMINATING:
			p.State = PortState(s - 1)
		}
		r.Ports = append(r.Ports, p)
	}
	return r, r.validate()
}

func (r Request) validate() error {
	switch h := r.Hello; {
	case h != nil && !validName(h.Node):
		return invalid("hello.node", h.Node, "want 1 to 253 bytes without spaces")
	case h != nil && !validName(h.Network):
		return invalid("hello.network", h.Network, "want 1 to 253 bytes without spaces")
	case h != nil && h.Instance == Instance{}:
		return invalid("hello.instance", h.Instance, "want 16 random bytes")
	case len(r.Ports) > MaxPorts:
		return invalid("ports", len(r.Ports), "too many: at most 4096")
	case len(r.Forgotten) > MaxPorts:
		return invalid("forgotten", len(r.Forgotten), "too many: at most 4096")
	}
	for i, p := range r.Ports {
		field := fmt.Sprintf("ports[%d]", i)
		switch {
		case p.Endpoint == 0 || p.Port == 0:
			return invalid(field, fmt.Sprintf("%s:%d", p.Endpoint, p.Port), "want an endpoint and a port")
		case p.State > TerminatingPort:
			return invalid(field+".state", p.State, "want healthy, ejected or terminating")
		case len(p.Reason) > maxReason || strings.ContainsFunc(p.Reason, func(r rune) bool { return r < ' ' || r > '~' }):
			return invalid(field+".reason", p.Reason, "want at most 64 bytes of printable ASCII")
		case !(p.Score >= 0 && p.Score <= 1):
			return invalid(field+".score", p.Score, "want 0 to 1")
		}
	}
	return nil
}

// EncodeResponse returns r on the wire.
func EncodeResponse(r Response) ([]byte, error) {
	if len(r.Ask) > MaxPorts {
		return nil, invalid("ask", len(r.Ask), "too many: at most 4096")
	}
	m := &pb.ReportResponse{Ask: targetsToWire(r.Ask)}
	if w := r.Welcome; w != nil {
		m.Welcome = &pb.Welcome{Gateway: w.Gateway, Resumed: w.Resumed, RetrySpreadMs: uint32(min(max(0, w.Spread.Milliseconds()), math.MaxUint32))}
	}
	return proto.MarshalOptions{Deterministic: true}.Marshal(m)
}

// DecodeResponse reads one message of a gateway.
func DecodeResponse(b []byte) (r Response, err error) {
	var m pb.ReportResponse
	if err := read(b, &m); err != nil {
		return r, err
	}
	if w := m.GetWelcome(); w != nil {
		if !validName(w.GetGateway()) {
			return r, invalid("welcome.gateway", w.GetGateway(), "want 1 to 253 bytes without spaces")
		}
		r.Welcome = &Welcome{Gateway: w.GetGateway(), Resumed: w.GetResumed(), Spread: time.Duration(w.GetRetrySpreadMs()) * time.Millisecond}
	}
	r.Ask, err = targetsFromWire("ask", m.GetAsk())
	return r, err
}

func read(b []byte, m proto.Message) error {
	if len(b) > MaxBody {
		return invalid("message", len(b), "too large: at most 1 MiB")
	}
	if err := proto.Unmarshal(b, m); err != nil {
		return invalid("message", len(b), "not readable: "+err.Error())
	}
	return nil
}

func targetsToWire(list []Target) (out []*pb.Target) {
	for _, t := range list {
		out = append(out, &pb.Target{Endpoint: uint64(t.Endpoint), Port: uint32(t.Port)})
	}
	return out
}

func targetsFromWire(field string, list []*pb.Target) (out []Target, err error) {
	if len(list) > MaxPorts {
		return nil, invalid(field, len(list), "too many: at most 4096")
	}
	for i, m := range list {
		t, err := targetFromWire(fmt.Sprintf("%s[%d]", field, i), m.GetEndpoint(), m.GetPort())
		if err != nil {
			return nil, err
		}
		out = append(out, t)
	}
	return out, nil
}

func targetFromWire(field string, endpoint uint64, port uint32) (Target, error) {
	if endpoint == 0 || port == 0 || port > 65535 {
		return Target{}, invalid(field, fmt.Sprintf("%016x:%d", endpoint, port), "want an endpoint and a port")
	}
	return Target{mesh.EndpointID(endpoint), uint16(port)}, nil
}

// Stream checks the order of the requests of one stream, and their number of ports. The zero value is at
// its beginning.
type Stream struct {
	hello    *Hello
	complete bool
	sequence uint64
	targets  map[Target]struct{} // reported and not forgotten
}

// Complete reports whether the full state was received.
func (s *Stream) Complete() bool { return s.complete }

// Accept takes the next request. After an error the stream must end. full are ports that must not be kept,
// since the instance reports too many.
func (s *Stream) Accept(r Request) (full []Target, err error) {
	switch {
	case s.hello == nil && r.Hello == nil:
		return nil, invalid("hello", "", "missing: the first request names node and instance")
	case s.hello != nil && r.Hello != nil:
		return nil, invalid("hello", r.Hello.Node, "only the first request has it")
	case s.complete && r.Complete:
		return nil, invalid("complete", true, "the full state has ended")
	case !s.complete && r.Sequence != 0:
		return nil, invalid("sequence", r.Sequence, "want 0 until the full state has ended")
	case s.complete && r.Sequence != s.sequence+1:
		return nil, invalid("sequence", r.Sequence, fmt.Sprintf("want %d: a transition is missing or repeated", s.sequence+1))
	}
	if r.Hello != nil {
		s.hello, s.targets = r.Hello, map[Target]struct{}{}
	}
	s.complete, s.sequence = s.complete || r.Complete, r.Sequence
	for _, t := range r.Forgotten {
		delete(s.targets, t)
	}
	for _, p := range r.Ports {
		if _, has := s.targets[p.Target]; !has && len(s.targets) >= MaxPorts {
			full = append(full, p.Target)
			continue
		}
		s.targets[p.Target] = struct{}{}
	}
	return slices.Clip(full), nil
}
