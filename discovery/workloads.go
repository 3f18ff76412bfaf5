package discovery

import (
	"net/netip"
	"slices"
	"strings"

	"github.com/isthmus-mesh/isthmus/mesh"
)

// maxCapacity bounds a weight so that the sum over 65 537 workloads still fits
// the 32 bits that a summary has for it.
const maxCapacity = 65535

// What every workload has need not be written for each.
var atUID, atAddress = at{"uid"}, at{"addresses", 0}

func (w Workload) read(r *reader) reading {
	out := &mesh.Workload{
		UID: w.UID, Network: w.Network,
		Namespace: or(w.Namespace, defaultNamespace), ServiceAccount: or(w.ServiceAccount, defaultServiceAccount),
		TrustDomain: r.names.td.Name(), Locality: mesh.Locality(w.Locality), Endpoint: mesh.EndpointIDOf(w.Network, w.UID),
	}
	r.uid(at{"uid"}, w.UID)
	out.Name = or(r.word(at{"name"}, w.Name), w.UID)
	out.Node = r.word(at{"node"}, w.Node)
	out.Cluster = r.word(at{"cluster"}, w.Cluster)
	claims := make([]claim, 1, 1+len(w.Addresses))
	claims[0] = claim{what: workloadUID, text: w.UID, path: atUID}
	if w.Scheduled {
		if out.Node == "" {
			r.out(CauseMissing, at{"node"}, nil, "is missing: a pod without an address is told to its node alone")
		}
		out.Outside, w.Services = w.Outside, nil
	} else {
		out.Addresses, claims = r.addresses(w, claims)
	}
	out.State = r.state(w)
	out.Capacity = r.capacity(w.Capacity)
	out.Ports, out.Labels = r.named(w.Ports), w.Labels
	switch strings.ToUpper(or(w.Protocol, "HBONE")) {
	case "HBONE":
	case "TCP":
		out.Plain = true
	default:
		r.drop(CauseValue, at{"protocol"}, w.Protocol, "is not a protocol of workloads: use HBONE or TCP")
	}
	if r.label(at{"namespace"}, out.Namespace) {
		out.Identity = r.identity(at{"serviceAccount"}, out.Namespace, out.ServiceAccount)
	}
	// Of two that claim one address, who may be chosen has it: a finished job
	// keeps the address that a new pod was given.
	return reading{workload: out, rank: rankOf(out.State), claims: claims, on: w.Network, refs: r.refs(w.Services)}
}

// rankOf orders workloads that claim one thing.
func rankOf(s mesh.State) int {
	return slices.Index([]mesh.State{mesh.Ready, mesh.Serving, mesh.NotReady, mesh.Terminating}, s)
}

// named leaves out what cannot be a port, or has the name of an earlier one.
func (r *reader) named(ports []NamedPort) (out []mesh.NamedPort) {
	for i, p := range ports {
		path := at{"ports", i}
		switch {
		case p.Name == "":
			r.drop(CauseMissing, path.below("name"), nil, "is missing: write what targetName of a service means")
		case slices.ContainsFunc(out, func(o mesh.NamedPort) bool { return o.Name == p.Name }):
			r.drop(CauseConflict, path.below("name"), p.Name, "is the name of an earlier port: give each port its own name")
		case p.Port == 0:
			r.drop(CauseValue, path.below("port"), p.Port, "is not a port: write a number from 1 to 65535")
		case mesh.ReservedPort(p.Port):
			r.drop(CauseUnsupported, path.below("port"), p.Port, "is a port of the node proxy itself, which never connects there: let the application listen on another one")
		default:
			out = append(out, mesh.NamedPort{Name: p.Name, Port: p.Port})
		}
	}
	return out
}

func (r *reader) uid(path at, uid string) {
	switch {
	case uid == "":
		r.out(CauseMissing, path, nil, "is missing: write what names this instance and no other, such as the pod's UID")
	case !isUID(uid):
		r.out(CauseValue, path, uid, "is not a UID: use at most 253 printable ASCII characters and no space")
	}
}

// addresses leaves out what no machine can have, and claims the rest on the
// network of w: the same address on another network is another workload's.
func (r *reader) addresses(w Workload, claims []claim) ([]netip.Addr, []claim) {
	if len(w.Addresses) == 0 {
		r.out(CauseMissing, at{"addresses"}, nil, "is empty: list at least one IP address")
		return nil, claims
	}
	out := make([]netip.Addr, 0, len(w.Addresses))
	for i, a := range w.Addresses {
		path := atAddress
		if i > 0 {
			path = at{"addresses", i}
		}
		a = a.Unmap()
		switch {
		case !usable(a):
			r.drop(CauseValue, path, a, "is not the address of one machine: write a unicast IP address without a zone")
		case slices.Contains(out, a):
			r.drop(CauseConflict, path, a, "is listed already: list each address once")
		default:
			out = append(out, a)
			claims = append(claims, claim{what: workloadAddress, text: w.Network + " " + a.String(), path: path})
		}
	}
	if len(out) == 0 { // each has its own remedy
		r.problems[len(r.problems)-1].Out = true
	}
	return out, claims
}

// state takes the more careful of two contradictory words.
func (r *reader) state(w Workload) mesh.State {
	saysNo := w.Ready != nil && !*w.Ready
	saysYes := w.Ready != nil && *w.Ready
	path := at{"state"}
	switch w.State {
	case "":
		if saysNo {
			return mesh.NotReady
		}
		return mesh.Ready
	case "ready":
		if saysNo {
			r.drop(CauseConflict, path, w.State, "contradicts ready: false: remove one of the two")
			return mesh.NotReady
		}
		return mesh.Ready
	case "notReady":
		if saysYes {
			r.drop(CauseConflict, path, w.State, "contradicts ready: true: remove one of the two")
		}
		return mesh.NotReady
	case "terminating": // a pod may still be ready while it shuts down
		return mesh.Terminating
	case "serving":
		return mesh.Serving
	}
	r.drop(CauseValue, path, w.State, "is not a state: use ready, notReady, terminating or serving")
	return mesh.NotReady
}

// capacity returns a weight that may be used. Of one that is none, the object is
// out: the smallest would still send connections there.
func (r *reader) capacity(c *uint32) uint32 {
	path := at{"capacity"}
	switch {
	case c == nil:
		return 1
	case *c == 0:
		r.out(CauseValue, path, *c, "is no weight: write 1 to %d, or ready: false to send nothing there", maxCapacity)
		return 1
	case *c > maxCapacity:
		r.drop(CauseValue, path, *c, "is too large: write 1 to %d", maxCapacity)
		return maxCapacity
	}
	return *c
}

func (r *reader) refs(services []string) []ref {
	out := make([]ref, len(services))
	for i, name := range services {
		out[i] = ref{name: strings.ToLower(name), written: name}
	}
	return out
}
