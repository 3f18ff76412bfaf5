package excerpt

import (
	"cmp"
	"maps"
	"slices"
	"time"

	"github.com/isthmus-mesh/isthmus/discovery"
	pb "github.com/isthmus-mesh/isthmus/federation/federationpb"
	"github.com/isthmus-mesh/isthmus/mesh"
	"github.com/isthmus-mesh/isthmus/policy"
)

// AwaitCluster has no policies told as long as those of the cluster are not all known: otherwise node proxies
// would take what is not known for what is not there.
func (x *Index) AwaitCluster() {
	x.mu.Lock()
	defer x.mu.Unlock()
	x.late = true
	x.base = encodeBase(x.snap, x.network, rootOf(x.snap, true))
}

// rootOf returns the root namespace that is told; "": no policies are.
func rootOf(s *mesh.Snapshot, late bool) string {
	switch set := s.Policies(); {
	case late && !set.HasCluster():
		return ""
	case set == nil:
		return policy.DefaultRootNamespace
	default:
		return set.Root()
	}
}

// workloadOf is what policies ask about w.
func workloadOf(w *mesh.Workload) policy.Workload {
	return policy.Workload{Namespace: w.Namespace, Labels: w.Labels}
}

// revisePolicies wakes the node proxies for whose pods other policies are.
func (x *Index) revisePolicies(prev *mesh.Snapshot, changes discovery.Changes, woken set) {
	if !changes.Policies || changes.All || len(x.readers) == 0 {
		return
	}
	is := map[policy.Object]struct{}{}
	for _, o := range x.snap.Policies().Objects() {
		is[o] = struct{}{}
	}
	for _, o := range prev.Policies().Objects() {
		if _, stays := is[o]; stays {
			delete(is, o) // what is left is new
			continue
		}
		for r := range x.readers {
			if _, told := r.told[o]; told {
				delete(r.told, o)
				r.duePolicies[o.Name()] = true
				woken[r] = struct{}{}
			}
		}
	}
	if len(is) == 0 {
		return
	}
	byNamespace, policies := map[string][]policy.Object{}, x.snap.Policies()
	for o := range is {
		byNamespace[o.Name().Namespace] = append(byNamespace[o.Name().Namespace], o)
	}
	for node, readers := range x.byNode {
		due := map[policy.Object]struct{}{}
		for _, w := range x.here(node) {
			for _, ns := range slices.Compact([]string{w.Namespace, policies.Root()}) {
				for _, o := range byNamespace[ns] {
					if policies.Concerns(o, workloadOf(w)) {
						due[o] = struct{}{}
					}
				}
			}
		}
		for o := range due {
			for r := range readers {
				r.duePolicies[o.Name()] = r.duePolicies[o.Name()]
				woken[r] = struct{}{}
			}
		}
	}
}

// repoliced reports whether other policies may be for a pod.
func repoliced(before, now *mesh.Workload) bool {
	return before == nil || now == nil || before.Node != now.Node || before.Namespace != now.Namespace || !maps.Equal(before.Labels, now.Labels)
}

// reconsider has the policies of s looked at that are for w, which has changed or gone.
func (r *Reader) reconsider(s *policy.Set, w *mesh.Workload) {
	for _, o := range s.All(workloadOf(w)) {
		r.duePolicies[o.Name()] = r.duePolicies[o.Name()]
	}
}

// police adds the policies that the reader is to be told.
func (b *batch) police() {
	r := b.reader
	x := r.index
	if x.base.GetRootNamespace() == "" {
		return
	}
	policies, local := x.snap.Policies(), x.here(r.node)
	if k := policies.Known(); b.whole || k != r.known {
		r.known = k
		b.add(&pb.Excerpt{PoliciesKnown: &pb.PolicyRevisions{AuthorizationPolicies: k.Authorizations, PeerAuthentications: k.PeerAuthentications}})
	}
	tell := func(o policy.Object) {
		r.told[o] = struct{}{}
		b.add(&pb.Excerpt{Policies: []*pb.ExcerptPolicy{{Name: o.Name().String(), Object: o.Text(), Revision: o.Revised()}}})
	}
	if b.whole {
		clear(r.told)
		all := map[policy.Object]struct{}{}
		for _, w := range local {
			for _, o := range policies.All(workloadOf(w)) {
				all[o] = struct{}{}
			}
		}
		for _, o := range inTurn(all, x.base.GetRootNamespace()) {
			tell(o)
		}
		return
	}
	for _, n := range slices.SortedFunc(maps.Keys(r.duePolicies), policy.Name.Compare) {
		o, had := policies.Get(n), r.duePolicies[n]
		revision := policies.Known().Of(n.Kind)
		if o != nil {
			revision = o.Revised() - min(o.Revised(), 1)
			_, told := r.told[o]
			had = had || told
			if slices.ContainsFunc(local, func(w *mesh.Workload) bool { return policies.Concerns(o, workloadOf(w)) }) {
				if !told {
					tell(o)
				}
				continue
			}
			delete(r.told, o)
		}
		if had {
			b.add(&pb.Excerpt{GonePolicies: []string{n.String()}, GoneRevisions: []uint64{revision}})
		}
	}
}

// inTurn returns all in the order in which they are told, as a node proxy may have no room for the last ones: first
// those of root, then those of the namespaces that have least.
func inTurn(all map[policy.Object]struct{}, root string) []policy.Object {
	costs := map[string]int{}
	for o := range all {
		if ns := o.Name().Namespace; ns != root {
			costs[ns] += costOfObject + len(o.Text())
		}
	}
	return slices.SortedFunc(maps.Keys(all), func(a, b policy.Object) int {
		x, y := a.Name(), b.Name()
		return cmp.Or(cmp.Compare(costs[x.Namespace], costs[y.Namespace]), cmp.Compare(x.Namespace, y.Namespace), x.Compare(y))
	})
}

