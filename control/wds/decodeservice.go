package wds

import (
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"time"

	pb "github.com/isthmus-mesh/isthmus/control/wds/wdspb"
	"github.com/isthmus-mesh/isthmus/discovery"
	"github.com/isthmus-mesh/isthmus/mesh"
)

func (d *Decoder) service(ref Ref, m *pb.Service) ([]discovery.Change, error) {
	if ServiceKey(m.GetNamespace(), m.GetHostname()) != ref.Name {
		return nil, invalid("service.hostname", m.GetHostname(), "namespace and hostname are not the name of the resource")
	}
	var x pb.ServiceExtension
	has, err := unpack(m.GetExtensions(), "ServiceExtension", &x)
	switch {
	case err != nil:
		return nil, err
	case !has && !d.c.Istiod:
		return nil, invalid("service.extensions", "", "missing: the server is not a gateway of Isthmus; set istiod for a stock one")
	case x.GetGateways(), d.c.Istiod && m.GetLoadBalancing().GetMode() == pb.LoadBalancing_PASSTHROUGH:
		return append(d.set(ref, nil), d.drop(ref.Name)...), nil // connections go where the client sends them
	}
	s := discovery.Service{Name: m.GetName(), Namespace: m.GetNamespace(), Hostname: m.GetHostname(), Aliases: x.GetAliases(), Scope: x.GetScope(), Takeover: x.GetTakeover(),
		PublishNotReady: m.GetLoadBalancing().GetHealthPolicy() == pb.LoadBalancing_ALLOW_ALL}
	if s.Hostname == s.Name+"."+s.Namespace+".svc.cluster.local" {
		s.Hostname = "" // it follows, and goes before one that is given
	}
	if s.Import, err = decodeImport(x.GetImport()); err != nil {
		return nil, err
	}
	if err := d.addresses(&s, m); err != nil {
		return nil, err
	}
	if s.Ports, err = decodePorts("service.ports", m.GetPorts(), x.GetPorts()); err != nil {
		return nil, err
	}
	distribution := x.GetDistribution()
	if distribution == "" {
		distribution = string(decodeBalancing(m.GetLoadBalancing()))
	}
	from := mesh.Source(x.GetDistributionFrom())
	change := discovery.Change{Key: serviceKey(m)}
	if d.c.Istiod {
		from = mesh.FromService
		d.istiod.service(&s, m)
		if m.GetWaypoint() != nil {
			change.Faults = []discovery.Problem{{Cause: discovery.CauseUnsupported, Field: "waypoint", Message: "waypoints are not used: connections go to the workloads, and policies of the waypoint do not apply to them"}}
		}
	}
	switch from {
	case mesh.FromService:
		s.TrafficDistribution = distribution
	case mesh.FromNamespace:
		s.Inherited.Namespace = distribution
	case mesh.FromMesh:
		s.Inherited.Mesh = distribution
	}
	change.Record = s
	changes := d.set(ref, []discovery.Change{change})
	if !d.services[ref.Name] {
		d.services[ref.Name] = true
		changes = append(changes, d.emitMembers(ref.Name)...)
	}
	return append(changes, d.istiod.identities(d, ref.Name, m.GetSubjectAltNames())...), nil
}

// serviceKey returns a key by which discovery prefers the canonical service of a hostname, then the first namespace.
func serviceKey(m *pb.Service) discovery.Key {
	order := "1"
	if m.GetCanonical() {
		order = "0"
	}
	return clusterKey(discovery.KindService, m.GetHostname()+"/"+order+"/"+m.GetNamespace())
}

