package mesh

import (
	"slices"
	"strings"
	"sync/atomic"

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

// part is one network's share of a service: its members, or what a record tells.
type part struct {
	by      *token
	members []*Workload             // by UID
	told    *Export                 // by a record; counts while there is no member
	derived atomic.Pointer[derived] // what Share has found out; nil: nothing yet
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
		m.parts[i] = &part{by: by, members: append(make([]*Workload, 0, len(p.members)+1), p.members...), told: p.told, identities: p.identities, carriers: slices.Clone(p.carriers)}
	}
	m.parts[i].derived.Store(nil) // whoever owns it changes it
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
	m.drop(w.Network, p)
	m.collect()
}

// tell notes what a record says of network; nil: nothing any more.
func (m *membership) tell(by *token, network string, told *Export) {
	p := m.ownPart(by, network)
	p.told = told
	m.drop(network, p)
	m.collect()
}

// drop forgets a network of which nothing is left.
func (m *membership) drop(network string, p *part) {
	if len(p.members) == 0 && p.told == nil {
		i, _ := slices.BinarySearch(m.networks, network)
		m.networks, m.parts = slices.Delete(m.networks, i, i+1), slices.Delete(m.parts, i, i+1)
	}
}

// answering is who may answer for p.
func (p *part) answering() []spiffeid.ID {
	if len(p.members) == 0 && p.told != nil {
		return p.told.Identities
	}
	return p.identities
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
		m.identities = m.parts[0].answering()
		return
	}
	var all []spiffeid.ID
	for _, p := range m.parts {
		all = append(all, p.answering()...)
	}
	slices.SortFunc(all, compareIDs)
	m.identities = slices.Compact(all)
}

func compareIDs(a, b spiffeid.ID) int { return strings.Compare(a.String(), b.String()) }
