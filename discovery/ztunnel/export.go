package ztunnel

import (
	"fmt"
	"net/netip"
	"slices"
	"strings"

	"github.com/spiffe/go-spiffe/v2/spiffeid"

	"github.com/isthmus-mesh/isthmus/mesh"
	"github.com/isthmus-mesh/isthmus/policy"
)

const (
	hbone     = "HBONE"
	unhealthy = "Unhealthy"
)

// Export returns what the ztunnel of node must know: the workloads of its own
// network with their addresses, what it can reach on each other network through
// each gateway, those gateways, every service, and every policy. The order is that of
// discovery. A node name that two networks have is an error: nothing says which
// of them is meant.
func Export(s *mesh.Snapshot, node string) (Config, error) {
	network, err := networkOf(s, node)
	if err != nil {
		return Config{}, err
	}
	c := Config{Workloads: []Workload{}, Services: []Service{}, Policies: []Authorization{}}
	for _, w := range s.Workloads() {
		if w.Network == network {
			out := local(s, w)
			c.police(s.Policies(), w, &out)
			c.Workloads = append(c.Workloads, out)
		}
	}
	for _, svc := range s.Services() {
		c.Workloads = append(c.Workloads, remotes(s, svc, network)...)
		c.Services = append(c.Services, service(s, svc, network))
	}
	for _, n := range s.GatewayNetworks() {
		for i, g := range s.Gateways(n) {
			twin := func(x *mesh.Gateway) bool { return x.Address == g.Address } // replicas are one workload
			if n != network && !slices.ContainsFunc(s.Gateways(n)[:i], twin) {
				c.Workloads = append(c.Workloads, gateway(g))
			}
		}
	}
	for _, o := range s.Policies().Objects() {
		if a, is := o.(*policy.Authorization); is {
			c.Policies = append(c.Policies, authorization(s.Policies(), a))
		}
	}
	return c, nil
}

// networkOf returns the network that node's workloads are on.
func networkOf(s *mesh.Snapshot, node string) (string, error) {
	var networks, nodes []string
	for _, w := range s.Workloads() {
		if w.Node == node && node != "" {
			networks = append(networks, w.Network)
		}
		if w.Node != "" {
			nodes = append(nodes, w.Node)
		}
	}
	slices.Sort(networks)
	switch networks = slices.Compact(networks); len(networks) {
	case 1:
		return networks[0], nil
	case 0:
		slices.Sort(nodes)
		nodes = slices.Compact(nodes)
		return "", fmt.Errorf("export for node %q: no workload runs there: name one of %s", node, strings.Join(nodes, ", "))
	default:
		return "", fmt.Errorf("export for node %q: it has workloads on networks %s: give each node its own name", node, strings.Join(networks, ", "))
	}
}

func local(s *mesh.Snapshot, w *mesh.Workload) Workload {
	out := Workload{
		UID: w.UID, Name: w.Name, Namespace: w.Namespace, TrustDomain: w.TrustDomain, ServiceAccount: w.ServiceAccount,
		WorkloadIPs: []string{}, Network: w.Network, Node: w.Node, ClusterID: w.Cluster, Protocol: hbone, Capacity: w.Capacity,
		Services: map[string]map[uint16]uint16{},
	}
	for _, a := range w.Addresses {
		out.WorkloadIPs = append(out.WorkloadIPs, a.String())
	}
	if w.State != mesh.Ready {
		out.Status = unhealthy
	}
	if w.Locality != (mesh.Locality{}) {
		out.Locality = (*Locality)(&w.Locality)
	}
	for _, svc := range s.ServicesOf(w.UID) {
		out.Services[key(svc)] = ports(svc, w)
	}
	return out
}

