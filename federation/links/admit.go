package links

import (
	"fmt"
	"strings"

	"github.com/spiffe/go-spiffe/v2/spiffeid"

	"github.com/isthmus-mesh/isthmus/federation/networkkey/keyfile"
	"github.com/isthmus-mesh/isthmus/federation/record"
	"github.com/isthmus-mesh/isthmus/mesh"
)

// Offer is what another network has proven to export.
type Offer struct {
	Network string
	Service string // canonical hostname
	Export  *record.Export
	Differ  string // in what its gateways differ; empty if they do not
}

// Admission judges the exports of other networks. It remembers the identities that each export
// named last, to judge one that has no endpoints now. The zero value is ready to use. Not
// safe for concurrent use.
type Admission struct{ last map[offered][]spiffeid.ID }

type offered struct{ network, service string }

// Forget drops what is remembered of an export that was withdrawn.
func (a *Admission) Forget(network, service string) { delete(a.last, offered{network, service}) }

// Admit returns the part of o that the link l allows, in the mesh of trustDomain. ok is false
// if o must not be used; fault describes what is not used, and why. An export without
// identities has no endpoints now. It is judged by those that it named last, and without any by
// its namespace: see [mesh.Link.Admit]. One without ports is not admitted. listed returns the
// namespace of a service whose name has none, as it is known here: an export cannot choose it.
func (a *Admission) Admit(l keyfile.Link, o Offer, trustDomain string, listed func(service string) (namespace string, ok bool)) (admitted mesh.Export, ok bool, fault string) {
	export := exportOf(o.Service, o.Export)
	name, namespace, named := Namespaced(o.Service)
	if !named {
		var ok bool
		if namespace, ok = listed(o.Service); !ok {
			return mesh.Export{}, false, fmt.Sprintf("what network %s exports as %s is not used: the name says no namespace, and discovery here lists no such service", o.Network, o.Service)
		}
	}
	if export.Namespace != namespace { // whoever may answer for one namespace may not for another
		return mesh.Export{}, false, fmt.Sprintf("what network %s exports as %s is not used: it calls it a service of namespace %s, and here that is one of %s", o.Network, o.Service, export.Namespace, namespace)
	}
	if named { // its names follow from that, and discovery takes no others
		export.Name = name
	}
	judged := export
	judged.Identities = a.remember(o)
	admitted, refused, ok := linkOf(l, trustDomain).Admit(judged)
	none := len(admitted.Identities) == 0
	if len(export.Identities) == 0 {
		admitted.Identities, admitted.Capacity = nil, 0
	}
	ok = ok && len(admitted.Ports) > 0
	switch {
	case len(refused) == 0 && len(export.Identities) == 0 && !ok && len(admitted.Ports) > 0:
		return admitted, false, fmt.Sprintf("what network %s exports as %s is not used: the link to it admits no identity of namespace %s (trustDomains, namespaces in federation.networks)", o.Network, o.Service, namespace)
	case len(refused) > 0 && none:
		return admitted, false, fmt.Sprintf("what network %s exports as %s is not used: the link to it lets none of %s answer (trustDomains, namespaces in federation.networks)", o.Network, o.Service, idsOf(refused))
	case len(refused) > 0:
		return admitted, ok, fmt.Sprintf("of what network %s exports as %s, %s may not answer: the link to it does not let them (trustDomains, namespaces in federation.networks)", o.Network, o.Service, idsOf(refused))
	}
	return admitted, ok, o.Differ
}

// remember returns the identities that o names, or named last.
func (a *Admission) remember(o Offer) []spiffeid.ID {
	k := offered{o.Network, o.Service}
	if len(o.Export.Identities) > 0 {
		if a.last == nil {
			a.last = map[offered][]spiffeid.ID{}
		}
		a.last[k] = o.Export.Identities
	}
	return a.last[k]
}

// linkOf is what bounds l, with what is left out filled in.
func linkOf(l keyfile.Link, trustDomain string) mesh.Link {
	out := mesh.Link{TrustDomains: l.Domains(), Namespaces: l.Namespaces, MaxCapacity: l.MaxCapacity}
	if len(out.TrustDomains) == 0 {
		out.TrustDomains = []string{trustDomain}
	}
	return out
}

func exportOf(service string, e *record.Export) mesh.Export {
	out := mesh.Export{Name: e.Name, Namespace: e.Namespace, Hostname: service, Aliases: e.Aliases, Distribution: e.Distribution, Identities: e.Identities, Capacity: e.Capacity}
	if out.Scope = mesh.ScopeGlobal; e.Scope == record.ScopeSegment {
		out.Scope = mesh.ScopeSegment
	}
	for _, p := range e.Ports {
		out.Ports = append(out.Ports, mesh.ExportPort{Name: p.Name, Port: p.Port})
	}
	return out
}

func idsOf(ids []spiffeid.ID) string {
	const most = 3
	var out []string
	for _, id := range ids[:min(len(ids), most)] {
		out = append(out, id.String())
	}
	if len(ids) > most {
		out = append(out, fmt.Sprintf("%d more", len(ids)-most))
	}
	return strings.Join(out, ", ")
}
