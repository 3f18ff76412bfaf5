package wds

import (
	"net/netip"
	"slices"
	"strings"

	pb "github.com/isthmus-mesh/isthmus/control/wds/wdspb"
	"github.com/isthmus-mesh/isthmus/mesh"
	"github.com/isthmus-mesh/isthmus/policy"
)

// Istio's defaults, which are left out.
const (
	defaultTrustDomain = "cluster.local"
	defaultAccount     = "default"
)

// workload encodes a pod of this network.
func (b *batch) workload(w *mesh.Workload) {
	m := b.encodeWorkload(w)
	aliases := networkKeys(b.network, w.Addresses)
	keys := append([]string{w.UID}, aliases...)
	if w.Node != "" {
		keys = append(keys, NodeKey(w.Node))
	}
	for _, svc := range b.next.ServicesOf(w.UID) {
		keys = append(keys, b.serviceKeys(svc)...)
	}
	b.put(Resource{Type: TypeAddress, Name: w.UID, Aliases: aliases, Keys: keys, Body: marshal(addressOf(m))})
}

func (b *batch) encodeWorkload(w *mesh.Workload) *pb.Workload {
	m := &pb.Workload{Uid: w.UID, Namespace: w.Namespace, Network: w.Network, TunnelProtocol: pb.TunnelProtocol_HBONE, Node: w.Node, ClusterId: w.Cluster,
		TrustDomain: without(w.TrustDomain, defaultTrustDomain), ServiceAccount: without(w.ServiceAccount, defaultAccount), Name: without(w.Name, w.UID),
		Locality: encodeLocality(w.Locality), AuthorizationPolicies: b.policiesOf(w)}
	for _, a := range w.Addresses {
		m.Addresses = append(m.Addresses, a.AsSlice())
	}
	if w.Plain {
		m.TunnelProtocol = pb.TunnelProtocol_NONE
	}
	if w.Capacity != 1 {
		m.Capacity = &pb.UInt32Value{Value: w.Capacity}
	}
	x := &pb.WorkloadExtension{}
	switch _, unhealthy := b.unhealthy[w.UID]; {
	case w.State == mesh.Ready && unhealthy && len(w.Addresses) > 0:
		x.State = pb.State_STATE_READY
	case w.State == mesh.Terminating:
		x.State = pb.State_STATE_TERMINATING
	case w.State == mesh.Serving:
		x.State = pb.State_STATE_SERVING
	}
	if w.State == mesh.NotReady || x.State != pb.State_STATE_FROM_STATUS {
		m.Status = pb.WorkloadStatus_UNHEALTHY
	}
	for _, svc := range b.next.ServicesOf(w.UID) {
		list := &pb.PortList{}
		for _, p := range svc.Ports {
			target := w.Target(p)
			if target == 0 {
				continue
			}
			list.Ports = append(list.Ports, &pb.Port{ServicePort: uint32(p.Service), TargetPort: uint32(target)})
			if p.TargetName != "" && !slices.ContainsFunc(x.Ports, func(n *pb.NamedPort) bool { return n.Name == p.TargetName }) {
				x.Ports = append(x.Ports, &pb.NamedPort{Name: p.TargetName, Port: uint32(target)})
			}
		}
		if m.Services == nil {
			m.Services = map[string]*pb.PortList{}
		}
		m.Services[keyOf(svc)] = list
	}
	if x.State != pb.State_STATE_FROM_STATUS || len(x.Ports) > 0 {
		m.Extensions = pack("WorkloadExtension", x)
	}
	return m
}

// without returns s, or "" if s is the default that readers fill in.
func without(s, fallback string) string {
	if s == fallback {
		return ""
	}
	return s
}

func encodeLocality(l mesh.Locality) *pb.Locality {
	if l == (mesh.Locality{}) {
		return nil
	}
	return &pb.Locality{Region: l.Region, Zone: l.Zone, Subzone: l.Subzone}
}

