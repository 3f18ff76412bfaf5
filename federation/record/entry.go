package record

import (
	"crypto/sha256"
	"encoding/binary"
	"errors"
	"fmt"

	"github.com/spiffe/go-spiffe/v2/spiffeid"
	"google.golang.org/protobuf/proto"

	pb "github.com/isthmus-mesh/isthmus/federation/federationpb"
	"github.com/isthmus-mesh/isthmus/mesh"
)

// ErrNewer is an entry of a kind, or about a subject, that a newer version has
// added: it is kept and passed on, and means nothing here.
var ErrNewer = errors.New("federation record of a newer version")

// Entry is a record as it travels: its encoded key and body, which are never
// encoded anew on the way, and the sequence of the change that made it.
type Entry struct {
	Key      string
	Sequence uint64
	Body     []byte
}

// Size is what e counts against limits, in bytes: what it has on the wire, and
// the bookkeeping that holding it costs.
func (e Entry) Size() int { return len(e.Key) + len(e.Body) + 64 }

func (e Entry) hash() [32]byte {
	h := sha256.New()
	var n [8]byte
	write := func(v uint64) { h.Write(binary.BigEndian.AppendUint64(n[:0], v)) }
	write(uint64(len(e.Key)))
	h.Write([]byte(e.Key))
	write(e.Sequence)
	write(uint64(len(e.Body)))
	h.Write(e.Body)
	var sum [32]byte
	h.Sum(sum[:0])
	return sum
}

// Check says whether e may be kept: that it is within the limits and that its
// key has the one encoding that it may have. The error is an [*InvalidError].
func (e Entry) Check() error {
	switch {
	case e.Key == "" || len(e.Key) > MaxKey:
		return &InvalidError{"key", len(e.Key), fmt.Sprintf("want 1 to %d bytes", MaxKey)}
	case len(e.Body) > MaxBody:
		return &InvalidError{"body", len(e.Body), fmt.Sprintf("want at most %d bytes", MaxBody)}
	case e.Sequence == 0:
		return &InvalidError{"sequence", 0, "sequences start at 1"}
	}
	return nil
}

var deterministic = proto.MarshalOptions{Deterministic: true}

// EncodeKey returns the wire form of k.
func EncodeKey(k Key) string {
	b, err := deterministic.Marshal(&pb.RecordKey{Kind: pb.RecordKind(k.Kind), Service: k.Service, Port: uint32(k.Port)})
	if err != nil { // a service that is no UTF-8: Validate refuses it too
		return ""
	}
	return string(b)
}

// DecodeKey reads the wire form of a key. Keys with fields or kinds of a newer
// version are [ErrNewer].
func DecodeKey(key string) (Key, error) {
	var m pb.RecordKey
	if len(key) > MaxKey {
		return Key{}, &InvalidError{"key", len(key), fmt.Sprintf("want at most %d bytes", MaxKey)}
	}
	if err := proto.Unmarshal([]byte(key), &m); err != nil {
		return Key{}, &InvalidError{"key", key, "is not readable: " + err.Error()}
	}
	if len(m.ProtoReflect().GetUnknown()) > 0 || m.GetKind() > pb.RecordKind_RECORD_KIND_HEALTH {
		return Key{}, ErrNewer
	}
	k := Key{Kind: Kind(m.GetKind()), Service: m.GetService(), Port: port(m.GetPort())}
	if err := k.validate(); err != nil {
		return Key{}, err
	}
	if EncodeKey(k) != key {
		return Key{}, &InvalidError{"key", key, "is not in its one valid encoding"}
	}
	return k, nil
}

// Encode returns r as an entry of sequence zero, without a signature.
func Encode(r Record) (Entry, error) {
	if err := r.Validate(); err != nil {
		return Entry{}, err
	}
	var m proto.Message
	switch r.Key.Kind {
	case KindNetwork:
		m = networkToWire(r.Network)
	case KindExport:
		m = exportToWire(r.Export)
	default:
		m = healthToWire(r.Health)
	}
	b, err := deterministic.Marshal(m)
	if err != nil {
		return Entry{}, &InvalidError{"body", r.Key.String(), "cannot be encoded: " + err.Error()}
	}
	if limit := MaxBody - SignatureBytes; len(b) > limit {
		return Entry{}, &InvalidError{"body", len(b), fmt.Sprintf("want at most %d bytes", limit)}
	}
	return Entry{Key: EncodeKey(r.Key), Body: b}, nil
}

// Decode reads e. The error is [ErrNewer] for what a newer version has added,
// otherwise an [*InvalidError]: the record cannot be used, and spoils no other.
func (e Entry) Decode() (Record, error) {
	k, err := DecodeKey(e.Key)
	if err != nil {
		return Record{}, err
	}
	r := Record{Key: k}
	switch k.Kind {
	case KindNetwork:
		var m pb.NetworkBody
		if err = proto.Unmarshal(e.Body, &m); err == nil {
			r.Network = networkFromWire(&m)
		}
	case KindExport:
		var m pb.ExportBody
		if err = proto.Unmarshal(e.Body, &m); err == nil {
			r.Export, err = exportFromWire(&m)
		}
	default:
		var m pb.HealthBody
		if err = proto.Unmarshal(e.Body, &m); err == nil {
			r.Health = healthFromWire(&m)
		}
	}
	if invalid := (*InvalidError)(nil); errors.As(err, &invalid) {
		return Record{}, err
	} else if err != nil {
		return Record{}, &InvalidError{"body", k.String(), "is not readable: " + err.Error()}
	}
	if err := r.Validate(); err != nil {
		return Record{}, err
	}
	return r, nil
}

