package mesh

import (
	"maps"
	"net/netip"
	"reflect"
	"slices"
	"strings"

	"github.com/isthmus-mesh/isthmus/policy"
)

// Edit is a batch of changes of a Snapshot. What it costs is in proportion to
// what it changes: everything else is shared with the snapshot that it began
// with, which never changes. It trusts its input as NewSnapshot does; of two that
// claim one name, address or ID the later change has it. Not safe for concurrent
// use.
type Edit struct {
	by       *token
	s        Snapshot
	gateways bool // the map is ours
}

// Edit begins a batch of changes of s.
func (s *Snapshot) Edit() *Edit { return &Edit{by: new(token), s: *s} }

// Snapshot returns what the edit has come to. The edit may go on from there.
func (e *Edit) Snapshot(revision uint64) *Snapshot {
	s := e.s
	s.Revision = revision
	e.by, e.gateways = new(token), false // what s holds is s's
	return &s
}

// Peek returns what the edit has come to so far, for lookups until the next
// change.
func (e *Edit) Peek() *Snapshot { return &e.s }

// SetTrustDomain names the trust domain.
func (e *Edit) SetTrustDomain(name string) { e.s.trustDomain = name }

// SetPolicies says who may connect to workloads.
func (e *Edit) SetPolicies(policies *policy.Set) { e.s.policies = policies }

// SetNetworks says which networks there are; the edit keeps the list.
func (e *Edit) SetNetworks(networks []Network) {
	slices.SortStableFunc(networks, func(a, b Network) int { return strings.Compare(a.Name, b.Name) })
	e.s.allNetworks = networks
}

// SetGateways says which gateways network has; the edit keeps the list.
func (e *Edit) SetGateways(network string, gateways []*Gateway) {
	if !e.gateways {
		e.s.gateways, e.gateways = maps.Clone(e.s.gateways), true
	}
	if e.s.gateways == nil {
		e.s.gateways = map[string][]*Gateway{}
	}
	if len(gateways) == 0 {
		delete(e.s.gateways, network)
		return
	}
	slices.SortStableFunc(gateways, func(a, b *Gateway) int { return strings.Compare(a.Name, b.Name) })
	e.s.gateways[network] = gateways
}

// PutService adds svc, in place of the service with its hostname, whose members
// it takes over. The edit owns svc.
func (e *Edit) PutService(svc *Service) {
	host := textKey(svc.Hostname)
	old := e.s.Named(svc.Hostname)
	if old != nil {
		e.unname(old)
	}
	for name := range namesOf(svc) {
		e.s.names.put(e.by, name, svc)
	}
	for v := range vipsOf(svc) {
		e.s.byVIP.put(e.by, vipKey{v}, svc)
	}
	e.s.services.put(e.by, svc)
	if old == nil {
		return
	}
	for _, p := range e.s.members.get(host).all() {
		for _, w := range p.members {
			list := slices.Clone(e.s.memberOf.get(textKey(w.UID)))
			list[slices.Index(list, old)] = svc
			e.s.memberOf.put(e.by, textKey(w.UID), list)
		}
	}
}

// DeleteService removes the service with this hostname and what records say of its
// shares; its workloads stay.
func (e *Edit) DeleteService(hostname string) {
	old := e.s.Named(hostname)
	if old == nil {
		return
	}
	e.unname(old)
	e.s.services.del(e.by, hostname)
	m := e.s.members.get(textKey(hostname))
	for _, p := range m.all() {
		for _, w := range p.members {
			e.setMemberOf(w.UID, without(e.s.memberOf.get(textKey(w.UID)), old))
		}
	}
	e.s.members.del(e.by, textKey(hostname))
}

// unname gives up names and addresses of svc that nobody has taken over.
func (e *Edit) unname(svc *Service) {
	for name := range namesOf(svc) {
		if e.s.names.get(name) == svc {
			e.s.names.del(e.by, name)
		}
	}
	for v := range vipsOf(svc) {
		if k := (vipKey{v}); e.s.byVIP.get(k) == svc {
			e.s.byVIP.del(e.by, k)
		}
	}
}

// Told is what a record says of the share of a service on a network.
type Told struct {
	Network string
	Export  *Export
}

// TellShares says what records say of the shares of the service with this hostname, in
// place of what they said before, and returns whether that is something else. Of a
// hostname that no service has it counts for nothing. The edit owns what list holds.
func (e *Edit) TellShares(hostname string, list []Told) (changed bool) {
	if e.s.Named(hostname) == nil {
		return false
	}
	k := textKey(hostname)
	m := e.s.members.get(k)
	put := func(network string, told *Export) {
		if !changed {
			m, changed = m.own(e.by), true
		}
		m.tell(e.by, network, told)
	}
	if m != nil {
		for _, network := range slices.Clone(m.networks) {
			listed := slices.ContainsFunc(list, func(t Told) bool { return t.Network == network })
			if !listed && m.part(network).told != nil {
				put(network, nil)
			}
		}
	}
	for _, t := range list {
		if p := m.part(t.Network); p == nil || p.told == nil || !reflect.DeepEqual(p.told, t.Export) {
			put(t.Network, t.Export)
		}
	}
	switch {
	case !changed:
	case len(m.parts) == 0:
		e.s.members.del(e.by, k)
	default:
		e.s.members.put(e.by, k, m)
	}
	return changed
}