// remotes are the split-horizon workloads of svc: one for each gateway of each
// other network that has ready members, or a share that counts for some. As node proxies do, a ztunnel goes through a
// drained gateway while its network has no other.
func remotes(s *mesh.Snapshot, svc *mesh.Service, network string) (out []Workload) {
	if !svc.Exported() {
		return nil
	}
	for _, n := range s.Networks(svc) {
		members := s.Members(svc, n)
		total := readyCapacity(members)
		if x := s.Told(svc, n); x != nil && len(members) == 0 {
			total = x.Capacity
		}
		if n == network || total == 0 {
			continue
		}
		gateways := slices.DeleteFunc(slices.Clone(s.Gateways(n)), func(g *mesh.Gateway) bool { return g.Drained })
		if len(gateways) == 0 {
			gateways = s.Gateways(n)
		}
		for i, g := range gateways {
			namespace, _ := account(g.Identity)
			out = append(out, Workload{
				UID:  strings.Join([]string{n, "SplitHorizonWorkload", namespace, g.Name, svc.Namespace, svc.Hostname}, "/"),
				Name: svc.Name, Namespace: svc.Namespace, TrustDomain: g.Identity.TrustDomain().Name(),
				WorkloadIPs: []string{}, Network: n, Protocol: hbone,
				Capacity: share(total, len(gateways), i),
				NetworkGateway: &NetworkGateway{
					Destination:   at(n, g.Address.Addr()),
					HBONEMTLSPort: g.Address.Port(),
				},
				Services: map[string]map[uint16]uint16{key(svc): ports(svc, nil)},
			})
		}
	}
	return out
}

func readyCapacity(members []*mesh.Workload) (total uint32) {
	for _, w := range members {
		if w.State == mesh.Ready {
			total += w.Capacity
		}
	}
	return total
}

// share is the part of total that the i-th of n gateways stands for. Parts add
// up to total, so that a second gateway does not double the weight of its
// network; but none is zero, because every gateway has to stay in use.
func share(total uint32, n, i int) uint32 {
	part := total / uint32(n)
	if uint32(i) < total%uint32(n) {
		part++
	}
	return max(part, 1)
}

// gateway is the workload that a NetworkGateway of it refers to.
func gateway(g *mesh.Gateway) Workload {
	namespace, name := account(g.Identity)
	return Workload{
		UID:  fmt.Sprintf("NetworkGateway/%s/%s/%d", g.Network, g.Address.Addr(), g.Address.Port()),
		Name: g.Name, Namespace: namespace, TrustDomain: g.Identity.TrustDomain().Name(), ServiceAccount: name,
		WorkloadIPs: []string{g.Address.Addr().String()}, Network: g.Network, Protocol: hbone,
		Services: map[string]map[uint16]uint16{},
	}
}

func service(s *mesh.Snapshot, svc *mesh.Service, network string) Service {
	out := Service{
		Name: svc.Name, Namespace: svc.Namespace, Hostname: svc.Hostname,
		VIPs: []string{}, Ports: ports(svc, nil), LoadBalancer: balancing[svc.Distribution],
	}
	for _, vip := range svc.VIPs {
		out.VIPs = append(out.VIPs, at(network, vip))
	}
	for _, id := range s.Identities(svc, "") {
		out.SubjectAltNames = append(out.SubjectAltNames, id.String())
	}
	return out
}

// balancing says each distribution in ztunnel's words, with the scopes that
// package balance ranks by. Any has none.
var balancing = map[mesh.Distribution]*LoadBalancer{
	mesh.PreferNetwork:  failover("Network"),
	mesh.PreferRegion:   failover("Network", "Region"),
	mesh.PreferClose:    failover("Network", "Region", "Zone"),
	mesh.PreferSameZone: failover("Network", "Region", "Zone"),
	mesh.PreferSameNode: failover("Network", "Region", "Zone", "Subzone", "Node"),
	mesh.RegionFirst:    failover("Region"),
	mesh.StrictNode:     {RoutingPreferences: []string{"Network", "Node"}, Mode: "Strict", HealthPolicy: "OnlyHealthy"},
}

func failover(scopes ...string) *LoadBalancer {
	return &LoadBalancer{RoutingPreferences: scopes, Mode: "Failover", HealthPolicy: "OnlyHealthy"}
}

// ports maps service ports to target ports of w; if that is nil, or has no port of
// the name, to themselves.
func ports(svc *mesh.Service, w *mesh.Workload) map[uint16]uint16 {
	out := make(map[uint16]uint16, len(svc.Ports))
	for _, p := range svc.Ports {
		out[p.Service] = p.Service
		if w != nil && w.Target(p) != 0 {
			out[p.Service] = w.Target(p)
		} else if p.Target != 0 {
			out[p.Service] = p.Target
		}
	}
	return out
}

func key(svc *mesh.Service) string { return svc.Namespace + "/" + svc.Hostname }

func at(network string, a netip.Addr) string { return network + "/" + a.String() }

// account takes spiffe://td/ns/<namespace>/sa/<name> apart; discovery makes
// identities of no other form.
func account(id spiffeid.ID) (namespace, name string) {
	p := strings.Split(id.Path(), "/")
	return p[2], p[4]
}
