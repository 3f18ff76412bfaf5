package health

import (
	"cmp"
	"encoding/binary"
	"fmt"
	"slices"
	"strconv"
	"strings"

	"google.golang.org/protobuf/proto"

	pb "github.com/isthmus-mesh/isthmus/control/health/healthpb"
	"github.com/isthmus-mesh/isthmus/federation/record"
	"github.com/isthmus-mesh/isthmus/mesh"
)

// TypeServiceHealth is the type of the resources.
const TypeServiceHealth = "type.googleapis.com/isthmus.health.v1.ServiceHealth"

// Name names the health of a service port. Its service is the name of the service's own resource.
type Name struct {
	Namespace, Hostname string
	Port                uint16
}

// Service returns NAMESPACE/HOSTNAME, a key of the resource.
func (n Name) Service() string { return n.Namespace + "/" + n.Hostname }

// String returns NAMESPACE/HOSTNAME/PORT, the name of the resource.
func (n Name) String() string { return n.Service() + "/" + strconv.Itoa(int(n.Port)) }

// ParseName reads what String returns.
func ParseName(s string) (n Name, err error) {
	parts := strings.Split(s, "/")
	if len(parts) != 3 || parts[0] == "" || parts[1] == "" {
		return n, invalid("name", s, "want NAMESPACE/HOSTNAME/PORT")
	}
	port, err := strconv.ParseUint(parts[2], 10, 16)
	if err != nil || port == 0 || strconv.FormatUint(port, 10) != parts[2] {
		return n, invalid("name", s, "want NAMESPACE/HOSTNAME/PORT with a port from 1 to 65535")
	}
	return Name{parts[0], parts[1], uint16(port)}, nil
}

// Limits of one resource.
const (
	MaxBody     = 1 << 20 // bytes
	MaxNetworks = 1024
	MaxGateways = 64 // of a network
	MaxEjected  = 64 // named, of a network; the rest is a number
	maxName     = 253
	maxReason   = 64
)

// ServiceHealth is the availability of one port of a service, by network.
type ServiceHealth struct{ Networks []Network }

// Network returns the part of a network.
func (h ServiceHealth) Network(name string) (Network, bool) {
	i, ok := slices.BinarySearchFunc(h.Networks, name, func(n Network, name string) int { return cmp.Compare(n.Name, name) })
	if !ok {
		return Network{}, false
	}
	return h.Networks[i], true
}

// State is the freshness of a network's health.
type State uint8

// The states.
const (
	Current State = iota
	Stale         // no gateway of the network is alive: the last report
	Unknown       // no report, or an expired one: treat endpoints as healthy
)

func (s State) String() string {
	switch s {
	case Current:
		return "current"
	case Stale:
		return "stale"
	}
	return "unknown"
}

// Counts are endpoints and the sums of their weights. A capacity is never less than the number.
type Counts struct {
	Ready, Healthy                 uint32
	ReadyCapacity, HealthyCapacity uint32
}

// Network is the availability on one network, summed over groups of gateways.
type Network struct {
	Name  string
	State State
	Counts
	Gateways  []Gateway // sorted by name
	Ejected   []Ejected // sorted by endpoint
	Further   uint32    // ejected endpoints beyond these
	MaxWeight uint32    // bound of the link for this service; 0: unbounded
}

// Gateway is the availability through one gateway.
type Gateway struct {
	Name     string
	Instance uint64 // first 8 bytes of the instance
	Group    string // of gateways that see the same endpoints
	Counts
	Draining    bool
	Stale       bool              // the last report of a gateway that is not alive
	Unknown     bool              // it is alive and reports no health of this port
	Unreachable []mesh.EndpointID // that this gateway alone cannot reach, sorted
}

// ShortInstance returns the part of an instance that a Gateway has.
func ShortInstance(i record.Instance) uint64 { return binary.BigEndian.Uint64(i[:8]) }

// Ejected is an endpoint that gets no new connections.
type Ejected struct {
	Endpoint      mesh.EndpointID
	Cause         record.Cause
	record.Detail // for display
}

// Fault reports whether the endpoint is ready, and ejected because of failures. A cause of a later version
// is a fault.
func (e Ejected) Fault() bool {
	switch e.Cause {
	case record.NotReady, record.Terminating, record.Gone:
		return false
	}
	return true
}

