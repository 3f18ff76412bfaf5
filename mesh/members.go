package mesh

import (
	"slices"
	"strings"

	"github.com/spiffe/go-spiffe/v2/spiffeid"
)

// membership is who answers for one service, network by network.
type membership struct {
	by       *token
	networks []string // sorted
	parts    []*part  // one per network
	// identities is every identity a member may answer with, sorted.
	identities []spiffeid.ID
}

// part is one network's members of a service.
type part struct {
	by      *token
	members []*Workload // by UID
	// identities and carriers are the distinct identities of the members, sorted,
	// and how many members have each.
	identities []spiffeid.ID
	carriers   []int
}

func (m *membership) part(network string) *part {
	if m == nil {
		return nil
	}
	if i, ok := slices.BinarySearch(m.networks, network); ok {
		return m.parts[i]
	}
	return nil
}

// own returns m itself if by owns it, else a copy that by owns.
func (m *membership) own(by *token) *membership {
	switch {
	case m == nil:
		return &membership{by: by}
	case m.by == by:
		return m
	}
	return &membership{by: by, networks: slices.Clone(m.networks), parts: slices.Clone(m.parts), identities: m.identities}
}

// ownPart returns the part of network, which by owns then; by owns m.
func (m *membership) ownPart(by *token, network string) *part {
	i, ok := slices.BinarySearch(m.networks, network)
	if !ok {
		m.networks = slices.Insert(m.networks, i, network)
		m.parts = slices.Insert(m.parts, i, &part{by: by})
	} else if p := m.parts[i]; p.by != by {
		m.parts[i] = &part{by: by, members: append(make([]*Workload, 0, len(p.members)+1), p.members...), identities: p.identities, carriers: slices.Clone(p.carriers)}
	}
	return m.parts[i]
}

// put adds w, in place of what has its UID on its network.
func (m *membership) put(by *token, w *Workload) {
	p := m.ownPart(by, w.Network)
	i, found := search(p.members, w.UID)
	if found {
		old := p.members[i]
		p.members[i] = w
		if old.Identity == w.Identity {
			return
		}
		p.drop(old.Identity)
	} else {
		p.members = slices.Insert(p.members, i, w)
	}
	p.add(w.Identity)
	m.collect()
}

// del removes w; a network without members is none.
func (m *membership) del(by *token, w *Workload) {
	p := m.ownPart(by, w.Network)
	if i, found := search(p.members, w.UID); found {
		p.members = slices.Delete(p.members, i, i+1)
		p.drop(w.Identity)
	}
	if len(p.members) == 0 {
		i, _ := slices.BinarySearch(m.networks, w.Network)
		m.networks, m.parts = slices.Delete(m.networks, i, i+1), slices.Delete(m.parts, i, i+1)
	}
	m.collect()
}

// add and drop copy identities when they change it: readers have it.

func (p *part) add(id spiffeid.ID) {
	i, found := slices.BinarySearchFunc(p.identities, id, compareIDs)
	if found {
		p.carriers[i]++
		return
	}
	p.identities = slices.Insert(slices.Clone(p.identities), i, id)
	p.carriers = slices.Insert(p.carriers, i, 1)
}

func (p *part) drop(id spiffeid.ID) {
	i, found := slices.BinarySearchFunc(p.identities, id, compareIDs)
	if !found {
		return
	}
	if p.carriers[i]--; p.carriers[i] == 0 {
		p.identities = slices.Delete(slices.Clone(p.identities), i, i+1)
		p.carriers = slices.Delete(p.carriers, i, i+1)
	}
}

// collect puts the identities of all networks together, if they are others now.
func (m *membership) collect() {
	if len(m.parts) == 1 {
		m.identities = m.parts[0].identities
		return
	}
	var all []spiffeid.ID
	for _, p := range m.parts {
		all = append(all, p.identities...)
	}
	slices.SortFunc(all, compareIDs)
	m.identities = slices.Compact(all)
}

func compareIDs(a, b spiffeid.ID) int { return strings.Compare(a.String(), b.String()) }
