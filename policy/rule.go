package policy

import (
	"net/netip"
	"strings"
)

// What of Istio's rules speaks of HTTP, or of what a proxy has been told about the client.
var (
	sourceL7    = []string{"requestPrincipals", "notRequestPrincipals", "remoteIpBlocks", "notRemoteIpBlocks", "trustDomains", "notTrustDomains"}
	operationL7 = []string{"hosts", "notHosts", "methods", "notMethods", "paths", "notPaths"}
)

var (
	sourceL4 = []string{"principals", "notPrincipals", "namespaces", "notNamespaces", "serviceAccounts", "notServiceAccounts", "ipBlocks", "notIpBlocks"}
	portsL4  = []string{"ports", "notPorts"}
)

// What a problem of a rule comes to, by action.
var ruleConsequence = map[Action]string{
	Allow: "this rule of an ALLOW policy never matches",
	Deny:  "it counts as matched, as this is a DENY policy, which denies more than is written",
}

// ruleReader reads one rule. What is not understood is never true of an ALLOW policy, and always
// of a DENY policy.
type ruleReader struct {
	p         *parser
	action    Action
	namespace string
	failed    bool
}

// rule reads an item of spec.rules.
func rule(n node, a Action, namespace string) Rule {
	was := n.p.consequence
	n.p.consequence = ruleConsequence[a]
	defer func() { n.p.consequence = was }()
	r := ruleReader{p: n.p, action: a, namespace: namespace}
	out := r.rule(n)
	if r.failed && a == Allow {
		return never()
	}
	return out
}

func (r *ruleReader) check(ok bool) {
	if !ok {
		r.failed = true
	}
}

func (r *ruleReader) rule(n node) Rule {
	if !n.there() {
		n.note(Missing, nil, "is empty: write {} for a rule that always matches")
		r.failed = true
		return Rule{}
	}
	fields, ok := n.fields("from", "to", "when")
	r.check(ok)
	var out Rule
	for _, part := range []struct {
		list, item string
		read       func(node) Match
	}{{"from", "source", r.source}, {"to", "operation", r.operation}} {
		if c := r.clause(fields[part.list].orEmpty(n, part.list), part.item, part.read); len(c) > 0 {
			out = append(out, c)
		}
	}
	conditions, ok := fields["when"].orEmpty(n, "when").items()
	r.check(ok)
	for _, item := range conditions {
		if m, ok := r.condition(item); ok {
			out = append(out, Clause{m})
		}
	}
	return out
}

// clause reads the list from or to. It has no matches if one of them always does.
func (r *ruleReader) clause(n node, key string, read func(node) Match) (out Clause) {
	list, ok := n.items()
	r.check(ok)
	always := false
	for _, item := range list {
		fields, ok := item.fields(key)
		r.check(ok)
		inner := fields[key].orEmpty(item, key)
		before := len(n.p.problems)
		m := read(inner)
		if m.empty() {
			if len(n.p.problems) == before {
				inner.note(Missing, nil, "says nothing: write what it must be, or leave the item away")
			}
			r.failed, always = true, true
		}
		out = append(out, m)
	}
	if always {
		return nil
	}
	return out
}

// source reads from[].source.
func (r *ruleReader) source(n node) (m Match) {
	f := r.known(n, sourceL4, sourceL7)
	r.check(r.principals(f, "principals", "notPrincipals", &m))
	r.check(read(f, "namespaces", "notNamespaces", &m.Namespaces, text))
	r.check(read(f, "serviceAccounts", "notServiceAccounts", &m.ServiceAccounts, r.account))
	r.check(read(f, "ipBlocks", "notIpBlocks", &m.SourceIPs, prefix))
	return m
}

// operation reads to[].operation.
func (r *ruleReader) operation(n node) (m Match) {
	f := r.known(n, portsL4, operationL7)
	r.check(read(f, "ports", "notPorts", &m.DestinationPorts, port))
	return m
}

