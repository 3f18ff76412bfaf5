package discovery

import (
	"maps"
	"reflect"
	"slices"

	"github.com/isthmus-mesh/isthmus/mesh"
	"github.com/isthmus-mesh/isthmus/policy"
)

// Builder makes snapshots from single changes of records. What a change costs is
// in proportion to what depends on it.
//
// What it has built depends on the records alone, never on the order in which
// they came. A record that cannot be used becomes a [Problem], and everything else
// goes on. Of two records that claim one thing (a UID, an address on a network, a
// hostname, the name or address of a gateway) one has it and the other is out: the
// ready workload before the serving, that before the one that is not ready, that
// before the terminating one; the
// service that has a hostname by its name before one that was given it; then the
// smaller Key; and before all that the earlier Source. Gateways that two networks tell of
// themselves may have one address. Who is out claims nothing; who lost comes in by itself when the
// winner goes. Of an alias or a virtual address the same holds, but who loses one
// is only without it; a hostname goes before an alias of the same Source. A service whose hostname an
// earlier Source gives to another one is out. What others export under the hostname of a service (see
// Import) has the names and addresses that no service has, and of two such records the first has them.
//
// Shares of a service that no record lists make one. Each keeps its own ports and scope:
// the service has the ports that any of them has, and leads to each by those. It is
// called as the oldest of the earliest source says. Its distribution, and that it has
// global names alone, are what all of that source say; if they differ, PreferNetwork and
// not. It has no name that a listed service has, and none that another one has by its
// hostname, and goes with its last share. What networks tell makes services that are
// called <name>.<namespace>.svc.cluster.local and <name>.<namespace>.mesh.internal, and
// gives them no other name; under any other hostname, such as www.example.com, it joins a
// service that a record lists.
//
// Not safe for concurrent use. The zero value is not ready; see NewBuilder.
type Builder struct {
	names   *names
	entries map[Key]*entry
	claims  contests
	refs    map[string]*mention // by the name of a service
	shares  map[string][]*entry // by hostname
	made    map[string]struct{} // hostnames of the services in the last snapshot that only shares describe
	edit    *mesh.Edit
	current *mesh.Snapshot
	from    map[string]Source // who says that a network is there, of those that are in
	begun   bool              // there was a Commit
	faults  map[Key][]Problem // that sources have found themselves

	// Of the batch that is being collected.
	queues   [KindPolicy + 1]queue
	settings []Problem // of the mesh itself
	uids     []string  // some perhaps twice
	networks map[string]struct{}
	gateways map[string]struct{} // networks whose gateways changed
	hosts    map[string]struct{}
	aliases  map[string]struct{}
	vips     map[string]struct{}
	shared   map[string]struct{} // hostnames whose shares changed
	fresh    []*entry            // whose problems must be found again
	departed map[Key]struct{}
	faulty   map[Key]struct{} // of which the source has found something else wrong
	changes  Changes

	policies map[Key]*entry
	root     string // namespace of policies for all
	policed  bool   // policies have changed in the batch

	cluster RootNamespace // the same by the cluster; without a name as long as its policies are not all known

	problems map[Key][]Problem
	asOf     int // which batch it is
}

// NewBuilder returns a builder of an empty mesh in DefaultTrustDomain, whose first
// snapshot is one above revision.
func NewBuilder(revision uint64) *Builder {
	b := &Builder{
		entries: map[Key]*entry{}, claims: contests{}, refs: map[string]*mention{}, shares: map[string][]*entry{}, made: map[string]struct{}{}, from: map[string]Source{}, policies: map[Key]*entry{}, root: policy.DefaultRootNamespace, problems: map[Key][]Problem{}, faults: map[Key][]Problem{},
		current: &mesh.Snapshot{Revision: revision},
	}
	b.begin()
	b.names, _ = newNames("")
	b.edit = b.current.Edit()
	b.edit.SetTrustDomain(b.names.td.Name())
	b.current = b.edit.Snapshot(revision)
	return b
}

func (b *Builder) begin() {
	for _, e := range b.fresh {
		e.fresh, e.noted = false, false
	}
	b.uids, b.networks, b.gateways = nil, map[string]struct{}{}, map[string]struct{}{}
	b.hosts, b.aliases, b.vips = map[string]struct{}{}, map[string]struct{}{}, map[string]struct{}{}
	b.shared = map[string]struct{}{}
	b.fresh, b.departed, b.faulty, b.changes = nil, map[Key]struct{}{}, map[Key]struct{}{}, newChanges()
	b.changes.All, b.policed = !b.begun, false
	b.asOf++
}

