package mesh

import (
	"cmp"
	"math"
	"math/bits"
	"slices"
	"strings"

	"github.com/spiffe/go-spiffe/v2/spiffeid"
)

// Export is what a network says to others of its part of one service. It names no
// workload. Who receives it decides what of it holds; see Link.
type Export struct {
	Name, Namespace string
	Hostname        string
	Aliases         []string
	Ports           []ExportPort
	Scope           Scope
	Distribution    Distribution
	Identities      []spiffeid.ID // who may answer, sorted
	// Capacity is the sum over the ready workloads, rounded so that it does not change with each of them. It
	// is used while their health is unknown. Without a ready workload, it is the sum over terminating ones
	// that still serve. It is zero if Identities is empty.
	Capacity uint32
	Headless bool     // see Service
	Affinity Affinity // see Service
	Created  int64    // see Service
}

// ExportPort is a port that clients may ask for.
type ExportPort struct {
	Name string
	Port uint16
}

// ExportOf returns the export of svc by the network of members, which are all its
// members there. ok is false if [Exports] is.
//
// Of a Home service, only Identities and Capacity depend on members. So its export, and
// what other clusters make of it, stays the same while pods restart, and without any pod.
func ExportOf(svc *Service, members []*Workload) (e Export, ok bool) {
	if !Exports(svc, members) {
		return Export{}, false
	}
	return *shareOf(svc, members), true
}

// Exports reports whether the network of members exports svc. A Home service is exported
// by its scope alone. Any other may be a service of other networks: a workload in the mesh
// must be a member.
func Exports(svc *Service, members []*Workload) bool {
	return svc.Exported() && (svc.Home || slices.ContainsFunc(members, func(w *Workload) bool { return !w.Plain }))
}

// shareOf is ExportOf without the check of [Exports]. Workloads without a node proxy are
// left out. So is a named port that no workload has, unless svc is a Home service.
func shareOf(svc *Service, members []*Workload) *Export {
	e := &Export{Name: svc.Name, Namespace: svc.Namespace, Hostname: svc.Hostname, Aliases: svc.Aliases, Scope: svc.Scope, Distribution: svc.exportDistribution(), Headless: svc.Headless, Affinity: svc.Affinity, Created: svc.Created}
	for _, p := range svc.Ports {
		if svc.Home || p.TargetName == "" || slices.ContainsFunc(members, func(w *Workload) bool { return !w.Plain && w.Target(p) != 0 }) {
			e.Ports = append(e.Ports, ExportPort{p.Name, p.Service})
		}
	}
	ready, serving := uint64(0), uint64(0)
	for _, w := range members {
		if w.Plain {
			continue
		}
		e.Identities = append(e.Identities, w.Identity)
		switch {
		case w.State == Ready || w.State == NotReady && svc.PublishNotReady:
			ready += uint64(w.Capacity)
		case w.State == Serving:
			serving += uint64(w.Capacity)
		}
	}
	slices.SortFunc(e.Identities, compareIDs)
	e.Identities = slices.Compact(e.Identities)
	if ready == 0 { // see Offer
		ready = serving
	}
	e.Capacity = RoundCapacity(ready)
	return e
}

// exportDistribution is the distribution for clients on other networks. It is never StrictNode: by
// that no client of another network has a candidate.
func (s *Service) exportDistribution() Distribution {
	if s.Distribution == StrictNode {
		return cmp.Or(s.ExportDistribution, PreferNetwork)
	}
	return s.Distribution
}

// Offers reports whether clients may ask for port.
func (e *Export) Offers(port uint16) bool {
	return slices.ContainsFunc(e.Ports, func(p ExportPort) bool { return p.Port == port })
}

