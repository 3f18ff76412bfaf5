package wds

import (
	"cmp"
	"fmt"
	"maps"
	"net/netip"
	"slices"
	"strings"

	pb "github.com/isthmus-mesh/isthmus/control/wds/wdspb"
	"github.com/isthmus-mesh/isthmus/discovery"
	"github.com/isthmus-mesh/isthmus/mesh"
)

// istiod is the state of a Decoder behind a stock istiod. There a service has the identities of its remote
// parts, and a remote part has the port of its gateway.
type istiod struct {
	remotes  map[string]remotePart          // by name of the resource
	sans     map[string][]string            // identities, by key of a service
	parts    map[string]map[string]struct{} // names of remotes, by key of a service
	gateways map[string]*pb.Workload        // by name of the resource
	ports    map[string]map[uint16]int      // of gateways, by network/address or host name, with the number of remotes
}

type remotePart struct {
	share   discovery.Share
	service string // key
	at      string // gateway
	port    uint16 // of it; 0: none is named
}

func newIstiod() istiod {
	return istiod{remotes: map[string]remotePart{}, sans: map[string][]string{}, parts: map[string]map[string]struct{}{}, gateways: map[string]*pb.Workload{}, ports: map[string]map[uint16]int{}}
}

// service completes s. Istio has no scope: the hostname leads to every network.
func (i *istiod) service(s *discovery.Service, m *pb.Service) {
	s.Name, s.Hostname, s.Scope, s.Takeover = label(s.Name), m.GetHostname(), string(mesh.ScopeGlobal), true
	for j := range s.Ports {
		p := &s.Ports[j]
		p.TargetPort, p.TargetName = 0, targetName(ServiceKey(m.GetNamespace(), m.GetHostname()), p.Port)
	}
}

// targetName returns the name of a target port at the workloads. istiod sends the number of each workload.
func targetName(service string, port uint16) string {
	s := fmt.Sprintf("%d/%s", port, service)
	return s[:min(len(s), maxText)]
}

// portsByService returns the target ports of a workload by targetName.
func portsByService(services map[string]*pb.PortList, keys []string) (out []discovery.NamedPort, err error) {
	for _, k := range keys {
		for _, p := range services[k].GetPorts() {
			port, err := decodePort("workload.services", p.GetServicePort())
			if err != nil {
				return nil, err
			}
			target, err := decodePort("workload.services", p.GetTargetPort())
			if err != nil {
				return nil, err
			}
			out = append(out, discovery.NamedPort{Name: targetName(k, port), Port: target})
		}
	}
	return out, nil
}

// remote takes the part of a service on another network.
func (i *istiod) remote(d *Decoder, ref Ref, m *pb.Workload) ([]discovery.Change, error) {
	keys := slices.Sorted(maps.Keys(m.GetServices()))
	if len(keys) != 1 {
		return nil, invalid("workload.services", len(keys), "a remote service has exactly one")
	}
	namespace, host, ok := strings.Cut(keys[0], "/")
	if !ok {
		return nil, invalid("workload.services", keys[0], "not NAMESPACE/HOSTNAME")
	}
	if m.GetNetwork() == d.c.Network {
		return nil, invalid("workload.network", m.GetNetwork(), "a remote service on the network of this node proxy")
	}
	name, _, _ := strings.Cut(host, ".")
	capacity := uint32(1)
	if c := m.GetCapacity(); c != nil {
		capacity = c.GetValue()
	}
	if m.GetStatus() != pb.WorkloadStatus_HEALTHY {
		capacity = 0
	}
	s := discovery.Share{Network: m.GetNetwork(), Name: label(name), Namespace: namespace, Hostname: host, Capacity: &capacity}
	for _, p := range m.GetServices()[keys[0]].GetPorts() {
		port, err := decodePort("workload.services", p.GetServicePort())
		if err != nil {
			return nil, err
		}
		s.Ports = append(s.Ports, discovery.SharePort{Port: port})
	}
	at, port := placeOf(m.GetNetworkGateway())
	was := i.forget(ref.Name)
	i.remotes[ref.Name] = remotePart{s, keys[0], at, port}
	if i.parts[keys[0]] == nil {
		i.parts[keys[0]] = map[string]struct{}{}
	}
	i.parts[keys[0]][ref.Name] = struct{}{}
	if i.ports[at] == nil {
		i.ports[at] = map[uint16]int{}
	}
	i.ports[at][port]++
	return append(i.emit(d, ref.Name), i.moved(d, was, at)...), nil
}

// emit returns the record of a remote service, once its identities are known.
func (i *istiod) emit(d *Decoder, name string) []discovery.Change {
	r, ref := i.remotes[name], Ref{TypeAddress, name}
	s := r.share
	if s.Identities = i.sans[r.service]; len(s.Identities) == 0 {
		return d.set(ref, nil)
	}
	return d.set(ref, []discovery.Change{
		{Key: d.sourced(discovery.KindNetwork, s.Network, s.Network), Record: discovery.Network{Name: s.Network}},
		{Key: d.sourced(discovery.KindShare, s.Network, name), Record: s},
	})
}

// identities takes the identities of a service.
func (i *istiod) identities(d *Decoder, service string, sans []string) (changes []discovery.Change) {
	if !d.c.Istiod {
		return nil
	}
	sans = slices.Clone(sans)
	slices.Sort(sans) // istiod's order is not stable
	if slices.Equal(sans, i.sans[service]) {
		return nil
	}
	if delete(i.sans, service); len(sans) > 0 {
		i.sans[service] = sans
	}
	for _, name := range slices.Sorted(maps.Keys(i.parts[service])) {
		changes = append(changes, i.emit(d, name)...)
	}
	return changes
}

