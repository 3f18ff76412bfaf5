package wds

import (
	"net/netip"
	"slices"
	"strings"

	"github.com/spiffe/go-spiffe/v2/spiffeid"

	pb "github.com/isthmus-mesh/isthmus/control/wds/wdspb"
	"github.com/isthmus-mesh/isthmus/mesh"
)

func (b *batch) encodeService(svc *mesh.Service) Resource {
	m := &pb.Service{Name: svc.Name, Namespace: svc.Namespace, Hostname: svc.Hostname, Canonical: true, LoadBalancing: encodeBalancing(svc)}
	m.Ports, _ = portsOf(svc.Ports)
	vips := svc.VIPs
	if leadsElsewhere(svc) {
		vips = addressesOf(svc)
		for _, id := range b.remoteIdentities(svc) {
			m.SubjectAltNames = append(m.SubjectAltNames, id.String())
		}
	}
	for _, a := range vips {
		m.Addresses = append(m.Addresses, &pb.NetworkAddress{Network: b.network, Address: a.AsSlice()})
	}
	m.Extensions = pack("ServiceExtension", extensionOf(svc))
	key := keyOf(svc)
	keys := slices.Concat([]string{key}, b.serviceKeys(svc)[1:], nameKeys(svc))
	if takenOver(svc) {
		keys = append(keys, Takeover)
	}
	return Resource{Type: TypeAddress, Name: key, Aliases: networkKeys(b.network, vips), Keys: keys, Body: marshal(&pb.Address{Type: &pb.Address_Service{Service: m}})}
}

// leadsElsewhere reports whether the hostname leads to other networks. A stock ztunnel knows no other name.
func leadsElsewhere(svc *mesh.Service) bool { return svc.Exported() && svc.Takeover }

// remoteIdentities returns the identities of svc on networks that are reached, sorted.
func (b *batch) remoteIdentities(svc *mesh.Service) (out []spiffeid.ID) {
	for _, n := range b.next.Networks(svc) {
		if b.reaches(b.next, svc, n) && b.next.Reaches(svc, b.network, n) {
			out = append(out, b.next.Identities(svc, n)...)
		}
	}
	slices.SortFunc(out, func(x, y spiffeid.ID) int { return strings.Compare(x.String(), y.String()) })
	return slices.Compact(out)
}

func extensionOf(svc *mesh.Service) *pb.ServiceExtension {
	x := &pb.ServiceExtension{Scope: string(svc.Scope), Takeover: svc.Takeover, DistributionFrom: string(svc.DistributionFrom)}
	if svc.Scope == mesh.ScopeCluster {
		x.Scope = ""
	}
	for _, a := range svc.Aliases {
		if !svc.Exported() || a != globalName(svc.Name, svc.Namespace) { // else discovery adds it
			x.Aliases = append(x.Aliases, a)
		}
	}
	if d := svc.Distribution; d != decodeBalancing(encodeBalancing(svc)) {
		x.Distribution = string(d)
	}
	_, x.Ports = portsOf(svc.Ports)
	for _, p := range svc.Others {
		x.Ports = append(x.Ports, &pb.ServicePort{Port: uint32(p.Service), Name: p.Name, Protocol: p.Protocol})
	}
	if i := svc.Import; i != nil {
		x.Import = &pb.Import{Aliases: i.Aliases}
		for _, a := range i.VIPs {
			x.Import.Addresses = append(x.Import.Addresses, a.AsSlice())
		}
		x.Import.Ports, x.Import.Names = portsOf(i.Ports)
	}
	return x
}

// portsOf returns ports as Istio has them, and the names that some of them have.
func portsOf(list []mesh.Port) (ports []*pb.Port, names []*pb.ServicePort) {
	for _, p := range list {
		ports = append(ports, &pb.Port{ServicePort: uint32(p.Service), TargetPort: uint32(p.Target)})
		if p.Name != "" || p.TargetName != "" {
			names = append(names, &pb.ServicePort{Port: uint32(p.Service), Name: p.Name, TargetName: p.TargetName})
		}
	}
	return ports, names
}

