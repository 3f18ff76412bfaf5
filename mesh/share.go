package mesh

import (
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
	// Capacity is the sum over the workloads that are ready, rounded: it counts while
	// nothing is known of their health, and must not change with each of them.
	Capacity uint32
}

// ExportPort is a port that clients may ask for.
type ExportPort struct {
	Name string
	Port uint16
}

// ExportOf returns what the network of members says of svc, of which they are all
// the members there. ok is false if there is nothing to say: the service is not for
// other networks, or nobody there is a member.
func ExportOf(svc *Service, members []*Workload) (e Export, ok bool) {
	if !svc.Exported() || len(members) == 0 {
		return Export{}, false
	}
	e = Export{Name: svc.Name, Namespace: svc.Namespace, Hostname: svc.Hostname, Aliases: svc.Aliases, Scope: svc.Scope, Distribution: svc.Distribution}
	for _, p := range svc.Ports {
		e.Ports = append(e.Ports, ExportPort{p.Name, p.Service})
	}
	total := uint64(0)
	for _, w := range members {
		e.Identities = append(e.Identities, w.Identity)
		if w.State == Ready || w.State == NotReady && svc.PublishNotReady {
			total += uint64(w.Capacity)
		}
	}
	slices.SortFunc(e.Identities, compareIDs)
	e.Identities = slices.Compact(e.Identities)
	e.Capacity = RoundCapacity(total)
	return e, true
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

// Share is one service on one network, as a client elsewhere sees it.
type Share struct {
	Export
	Network  string
	Gateways []*Gateway // by name, drained ones too
}

// Share returns the share of svc on network that the owner of that network would
// publish. ok is false if it would publish none. It looks at every member there.
func (s *Snapshot) Share(svc *Service, network string) (Share, bool) {
	e, ok := ExportOf(svc, s.Members(svc, network))
	return Share{Export: e, Network: network, Gateways: s.Gateways(network)}, ok
}

// Link is what the reader of exports holds the network to that they come from:
// otherwise any linked network could answer for any service.
type Link struct {
	// TrustDomains are those that its workloads may be in. Empty admits nobody.
	TrustDomains []string
	// Namespaces are those whose identities may answer, whatever the service. Empty
	// is that of the service alone.
	Namespaces []string
	// MaxCapacity is the greatest weight of one share. Zero is no bound.
	MaxCapacity uint32
}

// Admit returns what of e holds, and who of it may not answer. An export without
// identities is one that nobody may answer for.
func (l Link) Admit(e Export) (admitted Export, refused []spiffeid.ID) {
	var ids []spiffeid.ID
	for _, id := range e.Identities {
		if l.admits(e.Namespace, id) {
			ids = append(ids, id)
		} else {
			refused = append(refused, id)
		}
	}
	e.Identities = ids
	if l.MaxCapacity > 0 {
		e.Capacity = min(e.Capacity, l.MaxCapacity)
	}
	return e, refused
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
