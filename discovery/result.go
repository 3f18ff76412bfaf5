package discovery

import (
	"net/netip"
	"reflect"
	"slices"

	"github.com/isthmus-mesh/isthmus/mesh"
)

// commitServices derives every service that a changed name or virtual address may
// concern, and queues the workloads that name one.
func (b *Builder) commitServices() {
	again := func(k claimKey) {
		for _, e := range b.claims.all(k) {
			b.hosts[e.reading.service.Hostname] = struct{}{}
			b.refresh(e)
		}
	}
	for name := range b.aliases {
		again(claimKey{derivedName, name})
		again(claimKey{aliasName, name})
		for _, what := range namesByShares {
			again(claimKey{what, name})
		}
	}
	for vip := range b.vips {
		again(claimKey{virtualAddress, vip})
	}
	snap := b.edit.Peek()
	var gone []string
	var put []*mesh.Service
	for host := range b.hosts {
		old := snap.Named(host)
		e := b.claims.holder(claimKey{hostName, host})
		if e == nil {
			e = b.claims.holder(claimKey{sharedHost, host})
		}
		if e == nil {
			if old != nil {
				gone = append(gone, host)
			}
			continue
		}
		if svc := b.derive(e); old == nil || !reflect.DeepEqual(old, svc) {
			put = append(put, svc)
		}
	}
	b.requeueRefs(snap)
	for host := range b.hosts {
		if b.claims.holder(claimKey{sharedHost, host}) != nil {
			b.made[host] = struct{}{}
		} else {
			delete(b.made, host)
		}
	}
	for _, host := range gone {
		svc := snap.Named(host)
		for _, n := range snap.Networks(svc) {
			for _, w := range snap.Members(svc, n) {
				b.changes.workload(w.UID)
			}
		}
		b.edit.DeleteService(host)
		b.changes.service(host)
	}
	for _, svc := range put {
		b.edit.PutService(svc)
		b.changes.service(svc.Hostname)
	}
}

// requeueRefs notes the workloads that name a service whose names changed: what
// the name leads to may be another service, or none, now.
func (b *Builder) requeueRefs(snap *mesh.Snapshot) {
	again := func(name string) {
		was, now := "", ""
		if svc := snap.Service(name); svc != nil {
			was = svc.Hostname
			if svc.Import.HasAlias(name) {
				was = "" // perhaps of a record beside it, by whose names no workload is a member
			}
		}
		if _, made := b.made[was]; made {
			was = "" // no name of a workload leads there
		}
		if e := b.claims.listed(name); e != nil {
			now = e.reading.service.Hostname
		}
		if was == now && now != "" {
			return
		}
		for _, at := range b.refs[name].all() {
			b.noteResult(at.e)
		}
	}
	for name := range b.aliases { // every hostname that changed is among them
		again(name)
	}
}

// derive returns the service of e with the aliases and virtual addresses that it
// has got, what others export under its name, and what only its object in the cluster has.
func (b *Builder) derive(e *entry) *mesh.Service {
	full := b.housed(e)
	beside := b.beside(e)
	if beside == nil && b.hasAll(e) {
		return full
	}
	svc := *full
	svc.Aliases, svc.VIPs = b.got(e, full.Aliases, full.VIPs)
	if x := full.Import; x != nil {
		x = &mesh.Import{Ports: x.Ports}
		x.Aliases, x.VIPs = b.got(e, full.Import.Aliases, full.Import.VIPs)
		svc.Import = x
	}
	if beside != nil {
		x := &mesh.Import{Ports: beside.reading.service.Ports}
		x.Aliases, x.VIPs = b.left(beside, beside.reading.service.Aliases, beside.reading.service.VIPs)
		svc.Import = x
	}
	if x := svc.Import; x != nil && len(x.Aliases)+len(x.VIPs) == 0 {
		svc.Import = nil
	}
	return &svc
}

// housed returns the service of e. If an earlier source than the cluster lists it, the cluster's record of the
// same hostname is out, but the Service is there: Home and Created are those of that record.
func (b *Builder) housed(e *entry) *mesh.Service {
	full := e.reading.service
	if e.key.Source >= Cluster {
		return full
	}
	for _, o := range b.claims.all(claimKey{hostName, full.Hostname}) {
		if o.key.Source == Cluster && !o.faulty {
			svc := *full
			svc.Home, svc.Created = o.reading.service.Home, o.reading.service.Created
			return &svc
		}
	}
	return full
}

// got returns which of these aliases and virtual addresses e has. Of none that is no empty list: it
// would count as another service.
func (b *Builder) got(e *entry, aliases []string, vips []netip.Addr) ([]string, []netip.Addr) {
	return only(aliases, vips, func(c claim) bool { return b.holder(c.key()) == e })
}