// SetTrustDomain names the trust domain of every identity. Every record is read
// again if it is another one; a name that cannot be is a problem and changes nothing.
func (b *Builder) SetTrustDomain(name string) {
	names, problems := newNames(name)
	if b.settings = problems; len(problems) > 0 || names.td == b.names.td {
		return
	}
	b.names = names
	b.edit.SetTrustDomain(names.td.Name())
	b.changes.All = true
	for _, e := range slices.Collect(maps.Values(b.entries)) {
		if e.key.Source == derivedFromShares {
			continue
		}
		b.remove(e)
		b.add(e.key, e.record)
	}
}

// SetRootNamespace names the namespace whose policies are for every one; "" is Istio's.
func (b *Builder) SetRootNamespace(name string) {
	name = or(name, policy.DefaultRootNamespace)
	b.policed, b.root = b.policed || name != b.root, name
}

// Apply takes changes into the batch that the next Commit ends. A record as it
// already is changes nothing.
func (b *Builder) Apply(changes ...Change) {
	if len(b.entries) == 0 { // the whole mesh: do not let the maps grow step by step
		b.entries, b.claims = make(map[Key]*entry, len(changes)), make(contests, 2*len(changes))
	}
	for _, c := range changes {
		if c.Key.Kind == KindRootNamespace {
			b.setCluster(c.Record)
			continue
		}
		b.fault(c.Key, c.Faults)
		old := b.entries[c.Key]
		if old != nil {
			if c.Record != nil && reflect.DeepEqual(old.record, c.Record) {
				continue
			}
			b.remove(old)
		}
		if c.Record != nil {
			b.add(c.Key, c.Record)
		} else if old != nil {
			b.departed[c.Key] = struct{}{}
		}
	}
}

// fault takes in what the source of k has found wrong with it.
func (b *Builder) fault(k Key, faults []Problem) {
	was := b.faults[k]
	if len(was) == 0 && len(faults) == 0 {
		return
	}
	now := slices.Clone(faults)
	for i := range now {
		now[i].Object = k
		if now[i].Field == "" {
			now[i].Field = fieldOf(now[i].Path)
		}
	}
	if slices.EqualFunc(was, now, Problem.equal) {
		return
	}
	if delete(b.faults, k); len(now) > 0 {
		b.faults[k] = now
	}
	b.faulty[k] = struct{}{}
}

// Alone reports whether what a source says under k is in the last snapshot, and no later
// source says the same thing, which would take its place.
func (b *Builder) Alone(k Key) bool {
	e := b.entries[k]
	return e != nil && e.in && len(e.reading.claims) > 0 && !slices.ContainsFunc(e.reading.claims[0].contest.list, func(o *entry) bool { return o.key.Source > k.Source && !o.faulty })
}

func (b *Builder) add(key Key, record Record) {
	r := reader{names: b.names, object: key}
	e := &entry{key: key, record: record, reading: record.read(&r)}
	e.problems, e.faulty = r.problems, r.unusable()
	b.entries[key] = e
	if key.Kind == KindPolicy {
		b.policies[key] = e
	}
	delete(b.departed, key)
	b.claims.enter(e, e.reading.claims)
	b.claims.enter(e, e.reading.extras)
	b.refer(e)
	b.enlist(e)
	b.touch(e)
}

func (b *Builder) remove(e *entry) {
	b.touch(e)
	e.gone, e.in = true, false
	delete(b.entries, e.key)
	delete(b.policies, e.key)
	b.claims.leave(e, e.reading.claims)
	b.claims.leave(e, e.reading.extras)
	b.unrefer(e)
	b.delist(e)
}

// touch queues e and all that claim what it claims, and notes what they decide.
func (b *Builder) touch(e *entry) {
	b.queues[e.key.Kind].add(e)
	b.queueRivals(e)
	b.noteResult(e)
}

// queueRivals queues the others that claim what e claims.
func (b *Builder) queueRivals(e *entry) {
	for _, c := range e.reading.claims {
		for _, o := range c.contest.list {
			if o != e {
				b.queues[e.key.Kind].add(o)
			}
		}
	}
	for _, c := range e.reading.extras {
		if c.what == virtualAddress {
			continue
		}
		for _, o := range b.claims.all(claimKey{hostName, c.text}) { // whose hostname it is
			if o != e {
				b.queues[e.key.Kind].add(o)
			}
		}
	}
}

// refresh notes that e may have other problems.
func (b *Builder) refresh(e *entry) {
	if !e.fresh {
		e.fresh = true
		b.fresh = append(b.fresh, e)
	}
}

// noteResult notes what must be derived again since e has changed.
func (b *Builder) noteResult(e *entry) {
	b.refresh(e)
	if e.noted {
		return
	}
	e.noted = true
	rd := &e.reading
	switch e.key.Kind {
	case KindNetwork:
		b.networks[rd.network.Name] = struct{}{}
	case KindGateway:
		b.gateways[rd.on] = struct{}{}
	case KindService:
		b.hosts[rd.service.Hostname] = struct{}{}
		b.aliases[rd.service.Hostname] = struct{}{} // which others may have as an alias
		for _, c := range rd.extras {
			if c.what == virtualAddress {
				b.vips[c.text] = struct{}{}
			} else {
				b.aliases[c.text] = struct{}{}
			}
		}
	case KindShare:
		b.shared[rd.sharedHost()] = struct{}{}
	case KindWorkload:
		b.uids = append(b.uids, rd.workload.UID)
	case KindPolicy:
		b.policed = true
	}
}

