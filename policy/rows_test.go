package policy

import (
	"net/netip"
	"testing"

	"github.com/spiffe/go-spiffe/v2/spiffeid"
)

// The rows are those of what istio/ztunnel does (src/rbac.rs, src/state.rs at 62d82653), one
// sentence each.
func TestWhatZtunnelDecides(t *testing.T) {
	web := Connection{Source: spiffeid.RequireFromString("spiffe://cluster.local/ns/demo/sa/web"), From: netip.MustParseAddr("10.0.0.1"), Destination: netip.MustParseAddrPort("10.0.9.9:8080")}
	plain := web
	plain.Source = spiffeid.ID{}
	linked := web
	linked.From = netip.MustParseAddr("fe80::1%eth0")
	mapped := web
	mapped.From = netip.MustParseAddr("::ffff:10.0.0.1")
	var (
		none    = Match{}
		isWeb   = Match{Principals: is(TextOf("cluster.local/ns/demo/sa/web"))}
		isBatch = Match{Principals: is(TextOf("cluster.local/ns/demo/sa/batch"))}
		anyone  = Match{Principals: is(TextOf("*"))}
		noOne   = Match{Principals: Field[Text]{Not: []Text{TextOf("*")}}}
	)
	auth := func(name string, a Action, rules ...Rule) Object {
		return &Authorization{Metadata: Metadata{Namespace: "demo", Called: name}, Action: a, Rules: rules}
	}
	rules := func(r ...Rule) []Object { return []Object{auth("allow", Allow, r...)} }
	for _, c := range []struct {
		row      string
		policies []Object
		c        Connection
		want     string
	}{
		{"no policies", nil, web, "allowed: no ALLOW policy is for the workload, and no DENY policy matches"},
		{"no ALLOW policies: accept", []Object{auth("deny", Deny, Rule{{isBatch}})}, web, "allowed: no ALLOW policy is for the workload, and no DENY policy matches"},
		{"any DENY match rejects, whatever allows", []Object{auth("allow", Allow, Rule{}), auth("deny", Deny, Rule{{isBatch}}, Rule{{isWeb}})}, web, "denied by AuthorizationPolicy demo/deny, rules[1]"},
		{"with ALLOW policies one must match", []Object{auth("a", Allow, Rule{{isBatch}}), auth("b", Allow)}, web, "denied: no rule of an ALLOW policy matches: AuthorizationPolicy demo/a, AuthorizationPolicy demo/b"},
		{"no rules never match: ALLOW denies all", rules(), web, "denied: no rule of an ALLOW policy matches: AuthorizationPolicy demo/allow"},
		{"no rules never match: DENY denies nothing", []Object{auth("deny", Deny)}, web, "allowed: no ALLOW policy is for the workload, and no DENY policy matches"},
		{"a rule without clauses matches", rules(Rule{}), plain, "allowed by AuthorizationPolicy demo/allow, rules[0]"},
		{"rules are alternatives", rules(Rule{{isBatch}}, Rule{{isWeb}}), web, "allowed by AuthorizationPolicy demo/allow, rules[1]"},
		{"clauses must all match", rules(Rule{{isWeb}, {isBatch}}), web, "denied: no rule of an ALLOW policy matches: AuthorizationPolicy demo/allow"},
		{"matches of a clause are alternatives", rules(Rule{{isBatch, isWeb}}), web, "allowed by AuthorizationPolicy demo/allow, rules[0]"},
		{"fields of a match must all match", rules(Rule{{Match{Principals: isWeb.Principals, DestinationPorts: is(uint16(80))}}}), web, "denied: no rule of an ALLOW policy matches: AuthorizationPolicy demo/allow"},
		{"values of a field are alternatives", rules(Rule{{Match{DestinationPorts: is(uint16(80), 8080)}}}), web, "allowed by AuthorizationPolicy demo/allow, rules[0]"},
		{"of a negated list none may match", rules(Rule{{Match{DestinationPorts: Field[uint16]{Not: []uint16{80, 8080}}}}}), web, "denied: no rule of an ALLOW policy matches: AuthorizationPolicy demo/allow"},
		{"an empty match is skipped", rules(Rule{{none}}), web, "denied: no rule of an ALLOW policy matches: AuthorizationPolicy demo/allow"},
		{"an empty match beside others is skipped", rules(Rule{{none, isWeb}}), web, "allowed by AuthorizationPolicy demo/allow, rules[0]"},
		{"a clause without matches passes", rules(Rule{{}}), web, "allowed by AuthorizationPolicy demo/allow, rules[0]"},
		{"no identity matches no principal", rules(Rule{{anyone}}), plain, "denied: no rule of an ALLOW policy matches: AuthorizationPolicy demo/allow"},
		{"no identity is nobody", rules(Rule{{noOne}}), plain, "allowed by AuthorizationPolicy demo/allow, rules[0]"},
		{"presence is any identity", rules(Rule{{anyone}}), web, "allowed by AuthorizationPolicy demo/allow, rules[0]"},
		{"principals have no spiffe://", rules(Rule{{Match{Principals: is(TextOf("spiffe://*"))}}}), web, "denied: no rule of an ALLOW policy matches: AuthorizationPolicy demo/allow"},
		{"the beginning of a principal", rules(Rule{{Match{Principals: is(TextOf("cluster.local/ns/demo/*"))}}}), web, "allowed by AuthorizationPolicy demo/allow, rules[0]"},
		{"the end of a principal", rules(Rule{{Match{Principals: is(TextOf("*/sa/web"))}}}), web, "allowed by AuthorizationPolicy demo/allow, rules[0]"},
		{"a service account is of any trust domain", rules(Rule{{Match{ServiceAccounts: is(Account{"demo", "web"})}}}), web, "allowed by AuthorizationPolicy demo/allow, rules[0]"},
		{"an IPv4 client of an IPv6 listener", rules(Rule{{Match{SourceIPs: is(netip.MustParsePrefix("10.0.0.0/8"))}}}), mapped, "allowed by AuthorizationPolicy demo/allow, rules[0]"},
		{"a client of a link", []Object{auth("deny", Deny, Rule{{Match{SourceIPs: is(netip.MustParsePrefix("fe80::/10"))}}})}, linked, "denied by AuthorizationPolicy demo/deny, rules[0]"},
		{"a client of a link that is left out", rules(Rule{{Match{SourceIPs: Field[netip.Prefix]{Not: []netip.Prefix{netip.MustParsePrefix("fe80::/10")}}}}}), linked, "denied: no rule of an ALLOW policy matches: AuthorizationPolicy demo/allow"},
		{"the destination is the pod", rules(Rule{{Match{DestinationIPs: is(netip.MustParsePrefix("10.0.9.9/32"))}}}), web, "allowed by AuthorizationPolicy demo/allow, rules[0]"},
		{"another namespace's policy", []Object{&Authorization{Metadata: Metadata{Namespace: "demo-2", Called: "allow"}}}, web, "allowed: no ALLOW policy is for the workload, and no DENY policy matches"},
		{"the root namespace's policy", []Object{&Authorization{Metadata: Metadata{Namespace: "root", Called: "allow"}}}, web, "denied: no rule of an ALLOW policy matches: AuthorizationPolicy root/allow"},
		{"a selector that the workload has not", []Object{&Authorization{Metadata: Metadata{Namespace: "demo", Called: "allow"}, Selector: Selector{"app": "other"}}}, web, "allowed: no ALLOW policy is for the workload, and no DENY policy matches"},
		{"STRICT and no identity", []Object{&PeerAuthentication{Metadata: Metadata{Namespace: "demo", Called: "mtls"}, Mode: Strict}}, plain, "denied by PeerAuthentication demo/mtls: mode STRICT, and the connection is not mutual TLS"},
		{"STRICT and an identity", []Object{&PeerAuthentication{Metadata: Metadata{Namespace: "demo", Called: "mtls"}, Mode: Strict}}, web, "allowed: no ALLOW policy is for the workload, and no DENY policy matches"},
		{"DISABLE and an identity", []Object{&PeerAuthentication{Metadata: Metadata{Namespace: "demo", Called: "mtls"}, Mode: Disable}}, web, "allowed: no ALLOW policy is for the workload, and no DENY policy matches"},
	} {
		got := NewSet("root", c.policies).For(Workload{Namespace: "demo", Labels: map[string]string{"app": "web"}}).Decide(c.c)
		if got.String() != c.want {
			t.Errorf("%s: %s, want %s", c.row, got, c.want)
		}
	}
}

