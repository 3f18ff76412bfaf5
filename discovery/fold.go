package discovery

import (
	"cmp"
	"reflect"
	"slices"
	"sort"
	"strings"

	"github.com/isthmus-mesh/isthmus/mesh"
)

// ListFor is List for a process on network, which needs no workload of another one: what
// they come to are the shares of their services. Their problems are Faults, their names
// in Elsewhere. It also returns the snapshot with all of them, which nobody need keep;
// nil if no workload is elsewhere: then the list is all, and costs no snapshot.
func (c Config) ListFor(network string) (Listing, *mesh.Snapshot) {
	full := c.List()
	if !slices.ContainsFunc(c.Workloads, func(w Workload) bool { return w.Network != network }) {
		return full, nil
	}
	b := NewBuilder(0)
	b.SetTrustDomain(c.TrustDomain)
	b.SetRootNamespace(c.RootNamespace)
	b.Apply(full.changes()...)
	whole, _, _ := b.Commit()
	l := Listing{items: make([]item, 0, len(full.items)), byKey: map[Key]int{}, places: map[Key]int{}, faults: full.faults}
	for _, it := range full.items {
		if b.folds(b.entries[it.key], network) {
			for _, p := range b.problems[it.key] {
				l.places[it.key] = it.place
				l.faults = append(l.faults, p)
			}
			continue
		}
		l.byKey[it.key] = len(l.items)
		l.items = append(l.items, it)
	}
	l.elsewhere = elsewhere(whole, network)
	for _, svc := range whole.Services() {
		var shares []mesh.Told
		for _, n := range whole.Networks(svc) {
			if n != network && len(whole.Members(svc, n)) > 0 {
				shares = append(shares, mesh.Told{Network: nameOf(c.Networks, n), Export: exportOf(whole, svc, n, shares)})
			}
		}
		if len(shares) > 0 {
			k := Key{Kind: KindShare, Name: svc.Hostname}
			l.byKey[k] = len(l.items)
			l.items = append(l.items, item{k, folded{svc.Hostname, shares}, len(c.Shares)})
			l.elsewhere.served = append(l.elsewhere.served, svc.Hostname)
		}
	}
	return l, whole
}

// folds reports whether e is in no list for a process on network: a workload elsewhere,
// one here that has lost to one elsewhere, a share beside listed workloads, or one that has lost to such a share.
func (b *Builder) folds(e *entry, network string) bool {
	switch e.key.Kind {
	case KindWorkload:
		_, winner := b.claims.lost(e)
		return e.reading.on != network || !e.in && winner != nil && winner.reading.on != network
	case KindShare:
		if !e.in {
			_, e = b.claims.lost(e)
		}
		return e != nil && e.key.Kind == KindShare && e.in && len(b.current.Members(b.current.Named(e.reading.share.Hostname), e.reading.on)) > 0
	}
	return false
}

// exportOf returns the share of svc on network, in the memory of one of others if it is
// the same there.
func exportOf(s *mesh.Snapshot, svc *mesh.Service, network string, others []mesh.Told) *mesh.Export {
	x, _ := s.Share(svc, network)
	if i := slices.IndexFunc(others, func(o mesh.Told) bool { return reflect.DeepEqual(o.Export, x.Export) }); i >= 0 {
		return others[i].Export
	}
	return x.Export
}

// nameOf returns name in the memory of the network that has it.
func nameOf(networks []Network, name string) string {
	if i := slices.IndexFunc(networks, func(n Network) bool { return n.Name == name }); i >= 0 {
		return networks[i].Name
	}
	return name
}

// folded is the shares of one service that follow from listed workloads.
type folded struct {
	hostname string
	shares   []mesh.Told // by network
}

func (folded) kind() Kind { return KindShare }

func (f folded) read(*reader) reading { return reading{folded: &f} }

// Elsewhere is what a process keeps of the workloads that it does not need: their
// endpoint IDs and UIDs, for logs and answers to people. The zero value is of nobody.
type Elsewhere struct {
	ids    []mesh.EndpointID // sorted
	ends   []uint32          // of each one's UID in uids
	uids   string
	served []string // hostnames of the services that they serve, sorted
}

func elsewhere(s *mesh.Snapshot, network string) (out Elsewhere) {
	var there []*mesh.Workload
	for _, w := range s.Workloads() {
		if w.Network != network {
			there = append(there, w)
		}
	}
	slices.SortFunc(there, func(a, b *mesh.Workload) int { return cmp.Compare(a.Endpoint, b.Endpoint) })
	var text strings.Builder
	out.ids, out.ends = make([]mesh.EndpointID, len(there)), make([]uint32, len(there))
	for i, w := range there {
		text.WriteString(w.UID)
		out.ids[i], out.ends[i] = w.Endpoint, uint32(text.Len())
	}
	out.uids = strings.Clone(text.String())
	return out
}

// Len returns how many workloads there are.
func (e *Elsewhere) Len() int { return len(e.ids) }

// UID returns the i-th one's.
func (e *Elsewhere) UID(i int) string {
	from := uint32(0)
	if i > 0 {
		from = e.ends[i-1]
	}
	return e.uids[from:e.ends[i]]
}

// Find returns the UID of an endpoint's workload, or "".
func (e *Elsewhere) Find(id mesh.EndpointID) string {
	if i, found := slices.BinarySearch(e.ids, id); found {
		return e.UID(i)
	}
	return ""
}

// Serves reports whether one of them serves the service with this hostname.
func (e *Elsewhere) Serves(hostname string) bool {
	i := sort.SearchStrings(e.served, hostname)
	return i < len(e.served) && e.served[i] == hostname
}

// Elsewhere returns what is kept of workloads of other networks; see ListFor.
func (l Listing) Elsewhere() Elsewhere { return l.elsewhere }
