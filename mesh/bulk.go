package mesh

import (
	"cmp"
	"slices"
	"strings"

	"github.com/spiffe/go-spiffe/v2/spiffeid"
)

// Placement is a workload and the hostnames of the services that it is a member
// of, as PutWorkload takes them.
type Placement struct {
	Workload *Workload
	Services []string
}

// PutWorkloads is PutWorkload for each of list in order. The first workloads of a
// mesh are put into the indexes all at once: one by one, 50 000 of them cost four
// times as much.
func (e *Edit) PutWorkloads(list []Placement) {
	if e.s.workloads.n > 0 || len(list) < 2 || !e.putAll(list) {
		for _, p := range list {
			e.PutWorkload(p.Workload, p.Services)
		}
	}
}

// putAll puts list into the indexes of a mesh without workloads. It does nothing
// and returns false if two have one UID.
func (e *Edit) putAll(list []Placement) bool {
	sorted := slices.Clone(list)
	byUID := func(a, b Placement) int { return strings.Compare(a.Workload.UID, b.Workload.UID) }
	if !slices.IsSortedFunc(sorted, byUID) {
		slices.SortFunc(sorted, byUID)
	}
	workloads := make([]*Workload, len(sorted))
	for i, p := range sorted {
		if workloads[i] = p.Workload; i > 0 && workloads[i-1].UID == p.Workload.UID {
			return false
		}
	}
	e.s.sorted = listOf(e.by, workloads)
	e.index(list)
	e.onNodes(workloads)
	e.join(sorted)
	return true
}

// index fills the indexes by UID, endpoint ID and address: of two that claim one
// ID or address the later has it.
func (e *Edit) index(list []Placement) {
	uids := make([]slot[textKey, *Workload], len(list))
	ids := make([]slot[EndpointID, *Workload], len(list))
	addrs := make([]slot[addrKey, *Workload], 0, len(list))
	for i, p := range list {
		w := p.Workload
		uids[i] = slotOf(textKey(w.UID), w)
		ids[i] = slotOf(w.Endpoint, w)
		for _, a := range w.Addresses {
			addrs = append(addrs, slotOf(addrKey{w.Network, a}, w))
		}
	}
	e.s.workloads, e.s.byID, e.s.byAddr = trieOf(e.by, uids), trieOf(e.by, ids), trieOf(e.by, addrs)
}

// onNodes lists each node's workloads, which are sorted by UID.
func (e *Edit) onNodes(workloads []*Workload) {
	of := map[nodeKey][]*Workload{}
	for _, w := range workloads {
		if w.Node != "" {
			k := nodeKey{w.Network, w.Node}
			of[k] = append(of[k], w)
		}
	}
	slots := make([]slot[nodeKey, []*Workload], 0, len(of))
	for k, list := range of {
		slots = append(slots, slotOf(k, slices.Clip(list)))
	}
	e.s.byNode = trieOf(e.by, slots)
}

// join makes the memberships of workloads that are sorted by UID.
func (e *Edit) join(sorted []Placement) {
	type group struct {
		service *Service // nil if there is none of that name
		members []*Workload
	}
	groups := map[string]*group{}
	find := func(host string) *group {
		g := groups[host]
		if g == nil {
			g = &group{service: e.s.Named(host)}
			groups[host] = g
		}
		return g
	}
	memberOf := make([]slot[textKey, []*Service], 0, len(sorted))
	var services []*Service
	for _, p := range sorted {
		services = services[:0]
		for _, host := range p.Services {
			g := find(host)
			if g.service == nil || slices.Contains(services, g.service) {
				continue
			}
			services = append(services, g.service)
			g.members = append(g.members, p.Workload)
		}
		if len(services) > 0 {
			slices.SortFunc(services, func(a, b *Service) int { return strings.Compare(a.Hostname, b.Hostname) })
			memberOf = append(memberOf, slotOf(textKey(p.Workload.UID), slices.Clone(services)))
		}
	}
	members := make([]slot[textKey, *membership], 0, len(groups))
	for host, g := range groups {
		if len(g.members) > 0 {
			members = append(members, slotOf(textKey(host), membershipOf(e.by, g.members)))
		}
	}
	told := e.s.members // nobody has been a member yet
	e.s.memberOf, e.s.members = trieOf(e.by, memberOf), trieOf(e.by, members)
	for host, of := range told.all() {
		m := e.s.members.get(host).own(e.by)
		for i, p := range of.parts {
			m.tell(e.by, of.networks[i], p.told)
		}
		e.s.members.put(e.by, host, m)
	}
}

