package mesh

import (
	"maps"
	"net/netip"
	"slices"
	"strings"

	"github.com/spiffe/go-spiffe/v2/spiffeid"

	"github.com/isthmus-mesh/isthmus/policy"
)

// Snapshot is one consistent, immutable state of the mesh. The zero value is
// an empty mesh. Everything reachable from it is shared, also with the snapshots
// before and after it: do not modify. Lookups do not allocate. Edit makes the
// next one.
type Snapshot struct {
	Revision uint64 // grows by one with every accepted change

	workloads trie[textKey, *Workload] // by UID
	sorted    list[*Workload]
	byAddr    trie[addrKey, *Workload]
	byID      trie[EndpointID, *Workload]
	byNode    trie[nodeKey, []*Workload]
	memberOf  trie[textKey, []*Service] // by UID
	scheduled trie[textKey, *Workload]  // by UID; those without an address, which are in none of the above
	awaited   trie[nodeKey, []*Workload]

	names    trie[textKey, *Service] // by hostname and alias in lower case
	services list[*Service]
	byVIP    trie[vipKey, *Service]
	members  trie[textKey, *membership] // by hostname; of services that have a share anywhere

	gateways    map[string][]*Gateway // by network
	allNetworks []Network
	trustDomain string
	policies    *policy.Set
}

// Parts is what a Snapshot is built from. Members maps the hostname of a
// service to the UIDs of its workloads.
type Parts struct {
	TrustDomain string
	Networks    []Network
	Workloads   []*Workload
	Services    []*Service
	Gateways    []*Gateway
	Members     map[string][]string
}

// NewSnapshot indexes parts. It trusts its input: package discovery validates
// (unique UIDs, hostnames and addresses, known members). It takes ownership of
// everything in p.
func NewSnapshot(revision uint64, p Parts) *Snapshot {
	e := new(Snapshot).Edit()
	e.SetTrustDomain(p.TrustDomain)
	e.SetNetworks(p.Networks)
	gateways := map[string][]*Gateway{}
	for _, g := range p.Gateways {
		gateways[g.Network] = append(gateways[g.Network], g)
	}
	for network, list := range gateways {
		e.SetGateways(network, list)
	}
	memberOf := make(map[string][]string, len(p.Workloads))
	for _, svc := range p.Services {
		e.PutService(svc)
		for _, uid := range p.Members[svc.Hostname] {
			memberOf[uid] = append(memberOf[uid], svc.Hostname)
		}
	}
	placements := make([]Placement, len(p.Workloads))
	for i, w := range p.Workloads {
		placements[i] = Placement{w, memberOf[w.UID]}
	}
	e.PutWorkloads(placements)
	return e.Snapshot(revision)
}

// Workload returns the workload with this UID, or nil.
func (s *Snapshot) Workload(uid string) *Workload { return s.workloads.get(textKey(uid)) }

// WorkloadAt returns the workload that holds addr on network, or nil: the same
// address on another network is another workload.
func (s *Snapshot) WorkloadAt(network string, addr netip.Addr) *Workload {
	return s.byAddr.get(addrKey{network, addr.Unmap()})
}

// WorkloadByEndpoint returns the workload with this endpoint ID, or nil.
func (s *Snapshot) WorkloadByEndpoint(id EndpointID) *Workload { return s.byID.get(id) }

// Workloads returns every workload, by UID, in a list of its own: it costs as
// much as the mesh is large.
func (s *Snapshot) Workloads() []*Workload { return s.sorted.slice() }

// NumWorkloads returns how many workloads there are.
func (s *Snapshot) NumWorkloads() int { return s.sorted.n }

// OnNode returns the workloads on a node of network, by UID.
func (s *Snapshot) OnNode(network, node string) []*Workload {
	return s.byNode.get(nodeKey{network, node})
}

// Service returns the service with this hostname or alias (case-insensitive),
// or nil.
func (s *Snapshot) Service(hostname string) *Service {
	if svc := s.names.get(textKey(hostname)); svc != nil {
		return svc
	}
	return s.names.get(textKey(strings.ToLower(hostname)))
}

// Named returns the service whose hostname, not an alias, this is, or nil.
func (s *Snapshot) Named(hostname string) *Service {
	if c, i, found := s.services.place(hostname); found {
		return s.services.chunks[c].items[i]
	}
	return nil
}

// ServiceAt returns the service with this virtual IP, or nil.
func (s *Snapshot) ServiceAt(vip netip.Addr) *Service { return s.byVIP.get(vipKey{vip.Unmap()}) }

// Services returns every service, by hostname, in a list of its own.
func (s *Snapshot) Services() []*Service { return s.services.slice() }