func policyThing(name string) thing { return thing{discovery.KindPolicy, name} }

func policyKey(name string) discovery.Key {
	return discovery.Key{Kind: discovery.KindPolicy, Source: discovery.Cluster, Name: name}
}

// heldPolicy is a policy that was told.
type heldPolicy struct {
	text     string
	record   discovery.Policy
	revision uint64 // 0: it has none
	reign    int    // of the gateway that has said it last
}

const (
	// MaxPolicies is how many policies a node proxy takes of one change; beyond it one for each namespace is
	// there that closes it.
	MaxPolicies = 20_000
	// maxStagedPolicies bounds the texts of one change, beyond which what is told closes its namespace.
	maxStagedPolicies = 8 << 20
	// costOfText is what a byte of a text costs: it is held as such, as a tree, and as what was read.
	costOfText = 4
)

func costOfPolicy(p heldPolicy) int { return costOfObject + costOfText*len(p.text) }

// readPolicy returns what is held of a policy: what cannot be read of it denies everything to the
// workloads of its namespace, and odd says why.
func readPolicy(name, text string) (p heldPolicy, odd error) {
	tree, err := policy.Read(text)
	if err == nil {
		switch o, _ := policy.Parse(tree); {
		case o == nil:
			err = malformed("policy %.80q is none that can be in force", name)
		case o.Name().String() != name:
			err = malformed("policy %.80q calls itself %.80q", name, o.Name())
		}
	}
	if err != nil {
		return closedPolicy(name, "not understood"), err
	}
	return heldPolicy{text: text, record: tree}, nil
}

// closedPolicy is in the place of a policy of that name.
func closedPolicy(name, why string) heldPolicy {
	text := policy.Closed(policy.ParseName(name), why)
	tree, _ := policy.Read(text)
	return heldPolicy{text: text, record: tree}
}

// closedNamespace is in the place of policies of a namespace.
func closedNamespace(ns string) (name, text string) {
	const why = "no room"
	text = policy.Closed(policy.Name{Namespace: ns, Name: "all"}, why)
	return policy.Name{Kind: policy.KindAuthorization, Namespace: ns, Name: "all (" + why + ")"}.String(), text
}

// takePolicies takes the policies of a change, and returns what is gone of those that were held.
func (h *Held) takePolicies(c change, another bool, now time.Time) (gone []lost) {
	if another {
		h.policing = false
	}
	for name := range h.older {
		if _, listed := c.policies[name]; c.whole && !listed {
			h.notOlder(name)
		}
	}
	if !h.tells {
		return nil // it takes nothing away
	}
	drop := func(name string, until uint64) {
		if p, had := h.policies[name]; had {
			gone = append(gone, lost{name, p, until})
		}
		h.notOlder(name)
		h.dropPolicy(name)
	}
	first := another || !h.policing // it may have told what else there is before
	if first {
		h.newReign(c, now)
	}
	if c.known != nil {
		h.known = *c.known
	} else if c.whole {
		h.known = policy.Revisions{}
	}
	if c.whole && !first {
		for name := range h.policies {
			_, listed := c.policies[name]
			if _, doubted := h.doubted[policyThing(name)]; !listed && !doubted {
				drop(name, 0)
			}
		}
	}
	for name, told := range c.policies {
		h.trust(policyThing(name))
		p := h.readTold(name, told)
		if until, is := h.isOlder(name, p, now); is {
			h.holdBack(name, p, until)
			continue
		}
		h.notOlder(name)
		delete(h.deleted, name)
		h.putPolicy(name, p)
	}
	for _, name := range c.full {
		h.leave(policyThing(name), boundOfPolicies)
	}
	for _, g := range c.gonePolicies {
		drop(g.name, g.revision)
	}
	return gone
}

// readTold reads a policy, unless it is as it is held.
func (h *Held) readTold(name string, told toldPolicy) heldPolicy {
	p, had := h.policies[name]
	if !had || p.text != told.text {
		var odd error
		if p, odd = readPolicy(name, told.text); odd != nil {
			h.odd = odd
		}
	}
	p.revision = told.revision
	return p
}

// putPolicy brings a policy into force, as the gateway that leads has said it.
func (h *Held) putPolicy(name string, p heldPolicy) {
	h.trust(policyThing(name))
	p.reign = h.reign
	old, had := h.policies[name]
	if had && old.text == p.text {
		old.revision, old.reign = p.revision, p.reign
		h.policies[name] = old
		return
	}
	if had {
		h.bytes -= costOfPolicy(old)
	}
	delete(h.left, policyThing(name))
	if h.bytes+costOfPolicy(p) > MaxBytes {
		closed := closedPolicy(name, "no room") // not less than it was written for
		closed.revision, closed.reign = p.revision, p.reign
		p = closed
		h.leave(policyThing(name), boundOfBytes)
	}
	h.bytes += costOfPolicy(p)
	h.policies[name] = p
	h.touch(policyKey(name))
}

func (h *Held) dropPolicy(name string) {
	h.trust(policyThing(name))
	delete(h.left, policyThing(name))
	if p, had := h.policies[name]; had {
		h.bytes -= costOfPolicy(p)
		delete(h.policies, name)
		h.touch(policyKey(name))
	}
}

// labelled returns w with the labels that it has, or had before the start: a gateway that tells no policies
// does not know them.
func (h *Held) labelled(w discovery.Workload) discovery.Workload {
	old, had := h.pods[w.UID]
	switch saved := h.savedLabels[w.UID]; {
	case h.tells:
	case had:
		w.Labels = old.Labels
	case len(w.Labels) == 0 && w.Node == h.node:
		w.Labels = saved
	}
	return w
}
