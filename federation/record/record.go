package record

import (
	"encoding/hex"
	"fmt"
	"net/netip"
	"strconv"

	"github.com/spiffe/go-spiffe/v2/spiffeid"

	"github.com/isthmus-mesh/isthmus/mesh"
)

// Instance names one life of one gateway process. It is derived from the key
// that the process draws at its start, so that nobody can speak under the name
// of another.
type Instance [16]byte

// String returns 32 hexadecimal digits.
func (i Instance) String() string { return hex.EncodeToString(i[:]) }

// MarshalText writes i as String, for JSON.
func (i Instance) MarshalText() ([]byte, error) { return []byte(i.String()), nil }

// Kind says what a record is about.
type Kind uint8

const (
	KindNetwork Kind = 1 // a gateway of the network
	KindExport  Kind = 2 // a service
	KindHealth  Kind = 3 // a port of a service
)

func (k Kind) String() string {
	switch k {
	case KindNetwork:
		return "network"
	case KindExport:
		return "export"
	case KindHealth:
		return "health"
	}
	return "kind(" + strconv.Itoa(int(k)) + ")"
}

// Key names a record within its instance. Service is a canonical hostname,
// empty for a network; Port is a service port, zero but for health.
type Key struct {
	Kind    Kind
	Service string
	Port    uint16
}

func (k Key) String() string {
	switch k.Kind {
	case KindExport:
		return "export " + k.Service
	case KindHealth:
		return "health " + k.Service + ":" + strconv.Itoa(int(k.Port))
	}
	return k.Kind.String()
}

// Record is one fact: its key, and the body of the key's kind.
type Record struct {
	Key     Key
	Network *Network
	Export  *Export
	Health  *Health
}

// NetworkRecord returns the record of a gateway.
func NetworkRecord(n Network) Record { return Record{Key: Key{Kind: KindNetwork}, Network: &n} }

// ExportRecord returns the record of an exported service.
func ExportRecord(service string, e Export) Record {
	return Record{Key: Key{Kind: KindExport, Service: service}, Export: &e}
}

// HealthRecord returns the record of a service's port.
func HealthRecord(service string, port uint16, h Health) Record {
	return Record{Key: Key{Kind: KindHealth, Service: service, Port: port}, Health: &h}
}

// Network is one gateway instance of a network.
type Network struct {
	Gateway   string
	Addresses []Address
	// QUIC is where QUIC is dialed; empty: at Addresses, by UDP.
	QUIC     []Address
	Locality mesh.Locality
	// Draining gives way to other instances; open sessions go on.
	Draining bool
	// Keys are the network's public keys, for people to compare. What a reader
	// trusts comes from its own file.
	Keys    [][]byte
	Bundles []Bundle
	// Group names the gateways that see the same pods; empty is all of the
	// network's.
	Group string
}

// Address is where a gateway is dialed.
type Address struct {
	Host string // an IP address or a host name
	Port uint16
}

func (a Address) String() string {
	if ip, err := netip.ParseAddr(a.Host); err == nil {
		return netip.AddrPortFrom(ip, a.Port).String()
	}
	return fmt.Sprintf("%s:%d", a.Host, a.Port)
}

// Bundle is the roots of one trust domain, as DER.
type Bundle struct {
	TrustDomain string
	X509        [][]byte
}

// Scope says who may use an exported service.
type Scope uint8

const (
	ScopeSegment    Scope = 1
	ScopeGlobal     Scope = 2
	ScopeGlobalOnly Scope = 3 // of earlier versions; it means ScopeGlobal
)

// Export is a service that a network offers to others.
type Export struct {
	Name, Namespace string
	Aliases         []string
	Ports           []Port
	Scope           Scope
	Distribution    mesh.Distribution // empty is the reader's default
	Identities      []spiffeid.ID     // that may answer, sorted
	Created         int64             // of the export, seconds of Unix time; 0 or less: unknown, which is younger than any
	Capacity        uint32            // nominal and rounded, for when health is unknown
	Affinity        mesh.Affinity     // that the service asks for
	Headless        bool
}

// Port is one port of an exported service.
type Port struct {
	Name string
	Port uint16
}

// Cause says why an endpoint is left out.
type Cause uint8

const (
	Witness     Cause = 1 // the node proxy beside it saw it fail
	Hop         Cause = 2 // the gateway that says so cannot reach it
	NotReady    Cause = 3
	Terminating Cause = 4
	Gone        Cause = 5
)

func (c Cause) String() string {
	names := [...]string{"unspecified", "witness", "hop", "notReady", "terminating", "gone"}
	if int(c) < len(names) {
		return names[c]
	}
	return "cause(" + strconv.Itoa(int(c)) + ")"
}

// Exception is an endpoint that is left out. Causes of newer versions are kept
// as numbers.
type Exception struct {
	Endpoint mesh.EndpointID
	Cause    Cause
	Detail   Detail
}

// Detail is what people want to know of an exception; nothing is decided by it. The
// zero value: nobody says.
type Detail struct {
	Reason  string // a token, as in isthmus-reason
	Witness string // the node whose node proxy saw it; empty: none did
	Since   int64  // seconds of Unix time, by the clock of who says so; zero: not said
}

// known returns those parts of d that can be shown: names without spaces.
func (d Detail) known() Detail {
	if !validName(d.Reason) {
		d.Reason = ""
	}
	if !validName(d.Witness) {
		d.Witness = ""
	}
	d.Since = max(0, d.Since)
	return d
}

// Health is what one instance can deliver of a service's port.
type Health struct {
	Ready, Healthy                 uint32
	ReadyCapacity, HealthyCapacity uint32
	Exceptions                     []Exception // newest first
	Unnamed                        uint32      // further exceptions
}
