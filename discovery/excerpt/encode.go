package excerpt

import (
	"net/netip"

	pb "github.com/isthmus-mesh/isthmus/federation/federationpb"
	"github.com/isthmus-mesh/isthmus/mesh"
)

func encodeBase(s *mesh.Snapshot, network, root string) *pb.Base {
	out := &pb.Base{TrustDomain: s.TrustDomain(), RootNamespace: root}
	for _, n := range s.ListNetworks() {
		out.Networks = append(out.Networks, &pb.ExcerptNetwork{Name: n.Name, Segment: n.Segment})
	}
	for _, g := range s.Gateways(network) {
		x := &pb.ExcerptGateway{Name: g.Name, ServiceAccount: accountOf(g), Region: g.Locality.Region, Zone: g.Locality.Zone, Subzone: g.Locality.Subzone, Drained: g.Drained}
		x.Address, _ = g.Address.MarshalBinary() // never fails
		if g.Federation != g.Address {
			x.Federation, _ = g.Federation.MarshalBinary()
		}
		for _, p := range g.Sources {
			b, _ := p.MarshalBinary()
			x.Sources = append(x.Sources, b)
		}
		out.Gateways = append(out.Gateways, x)
	}
	return out
}

func encodeService(s *mesh.Service) *pb.ExcerptService {
	out := &pb.ExcerptService{Name: s.Name, Namespace: s.Namespace, Scope: string(s.Scope), Takeover: s.Takeover,
		Distribution: string(s.Distribution), DistributionFrom: string(s.DistributionFrom), PublishNotReady: s.PublishNotReady, Vips: encodeAddresses(s.VIPs)}
	if s.Hostname != hostnameOf(s.Name, s.Namespace) {
		out.Hostname = s.Hostname
	}
	for _, a := range s.Aliases {
		if a != globalNameOf(s.Name, s.Namespace) || !s.Exported() { // else it follows
			out.Aliases = append(out.Aliases, a)
		}
	}
	out.Ports = encodePorts(s.Ports)
	for _, p := range s.Others {
		out.Ports = append(out.Ports, &pb.ExcerptPort{Name: p.Name, Port: uint32(p.Service), Protocol: p.Protocol})
	}
	if x := s.Import; x != nil {
		out.Import = &pb.ExcerptImport{Aliases: x.Aliases, Vips: encodeAddresses(x.VIPs), Ports: encodePorts(x.Ports)}
	}
	return out
}

func encodePorts(ports []mesh.Port) (out []*pb.ExcerptPort) {
	for _, p := range ports {
		x := &pb.ExcerptPort{Name: p.Name, Port: uint32(p.Service), TargetName: p.TargetName}
		if p.TargetName == "" && p.Target != p.Service {
			x.Target = uint32(p.Target)
		}
		out = append(out, x)
	}
	return out
}

var stateToWire = map[mesh.State]pb.WorkloadState{
	mesh.Ready: pb.WorkloadState_WORKLOAD_STATE_READY, mesh.NotReady: pb.WorkloadState_WORKLOAD_STATE_NOT_READY,
	mesh.Terminating: pb.WorkloadState_WORKLOAD_STATE_TERMINATING, mesh.Serving: pb.WorkloadState_WORKLOAD_STATE_SERVING,
}

// encodeWorkload encodes w as a member of services, for a node proxy of node. Of its named ports it has those to
// which services lead, maxMembers at most.
func encodeWorkload(w *mesh.Workload, services []*mesh.Service, node string) *pb.ExcerptWorkload {
	out := &pb.ExcerptWorkload{Uid: w.UID, Namespace: w.Namespace, ServiceAccount: w.ServiceAccount, Node: w.Node, Cluster: w.Cluster,
		Addresses: encodeAddresses(w.Addresses), Region: w.Locality.Region, Zone: w.Locality.Zone, Subzone: w.Locality.Subzone,
		State: stateToWire[w.State], Plain: w.Plain}
	if w.Name != w.UID {
		out.Name = w.Name
	}
	if w.Node == node {
		out.Labels = w.Labels
	}
	if w.Capacity != 1 {
		out.Capacity = w.Capacity
	}
	numbers := map[string]uint16{}
	for _, p := range w.Ports {
		numbers[p.Name] = p.Port
	}
	for _, svc := range services {
		out.Services = append(out.Services, svc.Hostname)
		for _, name := range targetNames(svc) {
			if n, has := numbers[name]; has && len(out.Ports) < maxMembers {
				out.Ports = append(out.Ports, &pb.ExcerptPort{Name: name, Target: uint32(n)})
				delete(numbers, name)
			}
		}
	}
	return out
}

// targetNames returns the target names of the ports of s, which may be nil.
func targetNames(s *mesh.Service) (out []string) {
	if s == nil {
		return nil
	}
	for _, p := range s.Ports {
		if p.TargetName != "" {
			out = append(out, p.TargetName)
		}
	}
	return out
}

func encodeAddresses(list []netip.Addr) (out [][]byte) {
	for _, a := range list {
		out = append(out, a.AsSlice())
	}
	return out
}

func hostnameOf(name, namespace string) string { return name + "." + namespace + ".svc.cluster.local" }

func globalNameOf(name, namespace string) string { return name + "." + namespace + ".mesh.internal" }