// membershipOf is the membership of workloads that are sorted by UID.
func membershipOf(by *token, workloads []*Workload) *membership {
	m := &membership{by: by}
	slices.SortStableFunc(workloads, func(a, b *Workload) int { return cmp.Compare(a.Network, b.Network) })
	for len(workloads) > 0 {
		network := workloads[0].Network
		n := slices.IndexFunc(workloads, func(w *Workload) bool { return w.Network != network })
		if n < 0 {
			n = len(workloads)
		}
		m.networks = append(m.networks, network)
		m.parts = append(m.parts, partOf(by, slices.Clone(workloads[:n])))
		workloads = workloads[n:]
	}
	m.collect()
	return m
}

// partOf is the part of a network whose members, which it keeps, are sorted by UID.
func partOf(by *token, members []*Workload) *part {
	p := &part{by: by, members: members}
	ids := make([]spiffeid.ID, len(members))
	for i, w := range members {
		ids[i] = w.Identity
	}
	slices.SortFunc(ids, compareIDs)
	for i, id := range ids {
		if i == 0 || id != ids[i-1] {
			p.identities, p.carriers = append(p.identities, id), append(p.carriers, 0)
		}
		p.carriers[len(p.carriers)-1]++
	}
	return p
}

// listOf is the list of items, which are sorted. Its chunks are half full: most
// take an item without being split.
func listOf[V keyed](by *token, items []V) list[V] {
	l := list[V]{by: by, n: len(items)}
	for part := range slices.Chunk(items, maxChunk/2) {
		l.chunks = append(l.chunks, chunk[V]{by: by, items: slices.Clone(part)})
	}
	return l
}

func slotOf[K hashed, V any](k K, v V) slot[K, V] { return slot[K, V]{hash: k.hash(), key: k, val: v} }

// trieOf is the trie of slots, of which the later one counts if two have one key.
// It uses slots.
func trieOf[K hashed, V any](by *token, slots []slot[K, V]) (t trie[K, V]) {
	if len(slots) > 0 {
		t.root = branchOf(by, slots, make([]slot[K, V], len(slots)), 0, &t.n)
	}
	return t
}

// branchOf sorts slots by what the level at shift takes of their hashes, through
// spare, which is as long, and counts the keys.
func branchOf[K hashed, V any](by *token, slots, spare []slot[K, V], shift uint, n *int) *branch[K, V] {
	b := &branch[K, V]{by: by}
	if shift >= lastLevel {
		for _, s := range slots {
			if _, added := b.put(by, s, shift); added {
				*n++
			}
		}
		return b
	}
	var ends [1 << levelBits]int
	for i := range slots {
		ends[slots[i].hash>>shift&(1<<levelBits-1)]++
	}
	total, buckets := 0, 0
	for i, size := range ends {
		ends[i] = total
		if total += size; size > 0 {
			b.mask |= 1 << i
			buckets++
		}
	}
	for i := range slots {
		at := &ends[slots[i].hash>>shift&(1<<levelBits-1)]
		spare[*at] = slots[i]
		*at++
	}
	b.slots = make([]slot[K, V], 0, buckets)
	start := 0
	for _, end := range ends {
		if end == start {
			continue
		}
		bucket := spare[start:end]
		if same(bucket) {
			b.slots = append(b.slots, bucket[len(bucket)-1])
			*n++
		} else {
			b.slots = append(b.slots, slot[K, V]{below: branchOf(by, bucket, slots[start:end], shift+levelBits, n)})
		}
		start = end
	}
	return b
}

// same reports whether all slots have one key.
func same[K hashed, V any](slots []slot[K, V]) bool {
	for i := 1; i < len(slots); i++ {
		if slots[i].hash != slots[0].hash || slots[i].key != slots[0].key {
			return false
		}
	}
	return true
}
