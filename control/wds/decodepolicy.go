package wds

import (
	"net/netip"
	"slices"
	"strconv"
	"strings"

	pb "github.com/isthmus-mesh/isthmus/control/wds/wdspb"
	"github.com/isthmus-mesh/isthmus/discovery"
	"github.com/isthmus-mesh/isthmus/policy"
)

// authorization takes a policy. A gateway of ours sends the object. Its selector becomes the label of the workloads
// that list it.
func (d *Decoder) authorization(ref Ref, m *pb.Authorization) ([]discovery.Change, error) {
	if m.GetNamespace()+"/"+m.GetName() != ref.Name {
		return nil, invalid("name", m.GetNamespace()+"/"+m.GetName(), "not the name of the resource")
	}
	var x pb.Policy
	has, err := unpack(m.GetExtensions(), "Policy", &x)
	switch {
	case err != nil:
		return nil, err
	case !has && !d.c.Istiod:
		if strings.HasPrefix(m.GetName(), strictPrefix) {
			return d.set(ref, nil), nil // PeerAuthentications are resources too
		}
		return nil, invalid("extensions", "", "missing: the server is not a gateway of Isthmus; set istiod for a stock one")
	}
	var tree map[string]any
	if has {
		if tree, err = policy.Read(x.GetObject()); err != nil {
			return nil, invalid("extensions.object", x.GetObject(), err.Error())
		}
		if n := policy.NameOf(tree); policyName(n) != ref.Name {
			return nil, invalid("extensions.object", n.String(), "not the policy that the resource names")
		}
		if x.GetRevision() != 0 {
			if metadata, is := tree["metadata"].(map[string]any); is {
				metadata["resourceVersion"] = strconv.FormatUint(x.GetRevision(), 10)
			}
		}
	} else if tree, err = treeOf(m); err != nil {
		return nil, err
	}
	if x.GetSelected() || !has && m.GetScope() == pb.Scope_WORKLOAD_SELECTOR {
		spec, is := tree["spec"].(map[string]any)
		if !is {
			return nil, invalid("extensions.object", "", "has a selector and no spec")
		}
		spec["selector"] = map[string]any{"matchLabels": map[string]any{policyLabel(ref.Name): ""}}
	}
	if o, _ := policy.Parse(tree); o == nil {
		return nil, invalid("extensions.object", x.GetObject(), "not a policy that can be in force")
	}
	return d.set(ref, []discovery.Change{{Key: clusterKey(discovery.KindPolicy, ref.Name), Record: discovery.Policy(tree)}}), nil
}

// closed puts a policy that denies everything in the place of one that cannot be read.
func (d *Decoder) closed(ref Ref) []discovery.Change {
	n := policy.Name{Kind: policy.KindAuthorization}
	n.Namespace, n.Name, _ = strings.Cut(ref.Name, "/")
	tree, _ := policy.Read(policy.Closed(n, "not readable"))
	return d.set(ref, []discovery.Change{{Key: clusterKey(discovery.KindPolicy, ref.Name), Record: discovery.Policy(tree)}})
}

// treeOf returns the AuthorizationPolicy that m stands for. A value that policies have no form for becomes "", which
// [policy.Parse] does not understand: an ALLOW rule with it never matches, and in a DENY rule it counts as matched.
func treeOf(m *pb.Authorization) (map[string]any, error) {
	namespace, action := m.GetNamespace(), m.GetAction().String()
	if m.GetScope() == pb.Scope_GLOBAL {
		namespace = policy.DefaultRootNamespace
	}
	if m.GetAction() > pb.Action_DENY || m.GetScope() > pb.Scope_WORKLOAD_SELECTOR {
		return nil, invalid("action", action, "this action, or the scope, is of a later version")
	}
	metadata := map[string]any{"name": m.GetName(), "namespace": namespace}
	if m.GetDryRun() {
		metadata["annotations"] = map[string]any{"istio.io/dry-run": "true"}
	}
	rules := []any{}
	for _, r := range m.GetRules() {
		if rule, never := ruleOf(r, m.GetAction() == pb.Action_DENY); !never {
			rules = append(rules, rule)
		}
	}
	return map[string]any{"apiVersion": "security.istio.io/v1", "kind": policy.KindAuthorization, "metadata": metadata, "spec": map[string]any{"action": action, "rules": rules}}, nil
}

