package discovery

import (
	"net/netip"
	"slices"
	"strings"

	"github.com/isthmus-mesh/isthmus/mesh"
)

// distributions are the values of trafficDistribution.
var distributions = []mesh.Distribution{
	mesh.PreferNetwork, mesh.PreferClose, mesh.PreferSameZone, mesh.PreferSameNode, mesh.PreferRegion, mesh.Any, mesh.StrictNode,
}

func (b *builder) addServices(services []Service) {
	vips := map[netip.Addr]at{}
	for i, s := range services {
		path := at{"services", i}
		out := &mesh.Service{Name: s.Name, Namespace: or(s.Namespace, defaultNamespace), Global: s.Global}
		named := b.label(path.below("name"), s.Name) && b.label(path.below("namespace"), out.Namespace)
		b.addNames(path, out, s, named)
		for j, vip := range s.VIPs {
			b.addVIP(path.below("vips", j), out, vip.Unmap(), vips)
		}
		out.Distribution = b.distribution(path.below("trafficDistribution"), s.TrafficDistribution)
		out.Ports = b.ports(path.below("ports"), s.Ports)
		b.services = append(b.services, out)
	}
}

// addNames sets hostname and aliases of out and claims them. What is derived
// from name and namespace is claimed only if those are good (named).
func (b *builder) addNames(path at, out *mesh.Service, s Service, named bool) {
	switch {
	case s.Hostname != "":
		out.Hostname = strings.ToLower(s.Hostname)
		b.claim(path.below("hostname"), out, out.Hostname)
	case named:
		out.Hostname = s.Name + "." + out.Namespace + ".svc.cluster.local"
		b.claim(path.below("name"), out, out.Hostname)
	}
	for j, a := range s.Aliases {
		a = strings.ToLower(a)
		if b.claim(path.below("aliases", j), out, a) {
			out.Aliases = append(out.Aliases, a)
		}
	}
	if a := s.Name + "." + out.Namespace + ".mesh.internal"; s.Global && named && b.claim(path.below("name"), out, a) {
		out.Aliases = append(out.Aliases, a)
	}
}

// claim gives name to s and reports whether s did not have it yet.
func (b *builder) claim(path at, s *mesh.Service, name string) bool {
	if !isHostname(name) {
		b.problem(path, name, "is not a host name: use lower-case letters, digits, hyphens and dots")
		return false
	}
	if o, taken := b.names[name]; taken {
		if o.service != s {
			b.problem(path, name, "is also a name of %s: give each service its own names", fieldOf(o.at))
		}
		return false
	}
	b.names[name] = owner{s, path[:2]}
	return true
}

func (b *builder) addVIP(path at, out *mesh.Service, vip netip.Addr, seen map[netip.Addr]at) {
	switch first, twice := seen[vip]; {
	case !usable(vip):
		b.problem(path, vip, "is not a virtual address: write a unicast IP address without a zone")
	case twice:
		b.problem(path, vip, "is also %s: give each service its own virtual addresses", fieldOf(first))
	default:
		seen[vip] = path
		out.VIPs = append(out.VIPs, vip)
	}
}

func (b *builder) distribution(path at, s string) mesh.Distribution {
	if s == "" {
		return mesh.PreferNetwork
	}
	d := mesh.Distribution(s)
	if !slices.Contains(distributions, d) {
		known := make([]string, len(distributions))
		for i, d := range distributions {
			known[i] = string(d)
		}
		b.problem(path, s, "is not a traffic distribution: use one of %s", strings.Join(known, ", "))
	}
	return d
}

func (b *builder) ports(path at, ports []ServicePort) []mesh.Port {
	if len(ports) == 0 {
		b.problem(path, nil, "is empty: list at least one port")
		return nil
	}
	out := make([]mesh.Port, 0, len(ports))
	numbers, names := map[uint16]int{}, map[string]int{}
	for i, p := range ports {
		here := path.below(i)
		if first, twice := numbers[p.Port]; p.Port == 0 {
			b.problem(here.below("port"), p.Port, "is not a port: write a number from 1 to 65535")
		} else if twice {
			b.problem(here.below("port"), p.Port, "is also the port of item %d: list each port once", first)
		} else {
			numbers[p.Port] = i
		}
		if first, twice := names[p.Name]; p.Name != "" && twice {
			b.problem(here.below("name"), p.Name, "is also the name of item %d: give each port its own name", first)
		} else {
			names[p.Name] = i
		}
		m := mesh.Port{Name: p.Name, Service: p.Port, Target: p.TargetPort}
		if m.Target == 0 {
			m.Target = m.Service
		}
		if mesh.ReservedPort(m.Target) {
			b.problem(here.below("targetPort"), m.Target, "is a port of the node proxy itself, which never connects there: let the application listen on another one")
		}
		out = append(out, m)
	}
	return out
}

// or returns s, or fallback if s is empty.
func or(s, fallback string) string {
	if s == "" {
		return fallback
	}
	return s
}