func networkToWire(n *Network) *pb.NetworkBody {
	m := &pb.NetworkBody{
		Gateway: n.Gateway, Region: n.Locality.Region, Zone: n.Locality.Zone, Subzone: n.Locality.Subzone,
		Draining: n.Draining, NetworkKeys: n.Keys, Group: n.Group,
	}
	m.Addresses, m.QuicAddresses = addressesToWire(n.Addresses), addressesToWire(n.QUIC)
	for _, b := range n.Bundles {
		m.TrustBundles = append(m.TrustBundles, &pb.TrustBundle{TrustDomain: b.TrustDomain, X509Authorities: b.X509})
	}
	return m
}

func addressesToWire(list []Address) (out []*pb.GatewayAddress) {
	for _, a := range list {
		out = append(out, &pb.GatewayAddress{Host: a.Host, Port: uint32(a.Port)})
	}
	return out
}

func addressesFromWire(list []*pb.GatewayAddress) (out []Address) {
	for _, a := range list {
		out = append(out, Address{Host: a.GetHost(), Port: port(a.GetPort())})
	}
	return out
}

func networkFromWire(m *pb.NetworkBody) *Network {
	n := &Network{
		Gateway: m.GetGateway(), Locality: mesh.Locality{Region: m.GetRegion(), Zone: m.GetZone(), Subzone: m.GetSubzone()},
		Draining: m.GetDraining(), Keys: m.GetNetworkKeys(), Group: m.GetGroup(),
	}
	n.Addresses, n.QUIC = addressesFromWire(m.GetAddresses()), addressesFromWire(m.GetQuicAddresses())
	for _, b := range m.GetTrustBundles() {
		n.Bundles = append(n.Bundles, Bundle{TrustDomain: b.GetTrustDomain(), X509: b.GetX509Authorities()})
	}
	return n
}

func exportToWire(e *Export) *pb.ExportBody {
	m := &pb.ExportBody{
		Name: e.Name, Namespace: e.Namespace, Aliases: e.Aliases, Scope: pb.ExportScope(e.Scope),
		Distribution: string(e.Distribution), Created: e.Created, Capacity: e.Capacity, Affinity: string(e.Affinity), Headless: e.Headless,
	}
	for _, p := range e.Ports {
		m.Ports = append(m.Ports, &pb.ExportPort{Name: p.Name, Port: uint32(p.Port)})
	}
	for _, id := range e.Identities {
		m.Identities = append(m.Identities, id.String())
	}
	return m
}

func exportFromWire(m *pb.ExportBody) (*Export, error) {
	if len(m.GetIdentities()) > MaxIdentities {
		return nil, &InvalidError{"identities", len(m.GetIdentities()), fmt.Sprintf("want at most %d", MaxIdentities)}
	}
	e := &Export{
		Name: m.GetName(), Namespace: m.GetNamespace(), Aliases: m.GetAliases(), Scope: scope(m.GetScope()),
		Distribution: mesh.Distribution(m.GetDistribution()), Created: m.GetCreated(), Capacity: m.GetCapacity(), Headless: m.GetHeadless(),
	}
	if a := mesh.Affinity(m.GetAffinity()); a == mesh.ClientIP { // a word of a newer version is none
		e.Affinity = a
	}
	for _, p := range m.GetPorts() {
		e.Ports = append(e.Ports, Port{Name: p.GetName(), Port: port(p.GetPort())})
	}
	for _, s := range m.GetIdentities() {
		id, err := spiffeid.FromString(s)
		if err != nil {
			return nil, &InvalidError{"identity", s, "want a SPIFFE ID: " + err.Error()}
		}
		e.Identities = append(e.Identities, id)
	}
	return e, nil
}

func healthToWire(h *Health) *pb.HealthBody {
	m := &pb.HealthBody{Ready: h.Ready, Healthy: h.Healthy, ReadyCapacity: h.ReadyCapacity, HealthyCapacity: h.HealthyCapacity, Unnamed: h.Unnamed}
	for _, x := range h.Exceptions {
		x.Detail = x.Detail.known()
		m.Exceptions = append(m.Exceptions, &pb.Exception{Endpoint: uint64(x.Endpoint), Cause: pb.ExceptionCause(x.Cause), Reason: x.Detail.Reason, Witness: x.Detail.Witness, Since: x.Detail.Since})
	}
	return m
}

func healthFromWire(m *pb.HealthBody) *Health {
	h := &Health{Ready: m.GetReady(), Healthy: m.GetHealthy(), ReadyCapacity: m.GetReadyCapacity(), HealthyCapacity: m.GetHealthyCapacity(), Unnamed: m.GetUnnamed()}
	for _, x := range m.GetExceptions() {
		h.Exceptions = append(h.Exceptions, Exception{Endpoint: mesh.EndpointID(x.GetEndpoint()), Cause: cause(x.GetCause()),
			Detail: Detail{x.GetReason(), x.GetWitness(), x.GetSince()}.known()})
	}
	return h
}

// port turns what does not fit into zero, which Validate refuses.
func port(p uint32) uint16 {
	if p > 65535 {
		return 0
	}
	return uint16(p)
}

func scope(s pb.ExportScope) Scope {
	if s < 0 || s > 255 {
		return 0
	}
	return Scope(s)
}

func cause(c pb.ExceptionCause) Cause {
	if c < 0 || c > 255 {
		return 0
	}
	return Cause(c)
}
