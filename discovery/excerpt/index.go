package excerpt

import (
	"net/netip"
	"slices"
	"strings"
	"sync"

	"google.golang.org/protobuf/proto"

	"github.com/isthmus-mesh/isthmus/discovery"
	pb "github.com/isthmus-mesh/isthmus/federation/federationpb"
	"github.com/isthmus-mesh/isthmus/mesh"
)

// Index knows which node proxies need what of a snapshot: a change of one pod costs work
// in proportion to those that need it. Safe for concurrent use.
type Index struct {
	network string

	mu      sync.Mutex
	snap    *mesh.Snapshot
	base    *pb.Base
	readers set
	byNode  map[string]set // by name of a node
	byName  map[string]set // by what was asked for
	byHost  map[string]set // by hostname of a service that a name means
	byPod   map[string]set // by UID of a pod whose address was asked for
	late    bool           // policies are told once those of the cluster are known
}

type set map[*Reader]struct{}

// NewIndex returns an index of what s has of network.
func NewIndex(network string, s *mesh.Snapshot) *Index {
	return &Index{network: network, snap: s, base: encodeBase(s, network, rootOf(s, false)), readers: set{}, byNode: map[string]set{}, byName: map[string]set{}, byHost: map[string]set{}, byPod: map[string]set{}}
}

// target is what a name or an address means: a service, a pod, or nothing.
type target struct{ host, uid string }

// resolve says what asked, which is as [normal] returns it, means in s.
func (x *Index) resolve(s *mesh.Snapshot, asked string) target {
	if a, err := netip.ParseAddr(asked); err == nil {
		if svc := s.ServiceAt(a); svc != nil {
			return target{host: svc.Hostname}
		}
		if w := s.WorkloadAt(x.network, a); w != nil {
			return target{uid: w.UID}
		}
		return target{}
	}
	svc := s.Service(asked)
	if own, ok := strings.CutSuffix(asked, ".svc.cluster.local"); svc == nil && ok {
		svc = s.Service(own + ".mesh.internal") // of a service with a hostname of its own
	}
	if svc == nil {
		return target{}
	}
	return target{host: svc.Hostname}
}

// namesOf yields all that may be asked for and mean svc.
func namesOf(svc *mesh.Service, yield func(string)) {
	if svc == nil {
		return
	}
	yield(strings.ToLower(svc.Hostname))
	for _, a := range svc.Aliases {
		a = strings.ToLower(a)
		yield(a)
		if own, ok := strings.CutSuffix(a, ".mesh.internal"); ok {
			yield(own + ".svc.cluster.local")
		}
	}
	for _, v := range svc.VIPs {
		yield(v.String())
	}
	if x := svc.Import; x != nil {
		for _, a := range x.Aliases {
			yield(strings.ToLower(a))
		}
		for _, v := range x.VIPs {
			yield(v.String())
		}
	}
}

// normal writes a name or an address in the one way in which it is compared.
func normal(asked string) string {
	if a, err := netip.ParseAddr(asked); err == nil {
		return a.Unmap().String()
	}
	return strings.ToLower(strings.TrimSuffix(asked, "."))
}

// Revise takes the next snapshot, in which changes are new, and wakes whom they concern.
func (x *Index) Revise(next *mesh.Snapshot, changes discovery.Changes) {
	x.mu.Lock()
	defer x.mu.Unlock()
	prev := x.snap
	x.snap = next
	woken := set{}
	x.reviseBase(prev, changes, woken)
	x.revisePolicies(prev, changes, woken)
	if changes.All {
		for r := range x.readers {
			for asked := range r.names {
				x.turn(r, asked)
			}
			r.whole = true
			woken[r] = struct{}{}
		}
	}
	for host := range changes.Services {
		x.reviseService(prev, host, woken)
	}
	for uid := range changes.Workloads {
		x.reviseWorkload(prev, uid, woken)
	}
	for r := range woken {
		r.wake()
	}
}

func (x *Index) reviseBase(prev *mesh.Snapshot, changes discovery.Changes, woken set) {
	touched := changes.All || changes.Policies || len(changes.Networks) > 0
	for g := range changes.Gateways {
		touched = touched || g.Network == x.network
	}
	if !touched {
		return
	}
	base := encodeBase(x.snap, x.network, rootOf(x.snap, x.late))
	if proto.Equal(base, x.base) {
		return
	}
	others := base.GetRootNamespace() != x.base.GetRootNamespace() // which policies are for whom
	x.base = base
	for r := range x.readers {
		r.base, r.whole = true, r.whole || others
		woken[r] = struct{}{}
	}
}