// addresses sets the virtual addresses of s on the own network, except the addresses of its import.
func (d *Decoder) addresses(s *discovery.Service, m *pb.Service) error {
	for i, a := range m.GetAddresses() {
		field := fmt.Sprintf("service.addresses[%d]", i)
		ip, ok := netip.AddrFromSlice(a.GetAddress())
		switch {
		case !ok:
			return invalid(field, a.GetAddress(), "not an IP address")
		case a.GetNetwork() != d.c.Network && a.GetNetwork() != "", a.Length != nil && int(a.GetLength()) != ip.BitLen(), s.Import != nil && slices.Contains(s.Import.VIPs, ip.Unmap()):
			continue
		}
		s.VIPs = append(s.VIPs, ip)
	}
	return nil
}

// decodePorts returns the ports of a service. The name of a target goes before its number.
func decodePorts(field string, ports []*pb.Port, extensions []*pb.ServicePort) (out []discovery.ServicePort, err error) {
	extra := map[uint32]*pb.ServicePort{}
	for _, x := range extensions {
		if x.GetProtocol() == "" {
			extra[x.GetPort()] = x
		}
	}
	for i, p := range ports {
		at := fmt.Sprintf("%s[%d]", field, i)
		port, err := decodePort(at, p.GetServicePort())
		if err != nil {
			return nil, err
		}
		s := discovery.ServicePort{Port: port, Name: extra[p.GetServicePort()].GetName(), TargetName: extra[p.GetServicePort()].GetTargetName()}
		if s.TargetName == "" && p.GetTargetPort() != 0 {
			if s.TargetPort, err = decodePort(at, p.GetTargetPort()); err != nil {
				return nil, err
			}
		}
		out = append(out, s)
	}
	for _, x := range extensions {
		if x.GetProtocol() != "" {
			port, err := decodePort("service.extensions.ports", x.GetPort())
			if err != nil {
				return nil, err
			}
			out = append(out, discovery.ServicePort{Name: x.GetName(), Port: port, Protocol: x.GetProtocol()})
		}
	}
	return out, nil
}

func decodeImport(m *pb.Import) (x *discovery.Import, err error) {
	if m == nil {
		return nil, nil
	}
	x = &discovery.Import{Aliases: m.GetAliases()}
	if x.VIPs, err = decodeAddresses("service.extensions.import.addresses", m.GetAddresses()); err != nil {
		return nil, err
	}
	x.Ports, err = decodePorts("service.extensions.import.ports", m.GetPorts(), m.GetNames())
	return x, err
}

func decodePort(field string, n uint32) (uint16, error) {
	if n == 0 || n > 65535 {
		return 0, invalid(field, n, "not a port: 1 to 65535")
	}
	return uint16(n), nil
}

func decodeAddresses(field string, list [][]byte) (out []netip.Addr, err error) {
	for i, b := range list {
		a, ok := netip.AddrFromSlice(b)
		if !ok {
			return nil, invalid(fmt.Sprintf("%s[%d]", field, i), b, "not an IP address: 4 or 16 bytes")
		}
		out = append(out, a)
	}
	return out, nil
}

func decodeAddrPorts(field string, list [][]byte) (out []netip.AddrPort, err error) {
	for i, b := range list {
		var a netip.AddrPort
		if err := a.UnmarshalBinary(b); err != nil || !a.IsValid() {
			return nil, invalid(fmt.Sprintf("%s[%d]", field, i), b, "not an address and a port")
		}
		out = append(out, a)
	}
	return out, nil
}

func decodeLocality(m *pb.Locality) discovery.Locality {
	return discovery.Locality{Region: m.GetRegion(), Zone: m.GetZone(), Subzone: m.GetSubzone()}
}

func decodeTime(seconds int64) time.Time {
	if seconds <= 0 {
		return time.Time{}
	}
	return time.Unix(seconds, 0).UTC()
}

// label makes a DNS label of s, which may have dots and be too long.
func label(s string) string {
	s = strings.Trim(strings.NewReplacer(".", "-", ":", "-", "_", "-", "*", "any").Replace(strings.ToLower(s)), "-")
	return strings.TrimRight(s[:min(len(s), 63)], "-")
}