// placeOf returns the name and the port of the gateway of a remote part.
func placeOf(m *pb.GatewayAddress) (at string, port uint16) {
	at = m.GetHostname().GetHostname()
	if ip, ok := netip.AddrFromSlice(m.GetAddress().GetAddress()); ok {
		at = m.GetAddress().GetNetwork() + "/" + ip.String()
	}
	return at, uint16(min(m.GetHboneMtlsPort(), 65535))
}

// moved returns the records of the gateways at places, whose port may have changed.
func (i *istiod) moved(d *Decoder, places ...string) (changes []discovery.Change) {
	for _, name := range slices.Sorted(maps.Keys(i.gateways)) {
		if slices.ContainsFunc(placesOf(i.gateways[name]), func(at string) bool { return at != "" && slices.Contains(places, at) }) {
			changes = append(changes, i.emitGateway(d, name)...)
		}
	}
	return changes
}

// placesOf returns the names of a gateway in remote parts.
func placesOf(m *pb.Workload) (out []string) {
	for _, b := range m.GetAddresses() {
		if ip, ok := netip.AddrFromSlice(b); ok {
			out = append(out, m.GetNetwork()+"/"+ip.String())
		}
	}
	return append(out, m.GetHostname())
}

func (i *istiod) gateway(d *Decoder, ref Ref, m *pb.Workload) ([]discovery.Change, error) {
	if _, err := decodeAddresses("workload.addresses", m.GetAddresses()); err != nil {
		return nil, err
	}
	if len(m.GetAddresses()) == 0 && m.GetHostname() == "" {
		return nil, invalid("workload.addresses", "", "missing: a gateway has an address or a host name")
	}
	i.gateways[ref.Name] = m
	return i.emitGateway(d, ref.Name), nil
}

func (i *istiod) emitGateway(d *Decoder, name string) []discovery.Change {
	m := i.gateways[name]
	port := uint16(mesh.HBONEPort)
	for _, at := range placesOf(m) {
		for _, p := range slices.Sorted(maps.Keys(i.ports[at])) {
			port = cmp.Or(p, port)
		}
	}
	var at []netip.AddrPort
	addresses, _ := decodeAddresses("", m.GetAddresses())
	if h := m.GetHostname(); len(addresses) == 0 && h != "" && d.c.Lookup != nil {
		addresses = d.c.Lookup(h)
	}
	for _, a := range addresses {
		at = append(at, netip.AddrPortFrom(a.Unmap(), port))
	}
	ref := Ref{TypeAddress, name}
	if len(at) == 0 {
		return d.set(ref, nil)
	}
	called := label(cmp.Or(m.GetHostname(), at[0].Addr().StringExpanded()))
	g := discovery.Gateway{Name: called, Network: m.GetNetwork(), Address: at[0], MoreAddresses: at[1:], ServiceAccount: m.GetNamespace() + "/" + cmp.Or(m.GetServiceAccount(), defaultAccount),
		Locality: decodeLocality(m.GetLocality()), Drained: m.GetStatus() != pb.WorkloadStatus_HEALTHY}
	if td := cmp.Or(m.GetTrustDomain(), defaultTrustDomain); td != d.c.TrustDomain {
		g.TrustDomain = td
	}
	changes := []discovery.Change{{Key: d.sourced(discovery.KindGateway, g.Network, name), Record: g}}
	if g.Network != d.c.Network {
		changes = append(changes, discovery.Change{Key: d.sourced(discovery.KindNetwork, g.Network, g.Network), Record: discovery.Network{Name: g.Network}})
	}
	return d.set(ref, changes)
}

// Hosts returns the host names of gateways, sorted, for the caller to resolve.
func (d *Decoder) Hosts() (out []string) {
	for _, m := range d.istiod.gateways {
		if m.GetHostname() != "" && len(m.GetAddresses()) == 0 {
			out = append(out, m.GetHostname())
		}
	}
	slices.Sort(out)
	return slices.Compact(out)
}

// Resolved takes new addresses of a host name from Lookup.
func (d *Decoder) Resolved(host string) (changes []discovery.Change) {
	for _, name := range slices.Sorted(maps.Keys(d.istiod.gateways)) {
		if d.istiod.gateways[name].GetHostname() == host {
			changes = append(changes, d.istiod.emitGateway(d, name)...)
		}
	}
	return changes
}

// drop removes the state of the resource called name.
func (i *istiod) drop(d *Decoder, name string) []discovery.Change {
	delete(i.gateways, name)
	return append(i.moved(d, i.forget(name)), i.identities(d, name, nil)...)
}

// forget drops a remote part, and returns its gateway.
func (i *istiod) forget(name string) (at string) {
	r, ok := i.remotes[name]
	if !ok {
		return ""
	}
	delete(i.remotes, name)
	if delete(i.parts[r.service], name); len(i.parts[r.service]) == 0 {
		delete(i.parts, r.service)
	}
	if i.ports[r.at][r.port]--; i.ports[r.at][r.port] == 0 {
		if delete(i.ports[r.at], r.port); len(i.ports[r.at]) == 0 {
			delete(i.ports, r.at)
		}
	}
	return r.at
}