// reviseService looks at a service, and at what means it or meant it before; its members
// are looked at by themselves.
func (x *Index) reviseService(prev *mesh.Snapshot, host string, woken set) {
	before, now := prev.Named(host), x.snap.Named(host)
	if before == now {
		return
	}
	again := func(name string) {
		for r := range x.byName[name] {
			if x.turn(r, name) {
				woken[r] = struct{}{}
			}
		}
	}
	namesOf(before, again)
	namesOf(now, again)
	x.reviseTakenOver(before, now, host, woken)
	for r := range x.byHost[host] {
		r.dueServices[host] = struct{}{}
		woken[r] = struct{}{}
	}
	renamed := !slices.Equal(targetNames(before), targetNames(now)) // pods have other ports
	var followers set
	if renamed {
		followers = x.byHost[host]
	}
	for _, s := range []*mesh.Snapshot{prev, x.snap} { // nodes of whose pods it is a service
		if svc := s.Named(host); svc != nil {
			for _, w := range s.Members(svc, x.network) {
				for r := range x.byNode[w.Node] {
					r.dueServices[host] = struct{}{}
					woken[r] = struct{}{}
					if renamed {
						r.duePods[w.UID] = struct{}{}
					}
				}
				for r := range followers {
					r.duePods[w.UID] = struct{}{}
				}
			}
		}
	}
}

func (x *Index) reviseWorkload(prev *mesh.Snapshot, uid string, woken set) {
	x.reviseScheduled(prev, uid, woken)
	before, now := x.own(prev, uid), x.own(x.snap, uid)
	was, is := prev.ServicesOf(uid), x.snap.ServicesOf(uid)
	moved := !slices.EqualFunc(was, is, func(a, b *mesh.Service) bool { return a.Hostname == b.Hostname })
	if before == now && !moved {
		return
	}
	touch := func(r *Reader) {
		r.duePods[uid] = struct{}{}
		woken[r] = struct{}{}
	}
	for _, w := range []*mesh.Workload{before, now} {
		if w == nil {
			continue
		}
		for r := range x.byNode[w.Node] {
			touch(r)
			if repoliced(before, now) {
				r.reconsider(x.snap.Policies(), w)
			}
			for _, svc := range slices.Concat(was, is) { // which its node has to know, or not any more
				r.dueServices[svc.Hostname] = struct{}{}
			}
		}
		if len(x.byPod) == 0 && len(x.byName) == 0 {
			continue
		}
		for _, a := range w.Addresses {
			name := a.String()
			for r := range x.byName[name] {
				if x.turn(r, name) {
					woken[r] = struct{}{}
				}
			}
		}
	}
	for _, svc := range slices.Concat(was, is) {
		for r := range x.byHost[svc.Hostname] {
			touch(r)
		}
	}
	for r := range x.byPod[uid] {
		touch(r)
	}
}

// own returns the workload uid of the own network, or nil.
func (x *Index) own(s *mesh.Snapshot, uid string) *mesh.Workload {
	if w := s.Workload(uid); w != nil && w.Network == x.network {
		return w
	}
	return nil
}

// turn looks again at what r has asked for, and says whether it means something else.
func (x *Index) turn(r *Reader, asked string) bool {
	was, is := r.names[asked], x.resolve(x.snap, asked)
	if was == is {
		return false
	}
	x.unmean(r, was)
	r.names[asked] = is
	x.mean(r, is)
	r.dueNames[asked] = struct{}{}
	return true
}

// mean notes that a name of r means t.
func (x *Index) mean(r *Reader, t target) {
	if t.host != "" {
		if r.hosts[t.host]++; r.hosts[t.host] == 1 {
			enter(x.byHost, t.host, r)
		}
	}
	if t.uid != "" {
		if r.pods[t.uid]++; r.pods[t.uid] == 1 {
			enter(x.byPod, t.uid, r)
		}
	}
}

// unmean ends what mean began. What r was told of that goes by itself as soon as
// something of it changes, or with the message that says what the name means now.
func (x *Index) unmean(r *Reader, t target) {
	if t.host != "" {
		if r.hosts[t.host]--; r.hosts[t.host] == 0 {
			delete(r.hosts, t.host)
			leave(x.byHost, t.host, r)
		}
	}
	if t.uid != "" {
		if r.pods[t.uid]--; r.pods[t.uid] == 0 {
			delete(r.pods, t.uid)
			leave(x.byPod, t.uid, r)
		}
	}
}

func enter(m map[string]set, k string, r *Reader) {
	if m[k] == nil {
		m[k] = set{}
	}
	m[k][r] = struct{}{}
}

func leave(m map[string]set, k string, r *Reader) {
	if delete(m[k], r); len(m[k]) == 0 {
		delete(m, k)
	}
}

// Readers returns how many there are.
func (x *Index) Readers() int {
	x.mu.Lock()
	defer x.mu.Unlock()
	return len(x.readers)
}