// RoundCapacity rounds to four significant bits, half up: by at most a sixteenth,
// and not at all up to 16. More than 32 bits are as many as fit.
func RoundCapacity(n uint64) uint32 {
	if n > math.MaxUint32 {
		return RoundCapacity(math.MaxUint32)
	}
	if shift := bits.Len64(n) - 4; shift > 0 {
		n = (n + 1<<(shift-1)) >> shift << shift
	}
	return uint32(min(n, 0xf000_0000))
}

// floorCapacity is the greatest capacity up to n that RoundCapacity leaves as it is.
func floorCapacity(n uint32) uint32 {
	shift := max(0, bits.Len32(n)-4)
	return n >> shift << shift
}

// Share is one service on one network, as a client elsewhere sees it.
type Share struct {
	*Export             // the same pointer in all snapshots between which it did not change
	Network  string     // whose it is
	Gateways []*Gateway // by name, drained ones too
}

// Share returns the share of svc on network: what a record says of it, or, if its
// workloads there are listed, what follows from them. Whether other networks may have
// it is another question; see Reaches. ok is false if nobody is known to serve svc
// there.
func (s *Snapshot) Share(svc *Service, network string) (_ Share, ok bool) {
	p := s.membership(svc).part(network)
	if p == nil {
		return Share{}, false
	}
	return Share{Export: p.share(svc), Network: network, Gateways: s.gateways[network]}, true
}

// Told returns what a record says of the share of svc on network, also if workloads
// are listed there, which count then; nil if none does.
func (s *Snapshot) Told(svc *Service, network string) *Export {
	if p := s.membership(svc).part(network); p != nil {
		return p.told
	}
	return nil
}

// share returns what p comes to.
func (p *part) share(svc *Service) *Export {
	if len(p.members) == 0 {
		return p.told
	}
	if x := p.derived.Load(); x != nil && x.of == svc {
		return x.export
	}
	x := &derived{svc, shareOf(svc, p.members)}
	p.derived.Store(x)
	return x.export
}

// derived is what follows for a service from the members of a part.
type derived struct {
	of     *Service
	export *Export
}

// Link is what the reader of exports holds the network to that they come from:
// otherwise any linked network could answer for any service.
type Link struct {
	// TrustDomains are those that its workloads may be in. Empty admits nobody.
	TrustDomains []string
	// Namespaces are those whose identities may answer, whatever the service. Empty
	// is that of the service alone.
	Namespaces []string
	// MaxCapacity is the greatest weight of one share, also once it is rounded. Zero is no
	// bound.
	MaxCapacity uint32
}

// Admit returns e with the identities that l admits, and those that it refuses. ok is
// false if e must not be used. An export that names no identity has no endpoints now. It
// is admitted if l would admit an identity of the service's namespace. A caller that remembers
// which identities it named last asks with those.
func (l Link) Admit(e Export) (admitted Export, refused []spiffeid.ID, ok bool) {
	ok = len(e.Identities) == 0 && len(l.TrustDomains) > 0 && (len(l.Namespaces) == 0 || slices.Contains(l.Namespaces, e.Namespace))
	var ids []spiffeid.ID
	for _, id := range e.Identities {
		if l.admits(e.Namespace, id) {
			ids = append(ids, id)
		} else {
			refused = append(refused, id)
		}
	}
	if e.Identities = ids; len(ids) == 0 {
		e.Capacity = 0
	}
	if l.MaxCapacity > 0 {
		e.Capacity = min(e.Capacity, floorCapacity(l.MaxCapacity))
	}
	return e, refused, ok || len(ids) > 0
}

func (l Link) admits(namespace string, id spiffeid.ID) bool {
	if !slices.Contains(l.TrustDomains, id.TrustDomain().Name()) {
		return false
	}
	parts := strings.Split(id.Path(), "/") // "", ns, <namespace>, sa, <account>
	if len(parts) != 5 || parts[1] != "ns" || parts[3] != "sa" {
		return false
	}
	if len(l.Namespaces) == 0 {
		return parts[2] == namespace
	}
	return slices.Contains(l.Namespaces, parts[2])
}