// left returns which aliases and virtual addresses of told, a record that is out, nobody has: of several
// such records that claim one, the first.
func (b *Builder) left(told *entry, aliases []string, vips []netip.Addr) ([]string, []netip.Addr) {
	return only(aliases, vips, func(c claim) bool {
		if b.holder(c.key()) != nil {
			return false
		}
		ways := namesOfServices
		if c.what == virtualAddress {
			ways = []claimed{virtualAddress}
		}
		for _, what := range ways {
			for _, o := range b.claims.all(claimKey{what, c.text}) {
				if o.key.Source == Told && !o.faulty && o.before(told) < 0 {
					return false
				}
			}
		}
		return true
	})
}

// only returns those of aliases and virtual addresses that are wanted.
func only(aliases []string, vips []netip.Addr, want func(claim) bool) (names []string, addresses []netip.Addr) {
	for _, a := range aliases {
		if want(claim{what: aliasName, text: a}) {
			names = append(names, a)
		}
	}
	for _, v := range vips {
		if want(claim{what: virtualAddress, text: v.String()}) {
			addresses = append(addresses, v)
		}
	}
	return names, addresses
}

// holder returns who has the name or virtual address of k.
func (b *Builder) holder(k claimKey) *entry {
	if k.what == virtualAddress {
		return b.claims.holder(k)
	}
	return b.claims.named(k.text)
}

// beside returns the record of what other networks export under the hostname of e, which e has: such
// a record is out, and what nobody else has of its names and addresses leads to the others by e.
func (b *Builder) beside(e *entry) *entry {
	if e.key.Source >= Told || e.reading.service.Import != nil {
		return nil
	}
	for _, o := range b.claims.all(claimKey{hostName, e.reading.service.Hostname}) {
		if o.key.Source == Told && !o.faulty {
			return o
		}
	}
	return nil
}

func (b *Builder) hasAll(e *entry) bool {
	return !slices.ContainsFunc(e.reading.extras, func(c claim) bool { return b.extra(c) != e })
}

// extra returns who has the alias or virtual address that c claims.
func (b *Builder) extra(c claim) *entry {
	if c.what == virtualAddress {
		return c.contest.holder()
	}
	return b.claims.named(c.text)
}

func (b *Builder) commitWorkloads() {
	snap := b.edit.Peek()
	slices.Sort(b.uids)
	if snap.NumWorkloads() == 0 {
		b.commitFirstWorkloads()
		return
	}
	for _, uid := range slices.Compact(b.uids) {
		old := snap.Workload(uid)
		before := snap.ServicesOf(uid)
		e := b.claims.holder(claimKey{workloadUID, uid})
		b.commitScheduled(uid, e)
		if e == nil || e.reading.scheduled() {
			if old != nil {
				b.changed(uid, before)
				b.edit.DeleteWorkload(uid)
			}
			continue
		}
		hosts := b.memberOf(e)
		w := e.reading.workload
		if old != nil && reflect.DeepEqual(old, w) {
			w = old
		}
		if w == old && slices.EqualFunc(before, hosts, func(svc *mesh.Service, host string) bool { return svc.Hostname == host }) {
			continue
		}
		b.edit.PutWorkload(w, hosts)
		after := snap.ServicesOf(uid)
		if w == old { // where it stays a member, nothing is different
			stays := func(svc *mesh.Service) bool { return slices.Contains(before, svc) && slices.Contains(after, svc) }
			before, after = slices.DeleteFunc(slices.Clone(before), stays), slices.DeleteFunc(slices.Clone(after), stays)
		}
		b.changed(uid, before)
		b.changed(uid, after)
	}
}

// commitFirstWorkloads puts all workloads into a mesh that has none.
func (b *Builder) commitFirstWorkloads() {
	var list []mesh.Placement
	for _, uid := range slices.Compact(b.uids) {
		e := b.claims.holder(claimKey{workloadUID, uid})
		b.commitScheduled(uid, e)
		if e != nil && !e.reading.scheduled() {
			list = append(list, mesh.Placement{Workload: e.reading.workload, Services: b.memberOf(e)})
		}
	}
	b.edit.PutWorkloads(list)
	for _, p := range list {
		b.changed(p.Workload.UID, b.edit.Peek().ServicesOf(p.Workload.UID))
	}
}

// commitScheduled brings in line whether the workload uid is one that has no address yet; e is nil if there is none.
func (b *Builder) commitScheduled(uid string, e *entry) {
	old := b.edit.Peek().Scheduled(uid)
	w := b.outsider(uid)
	if e != nil {
		w = nil
		if e.reading.scheduled() {
			w = e.reading.workload
		}
	}
	switch {
	case w != nil:
		if old != nil && reflect.DeepEqual(old, w) {
			return
		}
		b.edit.PutScheduled(w)
	case old != nil:
		b.edit.DeleteScheduled(uid)
	default:
		return
	}
	b.changes.workload(uid)
}

