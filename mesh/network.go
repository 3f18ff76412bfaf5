package mesh

import "slices"

// Network is a set of addresses that reach each other without a gateway.
type Network struct {
	Name    string
	Nodes   []string // that discovery names although no workload may run there yet
	Segment string   // see ScopeSegment; networks without one are of one segment
}

// AllNetworks returns every network's name sorted.
func (s *Snapshot) AllNetworks() []string {
	names := make([]string, len(s.allNetworks))
	for i, n := range s.allNetworks {
		names[i] = n.Name
	}
	return names
}

// HasNetwork reports whether discovery lists the network.
func (s *Snapshot) HasNetwork(name string) bool {
	return slices.ContainsFunc(s.allNetworks, func(n Network) bool { return n.Name == name })
}

// Reaches reports whether scopes let clients on the network from have what svc is on
// the network to: that of svc here, and the one that its owners there tell.
func (s *Snapshot) Reaches(svc *Service, from, to string) bool {
	if from == to {
		return true
	}
	p := s.membership(svc).part(to)
	return s.crosses(svc.Scope, from, to) && (p == nil || len(p.members) > 0 || s.crosses(p.told.Scope, from, to))
}

// Imports is Reaches for what network to exports to all under the name of svc, whatever the scope of
// the service that from has of that name.
func (s *Snapshot) Imports(svc *Service, from, to string) bool {
	p := s.membership(svc).part(to)
	return from != to && p != nil && p.told != nil && s.crosses(p.told.Scope, from, to)
}

func (s *Snapshot) crosses(scope Scope, from, to string) bool {
	if scope == ScopeSegment {
		return s.segment(from) == s.segment(to)
	}
	return scope.crosses()
}

func (s *Snapshot) segment(network string) string {
	for _, n := range s.allNetworks {
		if n.Name == network {
			return n.Segment
		}
	}
	return ""
}

// Nodes returns the nodes of a network that discovery names, by themselves or
// for a workload, sorted.
func (s *Snapshot) Nodes(network string) []string {
	var names []string
	for _, n := range s.allNetworks {
		if n.Name == network {
			names = append(names, n.Nodes...)
		}
	}
	for k := range s.byNode.all() {
		if k.network == network {
			names = append(names, k.node)
		}
	}
	slices.Sort(names)
	return slices.Compact(names)
}

// TrustDomain returns the name of the trust domain of every identity.
func (s *Snapshot) TrustDomain() string { return s.trustDomain }

// ListNetworks returns every network, by name.
func (s *Snapshot) ListNetworks() []Network { return s.allNetworks }
