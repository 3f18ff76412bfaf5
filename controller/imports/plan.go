package imports

import (
	"cmp"
	"fmt"
	"maps"
	"net/netip"
	"slices"
	"strings"
	"time"

	"github.com/isthmus-mesh/isthmus/controller/vip"
)

// View is what is known of exports.
type View struct {
	Exports map[vip.Name][]Export
	// Vague reports whether of a network less is known than it exports: what an import
	// says of it stands.
	Vague func(network string) bool
	// Unheard says that of any network less is known than it exports: an import that does
	// not say by whose exports it was made stands.
	Unheard bool
	// Lacks reports whether the cluster has no such namespace: nothing can be imported
	// there.
	Lacks func(namespace string) bool
}

// Write is one that brings an import into line.
type Write struct {
	Do     Do
	Import Import // as it is to be
}

// Do is what a Write does.
type Do uint8

// The writes.
const (
	Create Do = iota
	Update    // what it is
	Status    // who exports it
	Delete
)

func (d Do) String() string { return [...]string{"create", "update", "status", "delete"}[d] }

// Problem is why an import is not as it should be.
type Problem struct {
	vip.Name
	Exists  bool // as an object
	Reason  string
	Message string // with the remedy; the same while the problem is
	Counts  string // how much of what, as it is now; empty if that is not what is wrong
}

// String returns all that is known of it.
func (p Problem) String() string {
	if p.Counts == "" {
		return p.Message
	}
	return p.Message + " (" + p.Counts + ")"
}

// Result is what is to be done.
type Result struct {
	Writes    []Write
	Problems  []Problem
	Conflicts map[vip.Name]Conflicts // of services, where there are any
}

// Plan compares imports that there are with those that there should be. The ledger is
// changed, and is to be written before any of the writes is done.
func Plan(v View, have map[vip.Name]Import, ledger *vip.Ledger, now time.Time) Result {
	out := Result{Conflicts: map[vip.Name]Conflicts{}}
	names := map[vip.Name]bool{}
	var used []netip.Addr
	for n := range v.Exports {
		names[n] = true
	}
	for _, i := range slices.SortedFunc(maps.Values(have), ByAge) {
		names[i.Name] = true
		if i.Ours && !i.Headless {
			ledger.Adopt(i.Name, v.payers(i), i.IPs)
		}
		used = append(used, i.IPs...)
	}
	ledger.Avoid(used)
	sorted := slices.SortedFunc(maps.Keys(names), vip.Name.Compare)
	for _, n := range sorted { // first what is given back, so that it is known when more is given
		is, exists := have[n]
		if exists && v.alone(is) {
			continue
		}
		if _, wanted := v.wanted(n, is, exists); wanted {
			continue
		}
		if exists { // which may be refused: it has its address until it is gone
			out.Writes = append(out.Writes, Write{Delete, is})
		} else {
			ledger.Release(n, now)
		}
	}
	for _, n := range ledger.Names() { // of imports that were deleted
		if !names[n] {
			ledger.Release(n, now)
		}
	}
	for _, n := range sorted {
		out.one(v, n, have, ledger, now)
	}
	return out
}

// ByAge orders imports: of two with one address the older one keeps it.
func ByAge(a, b Import) int {
	return cmp.Or(compareTimes(a.Created, b.Created), a.Name.Compare(b.Name))
}

// alone reports whether an import is left alone: what somebody else has made; what was
// deleted, and is not gone yet; and what does not say by whose exports it was made, while
// these may be of a network that is not known now.
func (v View) alone(is Import) bool {
	return !is.Ours || is.Ending || len(is.Clusters) == 0 && v.Unheard
}

// wanted are the exports by which n is imported.
func (v View) wanted(n vip.Name, is Import, exists bool) ([]Export, bool) {
	exports := v.Exports[n]
	if !exists {
		return exports, len(exports) > 0 && !v.Lacks(n.Namespace)
	}
	for _, cluster := range is.Clusters {
		if v.Vague(cluster) && !slices.ContainsFunc(exports, func(e Export) bool { return e.Cluster == cluster }) {
			exports = append(slices.Clip(exports), Export{Cluster: cluster, Headless: is.Headless, Affinity: is.Affinity, Ports: is.Ports, stands: true})
		}
	}
	return exports, len(exports) > 0 && !v.Lacks(n.Namespace)
}