func globalName(name, namespace string) string { return name + "." + namespace + ".mesh.internal" }

// addressesOf returns all addresses of svc.
func addressesOf(svc *mesh.Service) []netip.Addr {
	if svc.Import == nil {
		return svc.VIPs
	}
	return slices.Concat(svc.VIPs, svc.Import.VIPs)
}

func networkKeys(network string, addresses []netip.Addr) (out []string) {
	for _, a := range addresses {
		out = append(out, network+"/"+a.String())
	}
	return out
}

// serviceKeys returns the keys of svc and its workloads. The caller does not modify them.
func (b *batch) serviceKeys(svc *mesh.Service) []string {
	keys, ok := b.keys[svc]
	if !ok {
		keys = append([]string{keyOf(svc)}, networkKeys(b.network, addressesOf(svc))...)
		b.keys[svc] = keys
	}
	return keys
}

// nameKeys returns the keys of svc alone. A client asks for NAME.NAMESPACE.svc.cluster.local also if the
// service has another hostname.
func nameKeys(svc *mesh.Service) (out []string) {
	names := append([]string{svc.Hostname}, svc.Aliases...)
	if svc.Import != nil {
		names = append(names, svc.Import.Aliases...)
	}
	for _, n := range names {
		if out = append(out, NameKey(n)); n == globalName(svc.Name, svc.Namespace) {
			out = append(out, NameKey(svc.Name+"."+svc.Namespace+".svc.cluster.local"))
		}
	}
	slices.Sort(out)
	return slices.Compact(out)
}

// reserved are ranges for addresses of remote services, which node proxies capture as a whole.
var reserved = []netip.Prefix{netip.MustParsePrefix("240.0.0.0/4"), netip.MustParsePrefix("2001:2::/48")}

// takenOver reports whether svc has an address that node proxies capture one by one.
func takenOver(svc *mesh.Service) bool {
	return leadsElsewhere(svc) && slices.ContainsFunc(svc.VIPs, func(a netip.Addr) bool {
		return !slices.ContainsFunc(reserved, func(r netip.Prefix) bool { return r.Contains(a) })
	})
}

// remote encodes the part of svc on network.
func (b *batch) remote(svc *mesh.Service, network string) {
	x, _ := b.next.Share(svc, network)
	gateways := gatewaysOf(network)
	m := &pb.Workload{
		Uid: RemoteUID(network, svc.Namespace, svc.Hostname), Name: x.Name, Namespace: x.Namespace, Network: network, TunnelProtocol: pb.TunnelProtocol_HBONE, Capacity: &pb.UInt32Value{Value: x.Capacity},
		NetworkGateway: &pb.GatewayAddress{Destination: &pb.GatewayAddress_Hostname{Hostname: gateways}, HboneMtlsPort: mesh.HBONEPort},
	}
	if _, unhealthy := b.unhealthy[m.Uid]; unhealthy || x.Capacity == 0 {
		m.Status = pb.WorkloadStatus_UNHEALTHY
	}
	if leadsElsewhere(svc) && b.next.Reaches(svc, b.network, network) {
		ports := &pb.PortList{}
		for _, p := range svc.Ports {
			if x.Offers(p.Service) {
				ports.Ports = append(ports.Ports, &pb.Port{ServicePort: uint32(p.Service), TargetPort: uint32(p.Service)})
			}
		}
		m.Services = map[string]*pb.PortList{keyOf(svc): ports}
	}
	out := &pb.RemoteService{Hostname: x.Hostname, Scope: string(x.Scope), Distribution: string(x.Distribution), Created: x.Created, Headless: x.Headless, Affinity: string(x.Affinity)}
	for _, a := range x.Aliases {
		if a != globalName(x.Name, x.Namespace) {
			out.Aliases = append(out.Aliases, a)
		}
	}
	for _, p := range x.Ports {
		out.Ports = append(out.Ports, &pb.NamedPort{Name: p.Name, Port: uint32(p.Port)})
	}
	for _, id := range x.Identities {
		out.Identities = append(out.Identities, id.String())
	}
	m.Extensions = pack("RemoteService", out)
	b.put(Resource{Type: TypeAddress, Name: m.Uid, Keys: append([]string{m.Uid}, b.serviceKeys(svc)...), Body: marshal(addressOf(m))})
}

