package mesh

import (
	"net/netip"
	"slices"
	"strconv"
	"strings"

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
	Serving                  // terminating too, but it still answers: chosen while nobody is ready
)

func (s State) String() string {
	switch s {
	case Ready:
		return "ready"
	case NotReady:
		return "notReady"
	case Terminating:
		return "terminating"
	case Serving:
		return "serving"
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
	Addresses      []netip.Addr // unique within Network; first is dialed
	Locality       Locality
	State          State
	Ports          []NamedPort       // what services mean by the name of a target port
	Labels         map[string]string // what policies select it by
	Capacity       uint32            // weight, ≥ 1
	Plain          bool              // no node proxy accepts tunnels for it, so it is never chosen
	Outside        bool              // it is not in the mesh, and has no address: see Snapshot.OutsideOn
	Identity       spiffeid.ID
	Endpoint       EndpointID
}

// PodName returns namespace/name of w, or "" if its UID says it already, or if w has no
// name but that: the UIDs of files are such. What Kubernetes draws as the UID of a pod
// names it to nobody. Pods of different clusters, and one after another, may share a name.
func (w *Workload) PodName() string {
	name := w.Namespace + "/" + w.Name
	if w.Namespace == "" || w.Name == "" || w.UID == w.Name || w.UID == name || strings.HasSuffix(w.UID, "/"+name) {
		return ""
	}
	return name
}

// NamedPort is a port of one workload that has a name there.
type NamedPort struct {
	Name string
	Port uint16
}

// Target returns the port on which w's application answers for p of a service;
// zero if p names a port that w does not have.
func (w *Workload) Target(p Port) uint16 {
	if p.TargetName == "" {
		return p.Target
	}
	for _, n := range w.Ports {
		if n.Name == p.TargetName {
			return n.Port
		}
	}
	return 0
}

// Port maps a port of a service to the port its applications listen on.
type Port struct {
	Name    string
	Service uint16
	Target  uint16 // of every workload; zero if TargetName is set
	// TargetName is what the target port is called; each workload says which number
	// that is. See Workload.Target.
	TargetName string
}

// OtherPort is a port of a service that is not routed, because of its protocol.
type OtherPort struct {
	Name     string
	Service  uint16
	Protocol string // UDP, SCTP
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
	Others       []OtherPort
	Scope        Scope
	Takeover     bool // the hostname leads to other networks too, not the other names alone
	Distribution Distribution
	// ExportDistribution replaces Distribution in exports while Distribution is StrictNode, which
	// holds on the service's own network alone. Empty is PreferNetwork.
	ExportDistribution Distribution
	// DistributionFrom is what set Distribution.
	DistributionFrom Source
	// PublishNotReady counts workloads that are not ready as ready.
	PublishNotReady bool
	// Headless, Affinity and Created are copied to the service's export, and not used on this network.
	// Created is the age of the export in Unix seconds; zero if unknown.
	Headless bool
	Affinity Affinity
	Created  int64
	// Home is set for a Service of this process's own cluster. Its export does not depend on workloads;
	// see ExportOf.
	Home bool
	// Import is what other networks export under its name, where this one has it too; nil: nothing
	// that has names or addresses of its own.
	Import *Import
}

// Import is how a service is asked for as that of other networks: by names and virtual addresses
// that the Service of this network does not have. They lead to this network's workloads too if the
// service is exported.
type Import struct {
	Aliases []string
	VIPs    []netip.Addr
	Ports   []Port // that any network exports
}

// HasAlias reports whether name is one of i's, which may be nil.
func (i *Import) HasAlias(name string) bool {
	return i != nil && slices.ContainsFunc(i.Aliases, func(a string) bool { return strings.EqualFold(a, name) })
}

// HasVIP reports whether a is a virtual address of i, which may be nil.
func (i *Import) HasVIP(a netip.Addr) bool { return i != nil && slices.Contains(i.VIPs, a.Unmap()) }

// Affinity is what of a client's connections goes to one workload, in the words of Kubernetes.
type Affinity string

// The affinities; the zero Affinity is None.
const ClientIP Affinity = "ClientIP"

// Port returns the service's mapping for service port p.
func (s *Service) Port(p uint16) (Port, bool) {
	for _, m := range s.Ports {
		if m.Service == p {
			return m, true
		}
	}
	return Port{}, false
}

// Scope is who may reach a service, beyond the network of its workloads.
type Scope string

// The scopes. The zero Scope is ScopeCluster.
const (
	ScopeCluster Scope = "cluster" // no other network
	ScopeSegment Scope = "segment" // networks of the same Segment as that of its workloads
	ScopeGlobal  Scope = "global"  // every network
)

// Exported reports whether other networks may reach s, through gateways.
func (s *Service) Exported() bool { return s.Scope.crosses() }

func (s Scope) crosses() bool { return s != "" && s != ScopeCluster }

// Everywhere reports whether name leads to the workloads of every network, and not
// of the client's own alone. A virtual address stands for the hostname.
func (s *Service) Everywhere(name string) bool {
	return s.Exported() && (s.Takeover || !strings.EqualFold(name, s.Hostname))
}

// Source is what said something that several may say.
type Source string

// The sources, the one that goes first first. The zero Source is nobody.
const (
	FromService   Source = "service"
	FromNamespace Source = "namespace"
	FromMesh      Source = "mesh"
)

// Distribution says which endpoints of a service are preferred.
type Distribution string

const (
	PreferNetwork  Distribution = "PreferNetwork" // the default
	PreferClose    Distribution = "PreferClose"   // same as PreferSameZone
	PreferSameZone Distribution = "PreferSameZone"
	PreferSameNode Distribution = "PreferSameNode"
	PreferRegion   Distribution = "PreferRegion"
	Any            Distribution = "Any"
	StrictNode     Distribution = "StrictNode" // internalTrafficPolicy: Local; never of an export
	// RegionFirst is the other thing that PreferRegion may mean elsewhere: the region
	// before the network.
	RegionFirst Distribution = "isthmus/RegionFirst"
)

// Gateway is one instance of a network's east-west gateway.
type Gateway struct {
	Name    string
	Network string
	// Address is where outer tunnels are dialed, and More where else. Gateways of one
	// network that have the same Address are replicas behind it: whoever is dialed, any of
	// them may answer.
	Address netip.AddrPort
	More    []netip.AddrPort
	// QUIC is where QUIC is dialed; empty: at Address and More.
	QUIC     []netip.AddrPort
	Identity spiffeid.ID
	Locality Locality
	Drained  bool
	// Federation is where other gateways dial this one for gossip; it equals
	// Address unless discovery says otherwise.
	Federation netip.AddrPort
	// Group names the gateways that reach the same workloads; empty: all of its network.
	Group string
	// Sources are the addresses that its connections to pods come from: never
	// empty.
	Sources []netip.Prefix
}

// Dialled returns where outer tunnels are dialed, by QUIC or by TCP; at least one address.
func (g *Gateway) Dialled(quic bool) []netip.AddrPort {
	if quic && len(g.QUIC) > 0 {
		return g.QUIC
	}
	return append([]netip.AddrPort{g.Address}, g.More...)
}
