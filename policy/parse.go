package policy

import (
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"
	"time"
)

const (
	group            = "security.istio.io"
	dryRun           = "istio.io/dry-run"
	defaultNamespace = "default"
)

// Parse reads an AuthorizationPolicy or a PeerAuthentication from maps, lists and scalars, as YAML
// and JSON decoders make them. What it does not understand is a problem, and never allows
// anything; see the package. The Object is nil if nothing is to be in force: then a Problem says
// so with Out. A policy that is for a waypoint is such, and one that neither allows nor denies.
//
// Principals stay as they are written: what is to decide comes from [ParseIn].
func Parse(tree map[string]any) (Object, []Problem) { return ParseIn(PointerDomain, tree) }

// ParseIn is Parse in a mesh of the trust domain own, for which [PointerDomain] stands in principals. The text and the
// problems are those of what is written.
func ParseIn(own string, tree map[string]any) (Object, []Problem) {
	p := &parser{own: own}
	root := node{p: p, v: tree}
	top, _ := root.group()
	kind, _ := top["kind"].v.(string)
	var o Object
	switch kind {
	case KindAuthorization:
		if a := authorization(root, top); a != nil {
			a.text, a.pointing = Write(tree), p.pointing
			o = a
		}
	case KindPeerAuthentication:
		a := peerAuthentication(root, top)
		a.text = Write(tree)
		o = a
	default:
		root.below("kind", nil).note(Unsupported, top["kind"].v, "unsupported kind; this policy is ignored: write %s or %s of %s/v1", KindAuthorization, KindPeerAuthentication, group)
	}
	if o == nil && len(p.problems) > 0 {
		p.problems[len(p.problems)-1].Out = true
	}
	return o, p.problems
}

// NameOf returns the name of the object that tree says, as Parse would have it; what it does not
// say is empty.
func NameOf(tree map[string]any) Name {
	top, _ := node{p: &parser{}, v: tree}.group()
	kind, _ := top["kind"].v.(string)
	m, _, _ := head(node{p: &parser{}, v: tree}, top)
	return Name{kind, m.Namespace, m.Called}
}

// head reads what every object has besides its spec. Keys that Kubernetes adds are not looked at.
func head(root node, top map[string]node) (m Metadata, annotations map[string]node, ok bool) {
	_, ok = root.fields("apiVersion", "kind", "metadata", "spec", "status")
	if v, _ := top["apiVersion"].v.(string); v != group+"/v1" && v != group+"/v1beta1" {
		root.below("apiVersion", nil).note(BadValue, top["apiVersion"].v, "is not a version that is known: write %s/v1", group)
	}
	metadata, _ := root.below("metadata", top["metadata"].v).group()
	m.Namespace = defaultNamespace // as kubectl has it
	if n := metadata["namespace"]; n.there() {
		if s, ok := n.text(); ok && s != "" {
			m.Namespace = s
		}
	}
	if n := metadata["name"]; n.there() {
		m.Called, _ = n.text()
	}
	if m.Called == "" {
		root.below("metadata", nil).below("name", nil).note(Missing, nil, "is missing: write what the policy is called in logs and answers")
	}
	switch t := metadata["creationTimestamp"].v.(type) {
	case nil:
	case time.Time:
		m.Created = t
	default:
		var err error
		if m.Created, err = time.Parse(time.RFC3339, fmt.Sprint(t)); err != nil && top["kind"].v == KindPeerAuthentication { // of several the oldest counts
			metadata["creationTimestamp"].note(BadValue, t, "is not a time: write such as 2026-01-02T15:04:05Z, or leave it away")
			ok = false
		}
	}
	if n := metadata["annotations"]; n.there() {
		annotations, _ = n.group()
	}
	if v, is := metadata["resourceVersion"].v.(string); is {
		m.Revision, _ = strconv.ParseUint(v, 10, 64)
	}
	return m, annotations, ok
}

// selector reads labels. One that is not understood selects everything.
func selector(n node) (Selector, bool) {
	if !n.there() {
		return nil, true
	}
	fields, ok := n.fields("matchLabels")
	if !ok {
		return nil, false
	}
	labels, ok := fields["matchLabels"].orEmpty(n, "matchLabels").group()
	if !ok {
		return nil, false
	}
	s := Selector{}
	for _, k := range slices.Sorted(maps.Keys(labels)) {
		v, is := labels[k].text()
		if is && strings.Contains(k+v, "*") {
			labels[k].note(BadValue, v, "has a *, which no label has: write the whole label")
			is = false
		}
		if is && strings.HasSuffix(k, twice) {
			labels[k].note(BadValue, v, "is a label that is there before, as a number and as a text: write it once")
			is = false
		}
		s[k], ok = v, ok && is
	}
	if !ok || len(s) == 0 {
		return nil, ok
	}
	return s, true
}

