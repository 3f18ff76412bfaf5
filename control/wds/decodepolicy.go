package wds

import (
	"fmt"
	"net/netip"
	"slices"
	"strconv"
	"strings"

	pb "github.com/isthmus-mesh/isthmus/control/wds/wdspb"
	"github.com/isthmus-mesh/isthmus/discovery"
	"github.com/isthmus-mesh/isthmus/policy"
)

// authorization takes a policy. From a gateway of ours it is the object itself, whose selector
// becomes the label of the workloads that list it.
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
			return d.set(ref, nil), nil // of PeerAuthentications that come as such
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

// treeOf returns the AuthorizationPolicy that m stands for.
func treeOf(m *pb.Authorization) (map[string]any, error) {
	namespace, action := m.GetNamespace(), m.GetAction().String()
	if m.GetScope() == pb.Scope_GLOBAL {
		namespace = policy.DefaultRootNamespace
	}
	if m.GetAction() > pb.Action_DENY || m.GetScope() > pb.Scope_WORKLOAD_SELECTOR {
		return nil, invalid("action", action, "a later version has added it or the scope")
	}
	metadata := map[string]any{"name": m.GetName(), "namespace": namespace}
	if m.GetDryRun() {
		metadata["annotations"] = map[string]any{"istio.io/dry-run": "true"}
	}
	rules := []any{}
	for i, r := range m.GetRules() {
		rule, never, err := ruleOf(r, m.GetAction() == pb.Action_DENY)
		if err != nil {
			err.Field = fmt.Sprintf("rules[%d].%s", i, err.Field)
			return nil, err
		}
		if !never {
			rules = append(rules, rule)
		}
	}
	return map[string]any{"apiVersion": "security.istio.io/v1", "kind": policy.KindAuthorization, "metadata": metadata, "spec": map[string]any{"action": action, "rules": rules}}, nil
}

// ruleOf returns the rule that r stands for. never is set for one that cannot match. A clause that
// Kubernetes' form has no place for counts as matched in a DENY policy, and as not matched in an ALLOW policy.
func ruleOf(r *pb.Rule, deny bool) (rule map[string]any, never bool, wrong *Error) {
	rule = map[string]any{}
	var when []any
	for i, c := range r.GetClauses() {
		var matches []fields
		for j, m := range c.GetMatches() {
			f, err := fieldsOf(m)
			if err != nil {
				err.Field = fmt.Sprintf("clauses[%d].matches[%d].%s", i, j, err.Field)
				return nil, false, err
			}
			if len(f) > 0 {
				matches = append(matches, f)
			}
		}
		all := func(group string) bool {
			return !slices.ContainsFunc(matches, func(f fields) bool { return f.outside(group) })
		}
		switch {
		case len(c.GetMatches()) == 0:
		case len(matches) == 0:
			return nil, true, nil
		case rule["from"] == nil && all("from"):
			rule["from"] = listOf(matches, "source")
		case rule["to"] == nil && all("to"):
			rule["to"] = listOf(matches, "operation")
		case len(matches) == 1 && !slices.ContainsFunc(matches[0], func(f field) bool { return f.condition == "" }):
			when = append(when, conditionsOf(matches[0])...)
		case !deny:
			return nil, true, nil
		}
	}
	if len(when) > 0 {
		rule["when"] = when
	}
	return rule, false, nil
}

// field is one list of a match.
type field struct {
	group, key string // from or to, and the key there; "" if it has none
	condition  string // of when
	not        bool
	values     []any
}

type fields []field

func (f fields) outside(group string) bool {
	return slices.ContainsFunc(f, func(x field) bool { return x.group != group })
}

func listOf(matches []fields, item string) (out []any) {
	for _, m := range matches {
		body := map[string]any{}
		for _, f := range m {
			body[f.key] = f.values
		}
		out = append(out, map[string]any{item: body})
	}
	return out
}

func conditionsOf(m fields) (out []any) {
	for _, f := range m {
		list := "values"
		if f.not {
			list = "notValues"
		}
		out = append(out, map[string]any{"key": f.condition, list: f.values})
	}
	return out
}

func fieldsOf(m *pb.Match) (out fields, wrong *Error) {
	add := func(group, key, condition string, not bool, values []any, err *Error) {
		if err != nil && wrong == nil {
			err.Field, wrong = condition, err
		}
		if len(values) > 0 {
			if not && key != "" {
				key = "not" + strings.ToUpper(key[:1]) + key[1:]
			}
			out = append(out, field{group, key, condition, not, values})
		}
	}
	texts := func(key, condition string, not bool, list []*pb.StringMatch) {
		values, err := textValues(list)
		add("from", key, condition, not, values, err)
	}
	texts("namespaces", "source.namespace", false, m.GetNamespaces())
	texts("namespaces", "source.namespace", true, m.GetNotNamespaces())
	texts("principals", "source.principal", false, m.GetPrincipals())
	texts("principals", "source.principal", true, m.GetNotPrincipals())
	ranges := func(group, key, condition string, not bool, list []*pb.IPRange) {
		values, err := rangeValues(list)
		add(group, key, condition, not, values, err)
	}
	ranges("from", "ipBlocks", "source.ip", false, m.GetSourceIps())
	ranges("from", "ipBlocks", "source.ip", true, m.GetNotSourceIps())
	ranges("", "", "destination.ip", false, m.GetDestinationIps())
	ranges("", "", "destination.ip", true, m.GetNotDestinationIps())
	ports := func(not bool, list []uint32) {
		var values []any
		for _, p := range list {
			values = append(values, strconv.FormatUint(uint64(p), 10))
		}
		add("to", "ports", "destination.port", not, values, nil)
	}
	ports(false, m.GetDestinationPorts())
	ports(true, m.GetNotDestinationPorts())
	accounts := func(not bool, list []*pb.ServiceAccountMatch) {
		var values []any
		for _, a := range list {
			values = append(values, a.GetNamespace()+"/"+a.GetServiceAccount())
		}
		add("from", "serviceAccounts", "", not, values, nil)
	}
	accounts(false, m.GetServiceAccounts())
	accounts(true, m.GetNotServiceAccounts())
	return out, wrong
}

func textValues(list []*pb.StringMatch) (out []any, wrong *Error) {
	for _, t := range list {
		switch m := t.GetMatchType().(type) {
		case *pb.StringMatch_Exact:
			out = append(out, m.Exact)
		case *pb.StringMatch_Prefix:
			out = append(out, m.Prefix+"*")
		case *pb.StringMatch_Suffix:
			out = append(out, "*"+m.Suffix)
		case *pb.StringMatch_Presence:
			out = append(out, "*")
		default:
			return nil, invalid("", "", "a later version has added this way to match")
		}
		if s := out[len(out)-1].(string); strings.Contains(strings.Trim(s, "*"), "*") || s == "" {
			return nil, invalid("", s, "has a * inside, or is empty")
		}
	}
	return out, nil
}

func rangeValues(list []*pb.IPRange) (out []any, wrong *Error) {
	for _, r := range list {
		a, ok := netip.AddrFromSlice(r.GetAddress())
		p := netip.PrefixFrom(a, int(min(r.GetLength(), 255)))
		if !ok || !p.IsValid() {
			return nil, invalid("", r.GetAddress(), "not a range of IP addresses")
		}
		out = append(out, p.String())
	}
	return out, nil
}
