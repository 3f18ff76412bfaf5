package ledger

import (
	"bytes"
	"cmp"
	"fmt"
	"iter"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/spiffe/go-spiffe/v2/spiffeid"

	"github.com/isthmus-mesh/isthmus/federation/networkkey"
	"github.com/isthmus-mesh/isthmus/federation/record"
	"github.com/isthmus-mesh/isthmus/mesh"
)

// Share is a remote service: one service of one network, merged over all counting instances.
type Share struct {
	Network string
	Service string
	Export  record.Export
	// Gateways are the instances that export it, sorted.
	Gateways []record.Instance
	// Problem describes how their exports differ; empty if they do not.
	Problem string
}

// Export returns the remote service on network. ok is true while a counting instance exports it: one
// that no sibling has replaced. It has the ports and identities of all of them; see [MergeExports].
func (l *Ledger) Export(network, service string) (Share, bool) {
	key := record.EncodeKey(record.Key{Kind: record.KindExport, Service: service})
	out := Share{Network: network, Service: service}
	var exports []*record.Export
	for _, i := range l.counting(network) {
		e, ok := i.set.Get(key)
		if !ok {
			continue
		}
		r, err := e.Decode()
		if err != nil {
			continue // shown by Problems
		}
		out.Gateways, exports = append(out.Gateways, i.id), append(exports, r.Export)
	}
	out.Export, out.Problem = MergeExports(network, service, exports)
	return out, len(out.Gateways) > 0
}

// MergeExports returns the export of service by network: the union of the ports, identities and
// aliases of its gateway instances' exports. So an instance that cannot reach its API server, and
// exports an old state, removes nothing that its siblings export. The age is the oldest.
//
// A port keeps its name if all exports agree on it and no lower port has it. Otherwise it has none.
// The scope is the narrowest, since only clients check it: one gateway cannot grant what another
// withholds. If the distributions differ, the reader's own applies. Of different names and
// namespaces the alphabetically first counts.
//
// Ports are sorted by number. The order of exports does not matter. problem describes how the
// exports differ; it is empty if they do not. An export without identities does not differ in them:
// its instance sees no workload.
func MergeExports(network, service string, exports []*record.Export) (merged record.Export, problem string) {
	var differ []string
	for n, e := range exports {
		if n == 0 {
			merged = *e
			merged.Ports = slices.Clone(e.Ports)
			slices.SortFunc(merged.Ports, byNumber)
			continue
		}
		differ = append(differ, union(&merged, e)...)
	}
	if len(differ) > 0 {
		nameApart(merged.Ports)
		slices.Sort(differ)
		problem = fmt.Sprintf("gateways of network %q differ in the %s of %s: the union is used, and the narrowest scope", network, strings.Join(slices.Compact(differ), " and "), service)
	}
	return merged, problem
}

func byNumber(a, b record.Port) int { return cmp.Compare(a.Port, b.Port) }

// nameApart clears the names that ports, sorted by number, share with a lower port.
func nameApart(ports []record.Port) {
	used := map[string]bool{}
	for i := range ports {
		name := ports[i].Name
		if used[name] {
			ports[i].Name = ""
		}
		used[name] = true
	}
}