// outsider returns the workload of a node that is not in the mesh, as every record of it is wrong in itself, or is on a
// network that nobody lists. One that has only lost against another waits for its turn, and is none.
func (b *Builder) outsider(uid string) (w *mesh.Workload) {
	for _, e := range b.claims.all(claimKey{workloadUID, uid}) {
		if !e.outside {
			return nil
		}
		if r := e.reading.workload; w == nil && r.Node != "" && isUID(uid) {
			w = &mesh.Workload{UID: uid, Name: r.Name, Namespace: r.Namespace, Network: r.Network, Node: r.Node, Outside: true}
		}
	}
	return w
}

func (b *Builder) changed(uid string, services []*mesh.Service) {
	if b.changes.All && len(b.shares) == 0 {
		return
	}
	b.changes.workload(uid)
	for _, svc := range services {
		b.changes.service(svc.Hostname)
		b.membersChanged(svc.Hostname)
	}
}

// memberOf returns the hostnames of the services that the workload of e is a
// member of, sorted.
func (b *Builder) memberOf(e *entry) []string {
	hosts := make([]string, 0, len(e.reading.refs))
	for _, ref := range e.reading.refs {
		if svc := b.referred(ref); svc != nil {
			hosts = append(hosts, svc.reading.service.Hostname)
		}
	}
	slices.Sort(hosts)
	return slices.Compact(hosts)
}

// commitProblems finds the problems of every record that may have others now.
func (b *Builder) commitProblems() News {
	var news News
	replace := func(key Key, now []Problem) {
		was := b.problems[key]
		if len(was)+len(now) == 0 {
			return
		}
		news.Appeared = append(news.Appeared, missing(now, was)...)
		news.Gone = append(news.Gone, missing(was, now)...)
		if len(now) > 0 {
			b.problems[key] = now
		} else {
			delete(b.problems, key)
		}
	}
	replace(Key{}, b.settings)
	for key := range b.departed {
		replace(key, b.faults[key])
	}
	for key := range b.faulty {
		if e := b.entries[key]; e == nil {
			replace(key, b.faults[key])
		} else {
			b.refresh(e)
		}
	}
	for _, e := range b.fresh {
		if !e.gone {
			replace(e.key, b.problemsOf(e))
		}
	}
	sortProblems(news.Appeared)
	sortProblems(news.Gone)
	return news
}

// missing returns what of list is not among others.
func missing(list, others []Problem) (out []Problem) {
	for _, p := range list {
		if !slices.ContainsFunc(others, p.equal) {
			out = append(out, p)
		}
	}
	return out
}

// problemsOf returns all that is wrong with e as things stand.
func (b *Builder) problemsOf(e *entry) []Problem {
	r := reader{names: b.names, object: e.key, problems: slices.Concat(b.faults[e.key], e.problems)}
	if e.key.Source == derivedFromShares {
		return nil // those of the shares
	}
	if !e.in {
		if e.key.Kind.onNetwork() && e.reading.folded == nil {
			b.checkNetwork(&r, e)
		}
		if cl, winner := b.claims.lost(e); winner != nil && cl.text != "" && winner.key.Source == e.key.Source {
			e.conflict(&r, cl, winner, true)
		}
	}
	if e.key.Kind == KindShare {
		b.checkShare(&r, e)
	}
	for _, c := range e.reading.extras {
		if has := b.extra(c); e.in && has != e && has.key.Source == e.key.Source {
			e.conflict(&r, c, has, false)
		}
	}
	b.checkRefs(&r, e.reading.refs)
	return r.problems
}

// checkRefs checks the services that a workload names.
func (b *Builder) checkRefs(r *reader, refs []ref) {
	first := make(map[*entry]int, len(refs))
	for i, ref := range refs {
		svc := b.referred(ref)
		switch j, twice := first[svc]; {
		case svc == nil && b.claims.claimsName(ref.name):
			// It is there and has a problem of its own.
		case svc == nil:
			r.unlisted(false, at{"services", i}, ref.written, "services", "is not a service of this mesh: write the hostname of one that is listed under services: <name>.<namespace>.svc.cluster.local, unless it says another")
		case twice:
			r.drop(CauseConflict, at{"services", i}, ref.written, "is the same service as item %d: list each service once", j)
		default:
			first[svc] = i
		}
	}
}

// checkNetwork checks the network that e is on.
func (b *Builder) checkNetwork(r *reader, e *entry) {
	path, name := at{"network"}, e.reading.on
	switch {
	case name == "":
		r.out(CauseMissing, path, nil, "is missing: write the name of a network that is listed under networks")
	case b.networkOf(e) != nil:
	case slices.ContainsFunc(b.claims.all(claimKey{networkName, name}), func(n *entry) bool { return n.key.Source <= e.key.Source }):
		r.unlisted(true, path, name, "networks", "is a network that cannot be used: see what is wrong with it")
	default:
		r.unlisted(true, path, name, "networks", "is not a network of this mesh: correct the name or add it under networks")
	}
}

// Problems returns every problem, by object.
func (b *Builder) Problems() (out []Problem) {
	for _, list := range b.problems {
		out = append(out, list...)
	}
	sortProblems(out)
	return out
}
