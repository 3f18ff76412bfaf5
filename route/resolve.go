package route

import (
	"fmt"
	"net/netip"
	"slices"
	"strconv"
	"strings"

	"github.com/spiffe/go-spiffe/v2/spiffeid"

	"github.com/isthmus-mesh/isthmus/balance"
	"github.com/isthmus-mesh/isthmus/mesh"
)

// Resolve plans f. The error is an *Error of kind UnknownService, UnknownPort,
// NoEndpoint, NotExported or NoRoute.
func Resolve(s *mesh.Snapshot, f Flow) (Plan, error) {
	var p Plan
	err := ResolveInto(&p, s, f)
	return p, err
}

// Target is what a flow asks for, before anybody has looked at who serves it.
type Target struct {
	Service *mesh.Service  // nil if Direct
	Port    mesh.Port      // of a direct flow both numbers are the pod's port
	Direct  *mesh.Workload // the pod that was addressed itself
	// Everywhere is whether the name that was asked for leads to other networks.
	Everywhere bool
	// Elsewhere is whether it leads to these alone: a name or address of what they export, while
	// the source's network has a service of that name for itself.
	Elsewhere bool
}

// Find returns what f asks for; what it costs does not depend on how many serve
// it. The error is an *Error of kind UnknownService, UnknownPort or NoRoute.
func Find(s *mesh.Snapshot, f Flow) (Target, error) {
	r := resolver{snapshot: s, flow: f}
	return r.find()
}

// ResolveInto is Resolve into a Plan that is used again: it reuses the memory
// of p.Candidates and overwrites everything else. After an error p is empty.
func ResolveInto(p *Plan, s *mesh.Snapshot, f Flow) error {
	*p = Plan{Candidates: p.Candidates[:0]}
	r := resolver{snapshot: s, flow: f, plan: p}
	if err := r.resolve(); err != nil {
		*p = Plan{Candidates: p.Candidates[:0]}
		return err
	}
	return nil
}

type resolver struct {
	snapshot   *mesh.Snapshot
	flow       Flow
	plan       *Plan
	rule       balance.Rule
	from       balance.Place
	missed     missed
	everywhere bool // see Target
	elsewhere  bool
}

// missed counts the ready workloads that are no candidates, by the reason: of another
// network as many as its share counts for.
type missed struct{ notGlobal, otherSegment, noGateway, elsewhere int }

func (r *resolver) resolve() error {
	t, err := r.find()
	switch {
	case err != nil:
		return err
	case t.Direct != nil:
		r.plan.Direct, r.plan.Undeclared = t.Direct, !r.snapshot.Declares(t.Direct.UID, t.Port.Target)
		r.plan.Port = t.Port
		r.plan.Authority = netip.AddrPortFrom(r.addr().Addr(), t.Port.Target).String()
		return nil
	}
	return r.toService(t)
}

// addr is the address that the flow asks for; not valid if it asks for a name.
func (r *resolver) addr() netip.AddrPort {
	host := strings.TrimSuffix(r.flow.Host, ".")
	if host == "" {
		return netip.AddrPortFrom(r.flow.Addr.Addr().Unmap(), r.flow.Addr.Port())
	}
	a, err := netip.ParseAddr(host)
	if err != nil {
		return netip.AddrPort{}
	}
	return netip.AddrPortFrom(a.Unmap(), r.flow.Port)
}

func (r *resolver) find() (Target, error) {
	if r.flow.Source == nil {
		return Target{}, r.refuse(NoRoute, "the flow has no source workload")
	}
	host := strings.TrimSuffix(r.flow.Host, ".")
	if a := r.addr(); host == "" || a.Addr().IsValid() {
		return r.findAddress(a)
	}
	svc := r.snapshot.Service(host)
	if svc == nil {
		return Target{}, r.refuse(UnknownService, "no service has this hostname or alias")
	}
	return r.findService(svc, host, r.flow.Port)
}

