package discovery

import (
	"cmp"
	"maps"
	"reflect"
	"slices"

	"github.com/isthmus-mesh/isthmus/policy"
)

// Listing is a Config as records with keys: a list says which objects there are,
// a Builder wants to know which changed.
type Listing struct {
	items  []item // in the Config's order
	byKey  map[Key]int
	times  map[Key]int // how often a name has come again
	faults []Problem   // of what is in no record

	// Of a list for one network; see ListFor.
	elsewhere Elsewhere
	places    map[Key]int // of what is in no record and has a problem
}

// item is one record and its place in the Config's list of its kind.
type item struct {
	key    Key
	record Record
	place  int
}

// List names the records of c: by name, network and name, hostname, network and service, UID, kind
// with namespace and name. A name
// that is listed again is told apart by Nth, so that the first one has it.
func (c Config) List() Listing {
	n := len(c.Networks) + len(c.Gateways) + len(c.Services) + len(c.Shares) + len(c.Workloads) + len(c.Policies)
	l := Listing{items: make([]item, 0, n), byKey: make(map[Key]int, n), times: map[Key]int{}}
	for i, x := range c.Networks {
		x.Nodes = slices.Clone(x.Nodes)
		l.add(KindNetwork, x.Name, i, x)
	}
	for i, x := range c.Gateways {
		x.Sources = slices.Clone(x.Sources)
		l.add(KindGateway, x.Network+"/"+x.Name, i, x)
	}
	namespaces := make(map[string]string, len(c.Namespaces))
	var r reader
	for i, n := range c.Namespaces {
		here := at{"namespaces", i}
		if _, twice := namespaces[n.Name]; twice {
			r.drop(CauseConflict, here.below("name"), n.Name, "is listed already: list each namespace once")
			continue
		}
		r.label(here.below("name"), n.Name)
		namespaces[n.Name] = r.inherit(here.below("trafficDistribution"), n.TrafficDistribution)
	}
	meshWide := r.inherit(at{"trafficDistribution"}, c.TrafficDistribution)
	l.faults = r.problems
	for i, x := range c.Services {
		x.Inherited = Inherited{namespaces[or(x.Namespace, defaultNamespace)], meshWide}
		x.Aliases, x.VIPs, x.Ports = slices.Clone(x.Aliases), slices.Clone(x.VIPs), slices.Clone(x.Ports)
		l.add(KindService, or(x.Namespace, defaultNamespace)+"/"+x.Name, i, x)
	}
	for i, x := range c.Shares {
		x.Aliases, x.Ports, x.Identities = slices.Clone(x.Aliases), slices.Clone(x.Ports), slices.Clone(x.Identities)
		l.add(KindShare, x.Network+"/"+or(x.Namespace, defaultNamespace)+"/"+x.Name, i, x)
	}
	for i, x := range c.Workloads {
		x.Addresses, x.Services = slices.Clone(x.Addresses), slices.Clone(x.Services)
		x.Ports, x.Labels = slices.Clone(x.Ports), maps.Clone(x.Labels)
		l.add(KindWorkload, x.UID, i, x)
	}
	for i, x := range c.Policies {
		l.add(KindPolicy, policy.NameOf(x).String(), i, x)
	}
	l.times = nil
	return l
}

// inherit returns what services inherit: nothing of what is no distribution, so
// that this is told once.
func (r *reader) inherit(path at, s string) string {
	if s == "" {
		return ""
	}
	d, _ := r.known(path, s)
	return string(d)
}

func (l *Listing) add(kind Kind, name string, place int, r Record) {
	k := Key{Kind: kind, Name: name}
	if _, again := l.byKey[k]; again {
		l.times[k]++
		k.Nth = l.times[k]
	}
	l.byKey[k] = len(l.items)
	l.items = append(l.items, item{k, r, place})
}

// record returns the record with key k, or nil.
func (l Listing) record(k Key) Record {
	if i, ok := l.byKey[k]; ok {
		return l.items[i].record
	}
	return nil
}

// Lists reports whether there is a record with key k, or was before it was folded.
func (l Listing) Lists(k Key) bool {
	if _, there := l.byKey[k]; there || k.Kind != KindWorkload {
		return there
	}
	for i := range l.elsewhere.Len() {
		if l.elsewhere.UID(i) == k.Name {
			return true
		}
	}
	return false
}

// place returns where the record with key k is in the Config's list of its kind.
func (l Listing) place(k Key) int {
	if i, ok := l.byKey[k]; ok {
		return l.items[i].place
	}
	return l.places[k]
}

// Since returns what makes l of earlier. What is the same in both is in the memory of
// earlier then.
func (l Listing) Since(earlier Listing) (changes []Change) {
	if len(earlier.items) == 0 {
		changes = make([]Change, 0, len(l.items))
	}
	for i, it := range l.items {
		if old := earlier.record(it.key); old == nil || !reflect.DeepEqual(old, it.record) {
			changes = append(changes, Change{Key: it.key, Record: it.record})
		} else {
			l.items[i].record = old
		}
	}
	for _, it := range earlier.items {
		if l.record(it.key) == nil {
			changes = append(changes, Change{Key: it.key})
		}
	}
	return changes
}

// With is l with problems that are found beside its records.
func (l Listing) With(faults []Problem) Listing {
	l.faults = append(slices.Clip(l.faults), faults...)
	return l
}

// Faults returns what is wrong with what is in no record.
func (l Listing) Faults() []Problem { return slices.Clone(l.faults) }

// FaultsSince returns which of those came and went.
func (l Listing) FaultsSince(earlier Listing) News {
	return News{Appeared: missing(l.faults, earlier.faults), Gone: missing(earlier.faults, l.faults)}
}

func (l Listing) changes() []Change { return l.Since(Listing{}) }

var sections = [...]string{KindNetwork: "networks", KindGateway: "gateways", KindService: "services", KindShare: "shares", KindWorkload: "workloads", KindPolicy: "policies"}

// Locate turns the paths of problems, which begin at their records, into paths
// from the root of the Config that was listed, and puts them in its order.
func (l Listing) Locate(problems []Problem) []Problem {
	out := slices.Clone(problems)
	for i := range out {
		p := &out[i]
		if p.Object.Kind == 0 {
			continue
		}
		p.Path = append([]any{sections[p.Object.Kind], l.place(p.Object)}, p.Path...)
		p.Field = fieldOf(p.Path)
	}
	slices.SortStableFunc(out, func(a, b Problem) int {
		return cmp.Or(cmp.Compare(a.Object.Kind, b.Object.Kind), cmp.Compare(l.place(a.Object), l.place(b.Object)))
	})
	return out
}
