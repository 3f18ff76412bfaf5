package discovery

import (
	"fmt"
	"reflect"

	"github.com/isthmus-mesh/isthmus/policy"
)

// Policy is an AuthorizationPolicy or a PeerAuthentication of Istio, whole, as decoders of YAML
// and JSON give it. Of two of one name the first counts.
type Policy map[string]any

func (p Policy) read(r *reader) reading {
	object, problems := policy.ParseIn(r.names.td.Name(), p)
	if r.object.Source != Written { // who says it has found its faults
		problems = problems[:0]
		if object == nil {
			r.out(CauseUnsupported, at{"kind"}, nil, "it is no policy that can be in force")
		}
	}
	for _, x := range problems {
		var value any
		if x.Value != "" {
			value = x.Value
		}
		r.note(x.Out, policyCauses[x.Cause], x.Path, value, "%s", x.Message)
	}
	switch o := object.(type) {
	case nil:
		return reading{}
	case *policy.Authorization:
		o.Revision = r.revisionOf(o.Metadata)
	case *policy.PeerAuthentication:
		o.Revision = r.revisionOf(o.Metadata)
	}
	return reading{policy: object, claims: []claim{{what: policyName, text: object.Name().String(), path: at{"metadata", "name"}}}}
}

// revisionOf is none in a file, where what somebody has copied from a cluster says nothing of what is newer.
func (r *reader) revisionOf(m policy.Metadata) uint64 {
	if r.object.Source == Written {
		return 0
	}
	return m.Revision
}

// PolicyFaults are what is wrong with the policy that tree is, for the source of it.
func PolicyFaults(problems []policy.Problem) (out []Problem) {
	for _, x := range problems {
		out = append(out, Problem{Out: x.Out, Cause: policyCauses[x.Cause], Field: fieldOf(x.Path), Value: x.Value, Message: x.Message})
	}
	return out
}

// RootNamespace is the namespace whose policies are for every one, and says that all policies of the
// cluster are known. There is one, which goes before that of a file.
type RootNamespace struct {
	Name  string
	Known policy.Revisions // up to which they are known
}

func (RootNamespace) kind() Kind { return KindRootNamespace }

func (RootNamespace) read(*reader) reading { return reading{} }

// RootNamespaceKey is the key of a RootNamespace.
func RootNamespaceKey() Key { return Key{Kind: KindRootNamespace, Source: Cluster} }

// setCluster takes in a RootNamespace, or that there is none.
func (b *Builder) setCluster(r Record) {
	root, _ := r.(RootNamespace)
	b.policed, b.cluster = b.policed || root != b.cluster, root
}

// commitPolicies says who may connect, if that may have changed.
func (b *Builder) commitPolicies() {
	if !b.policed {
		return
	}
	var list []policy.Object
	for _, e := range b.policies {
		if e.in {
			list = append(list, e.reading.policy)
		}
	}
	was := b.edit.Peek().Policies()
	next := policy.NewSet(or(b.cluster.Name, b.root), list)
	if b.cluster.Name != "" {
		next = next.WithCluster(b.cluster.Known)
	}
	if len(list) == 0 && was == nil && !next.HasCluster() || reflect.DeepEqual(next, was) {
		return
	}
	for _, ns := range was.Full() {
		b.fault(fullKey(was, ns), nil)
	}
	for _, ns := range next.Full() {
		b.fault(fullKey(next, ns), []Problem{{Cause: CauseUnsupported, Message: fmt.Sprintf("has more than %d MiB of policies: all connections to its workloads are denied (if it is the root namespace, to all workloads): delete what is not needed", policy.MaxOfNamespace>>20)}})
	}
	b.edit.SetPolicies(next)
	b.changes.Policies = true
}

// fullKey is that of a namespace which has too many policies, apart from what its source finds.
func fullKey(s *policy.Set, namespace string) Key {
	k := Key{Kind: KindNamespace, Source: Written, Name: namespace, Nth: 1}
	if s.HasCluster() {
		k.Source = Cluster
	}
	return k
}

var policyCauses = map[policy.Cause]Cause{policy.BadValue: CauseValue, policy.Missing: CauseMissing, policy.Unsupported: CauseUnsupported}
