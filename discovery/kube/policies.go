package kube

import (
	"cmp"
	"maps"
	"slices"
	"strconv"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/isthmus-mesh/isthmus/discovery"
	"github.com/isthmus-mesh/isthmus/policy"
)

// policyKinds are the kinds of policies.
var policyKinds = []Kind{AuthorizationPolicies, PeerAuthentications}

// objectKind is what objects of a kind of policies call it.
func objectKind(k Kind) string {
	if k == PeerAuthentications {
		return policy.KindPeerAuthentication
	}
	return policy.KindAuthorization
}

// keptPolicy is what counts of a policy.
type keptPolicy struct {
	Namespace, Name string
	text            string // as policy.Write has it
	revision        uint64 // metadata.resourceVersion; 0: none that is a number
}

// keepPolicy returns what is kept of an object, which is of the name by which it was found.
func keepPolicy(k Kind, namespace, called string, tree map[string]any) *keptPolicy {
	p := &keptPolicy{Namespace: namespace, Name: called, text: policy.Write(tree)}
	if is := policy.NameOf(tree); is != (policy.Name{Kind: objectKind(k), Namespace: namespace, Name: called}) {
		p.text = policy.Closed(policy.Name{Namespace: namespace, Name: called}, "it calls itself something else")
	}
	m, _ := tree["metadata"].(map[string]any)
	version, _ := m["resourceVersion"].(string)
	p.revision = parseVersion(version)
	return p
}

// GetObjectMeta implements metav1.ObjectMetaAccessor, by which client-go finds names.
func (p *keptPolicy) GetObjectMeta() metav1.Object {
	return &metav1.ObjectMeta{Namespace: p.Namespace, Name: p.Name}
}

// policyName is that of a policy among those of both kinds.
type policyName struct {
	kind Kind
	name
}

func (n policyName) compare(o policyName) int {
	return cmp.Or(cmp.Compare(n.kind, o.kind), n.name.compare(o.name))
}

// policies are those of a Cluster. Discovery is told all labels of pods, whether a selector names them or not: a
// node proxy may hold a policy that this process does not know yet, or not any more.
type policies struct {
	root  string                  // whose policies are for all namespaces
	known bool                    // all that the cluster has are among them
	heard policy.Revisions        // up to which all that became of them is known
	told  discovery.RootNamespace // what was said of it; without a name: that not all are known

	all   map[policyName]*keptPolicy
	stale map[policyName]struct{}
	seen  map[labels]map[string]string // what labels has returned
}

func newPolicies() policies {
	return policies{root: policy.DefaultRootNamespace, all: map[policyName]*keptPolicy{}, stale: map[policyName]struct{}{}, seen: map[labels]map[string]string{}}
}

func (c *Cluster) setPolicy(n policyName, now *keptPolicy) {
	set(c.policies.all, n, now)
	c.policies.stale[n] = struct{}{}
}

// maxSeen bounds how many maps are kept to be found again; beyond it that begins anew.
const maxSeen = 10_000

// labels returns l as a map that all pods with the same labels share.
func (p *policies) labels(l labels) map[string]string {
	if has := p.seen[l]; has != nil || l == (labels{}) {
		return has
	}
	if len(p.seen) >= maxSeen {
		clear(p.seen)
	}
	p.seen[l] = l.all()
	return p.seen[l]
}

// translate returns what is different of the policies.
func (p *policies) translate() (out []discovery.Change) {
	for _, n := range slices.SortedFunc(maps.Keys(p.stale), policyName.compare) {
		out = append(out, p.read(n))
	}
	clear(p.stale)
	told := discovery.RootNamespace{}
	if p.known {
		told = discovery.RootNamespace{Name: p.root, Known: p.heard}
	}
	if told != p.told {
		p.told = told
		c := discovery.Change{Key: discovery.RootNamespaceKey()}
		if p.known {
			c.Record = told
		}
		out = append(out, c)
	}
	return out
}

func (p *policies) read(n policyName) discovery.Change {
	ch := discovery.Change{Key: PolicyKey(objectKind(n.kind), n.namespace, n.name.name)}
	kept := p.all[n]
	if kept == nil {
		return ch
	}
	tree, err := policy.Read(kept.text)
	if err != nil { // which this process has written
		tree, _ = policy.Read(policy.Closed(policy.Name{Namespace: n.namespace, Name: n.name.name}, "it cannot be read"))
	}
	if m, is := tree["metadata"].(map[string]any); is && kept.revision > 0 {
		m["resourceVersion"] = strconv.FormatUint(kept.revision, 10)
	}
	o, problems := policy.Parse(tree)
	if n := len(problems); n > maxFaults { // the last one may say that it is out
		problems = append(problems[:maxFaults-1], problems[n-1])
	}
	if ch.Faults = discovery.PolicyFaults(problems); o != nil {
		ch.Record = discovery.Policy(tree)
	}
	return ch
}

// PolicyKey is the key of a policy of the cluster.
func PolicyKey(kind, namespace, called string) discovery.Key {
	return discovery.Key{Kind: discovery.KindPolicy, Source: discovery.Cluster, Name: policy.Name{Kind: kind, Namespace: namespace, Name: called}.String()}
}
