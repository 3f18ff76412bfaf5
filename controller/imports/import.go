// Package imports decides which ServiceImports a cluster has: of what other networks
// export to it, and of what itself does ([Merge], [Plan]).
//
// It promises that what comes of exports does not depend on the order in which they are
// heard; that an import which somebody else has made is never touched; that nothing is
// taken back because it is not known now; and that nothing is written which is there
// already.
//
// Pure.
package imports

import (
	"cmp"
	"net/netip"
	"slices"
	"strings"
	"time"

	"github.com/isthmus-mesh/isthmus/controller/vip"
)

// Port is one of an import.
type Port struct {
	Name        string
	Protocol    string // TCP
	AppProtocol string
	Port        uint16
}

// Import is a ServiceImport.
type Import struct {
	vip.Name
	Headless bool
	Affinity string       // sessionAffinity: ClientIP; empty: None
	IPs      []netip.Addr // the one of IPv4 first
	Ports    []Port
	Clusters []string // that export it, sorted
	Waits    string   // why it has no address and is not ready; empty: it is

	// Of one that the API server has; Clusters are then those by which it was written last,
	// none if it does not say.
	Ours    bool
	Ready   bool      // its condition says so
	Behind  bool      // its status is not of what it is now, or missing
	Ending  bool      // it was deleted, and something keeps it still
	Version string    // by which a writer proves that it knows it
	UID     string    // empty: the API server has none
	Created time.Time // there
}

// Export is what one cluster says of a service.
type Export struct {
	Cluster  string // its network
	Headless bool
	Affinity string // as of an Import
	Ports    []Port
	Created  time.Time // zero: unknown, which is younger than any

	stands bool // it is the import as it is, for a network whose exports are not known now
}

// Conflicts are in what exports of a service differ, in the words of MCS, sorted.
type Conflicts []string

// The conflicts that are looked for.
const (
	PortConflict     = "PortConflict"
	TypeConflict     = "TypeConflict"
	AffinityConflict = "SessionAffinityConflict"
)

// Merge returns the import of exports, of which there is at least one, and in what they
// differ. The oldest export decides each property, as in KEP-1645; of equal age, the first
// by name of its network. Ports are the union by name, and of two with one name or number
// the older. So a younger export adds ports at most, and changes nothing else.
func Merge(n vip.Name, exports []Export) (Import, Conflicts) {
	exports = slices.Clone(exports)
	slices.SortFunc(exports, older)
	out := Import{Name: n, Headless: exports[0].Headless, Affinity: exports[0].Affinity}
	var conflicts Conflicts
	differ := func(what string) {
		if !slices.Contains(conflicts, what) {
			conflicts = append(conflicts, what)
		}
	}
	for i, e := range exports {
		out.Clusters = append(out.Clusters, e.Cluster)
		if e.Headless != out.Headless {
			differ(TypeConflict)
		}
		if e.Affinity != out.Affinity {
			differ(AffinityConflict)
		}
		if i > 0 && !samePorts(e.Ports, exports[0].Ports) {
			differ(PortConflict)
		}
		for _, p := range e.Ports {
			if !slices.ContainsFunc(out.Ports, p.clashes) {
				out.Ports = append(out.Ports, p)
			}
		}
	}
	slices.Sort(out.Clusters)
	out.Clusters = slices.Compact(out.Clusters)
	slices.SortFunc(out.Ports, comparePorts)
	slices.Sort(conflicts)
	return out, conflicts
}

// clashes reports whether not both can be ports of one import.
func (p Port) clashes(o Port) bool {
	return p.Name == o.Name || p.Port == o.Port && p.Protocol == o.Protocol
}

func comparePorts(a, b Port) int {
	return cmp.Or(cmp.Compare(a.Port, b.Port), strings.Compare(a.Name, b.Name), strings.Compare(a.Protocol, b.Protocol))
}

func samePorts(a, b []Port) bool {
	return slices.Equal(slices.SortedFunc(slices.Values(a), comparePorts), slices.SortedFunc(slices.Values(b), comparePorts))
}

// older is the order in which exports count. While the exports of a network are not known,
// any of them may be the oldest: the import as it is goes first.
func older(a, b Export) int {
	if a.stands != b.stands {
		return map[bool]int{true: -1, false: 1}[a.stands]
	}
	return cmp.Or(compareTimes(a.Created, b.Created), strings.Compare(a.Cluster, b.Cluster))
}

func compareTimes(a, b time.Time) int {
	switch {
	case a.IsZero() && b.IsZero():
		return 0
	case a.IsZero():
		return 1
	case b.IsZero():
		return -1
	}
	return a.Compare(b)
}