// union merges b into a and returns the fields that differed. A port with different names loses its
// name. It does not modify the previous slices of a and b.
func union(a, b *record.Export) (differ []string) {
	ports := slices.Clone(a.Ports)
	for _, p := range b.Ports {
		i := slices.IndexFunc(ports, func(o record.Port) bool { return o.Port == p.Port })
		switch {
		case i < 0:
			ports = append(ports, p)
		case ports[i].Name != p.Name:
			ports[i].Name, differ = "", append(differ, "names of ports")
		}
	}
	if len(ports) != len(a.Ports) || len(ports) != len(b.Ports) {
		differ = append(differ, "ports")
	}
	slices.SortFunc(ports, byNumber)
	a.Ports = ports
	if a.Name != b.Name || a.Namespace != b.Namespace {
		differ = append(differ, "name or namespace")
	}
	a.Name, a.Namespace = min(a.Name, b.Name), min(a.Namespace, b.Namespace)
	ids := slices.Concat(a.Identities, b.Identities)
	slices.SortFunc(ids, func(x, y spiffeid.ID) int { return strings.Compare(x.String(), y.String()) })
	ids = slices.Compact(ids)
	if len(a.Identities) > 0 && len(b.Identities) > 0 && (len(ids) != len(a.Identities) || len(ids) != len(b.Identities)) {
		differ = append(differ, "identities")
	}
	a.Identities = ids
	a.Capacity = max(a.Capacity, b.Capacity)
	aliases := slices.Concat(a.Aliases, b.Aliases)
	slices.Sort(aliases)
	aliases = slices.Compact(aliases)
	if len(aliases) != len(a.Aliases) || len(aliases) != len(b.Aliases) {
		differ = append(differ, "aliases")
	}
	a.Aliases = aliases
	x, y := min(a.Scope, record.ScopeGlobal), min(b.Scope, record.ScopeGlobal) // see record.ScopeGlobalOnly
	if x != y {
		differ = append(differ, "scope")
	}
	a.Scope = min(x, y)
	if a.Distribution != b.Distribution {
		a.Distribution, differ = "", append(differ, "distribution")
	}
	// An instance of an older version does not set these.
	a.Headless = a.Headless || b.Headless
	a.Affinity = max(a.Affinity, b.Affinity)
	if a.Created == 0 || b.Created > 0 && b.Created < a.Created {
		a.Created = b.Created
	}
	return differ
}

// counting returns the instances with valid exports (live, silent or lapsed), sorted.
func (l *Ledger) counting(network string) []*instance {
	var out []*instance
	for _, i := range l.networks[network] {
		if i.phase == Live || i.phase == Silent || i.phase == Lapsed {
			out = append(out, i)
		}
	}
	slices.SortFunc(out, byID)
	return out
}

// Services returns the services that network exports, sorted.
func (l *Ledger) Services(network string) []string {
	names := map[string]struct{}{}
	for _, i := range l.counting(network) {
		for e := range i.set.All() {
			if k, err := record.DecodeKey(e.Key); err == nil && k.Kind == record.KindExport {
				names[k.Service] = struct{}{}
			}
		}
	}
	return slices.Sorted(maps.Keys(names))
}

// Delivery is the availability of a service port through one gateway instance.
type Delivery struct {
	Instance record.Instance
	Gateway  string
	Group    string
	Draining bool
	Live     bool      // false: the last report of a silent instance
	Vouched  time.Time // when it was last current
	Health   record.Health
}

// Health is the availability of a service port on one network.
type Health struct {
	Deliveries []Delivery // of each counting instance, sorted
	// The sum over groups of the numbers of the best gateway of each. Groups see different pods;
	// gateways of one group see the same. If processes of one gateway are in two groups, only one
	// counts.
	Ready, Healthy                 uint32
	ReadyCapacity, HealthyCapacity uint32
	// Exceptions are the ejected endpoints at the best gateways, and those that a witness reported
	// to any live gateway. All gateways of a group receive the same reports, so a gateway without
	// one is behind. They are sorted by endpoint. Unnamed is the number of further ones.
	Exceptions []record.Exception
	Unnamed    uint32
}

// Health returns the availability on network. False means unknown: treat it as usable, with the
// capacity of its export.
func (l *Ledger) Health(network, service string, port uint16) (Health, bool) {
	key := record.EncodeKey(record.Key{Kind: record.KindHealth, Service: service, Port: port})
	var deliveries []Delivery
	for _, i := range l.counting(network) {
		if i.phase == Lapsed {
			continue
		}
		e, ok := i.set.Get(key)
		if !ok {
			continue
		}
		r, err := e.Decode()
		if err != nil {
			continue
		}
		d := Delivery{Instance: i.id, Gateway: i.certificate.Gateway, Group: i.group(), Live: i.phase == Live, Vouched: i.vouched, Health: *r.Health}
		d.Draining = i.gateway != nil && i.gateway.Draining
		deliveries = append(deliveries, d)
	}
	return Merge(deliveries), len(deliveries) > 0
}