func TestWhoDemandsMutualTLS(t *testing.T) {
	pa := func(name string, s Selector, mode Mode, ports map[uint16]Mode) *PeerAuthentication {
		return &PeerAuthentication{Metadata: Metadata{Namespace: "demo", Called: name}, Selector: s, Mode: mode, Ports: ports}
	}
	web := Selector{"app": "web"}
	for want, list := range map[string][]Object{
		"":                            {pa("a", nil, Permissive, nil), &Authorization{Metadata: Metadata{Namespace: "demo", Called: "allow"}}},
		"PeerAuthentication demo/all": {pa("all", nil, Strict, nil), pa("other", Selector{"app": "other"}, Permissive, nil)},
		"PeerAuthentication demo/web": {pa("all", nil, Permissive, nil), pa("web", web, Strict, map[uint16]Mode{80: Permissive})},
		"PeerAuthentication demo/one": {pa("all", nil, Disable, nil), pa("one", web, Permissive, map[uint16]Mode{80: Strict, 81: Permissive})},
	} {
		if got := NewSet("root", list).For(Workload{Namespace: "demo", Labels: web}).Demands(); got.String() != want {
			t.Errorf("%v demand mutual TLS by %q, want %q", list, got, want)
		}
	}
	loose := []Object{pa("all", nil, Strict, nil), pa("web", web, Permissive, nil)}
	if got := NewSet("root", loose).For(Workload{Namespace: "demo", Labels: web}).Demands(); got != (Name{}) {
		t.Errorf("what is PERMISSIVE demands mutual TLS by %s", got)
	}
}

func is[T any](values ...T) Field[T] { return Field[T]{Is: values} }

func TestADecisionNamesAFewPolicies(t *testing.T) {
	var list []Object
	for _, name := range []string{"e", "c", "a", "d", "b"} {
		list = append(list, &Authorization{Metadata: Metadata{Namespace: "demo", Called: name}})
	}
	d := NewSet("root", list).For(Workload{Namespace: "demo"}).Decide(Connection{})
	if got, want := d.By(), "AuthorizationPolicy demo/a, AuthorizationPolicy demo/b, AuthorizationPolicy demo/c, 2 more"; got != want {
		t.Errorf("By() = %q, want %q", got, want)
	}
	if len((*Set)(nil).Objects()) != 0 || len(NewSet("root", list).Objects()) != 5 || !(*Set)(nil).For(Workload{}).Decide(Connection{}).Allowed() {
		t.Error("a nil set does not stand for no policies")
	}
}

func addressOf(s string) netip.Addr { return netip.MustParseAddr(s) }
