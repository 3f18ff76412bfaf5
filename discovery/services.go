package discovery

import (
	"net/netip"
	"slices"
	"strings"

	"github.com/isthmus-mesh/isthmus/mesh"
)

// distributions are the values of trafficDistribution.
var distributions = []mesh.Distribution{
	mesh.PreferNetwork, mesh.PreferClose, mesh.PreferSameZone, mesh.PreferSameNode, mesh.PreferRegion, mesh.RegionFirst, mesh.Any, mesh.StrictNode,
}

func (s Service) read(r *reader) reading {
	out := reading{service: &mesh.Service{Name: s.Name, Namespace: or(s.Namespace, defaultNamespace), PublishNotReady: s.PublishNotReady, Headless: s.Headless, Affinity: s.Affinity, Created: s.Created, Home: s.Home}}
	out.service.Scope, out.service.Takeover = s.scope(r)
	named := r.label(at{"name"}, s.Name) && r.label(at{"namespace"}, out.service.Namespace)
	s.addNames(r, &out, named)
	out.service.VIPs = r.virtual(&out, at{"vips"}, s.VIPs)
	out.service.Distribution, out.service.DistributionFrom = r.distribution(at{"trafficDistribution"}, s.TrafficDistribution, s.Inherited)
	if s.NodeLocal && out.service.Distribution != mesh.StrictNode {
		out.service.ExportDistribution = out.service.Distribution
		out.service.Distribution, out.service.DistributionFrom = mesh.StrictNode, mesh.FromService
	}
	out.service.Ports, out.service.Others = r.ports(at{"ports"}, s.Ports)
	if s.Import != nil {
		s.addImport(r, &out)
	}
	return out
}

// virtual adds the virtual addresses of list that can be.
func (r *reader) virtual(out *reading, field at, list []netip.Addr) (vips []netip.Addr) {
	for i, vip := range list {
		path := field.below(i)
		if vip = vip.Unmap(); !usable(vip) {
			r.drop(CauseValue, path, vip, "is not a virtual address: write a unicast IP address without a zone")
		} else if c := (claim{what: virtualAddress, text: vip.String(), path: path}); !r.twice(out.extras, c, "virtual address") {
			out.extras = append(out.extras, c)
			vips = append(vips, vip)
		}
	}
	return vips
}

// addImport adds what other networks export under the name of the service.
func (s Service) addImport(r *reader, out *reading) {
	svc := out.service
	x := &mesh.Import{VIPs: r.virtual(out, at{"import", "vips"}, s.Import.VIPs)}
	for i, a := range s.Import.Aliases {
		if a = strings.ToLower(a); isHostname(a) && a != svc.Hostname && !slices.Contains(svc.Aliases, a) && !slices.Contains(x.Aliases, a) {
			out.extras = append(out.extras, claim{what: aliasName, text: a, path: at{"import", "aliases", i}})
			x.Aliases = append(x.Aliases, a)
		}
	}
	if len(s.Import.Ports) > 0 {
		x.Ports, _ = r.ports(at{"import", "ports"}, s.Import.Ports)
	}
	svc.Import = x
}

// globalOnly is a scope that a service may have in a file: ScopeGlobal and takeover.
const globalOnly = "global-only"

// scope returns the scope and takeover of s, which global and the scope global-only set together.
func (s Service) scope(r *reader) (scope mesh.Scope, takeover bool) {
	scope, takeover = mesh.Scope(s.Scope), s.Takeover || s.Global || s.Scope == globalOnly
	switch {
	case s.Scope == globalOnly:
		scope = mesh.ScopeGlobal
	case s.Scope == "" && s.Global:
		scope = mesh.ScopeGlobal
	case s.Scope == "":
		scope = mesh.ScopeCluster
	case !slices.Contains(scopes, scope):
		r.drop(CauseValue, at{"scope"}, s.Scope, "is not a scope: use cluster, segment, global or global-only")
		return mesh.ScopeCluster, false
	case s.Global && scope == mesh.ScopeCluster:
		r.drop(CauseConflict, at{"scope"}, s.Scope, "contradicts global: true: remove one of the two")
	}
	return scope, takeover && scope != mesh.ScopeCluster
}

// scopes are the values of scope.
var scopes = []mesh.Scope{mesh.ScopeCluster, mesh.ScopeSegment, mesh.ScopeGlobal}