// Merge returns the combined availability of the gateways of one network.
func Merge(deliveries []Delivery) Health {
	out := Health{Deliveries: deliveries}
	best := map[string]Delivery{}
	for _, d := range deliveries {
		if replaced(d, deliveries) {
			continue
		}
		if b, ok := best[d.Group]; !ok || better(d, b) {
			best[d.Group] = d
		}
	}
	for _, b := range best {
		h, extra := b.Health, witnessed(b, deliveries)
		if n := min(uint32(len(extra)), h.Healthy); n > 0 {
			h.HealthyCapacity -= uint32(uint64(h.HealthyCapacity) * uint64(n) / uint64(h.Healthy))
			h.Healthy -= n
		}
		out.Ready += h.Ready
		out.Healthy += h.Healthy
		out.ReadyCapacity += h.ReadyCapacity
		out.HealthyCapacity += h.HealthyCapacity
		out.Exceptions = append(append(out.Exceptions, h.Exceptions...), extra...)
		out.Unnamed += h.Unnamed
	}
	slices.SortFunc(out.Exceptions, func(a, b record.Exception) int { return cmp.Compare(a.Endpoint, b.Endpoint) })
	return out
}

// replaced reports whether another process of d's gateway, in another group, counts instead of d. A
// gateway restarted with another group is in both groups for a while.
func replaced(d Delivery, deliveries []Delivery) bool {
	return slices.ContainsFunc(deliveries, func(o Delivery) bool {
		if o.Gateway != d.Gateway || o.Group == d.Group {
			return false
		}
		if o.Live != d.Live {
			return o.Live
		}
		return better(o, d) || !better(d, o) && bytes.Compare(o.Instance[:], d.Instance[:]) > 0
	})
}

// witnessed returns the ejected endpoints that witnesses reported to other gateways of best's group
// and not to best.
func witnessed(best Delivery, deliveries []Delivery) (out []record.Exception) {
	known := map[mesh.EndpointID]bool{}
	for _, x := range best.Health.Exceptions {
		known[x.Endpoint] = true
	}
	for _, d := range deliveries {
		if d.Group != best.Group || !d.Live {
			continue
		}
		for _, x := range d.Health.Exceptions {
			if x.Cause == record.Witness && !known[x.Endpoint] {
				known[x.Endpoint] = true
				out = append(out, x)
			}
		}
	}
	return out
}

// better reports whether a is preferred to b. One that does not drain comes first, then more healthy
// capacity, then more ready capacity.
func better(a, b Delivery) bool {
	if a.Draining != b.Draining {
		return b.Draining
	}
	if a.Health.HealthyCapacity != b.Health.HealthyCapacity {
		return a.Health.HealthyCapacity > b.Health.HealthyCapacity
	}
	return a.Health.ReadyCapacity > b.Health.ReadyCapacity
}

// Ports returns the service ports of network with health from a counting instance, unordered.
func (l *Ledger) Ports(network string) []record.Key {
	keys := map[record.Key]struct{}{}
	for _, i := range l.counting(network) {
		for service, ports := range i.ports {
			for _, port := range ports {
				keys[record.Key{Kind: record.KindHealth, Service: service, Port: port}] = struct{}{}
			}
		}
	}
	return slices.Collect(maps.Keys(keys))
}

// Networks returns the networks in the ledger, sorted.
func (l *Ledger) Networks() []string { return slices.Sorted(maps.Keys(l.networks)) }

// Synchronised reports whether a live, complete instance of network reports that it has the full state.
// Only then does absence from the ledger mean that a service was withdrawn.
func (l *Ledger) Synchronised(network string) bool {
	for _, i := range l.networks[network] {
		if i.phase == Live && i.complete && i.newest.Synchronised {
			return true
		}
	}
	return false
}

