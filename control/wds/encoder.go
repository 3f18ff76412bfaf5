package wds

import (
	"maps"
	"slices"

	pb "github.com/isthmus-mesh/isthmus/control/wds/wdspb"
	"github.com/isthmus-mesh/isthmus/discovery"
	"github.com/isthmus-mesh/isthmus/mesh"
	"github.com/isthmus-mesh/isthmus/policy"
)

// Encoder turns the snapshots of a gateway into resources. Its work is in proportion to the change.
// Not safe for concurrent use.
type Encoder struct {
	network string
	await   bool // send no policies before the cluster is known

	snap      *mesh.Snapshot
	root      string // as sent
	known     policy.Revisions
	unhealthy map[string]struct{} // uids
	strict    map[string]bool     // names of Authorizations that stand for PeerAuthentications at a stock ztunnel
}

// NewEncoder returns an encoder for the clients of network. With awaitCluster it sends no policies
// until the cluster's policies are known: clients would take unknown policies for absent ones.
func NewEncoder(network string, awaitCluster bool) *Encoder {
	return &Encoder{network: network, await: awaitCluster, unhealthy: map[string]struct{}{}, strict: map[string]bool{}}
}

// Update takes the next snapshot and its changes, and returns the changed resources.
func (e *Encoder) Update(next *mesh.Snapshot, changes discovery.Changes) Batch {
	b := batch{Encoder: e, prev: e.snap, next: next, keys: map[*mesh.Service][]string{}}
	e.snap = next
	root := e.rootOf(next)
	if b.prev == nil || changes.All || len(changes.Networks) > 0 || root != e.root {
		e.root = root
		b.whole()
		return b.out
	}
	pods := maps.Clone(changes.Workloads)
	if pods == nil {
		pods = map[string]struct{}{}
	}
	if changes.Policies {
		b.policies(pods)
	}
	networks := map[string]struct{}{}
	for g := range changes.Gateways {
		networks[g.Network] = struct{}{}
	}
	for _, n := range slices.Sorted(maps.Keys(networks)) {
		b.gateways(n)
	}
	for _, host := range slices.Sorted(maps.Keys(changes.Services)) {
		b.service(host, pods)
	}
	for _, uid := range slices.Sorted(maps.Keys(pods)) {
		b.pod(uid)
	}
	return b.out
}

// SetUnhealthy ejects a pod, or a remote service (RemoteUID), at stock ztunnels, or readmits it. Our node
// proxies ignore that: they have health by port.
func (e *Encoder) SetUnhealthy(uid string, unhealthy bool) Batch {
	if _, was := e.unhealthy[uid]; was == unhealthy {
		return Batch{}
	}
	if delete(e.unhealthy, uid); unhealthy {
		e.unhealthy[uid] = struct{}{}
	}
	if e.snap == nil {
		return Batch{}
	}
	b := batch{Encoder: e, prev: e.snap, next: e.snap, keys: map[*mesh.Service][]string{}}
	if network, host, ok := parseRemote(uid); ok {
		if svc := e.snap.Named(host); svc != nil && b.reaches(e.snap, svc, network) {
			b.remote(svc, network)
		}
	} else if w := e.snap.Workload(uid); w != nil && w.Network == e.network {
		b.workload(w)
	}
	return b.out
}

// NodeKeys returns the first keys of a node proxy: EveryNode, its pods, and their policies and services.
func NodeKeys(s *mesh.Snapshot, network, node string) []string {
	out := map[string]struct{}{EveryNode: {}, NodeKey(node): {}}
	for _, w := range slices.Concat(s.OnNode(network, node), s.ScheduledOn(network, node)) {
		out[NamespaceKey(w.Namespace)] = struct{}{}
		for _, svc := range s.ServicesOf(w.UID) {
			out[NameKey(svc.Hostname)] = struct{}{}
		}
	}
	return slices.Sorted(maps.Keys(out))
}

// rootOf returns the root namespace; empty as long as policies must not be sent.
func (e *Encoder) rootOf(s *mesh.Snapshot) string {
	switch set := s.Policies(); {
	case e.await && !set.HasCluster():
		return ""
	case set == nil:
		return policy.DefaultRootNamespace
	default:
		return set.Root()
	}
}

// batch is one Update.
type batch struct {
	*Encoder
	prev, next *mesh.Snapshot
	keys       map[*mesh.Service][]string // that workloads have for it
	out        Batch
}

func (b *batch) put(r Resource) { b.out.Put = append(b.out.Put, r) }

func (b *batch) remove(typ, name string) {
	if !b.out.Whole {
		b.out.Remove = append(b.out.Remove, Ref{typ, name})
	}
}