// PutWorkload adds w, in place of the workload with its UID, as a member of the
// services with these hostnames and of no others; a hostname that no service has
// counts for nothing. The edit owns w.
func (e *Edit) PutWorkload(w *Workload, hostnames []string) {
	var services []*Service
	for _, host := range hostnames {
		if svc := e.s.Named(host); svc != nil && !slices.Contains(services, svc) {
			services = append(services, svc)
		}
	}
	slices.SortFunc(services, func(a, b *Service) int { return strings.Compare(a.Hostname, b.Hostname) })
	if old := e.s.Workload(w.UID); old != nil {
		e.unplace(old, w)
		for _, svc := range e.s.ServicesOf(w.UID) {
			if old.Network != w.Network || !slices.Contains(services, svc) {
				e.leave(old, svc)
			}
		}
	}
	e.s.workloads.put(e.by, textKey(w.UID), w)
	e.s.sorted.put(e.by, w)
	e.s.byID.put(e.by, w.Endpoint, w)
	for _, a := range w.Addresses {
		e.s.byAddr.put(e.by, addrKey{w.Network, a}, w)
	}
	e.onNode(w)
	for _, svc := range services {
		m := e.s.members.get(textKey(svc.Hostname)).own(e.by)
		m.put(e.by, w)
		e.s.members.put(e.by, textKey(svc.Hostname), m)
	}
	if !slices.Equal(e.s.ServicesOf(w.UID), services) {
		e.setMemberOf(w.UID, services)
	}
}

// DeleteWorkload removes the workload with this UID.
func (e *Edit) DeleteWorkload(uid string) {
	old := e.s.Workload(uid)
	if old == nil {
		return
	}
	e.unplace(old, nil)
	for _, svc := range e.s.ServicesOf(uid) {
		e.leave(old, svc)
	}
	e.setMemberOf(uid, nil)
	e.s.workloads.del(e.by, textKey(uid))
	e.s.sorted.del(e.by, uid)
}

// unplace gives up ID, addresses and node of old that next does not keep and
// nobody has taken over; next is nil if old goes.
func (e *Edit) unplace(old, next *Workload) {
	if e.s.byID.get(old.Endpoint) == old && (next == nil || next.Endpoint != old.Endpoint) {
		e.s.byID.del(e.by, old.Endpoint)
	}
	for _, a := range old.Addresses {
		if next != nil && next.Network == old.Network && slices.Contains(next.Addresses, a) {
			continue
		}
		if k := (addrKey{old.Network, a}); e.s.byAddr.get(k) == old {
			e.s.byAddr.del(e.by, k)
		}
	}
	if old.Node == "" || next != nil && next.Network == old.Network && next.Node == old.Node {
		return
	}
	k := nodeKey{old.Network, old.Node}
	if left := without(e.s.byNode.get(k), old); len(left) > 0 {
		e.s.byNode.put(e.by, k, left)
	} else {
		e.s.byNode.del(e.by, k)
	}
}

// onNode lists w on its node. The list is copied: readers have it, and a node
// has few.
func (e *Edit) onNode(w *Workload) {
	if w.Node == "" {
		return
	}
	k := nodeKey{w.Network, w.Node}
	list := slices.Clone(e.s.byNode.get(k))
	if i, found := search(list, w.UID); found {
		list[i] = w
	} else {
		list = slices.Insert(list, i, w)
	}
	e.s.byNode.put(e.by, k, list)
}

// leave ends the membership of w in svc.
func (e *Edit) leave(w *Workload, svc *Service) {
	k := textKey(svc.Hostname)
	m := e.s.members.get(k).own(e.by)
	m.del(e.by, w)
	if len(m.parts) == 0 {
		e.s.members.del(e.by, k)
		return
	}
	e.s.members.put(e.by, k, m)
}

func (e *Edit) setMemberOf(uid string, services []*Service) {
	if len(services) == 0 {
		e.s.memberOf.del(e.by, textKey(uid))
		return
	}
	e.s.memberOf.put(e.by, textKey(uid), services)
}

// all returns the parts; of no membership none.
func (m *membership) all() []*part {
	if m == nil {
		return nil
	}
	return m.parts
}

// namesOf returns hostname and aliases of svc, as the index has them.
func namesOf(svc *Service) func(func(textKey) bool) {
	return func(yield func(textKey) bool) {
		if !yield(textKey(strings.ToLower(svc.Hostname))) {
			return
		}
		for _, a := range svc.Aliases {
			if !yield(textKey(strings.ToLower(a))) {
				return
			}
		}
		if svc.Import == nil {
			return
		}
		for _, a := range svc.Import.Aliases {
			if !yield(textKey(strings.ToLower(a))) {
				return
			}
		}
	}
}

// vipsOf yields the addresses that lead to svc.
func vipsOf(svc *Service) func(func(netip.Addr) bool) {
	return func(yield func(netip.Addr) bool) {
		for _, v := range svc.VIPs {
			if !yield(v) {
				return
			}
		}
		if svc.Import == nil {
			return
		}
		for _, v := range svc.Import.VIPs {
			if !yield(v) {
				return
			}
		}
	}
}

// without returns a copy of all that lacks x.
func without[T comparable](all []T, x T) []T {
	return slices.DeleteFunc(slices.Clone(all), func(y T) bool { return y == x })
}
