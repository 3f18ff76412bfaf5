package excerpt

import (
	"maps"
	"slices"

	"google.golang.org/protobuf/proto"

	pb "github.com/isthmus-mesh/isthmus/federation/federationpb"
	"github.com/isthmus-mesh/isthmus/mesh"
	"github.com/isthmus-mesh/isthmus/policy"
)

// Reader is one node proxy that an [Index] tells of what it needs. It holds names, not
// values: what it takes is what is true then. Of its own mutex it has none: the Index's
// guards it. Safe for concurrent use.
type Reader struct {
	index *Index
	node  string
	wake  func()

	names map[string]target // that were asked for
	hosts map[string]int    // services that these mean, and how many do
	pods  map[string]int    // pods whose addresses were asked for

	whole       bool // the next Take says everything
	base        bool
	told        map[policy.Object]struct{} // policies that were told
	known       policy.Revisions           // up to which it was told that they are known
	duePolicies map[policy.Name]bool       // true: another one was told under that name
	dueNames    map[string]struct{}
	dueServices map[string]struct{} // hostnames
	duePods     map[string]struct{} // UIDs
}

// maxDue is how many changes a reader that is behind holds by name; beyond it the next
// Take says everything.
const maxDue = 20_000

// Add adds the node proxy of a node, which asks for names and addresses. wake is called, with the Index locked, when there is
// something to take: it must not wait, and not call the Index. End ends it.
func (x *Index) Add(node string, asked []string, wake func()) *Reader {
	r := &Reader{index: x, node: node, wake: wake, names: map[string]target{}, hosts: map[string]int{}, pods: map[string]int{}, told: map[policy.Object]struct{}{}, whole: true}
	r.settle()
	x.mu.Lock()
	defer x.mu.Unlock()
	x.readers[r] = struct{}{}
	enter(x.byNode, node, r)
	for _, name := range asked {
		r.follow(normal(name))
	}
	wake()
	return r
}

// End removes r.
func (r *Reader) End() {
	x := r.index
	x.mu.Lock()
	defer x.mu.Unlock()
	for asked := range r.names {
		r.unfollow(asked)
	}
	delete(x.readers, r)
	leave(x.byNode, r.node, r)
}

// settle notes that nothing is due.
func (r *Reader) settle() {
	r.duePolicies = map[policy.Name]bool{}
	r.base, r.dueNames, r.dueServices, r.duePods = false, map[string]struct{}{}, map[string]struct{}{}, map[string]struct{}{}
}

// Follow makes r need what asked means, a name or an address; it is told the whole of it,
// once more if it has asked already.
func (r *Reader) Follow(asked string) {
	r.index.mu.Lock()
	defer r.index.mu.Unlock()
	r.follow(normal(asked))
	r.wake()
}

func (r *Reader) follow(name string) {
	if _, has := r.names[name]; !has {
		t := r.index.resolve(r.index.snap, name)
		r.names[name] = t
		enter(r.index.byName, name, r)
		r.index.mean(r, t)
	}
	r.dueNames[name] = struct{}{}
}

// Unfollow ends what Follow has begun. Nothing is said of it: the node proxy knows.
func (r *Reader) Unfollow(asked string) {
	r.index.mu.Lock()
	defer r.index.mu.Unlock()
	r.unfollow(normal(asked))
}

func (r *Reader) unfollow(name string) {
	t, has := r.names[name]
	if !has {
		return
	}
	delete(r.names, name)
	delete(r.dueNames, name)
	leave(r.index.byName, name, r)
	r.index.unmean(r, t)
}

// Take returns what r is to be told now, as messages for its node proxy, nil if nothing.
// If what it returns does not arrive, r is of no use any more.
func (r *Reader) Take() []*pb.Excerpt {
	x := r.index
	x.mu.Lock()
	defer x.mu.Unlock()
	if len(r.dueServices)+len(r.duePods)+len(r.duePolicies) > maxDue {
		r.whole = true
	}
	b := batch{reader: r, services: r.dueServices, pods: r.duePods}
	switch {
	case r.whole:
		b.everything()
	case !r.base && len(r.dueNames)+len(r.dueServices)+len(r.duePods)+len(r.duePolicies) == 0:
		return nil
	default:
		b.names = slices.Sorted(maps.Keys(r.dueNames))
		if r.base {
			b.add(&pb.Excerpt{Base: x.base})
		}
	}
	b.follow()
	b.police()
	r.whole = false
	r.settle()
	return b.messages()
}

// batch is one change of what a reader knows.
type batch struct {
	reader   *Reader
	whole    bool
	names    []string
	services map[string]struct{}
	pods     map[string]struct{}

	out  []*pb.Excerpt
	size int // of the last of out
}

// everything makes the batch all that the reader needs.
func (b *batch) everything() {
	r, s := b.reader, b.reader.index.snap
	b.whole, b.services, b.pods = true, map[string]struct{}{}, map[string]struct{}{}
	b.names = slices.Sorted(maps.Keys(r.names))
	for _, w := range s.OnNode(r.index.network, r.node) {
		b.pods[w.UID] = struct{}{}
		for _, svc := range s.ServicesOf(w.UID) {
			b.services[svc.Hostname] = struct{}{}
		}
	}
	for _, w := range s.ScheduledOn(r.index.network, r.node) {
		b.pods[w.UID] = struct{}{}
	}
	for _, w := range s.OutsideOn(r.index.network, r.node) {
		b.pods[w.UID] = struct{}{}
	}
	b.add(&pb.Excerpt{Base: r.index.base})
}

