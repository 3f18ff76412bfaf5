package discovery

import (
	"slices"
	"strings"

	"github.com/isthmus-mesh/isthmus/mesh"
)

// distributions are the values of trafficDistribution.
var distributions = []mesh.Distribution{
	mesh.PreferNetwork, mesh.PreferClose, mesh.PreferSameZone, mesh.PreferSameNode, mesh.PreferRegion, mesh.Any, mesh.StrictNode,
}

func (s Service) read(r *reader) reading {
	out := reading{service: &mesh.Service{Name: s.Name, Namespace: or(s.Namespace, defaultNamespace), Global: s.Global}}
	named := r.label(at{"name"}, s.Name) && r.label(at{"namespace"}, out.service.Namespace)
	s.addNames(r, &out, named)
	for i, vip := range s.VIPs {
		path := at{"vips", i}
		if vip = vip.Unmap(); !usable(vip) {
			r.drop(CauseValue, path, vip, "is not a virtual address: write a unicast IP address without a zone")
		} else if c := (claim{virtualAddress, vip.String(), path}); !r.twice(out.extras, c, "virtual address") {
			out.extras = append(out.extras, c)
			out.service.VIPs = append(out.service.VIPs, vip)
		}
	}
	out.service.Distribution = r.distribution(at{"trafficDistribution"}, s.TrafficDistribution)
	out.service.Ports = r.ports(at{"ports"}, s.Ports)
	return out
}

// addNames sets hostname and aliases. What is derived from name and namespace is
// claimed only if those are good (named).
func (s Service) addNames(r *reader, out *reading, named bool) {
	svc := out.service
	switch {
	case s.Hostname != "":
		out.rank = 1 // after the service that has this hostname by its name
		svc.Hostname = strings.ToLower(s.Hostname)
		out.claims = []claim{{hostName, svc.Hostname, at{"hostname"}}}
		if !isHostname(svc.Hostname) {
			r.out(CauseValue, at{"hostname"}, svc.Hostname, "is not a host name: use lower-case letters, digits, hyphens and dots")
		}
	case named:
		svc.Hostname = s.Name + "." + svc.Namespace + ".svc.cluster.local"
		out.claims = []claim{{hostName, svc.Hostname, at{"name"}}}
	}
	add := func(what claimed, path at, name string) {
		if !isHostname(name) {
			r.drop(CauseValue, path, name, "is not a host name: use lower-case letters, digits, hyphens and dots")
		} else if name != svc.Hostname && !slices.Contains(svc.Aliases, name) {
			out.extras = append(out.extras, claim{what, name, path})
			svc.Aliases = append(svc.Aliases, name)
		}
	}
	derived := ""
	if s.Global && named {
		derived = s.Name + "." + svc.Namespace + ".mesh.internal"
	}
	for i, a := range s.Aliases {
		if a = strings.ToLower(a); a == "" || a != derived {
			add(aliasName, at{"aliases", i}, a)
		}
	}
	if derived != "" {
		add(derivedName, at{"name"}, derived)
	}
}

// twice notes that c is listed already.
func (r *reader) twice(list []claim, c claim, what string) bool {
	i := slices.IndexFunc(list, func(o claim) bool { return o.key() == c.key() })
	if i >= 0 {
		r.drop(CauseConflict, c.path, c.text, "is also %s: list each %s once", fieldOf(list[i].path), what)
	}
	return i >= 0
}

func (r *reader) distribution(path at, s string) mesh.Distribution {
	d := mesh.Distribution(or(s, string(mesh.PreferNetwork)))
	if !slices.Contains(distributions, d) {
		known := make([]string, len(distributions))
		for i, d := range distributions {
			known[i] = string(d)
		}
		r.drop(CauseValue, path, s, "is not a traffic distribution: use one of %s", strings.Join(known, ", "))
		return mesh.PreferNetwork
	}
	return d
}

// ports leaves out each port that cannot be.
func (r *reader) ports(path at, ports []ServicePort) []mesh.Port {
	if len(ports) == 0 {
		r.drop(CauseMissing, path, nil, "is empty: list at least one port")
		return nil
	}
	out := make([]mesh.Port, 0, len(ports))
	numbers, names := map[uint16]int{}, map[string]int{}
	for i, p := range ports {
		here, before := path.below(i), len(r.problems)
		if first, twice := numbers[p.Port]; p.Port == 0 {
			r.drop(CauseValue, here.below("port"), p.Port, "is not a port: write a number from 1 to 65535")
		} else if twice {
			r.drop(CauseConflict, here.below("port"), p.Port, "is also the port of item %d: list each port once", first)
		} else {
			numbers[p.Port] = i
		}
		if first, twice := names[p.Name]; p.Name != "" && twice {
			r.drop(CauseConflict, here.below("name"), p.Name, "is also the name of item %d: give each port its own name", first)
		} else {
			names[p.Name] = i
		}
		m := mesh.Port{Name: p.Name, Service: p.Port, Target: p.TargetPort}
		if m.Target == 0 {
			m.Target = m.Service
		}
		if mesh.ReservedPort(m.Target) {
			r.drop(CauseUnsupported, here.below("targetPort"), m.Target, "is a port of the node proxy itself, which never connects there: let the application listen on another one")
		}
		if len(r.problems) == before {
			out = append(out, m)
		}
	}
	return out
}
