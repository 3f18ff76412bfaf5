package mesh

import (
	"net/netip"
	"strconv"

	"github.com/spiffe/go-spiffe/v2/spiffeid"
)

// Locality places a workload or a gateway. Empty parts are unknown; a part
// counts as equal only if both sides know it.
type Locality struct {
	Region, Zone, Subzone string
}

// State is what discovery says about a workload's readiness.
type State uint8

const (
	Ready       State = iota // may be chosen
	NotReady                 // never chosen, no cap covers it
	Terminating              // never chosen anew; sessions to it are retired
)

func (s State) String() string {
	switch s {
	case Ready:
		return "ready"
	case NotReady:
		return "notReady"
	case Terminating:
		return "terminating"
	}
	return "state(" + strconv.Itoa(int(s)) + ")"
}

// Workload is one running instance (a pod, a virtual machine).
type Workload struct {
	UID            string // unique in the whole mesh
	Name           string
	Namespace      string
	ServiceAccount string
	TrustDomain    string
	Cluster        string
	Network        string
	Node           string
	Addresses      []netip.Addr // unique within Network; first is dialled
	Locality       Locality
	State          State
	Capacity       uint32 // weight, ≥ 1
	Identity       spiffeid.ID
	Endpoint       EndpointID
}

// Port maps a port of a service to the port its applications listen on.
type Port struct {
	Name    string
	Service uint16
	Target  uint16
}

// Service is a name that several workloads answer for, perhaps on several
// networks.
type Service struct {
	Name         string
	Namespace    string
	Hostname     string   // canonical; the authority of double HBONE
	Aliases      []string // other names that resolve to it
	VIPs         []netip.Addr
	Ports        []Port
	Global       bool // reachable from other networks through gateways
	Distribution Distribution
}

// Port returns the service's mapping for service port p.
func (s *Service) Port(p uint16) (Port, bool) {
	for _, m := range s.Ports {
		if m.Service == p {
			return m, true
		}
	}
	return Port{}, false
}

// Distribution says which endpoints of a service are preferred.
type Distribution string

const (
	PreferNetwork  Distribution = "PreferNetwork" // the default
	PreferClose    Distribution = "PreferClose"   // same as PreferSameZone
	PreferSameZone Distribution = "PreferSameZone"
	PreferSameNode Distribution = "PreferSameNode"
	PreferRegion   Distribution = "PreferRegion"
	Any            Distribution = "Any"
	StrictNode     Distribution = "StrictNode" // internalTrafficPolicy: Local
)

// Gateway is one instance of a network's east-west gateway.
type Gateway struct {
	Name     string
	Network  string
	Address  netip.AddrPort // where outer tunnels are dialled
	Identity spiffeid.ID
	Locality Locality
	Drained  bool
	// Federation is where other gateways dial this one for gossip; it equals
	// Address unless discovery says otherwise.
	Federation netip.AddrPort
	// Sources are the addresses that its connections to pods come from: never
	// empty.
	Sources []netip.Prefix
}
