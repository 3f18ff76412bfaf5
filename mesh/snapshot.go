package mesh

import (
	"net/netip"
	"slices"
	"strings"
)

// Snapshot is one consistent, immutable state of the mesh. The zero value is
// an empty mesh. Everything reachable from it is shared: do not modify.
type Snapshot struct {
	Revision uint64 // grows by one with every accepted change

	workloads map[string]*Workload
	byAddr    map[addrKey]*Workload
	byID      map[EndpointID]*Workload
	services  map[string]*Service
	byVIP     map[netip.Addr]*Service
	members   map[memberKey][]*Workload
	networks  map[*Service][]string
	memberOf  map[string][]*Service
	gateways  map[string][]*Gateway
	all       []*Workload
	allSvc    []*Service

	allNetworks []Network
	trustDomain string
}

type addrKey struct {
	network string
	addr    netip.Addr
}

type memberKey struct {
	service *Service
	network string
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
	s := &Snapshot{
		Revision:  revision,
		workloads: make(map[string]*Workload, len(p.Workloads)),
		byAddr:    make(map[addrKey]*Workload, len(p.Workloads)),
		byID:      make(map[EndpointID]*Workload, len(p.Workloads)),
		services:  make(map[string]*Service, len(p.Services)),
		byVIP:     map[netip.Addr]*Service{},
		members:   map[memberKey][]*Workload{},
		networks:  map[*Service][]string{},
		memberOf:  map[string][]*Service{},
		gateways:  map[string][]*Gateway{},
		all:       p.Workloads,
		allSvc:    p.Services,

		allNetworks: p.Networks,
		trustDomain: p.TrustDomain,
	}
	for _, w := range p.Workloads {
		s.workloads[w.UID] = w
		s.byID[w.Endpoint] = w
		for _, a := range w.Addresses {
			s.byAddr[addrKey{w.Network, a}] = w
		}
	}
	for _, g := range p.Gateways {
		s.gateways[g.Network] = append(s.gateways[g.Network], g)
	}
	for _, svc := range p.Services {
		s.addService(svc, p.Members[svc.Hostname])
	}
	return s
}

func (s *Snapshot) addService(svc *Service, uids []string) {
	s.services[strings.ToLower(svc.Hostname)] = svc
	for _, a := range svc.Aliases {
		s.services[strings.ToLower(a)] = svc
	}
	for _, v := range svc.VIPs {
		s.byVIP[v] = svc
	}
	for _, uid := range uids {
		w := s.workloads[uid]
		if w == nil {
			continue
		}
		k := memberKey{svc, w.Network}
		if len(s.members[k]) == 0 {
			s.networks[svc] = append(s.networks[svc], w.Network)
		}
		s.members[k] = append(s.members[k], w)
		s.memberOf[uid] = append(s.memberOf[uid], svc)
	}
	slices.Sort(s.networks[svc])
}

// Workload returns the workload with this UID, or nil.
func (s *Snapshot) Workload(uid string) *Workload { return s.workloads[uid] }

// WorkloadAt returns the workload that holds addr on network, or nil: the same
// address on another network is another workload.
func (s *Snapshot) WorkloadAt(network string, addr netip.Addr) *Workload {
	return s.byAddr[addrKey{network, addr.Unmap()}]
}

// WorkloadByEndpoint returns the workload with this endpoint ID, or nil.
func (s *Snapshot) WorkloadByEndpoint(id EndpointID) *Workload { return s.byID[id] }

// Workloads returns every workload in the order of discovery.
func (s *Snapshot) Workloads() []*Workload { return s.all }

// Service returns the service with this hostname or alias (case-insensitive),
// or nil.
func (s *Snapshot) Service(hostname string) *Service {
	if svc := s.services[hostname]; svc != nil {
		return svc
	}
	return s.services[strings.ToLower(hostname)]
}

// ServiceAt returns the service with this virtual IP, or nil.
func (s *Snapshot) ServiceAt(vip netip.Addr) *Service { return s.byVIP[vip.Unmap()] }

// Services returns every service in the order of discovery.
func (s *Snapshot) Services() []*Service { return s.allSvc }

// Members returns svc's workloads on network, whatever their state.
func (s *Snapshot) Members(svc *Service, network string) []*Workload {
	return s.members[memberKey{svc, network}]
}

// Networks returns the networks on which svc has workloads, sorted.
func (s *Snapshot) Networks(svc *Service) []string { return s.networks[svc] }

// ServicesOf returns the services that the workload uid is a member of.
func (s *Snapshot) ServicesOf(uid string) []*Service { return s.memberOf[uid] }

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
	for _, svc := range s.memberOf[uid] {
		for _, p := range svc.Ports {
			if p.Target == port {
				return true
			}
		}
	}
	return false
}

// Gateways returns the gateways of network in the order of discovery.
func (s *Snapshot) Gateways(network string) []*Gateway { return s.gateways[network] }

// GatewayNetworks returns the networks that have gateways, sorted.
func (s *Snapshot) GatewayNetworks() []string {
	names := make([]string, 0, len(s.gateways))
	for n := range s.gateways {
		names = append(names, n)
	}
	slices.Sort(names)
	return names
}