// findAddress finds a virtual IP or a pod of the source's network. A pod of
// another network is never meant: its address may be in use here.
func (r *resolver) findAddress(a netip.AddrPort) (Target, error) {
	if svc := r.snapshot.ServiceAt(a.Addr()); svc != nil {
		if svc.Import.HasVIP(a.Addr()) {
			return r.findImport(svc, a.Port())
		}
		return r.findService(svc, svc.Hostname, a.Port())
	}
	w := r.snapshot.WorkloadAt(r.flow.Source.Network, a.Addr())
	if w == nil {
		return Target{}, r.refuse(NoRoute, fmt.Sprintf("no service and no workload of network %q has this address; workloads of other networks are reached by a service's name", r.flow.Source.Network))
	}
	if a.Port() == 0 {
		return Target{}, r.refuse(UnknownPort, "port 0 is not a port")
	}
	return Target{Direct: w, Port: mesh.Port{Service: a.Port(), Target: a.Port()}}, nil
}

// findService returns the target for port of svc under name.
func (r *resolver) findService(svc *mesh.Service, name string, port uint16) (Target, error) {
	if svc.Import.HasAlias(name) {
		return r.findImport(svc, port)
	}
	p, ok := svc.Port(port)
	if !ok && svc.Import != nil && svc.Everywhere(name) {
		return r.findImport(svc, port)
	}
	if !ok {
		return Target{}, r.refuse(UnknownPort, unknownPort(svc, port))
	}
	return Target{Service: svc, Port: p, Everywhere: svc.Everywhere(name)}, nil
}

// findImport finds a port of what other networks export under the name of svc. The own network's
// workloads are candidates too if it exports svc with this port.
func (r *resolver) findImport(svc *mesh.Service, port uint16) (Target, error) {
	if p, ok := svc.Port(port); ok && svc.Exported() {
		return Target{Service: svc, Port: p, Everywhere: true}, nil
	}
	i := slices.IndexFunc(svc.Import.Ports, func(p mesh.Port) bool { return p.Service == port })
	if i < 0 {
		return Target{}, r.refuse(UnknownPort, unknownPort(&mesh.Service{Hostname: svc.Hostname, Ports: svc.Import.Ports}, port))
	}
	return Target{Service: svc, Port: svc.Import.Ports[i], Everywhere: true, Elsewhere: true}, nil
}

// toService plans a flow to a port of a service.
func (r *resolver) toService(t Target) error {
	svc := t.Service
	r.plan.Port, r.everywhere, r.elsewhere = t.Port, t.Everywhere, t.Elsewhere
	src := r.flow.Source
	if r.rule = balance.RuleOf(svc.Distribution); t.Elsewhere { // it is for the own network's
		r.rule = balance.RuleOf(mesh.PreferNetwork)
	}
	r.from = balance.Place{Network: src.Network, Node: src.Node, Locality: src.Locality}
	for _, network := range r.snapshot.Networks(svc) {
		if network == src.Network && t.Elsewhere {
			continue
		} else if network == src.Network {
			r.addLocal(svc, r.snapshot.Members(svc, network))
		} else if share, ok := r.snapshot.Share(svc, network); ok {
			r.addShare(svc, share)
		}
	}
	if len(r.plan.Candidates) == 0 {
		return r.nowhere(svc)
	}
	r.plan.Service = svc
	r.plan.Authority = svc.Hostname + ":" + strconv.Itoa(int(t.Port.Service))
	return nil
}

func (r *resolver) addLocal(svc *mesh.Service, members []*mesh.Workload) {
	r.plan.Candidates = slices.Grow(r.plan.Candidates, len(members))
	here := r.snapshot.Identities(svc, r.flow.Source.Network)
	offer := svc.Offer(r.plan.Port, members)
	for _, w := range members {
		if !offer.Has(w) {
			continue
		}
		rank, ok := r.rule.Rank(r.from, balance.Place{Network: w.Network, Node: w.Node, Locality: w.Locality})
		if !ok {
			r.missed.elsewhere++
			continue
		}
		r.plan.Candidates = append(r.plan.Candidates, Candidate{
			Workload: w, Capacity: w.Capacity, Rank: rank, Expect: only(here, w.Identity),
		})
	}
}

// addShare adds what another network has of svc, if somebody is ready there by what it
// tells.
func (r *resolver) addShare(svc *mesh.Service, share mesh.Share) {
	ready := int(share.Capacity)
	if ready == 0 || !share.Offers(r.plan.Port.Service) {
		return
	}
	rank, near := r.rankGateways(share.Network, share.Gateways)
	switch {
	case !r.everywhere:
		r.missed.notGlobal += ready
	case !r.reaches(svc, share.Network):
		r.missed.otherSegment += ready
	case len(share.Gateways) == 0:
		r.missed.noGateway += ready
	case !near:
		r.missed.elsewhere += ready
	default:
		r.plan.Candidates = append(r.plan.Candidates, Candidate{
			Network: share.Network, Gateways: share.Gateways, Capacity: share.Capacity, Rank: rank, Expect: share.Identities,
		})
	}
}