// whole encodes everything.
func (b *batch) whole() {
	b.out.Whole = true
	clear(b.strict)
	b.known = b.next.Policies().Known()
	b.mesh()
	for _, n := range b.next.GatewayNetworks() {
		b.gateways(n)
	}
	for _, svc := range b.next.Services() {
		b.put(b.encodeService(svc))
		for _, n := range b.next.Networks(svc) {
			if b.reaches(b.next, svc, n) {
				b.remote(svc, n)
			}
		}
	}
	for _, w := range b.next.Workloads() {
		b.pod(w.UID)
	}
	for _, w := range b.next.AllScheduled() {
		b.pod(w.UID)
	}
	if b.root != "" {
		for _, o := range b.next.Policies().Objects() {
			b.policy(o)
		}
	}
}

// mesh encodes the resource Mesh.
func (b *batch) mesh() {
	m := &pb.Mesh{Network: b.network, TrustDomain: b.next.TrustDomain(), RootNamespace: b.root, AuthorizationPolicies: b.known.Authorizations, PeerAuthentications: b.known.PeerAuthentications}
	for _, n := range b.next.ListNetworks() {
		m.Networks = append(m.Networks, &pb.Network{Name: n.Name, Segment: n.Segment})
	}
	b.put(Resource{Type: TypeMesh, Name: MeshName, Keys: []string{MeshName, EveryNode}, Body: marshal(m)})
}

// service encodes a changed service and its remote parts, and adds to pods the members to encode again.
func (b *batch) service(host string, pods map[string]struct{}) {
	old, svc := b.prev.Named(host), b.next.Named(host)
	changed := old != svc
	for _, n := range networksOf(b.prev, old, b.next, svc) {
		was, is := b.reaches(b.prev, old, n), b.reaches(b.next, svc, n)
		switch {
		case is && (!was || changed || b.differs(old, svc, n)):
			b.remote(svc, n)
			changed = true
		case was && !is:
			b.remove(TypeAddress, RemoteUID(n, old.Namespace, host))
			changed = true
		}
	}
	switch {
	case !changed:
		return
	case old != nil && (svc == nil || svc.Namespace != old.Namespace):
		b.remove(TypeAddress, keyOf(old))
	}
	if svc == nil {
		return
	}
	b.put(b.encodeService(svc))
	if old != nil && (svc.Namespace != old.Namespace || !slices.Equal(svc.Ports, old.Ports) || !slices.Equal(addressesOf(svc), addressesOf(old))) {
		for _, w := range b.next.Members(svc, b.network) {
			pods[w.UID] = struct{}{}
		}
		for _, n := range b.next.Networks(svc) { // their names have the namespace
			if svc.Namespace != old.Namespace && b.reaches(b.prev, old, n) {
				b.remove(TypeAddress, RemoteUID(n, old.Namespace, host))
			}
		}
	}
}

// networksOf returns the networks that have a part of old or of svc, sorted.
func networksOf(prev *mesh.Snapshot, old *mesh.Service, next *mesh.Snapshot, svc *mesh.Service) []string {
	all := slices.Concat(prev.Networks(old), next.Networks(svc))
	slices.Sort(all)
	return slices.Compact(all)
}

// differs reports whether the part of a service on network has changed.
func (b *batch) differs(old, svc *mesh.Service, network string) bool {
	was, _ := b.prev.Share(old, network)
	is, _ := b.next.Share(svc, network)
	return was.Export != is.Export
}

// reaches reports whether clients may use the part of svc on network n, by any name.
func (b *batch) reaches(s *mesh.Snapshot, svc *mesh.Service, n string) bool {
	if svc == nil || n == b.network || !slices.Contains(s.Networks(svc), n) {
		return false
	}
	return s.Reaches(svc, b.network, n) || s.Imports(svc, b.network, n)
}

// pod encodes a workload, or removes it.
func (b *batch) pod(uid string) {
	w, waiting := b.next.Workload(uid), b.next.Scheduled(uid)
	own := w != nil && w.Network == b.network
	if own {
		b.workload(w)
	} else if b.prev != nil && b.prev.Workload(uid) != nil {
		b.remove(TypeAddress, uid)
	}
	switch {
	case waiting != nil && !waiting.Outside && waiting.Network == b.network:
		b.nodePod(waiting, &pb.NodePod{Scheduled: b.encodeWorkload(waiting)})
	case waiting != nil:
		b.nodePod(waiting, &pb.NodePod{Outside: true})
	case w != nil && !own && w.Node != "":
		b.nodePod(w, &pb.NodePod{Outside: true})
	case b.prev != nil && (b.prev.Scheduled(uid) != nil || b.prev.Workload(uid) != nil && b.prev.Workload(uid).Network != b.network):
		b.remove(TypeNodePod, uid)
	}
}

func (b *batch) nodePod(w *mesh.Workload, m *pb.NodePod) {
	b.put(Resource{Type: TypeNodePod, Name: w.UID, Keys: []string{w.UID, NodeKey(w.Node)}, Body: marshal(m)})
}