// gateways encodes the gateways of a network, and a service that stands for them at stock ztunnels.
func (b *batch) gateways(network string) {
	list := b.next.Gateways(network)
	if b.prev != nil {
		for _, g := range b.prev.Gateways(network) {
			if !slices.ContainsFunc(list, func(o *mesh.Gateway) bool { return o.Name == g.Name }) {
				b.remove(TypeAddress, gatewayUID(g))
			}
		}
	}
	leaves := slices.ContainsFunc(list, func(g *mesh.Gateway) bool { return !g.Drained })
	for _, g := range list {
		b.gateway(g, g.Drained && leaves)
	}
	name := gatewaysOf(network)
	key := ServiceKey(name.Namespace, name.Hostname)
	switch {
	case network == b.network:
	case len(list) == 0:
		b.remove(TypeAddress, key)
	default:
		m := &pb.Service{Name: network, Namespace: name.Namespace, Hostname: name.Hostname, Canonical: true, Ports: []*pb.Port{{ServicePort: mesh.HBONEPort, TargetPort: mesh.HBONEPort}}, Extensions: pack("ServiceExtension", &pb.ServiceExtension{Gateways: true})}
		b.put(Resource{Type: TypeAddress, Name: key, Keys: []string{key}, Body: marshal(&pb.Address{Type: &pb.Address_Service{Service: m}})})
	}
}

// gateway encodes g. avoid is its status at stock ztunnels. These need a gateway even if all of them drain.
func (b *batch) gateway(g *mesh.Gateway, avoid bool) {
	x := &pb.Gateway{Group: g.Group, Drained: g.Drained, Addresses: encodeAddrPorts(append([]netip.AddrPort{g.Address}, g.More...)), Quic: encodeAddrPorts(g.QUIC)}
	if g.Federation != g.Address {
		x.Federation = encodeAddrPorts([]netip.AddrPort{g.Federation})[0]
	}
	for _, p := range g.Sources {
		s, _ := p.MarshalBinary() // never fails
		x.Sources = append(x.Sources, s)
	}
	namespace, account := accountOf(g)
	m := &pb.Workload{Uid: gatewayUID(g), Name: g.Name, Namespace: namespace, ServiceAccount: without(account, defaultAccount), TrustDomain: without(g.Identity.TrustDomain().Name(), defaultTrustDomain),
		Network: g.Network, TunnelProtocol: pb.TunnelProtocol_HBONE, Locality: encodeLocality(g.Locality), Extensions: pack("Gateway", x)}
	if avoid {
		m.Status = pb.WorkloadStatus_UNHEALTHY
	}
	r := Resource{Type: TypeAddress, Name: m.Uid, Keys: []string{m.Uid, EveryNode}}
	if g.Network != b.network { // on its own network a stock ztunnel has these addresses as pods
		var at []netip.Addr
		for _, a := range g.Dialled(false) {
			if a.Port() == g.Address.Port() && !slices.Contains(at, a.Addr()) {
				at = append(at, a.Addr())
				m.Addresses = append(m.Addresses, a.Addr().AsSlice())
			}
		}
		name := gatewaysOf(g.Network)
		service := ServiceKey(name.Namespace, name.Hostname)
		m.Services = map[string]*pb.PortList{service: {Ports: []*pb.Port{{ServicePort: mesh.HBONEPort, TargetPort: uint32(g.Address.Port())}}}}
		r.Aliases = networkKeys(g.Network, at)
		r.Keys = append(append(r.Keys, service), r.Aliases...)
	}
	r.Body = marshal(addressOf(m))
	b.put(r)
}

func encodeAddrPorts(list []netip.AddrPort) (out [][]byte) {
	for _, a := range list {
		x, _ := a.MarshalBinary() // never fails
		out = append(out, x)
	}
	return out
}

// accountOf returns the service account that g must present; discovery makes no identities of another form.
func accountOf(g *mesh.Gateway) (namespace, account string) {
	parts := strings.Split(g.Identity.Path(), "/") // "", ns, NAMESPACE, sa, ACCOUNT
	if len(parts) != 5 {
		return "", ""
	}
	return parts[2], parts[4]
}

// policyWorkload is what policies ask about w.
func policyWorkload(w *mesh.Workload) policy.Workload {
	return policy.Workload{Namespace: w.Namespace, Labels: w.Labels}
}