func (r *resolver) reaches(svc *mesh.Service, network string) bool {
	if r.elsewhere {
		return r.snapshot.Imports(svc, r.flow.Source.Network, network)
	}
	return r.snapshot.Reaches(svc, r.flow.Source.Network, network)
}

// rankGateways returns the best rank among gateways, of those that are drained if all are.
func (r *resolver) rankGateways(network string, gateways []*mesh.Gateway) (best int, ok bool) {
	open := slices.ContainsFunc(gateways, func(g *mesh.Gateway) bool { return !g.Drained })
	for _, g := range gateways {
		if open && g.Drained {
			continue
		}
		rank, near := r.rule.Rank(r.from, balance.Place{Network: network, Locality: g.Locality})
		if near && (!ok || rank > best) {
			best, ok = rank, true
		}
	}
	return best, ok
}

// nowhere explains why svc has no candidate.
func (r *resolver) nowhere(svc *mesh.Service) error {
	networks := strings.Join(r.snapshot.Networks(svc), ", ")
	switch {
	case r.missed.elsewhere > 0: // only StrictNode excludes anything
		return r.refuse(NoEndpoint, fmt.Sprintf("trafficDistribution %s (internalTrafficPolicy: Local) requires a ready workload on the client's node, which has none; other nodes and networks have %d", svc.Distribution, r.missed.elsewhere))
	case r.missed.noGateway > 0:
		return r.refuse(NoRoute, fmt.Sprintf("its ready workloads are on networks without a gateway (of %s): add one", networks))
	case r.missed.otherSegment > 0:
		return r.refuse(NotExported, fmt.Sprintf("its ready workloads are on networks of other segments (of %s), and its scope is segment: set scope: global, or the same segment at both networks", networks))
	case r.missed.notGlobal > 0 && svc.Exported():
		return r.refuse(NotExported, fmt.Sprintf("its ready workloads are on other networks (of %s), to which this name does not lead: ask for %s, or set takeover: true", networks, strings.Join(svc.Aliases, ", ")))
	case r.elsewhere:
		return r.refuse(NoEndpoint, "no other network has a ready workload of it, and this network's service of that name is not global")
	case r.missed.notGlobal > 0:
		return r.refuse(NotExported, fmt.Sprintf("its ready workloads are on other networks (of %s) and it is not global: set global: true", networks))
	}
	return r.refuse(NoEndpoint, "the service has no ready workload: "+r.nobody(svc))
}

func (r *resolver) refuse(k Kind, detail string) error {
	subject := r.flow.Addr.String()
	if r.flow.Host != "" {
		subject = r.flow.Host + ":" + strconv.Itoa(int(r.flow.Port))
	}
	return &Error{k, subject, detail}
}

// keep returns the items that ok accepts, all itself if those are all.
func keep[T any](all []T, ok func(T) bool) []T {
	refused := func(x T) bool { return !ok(x) }
	if !slices.ContainsFunc(all, refused) {
		return all
	}
	return slices.DeleteFunc(slices.Clone(all), refused)
}

// only returns the list of id alone, from the memory of all if it is there.
func only(all []spiffeid.ID, id spiffeid.ID) []spiffeid.ID {
	if i := slices.Index(all, id); i >= 0 {
		return all[i : i+1 : i+1]
	}
	return []spiffeid.ID{id}
}

func unknownPort(svc *mesh.Service, port uint16) string {
	for _, o := range svc.Others {
		if o.Service == port {
			return fmt.Sprintf("port %d of service %s is %s, and TCP alone is carried", port, svc.Hostname, o.Protocol)
		}
	}
	if len(svc.Ports) == 0 {
		return fmt.Sprintf("service %s has no port that can be used: list %d at its ports in discovery", svc.Hostname, port)
	}
	ports := make([]string, len(svc.Ports))
	for i, p := range svc.Ports {
		ports[i] = strconv.Itoa(int(p.Service))
	}
	return fmt.Sprintf("service %s has ports %s: ask for one of them, or list %d at its ports in discovery", svc.Hostname, strings.Join(ports, ", "), port)
}