// follow adds what names mean.
func (b *batch) follow() {
	x := b.reader.index
	for _, name := range b.names {
		t := b.reader.names[name]
		if name == TakenOver {
			b.takeOver()
		}
		b.add(&pb.Excerpt{Names: []*pb.ExcerptName{{Asked: name, Service: t.host, Workload: t.uid}}})
		if t.uid != "" {
			b.pods[t.uid] = struct{}{}
		}
		if svc := x.snap.Named(t.host); svc != nil && t.host != "" {
			b.services[t.host] = struct{}{}
			for _, w := range x.snap.Members(svc, x.network) {
				b.pods[w.UID] = struct{}{}
			}
		}
	}
}

// messages ends the batch.
func (b *batch) messages() []*pb.Excerpt {
	x := b.reader.index
	for _, host := range slices.Sorted(maps.Keys(b.services)) {
		switch svc := x.snap.Named(host); {
		case svc != nil && b.reader.needsService(host):
			b.add(&pb.Excerpt{Services: []*pb.ExcerptService{encodeService(svc)}})
		case !b.whole:
			b.add(&pb.Excerpt{GoneServices: []string{host}})
		}
	}
	for _, uid := range slices.Sorted(maps.Keys(b.pods)) {
		w := x.own(x.snap, uid)
		services, needed := b.reader.needs(w)
		switch {
		case needed:
			b.add(&pb.Excerpt{Workloads: []*pb.ExcerptWorkload{encodeWorkload(w, services, b.reader.node)}})
		case b.reader.awaits(x.snap.Scheduled(uid)):
			b.add(&pb.Excerpt{Scheduled: []*pb.ExcerptWorkload{encodeWorkload(x.snap.Scheduled(uid), nil, b.reader.node)}})
		case !b.whole: // also of one that is outside: an older node proxy knows no more than that
			b.add(&pb.Excerpt{GoneWorkloads: []string{uid}})
		}
		if w := x.outsider(x.snap, uid); w != nil && w.Node == b.reader.node {
			b.add(&pb.Excerpt{Outside: []string{uid}})
		}
	}
	if len(b.out) == 0 {
		return nil
	}
	b.out[0].Whole = b.whole
	b.out[len(b.out)-1].End = true
	return b.out
}

// needs reports whether r needs w, and as a member of which services: at most maxMembers, first those that r
// follows.
func (r *Reader) needs(w *mesh.Workload) (services []*mesh.Service, needed bool) {
	if w == nil {
		return nil, false
	}
	local := w.Node == r.node
	var others []*mesh.Service
	for _, svc := range r.index.snap.ServicesOf(w.UID) {
		if r.hosts[svc.Hostname] > 0 {
			services = append(services, svc)
		} else if local {
			others = append(others, svc)
		}
	}
	services = append(services, others...)
	services = services[:min(len(services), maxMembers)]
	return services, local || len(services) > 0 || r.pods[w.UID] > 0
}

func (r *Reader) needsService(host string) bool {
	s := r.index.snap
	if r.hosts[host] > 0 || r.followsTakenOver() && takenOver(s.Named(host)) {
		return true
	}
	return slices.ContainsFunc(s.OnNode(r.index.network, r.node), func(w *mesh.Workload) bool {
		return slices.ContainsFunc(s.ServicesOf(w.UID), func(svc *mesh.Service) bool { return svc.Hostname == host })
	})
}

// chunkBytes is where a change is split into messages, so that an edge never waits long
// behind one.
const chunkBytes = 64 << 10

// add adds m to the last message, or as one more if that is full.
func (b *batch) add(m *pb.Excerpt) {
	n := proto.Size(m)
	if len(b.out) == 0 || b.size+n > chunkBytes {
		b.out, b.size = append(b.out, &pb.Excerpt{}), 0
	}
	last := b.out[len(b.out)-1]
	b.size += n
	if m.Base != nil {
		last.Base = m.Base
	}
	if m.PoliciesKnown != nil {
		last.PoliciesKnown = m.PoliciesKnown
	}
	last.Names = append(last.Names, m.Names...)
	last.Services = append(last.Services, m.Services...)
	last.Workloads = append(last.Workloads, m.Workloads...)
	last.Scheduled = append(last.Scheduled, m.Scheduled...)
	last.Outside = append(last.Outside, m.Outside...)
	last.Policies = append(last.Policies, m.Policies...)
	last.GonePolicies = append(last.GonePolicies, m.GonePolicies...)
	last.GoneRevisions = append(last.GoneRevisions, m.GoneRevisions...)
	last.GoneServices = append(last.GoneServices, m.GoneServices...)
	last.GoneWorkloads = append(last.GoneWorkloads, m.GoneWorkloads...)
}