// ruleOf returns the rule that r stands for; never if it cannot match. A clause without a form in Kubernetes counts
// as matched in a DENY policy, and as not matched in an ALLOW policy.
func ruleOf(r *pb.Rule, deny bool) (rule map[string]any, never bool) {
	rule = map[string]any{}
	var when []any
	for _, c := range r.GetClauses() {
		var matches [][]field
		for _, m := range c.GetMatches() {
			if f := fieldsOf(m); len(f) > 0 {
				matches = append(matches, f)
			}
		}
		all := func(is func(field) bool) bool {
			return !slices.ContainsFunc(matches, func(m []field) bool { return slices.ContainsFunc(m, func(f field) bool { return !is(f) }) })
		}
		switch {
		case len(c.GetMatches()) == 0:
		case len(matches) == 0:
			return nil, true
		case rule["from"] == nil && all(func(f field) bool { return f.group == "from" }):
			rule["from"] = listOf(matches, "source")
		case rule["to"] == nil && all(func(f field) bool { return f.group == "to" }):
			rule["to"] = listOf(matches, "operation")
		case len(matches) == 1 && all(func(f field) bool { return f.condition != "" }):
			for _, f := range matches[0] {
				when = append(when, map[string]any{"key": f.condition, map[bool]string{false: "values", true: "notValues"}[f.not]: f.values})
			}
		case !deny:
			return nil, true
		}
	}
	if len(when) > 0 {
		rule["when"] = when
	}
	return rule, false
}

// field is one list of a match, as from or to of a rule has it, or when.
type field struct {
	group, key, condition string
	not                   bool
	values                []any
}

func listOf(matches [][]field, item string) (out []any) {
	for _, m := range matches {
		body := map[string]any{}
		for _, f := range m {
			key := f.key
			if f.not {
				key = "not" + strings.ToUpper(key[:1]) + key[1:]
			}
			body[key] = f.values
		}
		out = append(out, map[string]any{item: body})
	}
	return out
}

// fieldsOf returns the lists of m that are not empty.
func fieldsOf(m *pb.Match) []field {
	all := []field{
		{"from", "namespaces", "source.namespace", false, texts(m.GetNamespaces())},
		{"from", "namespaces", "source.namespace", true, texts(m.GetNotNamespaces())},
		{"from", "principals", "source.principal", false, texts(m.GetPrincipals())},
		{"from", "principals", "source.principal", true, texts(m.GetNotPrincipals())},
		{"from", "ipBlocks", "source.ip", false, ranges(m.GetSourceIps())},
		{"from", "ipBlocks", "source.ip", true, ranges(m.GetNotSourceIps())},
		{"from", "serviceAccounts", "", false, accounts(m.GetServiceAccounts())},
		{"from", "serviceAccounts", "", true, accounts(m.GetNotServiceAccounts())},
		{"", "", "destination.ip", false, ranges(m.GetDestinationIps())},
		{"", "", "destination.ip", true, ranges(m.GetNotDestinationIps())},
		{"to", "ports", "destination.port", false, ports(m.GetDestinationPorts())},
		{"to", "ports", "destination.port", true, ports(m.GetNotDestinationPorts())},
	}
	return slices.DeleteFunc(all, func(f field) bool { return len(f.values) == 0 })
}

func texts(list []*pb.StringMatch) (out []any) {
	for _, t := range list {
		s := "" // also of a later version
		switch m := t.GetMatchType().(type) {
		case *pb.StringMatch_Exact:
			s = m.Exact
		case *pb.StringMatch_Prefix:
			s = m.Prefix + "*"
		case *pb.StringMatch_Suffix:
			s = "*" + m.Suffix
		case *pb.StringMatch_Presence:
			s = "*"
		}
		if strings.Contains(t.GetExact()+t.GetPrefix()+t.GetSuffix(), "*") { // a character here, a pattern in a policy
			s = ""
		}
		out = append(out, s)
	}
	return out
}

func ranges(list []*pb.IPRange) (out []any) {
	for _, r := range list {
		a, _ := netip.AddrFromSlice(r.GetAddress())
		if p := netip.PrefixFrom(a, int(min(r.GetLength(), 255))); p.IsValid() {
			out = append(out, p.String())
		} else {
			out = append(out, "")
		}
	}
	return out
}

func ports(list []uint32) (out []any) {
	for _, p := range list {
		out = append(out, strconv.FormatUint(uint64(p), 10))
	}
	return out
}

func accounts(list []*pb.ServiceAccountMatch) (out []any) {
	for _, a := range list {
		out = append(out, a.GetNamespace()+"/"+a.GetServiceAccount())
	}
	return out
}
