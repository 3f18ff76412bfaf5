package kube

import (
	"cmp"
	"maps"
	"slices"
	"strings"

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
	text            string   // as policy.Write has it
	keys            []string // of the labels that its selector names
}

// keepPolicy returns what is kept of an object, which is of the name by which it was found.
func keepPolicy(k Kind, namespace, called string, tree map[string]any) *keptPolicy {
	p := &keptPolicy{Namespace: namespace, Name: called, text: policy.Write(tree), keys: policy.Labels(tree)}
	if is := policy.NameOf(tree); is != (policy.Name{Kind: objectKind(k), Namespace: namespace, Name: called}) {
		p.text, p.keys = policy.Closed(policy.Name{Namespace: namespace, Name: called}, "it calls itself something else"), nil
	}
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

// policies are those of a Cluster, and which labels of pods they name: discovery is told of these alone,
// so that a label that no selector names changes nothing. When the first selector names one the pods of
// the policy's namespace are read again; they keep all their labels for that.
type policies struct {
	root  string // whose policies are for all namespaces
	known bool   // all that the cluster has are among them
	told  string // root, if it was said that all are known

	all   map[policyName]*keptPolicy
	stale map[policyName]struct{}
	named map[string]map[string]int    // by namespace: labels that selectors name, and how many do
	seen  map[string]map[string]string // what labels has returned, by its content
}

func newPolicies() policies {
	return policies{root: policy.DefaultRootNamespace, all: map[policyName]*keptPolicy{}, stale: map[policyName]struct{}{}, named: map[string]map[string]int{}, seen: map[string]map[string]string{}}
}

func (c *Cluster) setPolicy(n policyName, now *keptPolicy) {
	p := &c.policies
	var gone, come []string
	if old := p.all[n]; old != nil {
		gone = old.keys
	}
	if now != nil {
		come = now.keys
	}
	set(p.all, n, now)
	p.stale[n] = struct{}{}
	others := false
	for _, k := range come { // first, so that what stays is not read again
		others = p.name(n.namespace, k, 1) || others
	}
	for _, k := range gone {
		others = p.name(n.namespace, k, -1) || others
	}
	switch {
	case !others:
	case n.namespace == p.root:
		for pod := range c.pods {
			c.stalePods[pod] = struct{}{}
		}
	default:
		maps.Copy(c.stalePods, c.podsOf[n.namespace])
	}
}

// name counts a selector of the namespace that names a label, and reports whether it is the first or was the
// last one.
func (p *policies) name(namespace, key string, by int) bool {
	keys := p.named[namespace]
	if keys == nil {
		keys = map[string]int{}
		p.named[namespace] = keys
	}
	was := keys[key]
	if keys[key] = was + by; was+by > 0 {
		return was == 0
	}
	if delete(keys, key); len(keys) == 0 {
		delete(p.named, namespace)
	}
	return true
}

// maxSeen bounds how many maps are kept to be found again; beyond it that begins anew.
const maxSeen = 10_000

// labels returns those of a pod that selectors of policies name which may be for it. What it returns is
// shared.
func (p *policies) labels(namespace string, l labels) map[string]string {
	own, all := p.named[namespace], p.named[p.root]
	if len(own)+len(all) == 0 {
		return nil
	}
	var out map[string]string
	var text strings.Builder
	for k, v := range l.each {
		if own[k]+all[k] == 0 {
			continue
		}
		if out == nil {
			out = map[string]string{}
		}
		out[k] = v
		text.WriteString(k + labelEnd + v + labelEnd)
	}
	if out == nil {
		return nil
	}
	if has := p.seen[text.String()]; has != nil {
		return has
	}
	if len(p.seen) >= maxSeen {
		clear(p.seen)
	}
	p.seen[text.String()] = out
	return out
}

// translate returns what is different of the policies.
func (p *policies) translate() (out []discovery.Change) {
	for _, n := range slices.SortedFunc(maps.Keys(p.stale), policyName.compare) {
		out = append(out, p.read(n))
	}
	clear(p.stale)
	told := ""
	if p.known {
		told = p.root
	}
	if told != p.told {
		p.told = told
		c := discovery.Change{Key: discovery.RootNamespaceKey()}
		if p.known {
			c.Record = discovery.RootNamespace{Name: told}
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
