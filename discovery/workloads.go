package discovery

import (
	"net/netip"
	"strings"

	"github.com/isthmus-mesh/isthmus/mesh"
)

// maxCapacity bounds a weight so that the sum over 65 537 workloads still fits
// the 32 bits that a summary has for it.
const maxCapacity = 65535

type place struct {
	network string
	address netip.Addr
}

func (b *builder) addWorkloads(workloads []Workload) {
	uids := make(map[string]int, len(workloads))
	places := make(map[place]int, len(workloads))
	b.workloads = make([]*mesh.Workload, 0, len(workloads))
	for i, w := range workloads {
		path := at{"workloads", i}
		b.uid(path.below("uid"), i, w.UID, uids)
		b.network(path.below("network"), w.Network)
		b.word(path.below("name"), w.Name)
		b.word(path.below("node"), w.Node)
		b.word(path.below("cluster"), w.Cluster)
		out := &mesh.Workload{
			UID: w.UID, Name: or(w.Name, w.UID), Network: w.Network, Node: w.Node, Cluster: w.Cluster,
			Namespace: or(w.Namespace, defaultNamespace), ServiceAccount: or(w.ServiceAccount, defaultServiceAccount),
			TrustDomain: b.td.Name(), Locality: mesh.Locality(w.Locality), Endpoint: mesh.EndpointIDOf(w.Network, w.UID),
			Addresses: b.addresses(path.below("addresses"), i, w, places),
			State:     b.state(path, w),
			Capacity:  b.capacity(path.below("capacity"), w.Capacity),
		}
		if b.label(path.below("namespace"), out.Namespace) {
			out.Identity, _ = b.identity(path.below("serviceAccount"), out.Namespace, out.ServiceAccount)
		}
		b.join(path.below("services"), out, w.Services)
		b.workloads = append(b.workloads, out)
	}
}

func (b *builder) uid(path at, i int, uid string, seen map[string]int) {
	switch first, twice := seen[uid]; {
	case uid == "":
		b.problem(path, nil, "is missing: write what names this instance and no other, such as the pod's UID")
	case !isUID(uid):
		b.problem(path, uid, "is not a UID: use at most 253 printable ASCII characters and no space")
	case twice:
		b.problem(path, uid, "is also the uid of workloads[%d]: give each workload its own", first)
	default:
		seen[uid] = i
	}
}

// addresses checks that nobody else on the network has one of w's. The same
// address on another network is another workload.
func (b *builder) addresses(path at, i int, w Workload, seen map[place]int) []netip.Addr {
	if len(w.Addresses) == 0 {
		b.problem(path, nil, "is empty: list at least one IP address")
	}
	out := make([]netip.Addr, 0, len(w.Addresses))
	for j, a := range w.Addresses {
		a = a.Unmap()
		switch first, twice := seen[place{w.Network, a}]; {
		case !usable(a):
			b.problem(path.below(j), a, "is not the address of one machine: write a unicast IP address without a zone")
		case twice:
			b.problem(path.below(j), a, "is also an address of workloads[%d] on network %q: give each workload on a network its own addresses", first, w.Network)
		default:
			seen[place{w.Network, a}] = i
			out = append(out, a)
		}
	}
	return out
}

func (b *builder) state(path at, w Workload) mesh.State {
	saysNo := w.Ready != nil && !*w.Ready
	saysYes := w.Ready != nil && *w.Ready
	switch w.State {
	case "":
		if saysNo {
			return mesh.NotReady
		}
		return mesh.Ready
	case "ready":
		if saysNo {
			b.problem(path.below("state"), w.State, "contradicts ready: false: remove one of the two")
		}
		return mesh.Ready
	case "notReady":
		if saysYes {
			b.problem(path.below("state"), w.State, "contradicts ready: true: remove one of the two")
		}
		return mesh.NotReady
	case "terminating": // a pod may still be ready while it shuts down
		return mesh.Terminating
	}
	b.problem(path.below("state"), w.State, "is not a state: use ready, notReady or terminating")
	return mesh.NotReady
}

func (b *builder) capacity(path at, c *uint32) uint32 {
	if c == nil {
		return 1
	}
	if *c == 0 {
		b.problem(path, *c, "is no weight: write 1 to %d, or ready: false to send nothing there", maxCapacity)
	} else if *c > maxCapacity {
		b.problem(path, *c, "is too large: write 1 to %d", maxCapacity)
	}
	return *c
}

// join makes w a member of the services named, by hostname or alias.
func (b *builder) join(path at, w *mesh.Workload, services []string) {
	joined := make(map[*mesh.Service]int, len(services))
	for j, name := range services {
		o, ok := b.names[strings.ToLower(name)]
		if !ok {
			b.missing(path.below(j), name, "services", "is not a service of this mesh: write the hostname of one that is listed under services")
			continue
		}
		if first, twice := joined[o.service]; twice {
			b.problem(path.below(j), name, "is the same service as item %d: list each service once", first)
			continue
		}
		joined[o.service] = j
		host := o.service.Hostname
		b.members[host] = append(b.members[host], w.UID)
	}
}