// settle decides which of the queued records of one kind are in, the best first.
func (b *Builder) settle(kind Kind) {
	q := &b.queues[kind]
	q.claims = b.claims
	for e := q.next(); e != nil; e = q.next() {
		if e.gone {
			continue
		}
		_, winner := b.claims.lost(e)
		placed := b.placed(e)
		in := !e.faulty && winner == nil && placed
		b.refresh(e) // another may have won
		if outside := kind == KindWorkload && (e.faulty || !placed); outside != e.outside {
			e.outside = outside
			b.noteResult(e)
		}
		if in == e.in {
			continue
		}
		e.in = in
		b.queueRivals(e)
		b.noteResult(e)
	}
}

// placed reports whether e is on a network that is in, or on none by its nature.
func (b *Builder) placed(e *entry) bool {
	return !e.key.Kind.onNetwork() || e.reading.folded != nil || b.networkOf(e) != nil
}

// networkOf returns the network that e is on, nil if no source that may judge e lists it.
func (b *Builder) networkOf(e *entry) *entry {
	if n := b.claims.holder(claimKey{networkName, e.reading.on}); n != nil && n.key.Source <= e.key.Source {
		return n
	}
	return nil
}

// Commit ends the batch: it returns the next snapshot, what is different in it,
// and the problems that came and went. If nothing is, it is the last one; the first
// batch is everything, also if it is nothing.
func (b *Builder) Commit() (*mesh.Snapshot, Changes, News) {
	b.settle(KindNetwork)
	b.commitNetworks()
	b.settle(KindGateway)
	b.commitGateways()
	b.settle(KindShare)
	b.settle(KindService)
	b.describeShared()
	b.settle(KindService)
	b.commitServices()
	b.settle(KindWorkload)
	b.commitWorkloads()
	b.commitShares()
	b.settle(KindPolicy)
	b.commitPolicies()
	news := b.commitProblems()
	changes := b.changes
	if b.begun = true; !changes.Empty() {
		b.current = b.edit.Snapshot(b.current.Revision + 1)
	}
	b.begin()
	return b.current, changes, news
}

// commitNetworks lists the networks that are in, and queues what is on one that
// came or went.
func (b *Builder) commitNetworks() {
	if len(b.networks) == 0 {
		return
	}
	var list []mesh.Network
	had := map[string]mesh.Network{}
	for _, n := range b.edit.Peek().ListNetworks() {
		had[n.Name] = n
		if _, touched := b.networks[n.Name]; !touched {
			list = append(list, n)
		}
	}
	again := map[string]struct{}{}
	for name := range b.networks {
		old, was := had[name]
		e := b.claims.holder(claimKey{networkName, name})
		if e != nil {
			list = append(list, *e.reading.network)
		}
		if was != (e != nil) || e == nil || b.from[name] != e.key.Source { // why there is none may be another reason
			again[name] = struct{}{}
		}
		if delete(b.from, name); e != nil {
			b.from[name] = e.key.Source
		}
		if was != (e != nil) || was && !reflect.DeepEqual(old, *e.reading.network) {
			b.changes.network(name)
		}
	}
	b.edit.SetNetworks(list)
	b.requeue(again)
}

// requeue queues all that is on networks: one seldom comes or goes, so nobody
// keeps a list. In the first batch everything is queued.
func (b *Builder) requeue(networks map[string]struct{}) {
	if len(networks) == 0 || !b.begun {
		return
	}
	for _, e := range b.entries {
		if _, on := networks[e.reading.on]; on && e.key.Kind.onNetwork() {
			b.queues[e.key.Kind].add(e)
		}
	}
}

func (b *Builder) commitGateways() {
	if len(b.gateways) == 0 {
		return
	}
	lists := map[string][]*mesh.Gateway{}
	for _, e := range b.entries {
		if _, touched := b.gateways[e.reading.on]; touched && e.in && e.key.Kind == KindGateway {
			lists[e.reading.on] = append(lists[e.reading.on], e.reading.gateway)
		}
	}
	for network := range b.gateways {
		old := map[string]*mesh.Gateway{}
		for _, g := range b.edit.Peek().Gateways(network) {
			old[g.Name] = g
		}
		for i, g := range lists[network] {
			if was := old[g.Name]; was != nil && reflect.DeepEqual(was, g) {
				lists[network][i] = was
			} else {
				b.changes.gateway(network, g.Name)
			}
			delete(old, g.Name)
		}
		for name := range old {
			b.changes.gateway(network, name)
		}
		b.edit.SetGateways(network, lists[network])
	}
}