// payers are the networks in whose shares the addresses of an import are that there is: those by
// whose exports it stands, whatever it says itself.
func (v View) payers(is Import) (networks []string) {
	exports, wanted := v.wanted(is.Name, is, true)
	if !wanted || v.alone(is) {
		return nil
	}
	for _, e := range exports {
		networks = append(networks, e.Cluster)
	}
	return networks
}

func (r *Result) one(v View, n vip.Name, have map[vip.Name]Import, ledger *vip.Ledger, now time.Time) {
	is, exists := have[n]
	if exists && !is.Ours {
		if len(v.Exports[n]) > 0 {
			r.Problems = append(r.Problems, Problem{Name: n, Exists: true, Reason: "NotOurs", Message: "other networks export this service, and this ServiceImport was not made by isthmus-controller, which leaves it alone: delete it, and isthmus-controller makes its own"})
		}
		return
	}
	if exists && v.alone(is) {
		return
	}
	exports, wanted := v.wanted(n, is, exists)
	if !wanted {
		return
	}
	want, _ := Merge(n, exports)
	if _, conflicts := Merge(n, known(exports)); len(conflicts) > 0 {
		r.Conflicts[n] = conflicts
	}
	if !want.Headless {
		_, why := ledger.Assign(n, want.Clusters, now)
		if want.Waits = why.String(); why != vip.None {
			r.Problems = append(r.Problems, Problem{n, exists, noAddress[why], want.Waits + remedies[why], counts(why, want.Clusters, ledger)})
		}
		want.IPs = ledger.Addresses(n)
	}
	want.Ours, want.Ready = true, want.Headless || len(want.IPs) > 0
	want.Version, want.UID, want.Created = is.Version, is.UID, is.Created
	switch {
	case !exists:
		r.Writes = append(r.Writes, Write{Create, want})
	case !sameSpec(want, is):
		r.Writes = append(r.Writes, Write{Update, want})
	case !slices.Equal(want.Clusters, is.Clusters) || want.Ready != is.Ready || is.Behind || want.Waits != is.Waits:
		r.Writes = append(r.Writes, Write{Status, want})
	}
}

// noAddress are the reasons of Events at imports without an address.
var noAddress = map[vip.Why]string{vip.Exhausted: "NoAddress", vip.Share: "NetworkShare", vip.Unreadable: "LedgerUnreadable"}

// remedies are what to do about it.
var remedies = map[vip.Why]string{
	vip.Exhausted:  ": give the controller and the gateways wider ranges (vips.ipv4, vips.ipv6), or import less",
	vip.Share:      ": let them export less, or give the controller and the gateways wider ranges (vips.ipv4, vips.ipv6)",
	vip.Unreadable: ": it gets one then; who may write the ConfigMap isthmus-vips is the controller alone",
}

// counts say of how much there is too little.
func counts(why vip.Why, networks []string, ledger *vip.Ledger) string {
	if why == vip.Unreadable {
		return ""
	}
	var said []string
	if why == vip.Share {
		for _, n := range networks {
			said = append(said, fmt.Sprintf("%s has %d", n, ledger.UsedBy(n)))
		}
	}
	used, of := ledger.Used()
	return strings.Join(append(said, fmt.Sprintf("%d of %d numbers are taken or were given back in the last %v", used, of, vip.Quarantine)), ", ")
}

// known leaves out what only stands for what is not known now.
func known(exports []Export) []Export {
	out := slices.DeleteFunc(slices.Clone(exports), func(e Export) bool { return e.stands })
	if len(out) == 0 {
		return exports
	}
	return out
}

func sameSpec(a, b Import) bool {
	return a.Headless == b.Headless && a.Affinity == b.Affinity && slices.Equal(a.IPs, b.IPs) && slices.Equal(a.Ports, b.Ports)
}

// Overlap is what is wrong with the ranges of virtual addresses, beside what else uses
// addresses; empty: nothing. Who says so is in what.
func Overlap(r vip.Ranges, what string, a netip.Addr) string {
	if !r.Contains(a) {
		return ""
	}
	return fmt.Sprintf("%s has %s, which is in the range of virtual addresses for imported services: give the controller others (vips.ipv4, vips.ipv6), which no pod, no Service and no istiod has", what, a)
}