// NumServices returns how many services there are.
func (s *Snapshot) NumServices() int { return s.services.n }

// Members returns svc's workloads on network, whatever their state, by UID. A
// service is what its hostname says: svc may be of an earlier snapshot.
func (s *Snapshot) Members(svc *Service, network string) []*Workload {
	if p := s.membership(svc).part(network); p != nil {
		return p.members
	}
	return nil
}

// Networks returns the networks that have a share of svc, sorted; see Share.
func (s *Snapshot) Networks(svc *Service) []string {
	if m := s.membership(svc); m != nil {
		return m.networks
	}
	return nil
}

// Identities returns every identity that may answer for svc on network or, if that is
// empty, on any, sorted: those of its members, or of what a record tells instead.
func (s *Snapshot) Identities(svc *Service, network string) []spiffeid.ID {
	m := s.membership(svc)
	if m == nil || network == "" {
		return m.anywhere()
	}
	if p := m.part(network); p != nil {
		return p.answering()
	}
	return nil
}

func (m *membership) anywhere() []spiffeid.ID {
	if m == nil {
		return nil
	}
	return m.identities
}

func (s *Snapshot) membership(svc *Service) *membership {
	if svc == nil {
		return nil
	}
	return s.members.get(textKey(svc.Hostname))
}

// ServicesOf returns the services that the workload uid is a member of, by
// hostname.
func (s *Snapshot) ServicesOf(uid string) []*Service { return s.memberOf.get(textKey(uid)) }

// FromGateway reports whether addr is one that a gateway of network connects to
// pods from.
func (s *Snapshot) FromGateway(network string, addr netip.Addr) bool {
	addr = addr.Unmap()
	for _, g := range s.gateways[network] {
		for _, p := range g.Sources {
			if p.Contains(addr) {
				return true
			}
		}
	}
	return false
}

// Declares reports whether port is a target port of a service that the workload
// uid is a member of.
func (s *Snapshot) Declares(uid string, port uint16) bool {
	w := s.Workload(uid)
	if w == nil {
		return false
	}
	for _, svc := range s.ServicesOf(uid) {
		for _, p := range svc.Ports {
			if t := w.Target(p); t == port && t != 0 {
				return true
			}
		}
	}
	return false
}

// Policies returns who may connect to workloads; nil says that nothing does.
func (s *Snapshot) Policies() *policy.Set { return s.policies }

// UnmatchedPolicies returns the policies whose selector selects no workload of s. It means something only where s has
// all workloads that policies are for, and costs a look at each.
func (s *Snapshot) UnmatchedPolicies() []policy.Unmatched {
	return s.policies.Unmatched(s.selectable)
}

// DesertedPolicies returns the policies without a selector in whose namespace s has no workload. It means something only
// where there are no others, as in a file.
func (s *Snapshot) DesertedPolicies() []policy.Unmatched { return s.policies.Deserted(s.selectable) }

// MisportedPolicies returns the policies that name ports of services whose applications listen on others. It means something
// only where s has all workloads that policies are for.
func (s *Snapshot) MisportedPolicies() []policy.Misported {
	return s.policies.Misported(func(yield func(policy.Answers) bool) {
		for w := range s.sorted.all() {
			ports := func(yield func(service, listens uint16) bool) {
				for _, svc := range s.ServicesOf(w.UID) {
					for _, p := range svc.Ports {
						if !yield(p.Service, w.Target(p)) {
							return
						}
					}
				}
			}
			if !yield(policy.Answers{Workload: policy.Workload{Namespace: w.Namespace, Labels: w.Labels}, Services: ports}) {
				return
			}
		}
	})
}

// selectable yields the workloads of s, as policies see them.
func (s *Snapshot) selectable(yield func(policy.Workload) bool) {
	for w := range s.sorted.all() {
		if !yield(policy.Workload{Namespace: w.Namespace, Labels: w.Labels}) {
			return
		}
	}
}

// PointingPolicies returns the policies whose principals do not name the clients of policy.PointerDomain, though it is
// among the trust domains linked: they stand for those of the trust domain of s.
func (s *Snapshot) PointingPolicies(linked []string) []policy.Pointing {
	if !slices.Contains(linked, policy.PointerDomain) {
		return nil
	}
	return s.policies.Pointing(s.trustDomain)
}

// Gateways returns the gateways of network, by name.
func (s *Snapshot) Gateways(network string) []*Gateway { return s.gateways[network] }

// GatewayNetworks returns the networks that have gateways, sorted.
func (s *Snapshot) GatewayNetworks() []string { return slices.Sorted(maps.Keys(s.gateways)) }