// Error is a message that cannot be used.
type Error struct{ Field, Value, Remedy string }

func (e *Error) Error() string {
	return fmt.Sprintf("health: %s %.80q: %s", e.Field, e.Value, e.Remedy)
}

func invalid(field string, value any, remedy string) error {
	return &Error{field, fmt.Sprint(value), remedy}
}

// Encode returns the body of a resource: the same for equal health.
func Encode(h ServiceHealth) ([]byte, error) {
	m := &pb.ServiceHealth{}
	for _, n := range h.Networks {
		x := &pb.Network{Name: n.Name, State: pb.State(n.State), Counts: countsToWire(n.Counts), Further: n.Further, MaxWeight: n.MaxWeight}
		for _, g := range n.Gateways {
			y := &pb.Gateway{Name: g.Name, Instance: g.Instance, Group: g.Group, Draining: g.Draining, Stale: g.Stale, Unknown: g.Unknown}
			if g.Counts != n.Counts {
				y.Counts = countsToWire(g.Counts)
			}
			for _, id := range g.Unreachable {
				y.Unreachable = append(y.Unreachable, uint64(id))
			}
			x.Gateways = append(x.Gateways, y)
		}
		for _, e := range n.Ejected {
			x.Ejected = append(x.Ejected, &pb.Ejected{Endpoint: uint64(e.Endpoint), Cause: pb.Cause(e.Cause), Reason: e.Reason, Witness: e.Witness, Since: e.Since})
		}
		m.Networks = append(m.Networks, x)
	}
	if err := h.validate(); err != nil {
		return nil, err
	}
	b, err := proto.MarshalOptions{Deterministic: true}.Marshal(m)
	switch {
	case err != nil:
		return nil, invalid("body", "", err.Error())
	case len(b) > MaxBody:
		return nil, invalid("body", len(b), "too large: at most 1 MiB")
	}
	return b, nil
}

// Decode reads the body of a resource.
func Decode(body []byte) (h ServiceHealth, err error) {
	var m pb.ServiceHealth
	if len(body) > MaxBody {
		return h, invalid("body", len(body), "too large: at most 1 MiB")
	}
	if err := proto.Unmarshal(body, &m); err != nil {
		return h, invalid("body", len(body), "not readable: "+err.Error())
	}
	for _, x := range m.GetNetworks() {
		n := Network{Name: x.GetName(), State: min(State(min(x.GetState(), 255)), Unknown), Counts: countsFromWire(x.GetCounts()), Further: x.GetFurther(), MaxWeight: x.GetMaxWeight()}
		for _, y := range x.GetGateways() {
			g := Gateway{Name: y.GetName(), Instance: y.GetInstance(), Group: y.GetGroup(), Draining: y.GetDraining(), Stale: y.GetStale(), Unknown: y.GetUnknown(), Counts: n.Counts}
			if y.GetCounts() != nil {
				g.Counts = countsFromWire(y.GetCounts())
			}
			for _, id := range y.GetUnreachable() {
				g.Unreachable = append(g.Unreachable, mesh.EndpointID(id))
			}
			n.Gateways = append(n.Gateways, g)
		}
		for _, y := range x.GetEjected() {
			e := Ejected{Endpoint: mesh.EndpointID(y.GetEndpoint()), Detail: record.Detail{Reason: y.GetReason(), Witness: y.GetWitness(), Since: y.GetSince()}}
			if c := y.GetCause(); c >= 0 && c <= 255 {
				e.Cause = record.Cause(c)
			}
			n.Ejected = append(n.Ejected, e)
		}
		h.Networks = append(h.Networks, n)
	}
	return h, h.validate()
}

// countsToWire leaves out capacities that are the numbers.
func countsToWire(c Counts) *pb.Counts {
	m := &pb.Counts{Ready: c.Ready, Healthy: c.Healthy}
	if c.ReadyCapacity != c.Ready {
		m.ReadyCapacity = c.ReadyCapacity
	}
	if c.HealthyCapacity != c.Healthy {
		m.HealthyCapacity = c.HealthyCapacity
	}
	return m
}