// Status is the state of one instance.
type Status struct {
	Instance     record.Instance
	Network      string
	Gateway      string
	By           networkkey.Public // key of the network that certified it, as of verification
	Phase        Phase
	Own          bool
	Complete     bool
	Synchronised bool
	Body         *record.Network // nil until received; must not be modified
	Count        uint64
	Watermark    uint64
	Records      int
	Bytes        int
	Heard        time.Time // when its newest signed update was received
	Vouched      time.Time // when it was last current
	Refused      error     // the exceeded limit, if its records are incomplete because of one
	Problems     map[record.Key]error
	MoreProblems int
}

// Status returns the state of every instance, sorted by network.
func (l *Ledger) Status() []Status {
	var out []Status
	for _, i := range l.order {
		s := Status{
			Instance: i.id, Network: i.certificate.Network, Gateway: i.certificate.Gateway, By: i.certificate.By, Phase: i.phase, Own: i.own,
			Complete: i.complete, Synchronised: i.newest.Synchronised, Body: i.gateway, Count: i.newest.Count, Watermark: i.newest.Watermark,
			Records: i.set.Len(), Bytes: i.set.Bytes(), Heard: i.heard, Vouched: i.vouched, Refused: i.refused, MoreProblems: i.more,
		}
		for key, err := range i.problems {
			if s.Problems == nil {
				s.Problems = map[record.Key]error{}
			}
			k, _ := record.DecodeKey(key)
			s.Problems[k] = err
		}
		out = append(out, s)
	}
	slices.SortStableFunc(out, func(a, b Status) int { return strings.Compare(a.Network, b.Network) })
	return out
}

// Entries yields all records of an instance, trusted or not. It is for operators and tests.
func (l *Ledger) Entries(id record.Instance) iter.Seq[record.Entry] {
	i := l.instances[id]
	if i == nil {
		return func(func(record.Entry) bool) {}
	}
	return i.set.All()
}

// Word is the report of one gateway instance on a service.
type Word struct {
	Network  string
	Instance record.Instance
	Gateway  string
	Group    string
	Draining bool
	Live     bool // false: the last report of a silent instance
	// Entries are the export and the health of each port, as the instance wrote them. If its health
	// has lapsed, there is only the export. They are shared.
	Entries []record.Entry
	// Certificate is the signed certificate of the instance, and Introduction its network record,
	// empty if it has none. Both are shared.
	Certificate  []byte
	Introduction record.Entry
}

// Words returns the reports of all counting instances on a service, sorted by network and instance.
func (l *Ledger) Words(service string) (out []Word) {
	for _, network := range l.Networks() {
		for _, i := range l.counting(network) {
			w := Word{Network: network, Instance: i.id, Gateway: i.certificate.Gateway, Group: i.group(), Live: i.phase == Live, Entries: i.about(service)}
			w.Draining = i.gateway != nil && i.gateway.Draining
			w.Certificate = i.raw
			w.Introduction, _ = i.set.Get(gatewayKey)
			if len(w.Entries) > 0 {
				out = append(out, w)
			}
		}
	}
	return out
}

// about returns the entries of i for a service: its export, and the health of the ports that i
// reports.
func (i *instance) about(service string) (out []record.Entry) {
	if e, ok := i.set.Get(record.EncodeKey(record.Key{Kind: record.KindExport, Service: service})); ok {
		out = append(out, e)
	}
	if i.phase == Lapsed {
		return out
	}
	for _, port := range i.ports[service] {
		if e, ok := i.set.Get(record.EncodeKey(record.Key{Kind: record.KindHealth, Service: service, Port: port})); ok {
			out = append(out, e)
		}
	}
	slices.SortFunc(out, func(a, b record.Entry) int { return strings.Compare(a.Key, b.Key) })
	return out
}