// known returns the fields of n that are understood.
func (r *ruleReader) known(n node, l4, l7 []string) map[string]node {
	fields, ok := n.fields(append(append([]string{}, l4...), l7...)...)
	r.check(ok)
	for _, key := range l7 {
		if f, ok := fields[key]; ok && f.there() {
			f.note(Unsupported, nil, "is not seen of a connection: it takes a proxy of HTTP, and there is none here")
			r.failed = true
		}
	}
	return fields
}

// condition reads an item of when; ok says that it narrows the rule.
func (r *ruleReader) condition(n node) (m Match, ok bool) {
	f, known := n.fields("key", "values", "notValues")
	r.check(known)
	key, _ := f["key"].v.(string)
	as := map[string]node{"is": f["values"], "not": f["notValues"]}
	understood := true
	switch key {
	case "source.ip":
		understood = read(as, "is", "not", &m.SourceIPs, prefix)
	case "source.namespace":
		understood = read(as, "is", "not", &m.Namespaces, text)
	case "source.principal":
		understood = r.principals(as, "is", "not", &m)
	case "destination.ip":
		understood = read(as, "is", "not", &m.DestinationIPs, prefix)
	case "destination.port":
		understood = read(as, "is", "not", &m.DestinationPorts, port)
	default:
		n.below("key", nil).note(Unsupported, f["key"].v, "is not seen of a connection: write source.ip, source.namespace, source.principal, destination.ip or destination.port")
		r.failed = true
		return m, false
	}
	if understood && m.empty() {
		n.note(Missing, nil, "has neither values nor notValues: write what %s must or must not be", key)
		understood = false
	}
	r.check(understood)
	return m, !m.empty()
}

// read reads the two lists of a field. One of which a value is not understood counts as
// not there; that is for a DENY policy, and then it returns false.
func read[T any](f map[string]node, is, not string, out *Field[T], parse func(string) (T, string)) (ok bool) {
	ok = true
	for _, list := range []struct {
		key string
		to  *[]T
	}{{is, &out.Is}, {not, &out.Not}} {
		n, there := f[list.key]
		if !there || n.p == nil {
			continue
		}
		v, all := values(n, parse)
		if ok = ok && all; all {
			*list.to = v
		}
	}
	return ok
}

func principal(s string) (Text, string) {
	if strings.HasPrefix(s, "spiffe://") {
		return Text{}, "begins with spiffe://, which principals do not: write what comes after it"
	}
	return text(s)
}

func text(s string) (Text, string) {
	if s == "" {
		return Text{}, "is empty, which nothing is: write a text, or * for any"
	}
	t := TextOf(s)
	if strings.Contains(t.Value, "*") {
		return Text{}, "has a * inside, which stands for itself there, and so for nobody: write * at its beginning or at its end, or alone"
	}
	return t, ""
}

func prefix(s string) (netip.Prefix, string) {
	const wrong = "is not an IP address or range: write one such as 10.1.2.3 or 10.1.0.0/16"
	if !strings.Contains(s, "/") {
		a, err := netip.ParseAddr(s)
		if err != nil || a.Zone() != "" {
			return netip.Prefix{}, wrong
		}
		a = a.Unmap()
		return netip.PrefixFrom(a, a.BitLen()), ""
	}
	n, err := netip.ParsePrefix(s)
	if err != nil {
		return netip.Prefix{}, wrong
	}
	if n.Addr().Is4In6() && n.Bits() >= 96 {
		n = netip.PrefixFrom(n.Addr().Unmap(), n.Bits()-96)
	}
	return n, ""
}

// account reads "name", of the policy's own namespace, or "namespace/name".
func (r *ruleReader) account(s string) (Account, string) {
	ns, name, ok := strings.Cut(s, "/")
	if !ok {
		ns, name = r.namespace, s
	}
	if ns == "" || name == "" || strings.ContainsAny(name, "/*") || strings.Contains(ns, "*") {
		return Account{}, "is not a service account: write its name, or namespace/name"
	}
	return Account{ns, name}, ""
}