func addressOf(w *pb.Workload) *pb.Address {
	return &pb.Address{Type: &pb.Address_Workload{Workload: w}}
}

// parseRemote reads what RemoteUID returns.
func parseRemote(uid string) (network, host string, ok bool) {
	network, service, ok := strings.Cut(uid, splitHorizon)
	if i := strings.LastIndexByte(service, '/'); ok && i >= 0 {
		return network, service[i+1:], true
	}
	return "", "", false
}

// scopes are the distributions in Istio's words. Any has none; PreferClose is PreferSameZone.
var scopes = []struct {
	d    mesh.Distribution
	mode pb.LoadBalancing_Mode
	by   []pb.LoadBalancing_Scope
}{
	{mesh.Any, pb.LoadBalancing_UNSPECIFIED_MODE, nil},
	{mesh.PreferNetwork, pb.LoadBalancing_FAILOVER, []pb.LoadBalancing_Scope{pb.LoadBalancing_NETWORK}},
	{mesh.PreferRegion, pb.LoadBalancing_FAILOVER, []pb.LoadBalancing_Scope{pb.LoadBalancing_NETWORK, pb.LoadBalancing_REGION}},
	{mesh.PreferSameZone, pb.LoadBalancing_FAILOVER, []pb.LoadBalancing_Scope{pb.LoadBalancing_NETWORK, pb.LoadBalancing_REGION, pb.LoadBalancing_ZONE}},
	{mesh.PreferClose, pb.LoadBalancing_FAILOVER, []pb.LoadBalancing_Scope{pb.LoadBalancing_NETWORK, pb.LoadBalancing_REGION, pb.LoadBalancing_ZONE}},
	{mesh.PreferSameNode, pb.LoadBalancing_FAILOVER, []pb.LoadBalancing_Scope{pb.LoadBalancing_NETWORK, pb.LoadBalancing_REGION, pb.LoadBalancing_ZONE, pb.LoadBalancing_SUBZONE, pb.LoadBalancing_NODE}},
	{mesh.RegionFirst, pb.LoadBalancing_FAILOVER, []pb.LoadBalancing_Scope{pb.LoadBalancing_REGION}},
	{mesh.StrictNode, pb.LoadBalancing_STRICT, []pb.LoadBalancing_Scope{pb.LoadBalancing_NETWORK, pb.LoadBalancing_NODE}},
}

func encodeBalancing(svc *mesh.Service) *pb.LoadBalancing {
	m := &pb.LoadBalancing{}
	for _, s := range scopes {
		if s.d == svc.Distribution {
			m.Mode, m.RoutingPreference = s.mode, s.by
		}
	}
	if svc.PublishNotReady {
		m.HealthPolicy = pb.LoadBalancing_ALLOW_ALL
	}
	return m
}

// decodeBalancing returns the distribution of m, or the nearest one: the longest
// of our lists that is a prefix of the list of m.
func decodeBalancing(m *pb.LoadBalancing) mesh.Distribution {
	switch m.GetMode() {
	case pb.LoadBalancing_STRICT:
		return mesh.StrictNode
	case pb.LoadBalancing_FAILOVER:
	default:
		return mesh.Any
	}
	best, longest := mesh.Any, 0
	for _, s := range scopes {
		if n := len(s.by); s.mode == pb.LoadBalancing_FAILOVER && n > longest && n <= len(m.GetRoutingPreference()) && slices.Equal(s.by, m.GetRoutingPreference()[:n]) {
			best, longest = s.d, n
		}
	}
	return best
}