func countsFromWire(m *pb.Counts) Counts {
	return Counts{Ready: m.GetReady(), Healthy: m.GetHealthy(), ReadyCapacity: cmp.Or(m.GetReadyCapacity(), m.GetReady()), HealthyCapacity: cmp.Or(m.GetHealthyCapacity(), m.GetHealthy())}
}

func (h ServiceHealth) validate() error {
	if len(h.Networks) > MaxNetworks {
		return invalid("networks", len(h.Networks), "too many: at most 1024")
	}
	for i, n := range h.Networks {
		field := fmt.Sprintf("networks[%d]", i)
		switch {
		case !validName(n.Name) || i > 0 && h.Networks[i-1].Name >= n.Name:
			return invalid(field+".name", n.Name, "want names of 1 to 253 bytes without spaces, sorted, each once")
		case len(n.Gateways) > MaxGateways:
			return invalid(field+".gateways", len(n.Gateways), "too many: at most 64")
		case len(n.Ejected) > MaxEjected:
			return invalid(field+".ejected", len(n.Ejected), "too many: name 64 and count the others in further")
		case n.Further > record.MaxEndpoints:
			return invalid(field+".further", n.Further, "too many: at most 1000000")
		}
		if err := n.Counts.validate(field); err != nil {
			return err
		}
		for j, g := range n.Gateways {
			if err := g.validate(fmt.Sprintf("%s.gateways[%d]", field, j)); err != nil {
				return err
			}
			if j > 0 && n.Gateways[j-1].Name >= g.Name {
				return invalid(fmt.Sprintf("%s.gateways[%d].name", field, j), g.Name, "want gateways sorted by name, each once")
			}
		}
		for j, e := range n.Ejected {
			at := fmt.Sprintf("%s.ejected[%d]", field, j)
			switch {
			case e.Endpoint == 0 || j > 0 && n.Ejected[j-1].Endpoint >= e.Endpoint:
				return invalid(at+".endpoint", e.Endpoint, "want endpoints sorted, each once")
			case e.Reason != "" && !validName(e.Reason), len(e.Reason) > maxReason:
				return invalid(at+".reason", e.Reason, "want at most 64 bytes without spaces")
			case e.Witness != "" && !validName(e.Witness):
				return invalid(at+".witness", e.Witness, "want at most 253 bytes without spaces")
			case e.Since < 0:
				return invalid(at+".since", e.Since, "want seconds of Unix time")
			}
		}
	}
	return nil
}

func (g Gateway) validate(field string) error {
	switch {
	case !validName(g.Name):
		return invalid(field+".name", g.Name, "want 1 to 253 bytes without spaces")
	case g.Group != "" && !validName(g.Group):
		return invalid(field+".group", g.Group, "want at most 253 bytes without spaces")
	case len(g.Unreachable) > MaxEjected:
		return invalid(field+".unreachable", len(g.Unreachable), "too many: at most 64")
	case !slices.IsSorted(g.Unreachable):
		return invalid(field+".unreachable", g.Unreachable, "want endpoints sorted")
	}
	return g.Counts.validate(field)
}

// The sum of a network's groups may exceed the limit of one.
func (c Counts) validate(field string) error {
	switch {
	case c.Ready > record.MaxEndpoints*MaxGateways:
		return invalid(field+".ready", c.Ready, "too many endpoints")
	case c.Healthy > c.Ready:
		return invalid(field+".healthy", c.Healthy, fmt.Sprintf("more than ready, which is %d", c.Ready))
	case c.ReadyCapacity < c.Ready:
		return invalid(field+".ready_capacity", c.ReadyCapacity, fmt.Sprintf("less than ready, which is %d", c.Ready))
	case c.HealthyCapacity < c.Healthy || c.HealthyCapacity > c.ReadyCapacity:
		return invalid(field+".healthy_capacity", c.HealthyCapacity, fmt.Sprintf("want healthy, %d, to ready_capacity, %d", c.Healthy, c.ReadyCapacity))
	}
	return nil
}

// validName rejects what would garble a log line.
func validName(s string) bool {
	return s != "" && len(s) <= maxName && !strings.ContainsFunc(s, func(r rune) bool { return r <= ' ' || r == 0x7f || r == '\uFFFD' })
}