// addNames sets hostname and aliases. What is derived from name and namespace is
// claimed only if those are good (named).
func (s Service) addNames(r *reader, out *reading, named bool) {
	svc := out.service
	switch {
	case s.Hostname != "":
		out.rank = 1 // after the service that has this hostname by its name
		svc.Hostname = strings.ToLower(s.Hostname)
		out.claims = []claim{{what: hostName, text: svc.Hostname, path: at{"hostname"}}}
		if !isHostname(svc.Hostname) {
			r.out(CauseValue, at{"hostname"}, svc.Hostname, "is not a host name: use lower-case letters, digits, hyphens and dots")
		}
	case named:
		svc.Hostname = s.Name + "." + svc.Namespace + ".svc.cluster.local"
		out.claims = []claim{{what: hostName, text: svc.Hostname, path: at{"name"}}}
	}
	add := func(what claimed, path at, name string) {
		if !isHostname(name) {
			r.drop(CauseValue, path, name, "is not a host name: use lower-case letters, digits, hyphens and dots")
		} else if name != svc.Hostname && !slices.Contains(svc.Aliases, name) {
			out.extras = append(out.extras, claim{what: what, text: name, path: path})
			svc.Aliases = append(svc.Aliases, name)
		}
	}
	derived := ""
	if svc.Exported() && named {
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

// distribution returns the first of what the service, its namespace and the mesh
// say that means something.
func (r *reader) distribution(path at, own string, inherited Inherited) (mesh.Distribution, mesh.Source) {
	for _, say := range []struct {
		value string
		from  mesh.Source
	}{{own, mesh.FromService}, {inherited.Namespace, mesh.FromNamespace}, {inherited.Mesh, mesh.FromMesh}} {
		if say.value == "" {
			continue
		}
		if d, ok := r.known(path, say.value); ok {
			return d, say.from
		}
	}
	return mesh.PreferNetwork, ""
}

// known reads the name of a traffic distribution, in upper or lower case.
func (r *reader) known(path at, s string) (mesh.Distribution, bool) {
	names := make([]string, len(distributions))
	for i, d := range distributions {
		if strings.EqualFold(s, string(d)) {
			return d, true
		}
		names[i] = string(d)
	}
	r.drop(CauseValue, path, s, "is not a traffic distribution: use one of %s", strings.Join(names, ", "))
	return "", false
}

// ports leaves out each port that cannot be, and tells apart what is not TCP.
func (r *reader) ports(path at, ports []ServicePort) ([]mesh.Port, []mesh.OtherPort) {
	if len(ports) == 0 {
		r.drop(CauseMissing, path, nil, "is empty: list at least one port")
		return nil, nil
	}
	type number struct {
		protocol string
		port     uint16
	}
	var out []mesh.Port
	var others []mesh.OtherPort
	numbers, names := map[number]int{}, map[string]int{}
	for i, p := range ports {
		here, before := path.below(i), len(r.problems)
		n := number{strings.ToUpper(or(p.Protocol, "TCP")), p.Port}
		if first, twice := numbers[n]; p.Port == 0 {
			r.drop(CauseValue, here.below("port"), p.Port, "is not a port: write a number from 1 to 65535")
		} else if twice {
			r.drop(CauseConflict, here.below("port"), p.Port, "is also the port of item %d: list each port once", first)
		} else {
			numbers[n] = i
		}
		if first, twice := names[p.Name]; p.Name != "" && twice {
			r.drop(CauseConflict, here.below("name"), p.Name, "is also the name of item %d: give each port its own name", first)
		} else {
			names[p.Name] = i
		}
		switch n.protocol {
		case "TCP":
			if m := r.target(here, p); len(r.problems) == before {
				out = append(out, m)
			}
		case "UDP", "SCTP":
			if len(r.problems) == before {
				others = append(others, mesh.OtherPort{Name: p.Name, Service: p.Port, Protocol: n.protocol})
			}
		default:
			r.drop(CauseValue, here.below("protocol"), p.Protocol, "is not a protocol: use TCP, UDP or SCTP")
		}
	}
	return out, others
}

// target reads where p leads.
func (r *reader) target(here at, p ServicePort) mesh.Port {
	m := mesh.Port{Name: p.Name, Service: p.Port, Target: p.TargetPort, TargetName: p.TargetName}
	switch {
	case p.TargetName != "" && p.TargetPort != 0:
		r.drop(CauseConflict, here.below("targetName"), p.TargetName, "is beside targetPort: remove one of the two")
	case p.TargetName != "":
		r.word(here.below("targetName"), p.TargetName)
	case p.TargetPort == 0:
		m.Target = m.Service
	}
	if mesh.ReservedPort(m.Target) {
		r.drop(CauseUnsupported, here.below("targetPort"), m.Target, "is a port of the node proxy itself, which never connects there: let the application listen on another one")
	}
	return m
}