// orEmpty is n, or nothing at key below parent.
func (n node) orEmpty(parent node, key string) node {
	if n.p == nil {
		return parent.below(key, nil)
	}
	return n
}

func authorization(root node, top map[string]node) *Authorization {
	m, annotations, whole := head(root, top)
	a := &Authorization{Metadata: m}
	if n := annotations[dryRun]; n.there() {
		a.DryRun, _ = strconv.ParseBool(fmt.Sprint(n.v))
	}
	root.p.consequence = "it allows nothing, or, as a DENY policy, denies everything"
	spec := root.below("spec", top["spec"].v)
	fields, ok := spec.fields("selector", "targetRef", "targetRefs", "action", "rules", "provider")
	action := fields["action"]
	switch refs := targets(fields); {
	case refs != nil:
		refs.outright(nil, "is for a waypoint, and there are none here, so that nothing is in force: write a selector instead")
		return nil
	case action.v == "AUDIT" || action.v == "CUSTOM":
		action.outright(action.v, "is not an action of connections, so that nothing is in force, as with ztunnel: write ALLOW or DENY")
		return nil
	case action.v == "DENY":
		a.Action = Deny
	case action.there() && action.v != "ALLOW":
		action.note(BadValue, action.v, "is not an action: write ALLOW or DENY")
		a.Action, ok = Deny, false
	}
	list, isList := fields["rules"].orEmpty(spec, "rules").items()
	if whole && ok && isList {
		for _, n := range list {
			a.Rules = append(a.Rules, rule(n, a.Action, a.Namespace))
		}
	} else if a.Action == Deny {
		a.Rules = []Rule{{}}
	}
	root.p.consequence = "it is for every workload that it would be for without a selector"
	if a.Action == Allow {
		root.p.consequence = "it allows nothing to the workloads that it would be for without a selector"
	}
	if a.Selector, ok = selector(fields["selector"].orEmpty(spec, "selector")); !ok && a.Action == Allow {
		a.Rules = nil // it would allow more than it was written for
	}
	return a
}

// outright notes that nothing of the object is in force.
func (n node) outright(value any, message string) {
	n.p.consequence = ""
	n.note(Unsupported, value, "%s", message)
}

// targets returns what names a waypoint, if anything does.
func targets(spec map[string]node) *node {
	for _, key := range []string{"targetRef", "targetRefs"} {
		n, ok := spec[key]
		if list, is := n.v.([]any); ok && n.there() && (!is || len(list) > 0) {
			return &n
		}
	}
	return nil
}

func peerAuthentication(root node, top map[string]node) *PeerAuthentication {
	root.p.consequence = "STRICT holds on all ports"
	m, _, whole := head(root, top)
	out := &PeerAuthentication{Metadata: m, Ports: map[uint16]Mode{}}
	spec := root.below("spec", top["spec"].v)
	fields, ok := spec.fields("selector", "mtls", "portLevelMtls")
	var selects, moded bool
	out.Selector, selects = selector(fields["selector"].orEmpty(spec, "selector"))
	out.Mode, moded = mode(fields["mtls"].orEmpty(spec, "mtls"))
	ports, all := fields["portLevelMtls"].orEmpty(spec, "portLevelMtls").group()
	for _, k := range slices.Sorted(maps.Keys(ports)) {
		number, wrong := port(k)
		if wrong != "" {
			ports[k].note(BadValue, k, "%s", wrong)
			all = false
			continue
		}
		if _, there := out.Ports[number]; there {
			ports[k].note(BadValue, k, "is a port that is there before: write it once")
			all = false
		}
		m, ok := mode(ports[k])
		out.Ports[number], all = m, all && ok
	}
	if !whole || !ok || !selects || !moded || !all {
		out.Mode, out.Ports, out.unread = Strict, nil, true
	}
	if len(out.Selector) == 0 && len(out.Ports) > 0 {
		spec.below("portLevelMtls", nil).outright(nil, "counts for nothing without a selector, as in Istio: add a selector, or take it away")
	}
	return out
}

func mode(n node) (Mode, bool) {
	fields, ok := n.fields("mode")
	m, known := map[any]Mode{nil: Unset, "UNSET": Unset, "DISABLE": Disable, "PERMISSIVE": Permissive, "STRICT": Strict}[scalar(fields["mode"].v)]
	if !known {
		fields["mode"].note(BadValue, fields["mode"].v, "is not a mode: write STRICT, PERMISSIVE, DISABLE or UNSET")
	}
	return m, ok && known
}

// scalar is v, if it may be the key of a map.
func scalar(v any) any {
	switch v.(type) {
	case map[string]any, map[any]any, []any:
		return struct{}{}
	}
	return v
}

// port reads a port of an application.
func port(s string) (uint16, string) {
	n, err := strconv.ParseUint(strings.TrimSpace(s), 10, 16)
	if err != nil || n == 0 {
		return 0, "is not a port: write a number from 1 to 65535"
	}
	return uint16(n), ""
}
