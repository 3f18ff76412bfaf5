package policy

import (
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"go.yaml.in/yaml/v3"
)

func readYAML(t testing.TB, text string) (out tree) {
	t.Helper()
	if err := yaml.Unmarshal([]byte(text), &out); err != nil {
		t.Fatalf("%v in %s", err, text)
	}
	return out
}

// Each is a whole object or only its kind and spec, and what is said of it: path, value, message.
func TestProblems(t *testing.T) {
	const allow, deny, strict = "; until then this rule of an ALLOW policy never matches", "; until then it counts as matched, as this is a DENY policy, which denies more than is written", "; until then STRICT holds on all ports"
	for _, c := range []struct {
		object string
		out    bool
		want   []string
	}{
		{object: `{kind: AuthorizationPolicy, spec: {}}`},
		{object: `{kind: AuthorizationPolicy, spec: {selector: {matchLabels: {app: web}}, rules: [{}, {from: [{source: {principals: ["*"], ipBlocks: [10.0.0.0/8]}}], to: [{operation: {ports: ["80", 81]}}], when: [{key: destination.port, notValues: ["80"]}]}]}}`},
		{object: `{kind: PeerAuthentication, spec: {selector: {matchLabels: {app: web}}, mtls: {mode: STRICT}, portLevelMtls: {8080: {mode: DISABLE}, "9090": {}}}}`},
		{`{kind: RequestAuthentication}`, true, []string{`kind "RequestAuthentication": unsupported kind; this policy is ignored: write AuthorizationPolicy or PeerAuthentication of security.istio.io/v1`}},
		{`{spec: {}}`, true, []string{`kind "": unsupported kind; this policy is ignored: write AuthorizationPolicy or PeerAuthentication of security.istio.io/v1`}},
		{"{apiVersion: security.istio.io/v2, kind: AuthorizationPolicy, metadata: {namespace: demo}}", false, []string{
			`apiVersion "security.istio.io/v2": is not a version that is known: write security.istio.io/v1`, `metadata.name "": is missing: write what the policy is called in logs and answers`}},
		{`{kind: AuthorizationPolicy, specs: {}}`, false, []string{`specs "": is not a key here: write apiVersion, kind, metadata, spec or status`}},
		{`{kind: AuthorizationPolicy, spec: {targetRefs: [{kind: Service, name: x}]}}`, true, []string{`spec.targetRefs "": is for a waypoint, and there are none here, so that nothing is in force: write a selector instead`}},
		{`{kind: AuthorizationPolicy, spec: {action: AUDIT}}`, true, []string{`spec.action "AUDIT": is not an action of connections, so that nothing is in force, as with ztunnel: write ALLOW or DENY`}},
		{`{kind: AuthorizationPolicy, spec: {action: allow}}`, false, []string{`spec.action "allow": is not an action: write ALLOW or DENY; until then it allows nothing, or, as a DENY policy, denies everything`}},
		{`{kind: AuthorizationPolicy, spec: {rules: {}}}`, false, []string{`spec.rules "map[]": is not a list: write one, each item after "- "; until then it allows nothing, or, as a DENY policy, denies everything`}},
		{`{kind: AuthorizationPolicy, spec: {selector: {matchExpressions: []}}}`, false, []string{`spec.selector.matchExpressions "": is not a key here: write matchLabels; until then it allows nothing to the workloads that it would be for without a selector`}},
		{`{kind: AuthorizationPolicy, spec: {action: DENY, selector: {matchLabels: {app: []}}}}`, false, []string{`spec.selector.matchLabels.app "[]": is not a text: write one; until then it is for every workload that it would be for without a selector`}},
		{`{kind: AuthorizationPolicy, spec: {rules: [{to: [{operation: {methods: [GET], ports: ["80"]}}]}]}}`, false, []string{`spec.rules[0].to[0].operation.methods "": is not seen of a connection: it takes a proxy of HTTP, and there is none here` + allow}},
		{`{kind: AuthorizationPolicy, spec: {action: DENY, rules: [{to: [{operation: {methods: [GET]}}]}]}}`, false, []string{`spec.rules[0].to[0].operation.methods "": is not seen of a connection: it takes a proxy of HTTP, and there is none here` + deny}},
		{`{kind: AuthorizationPolicy, spec: {rules: [{when: [{key: "request.headers[x]", values: [y]}]}]}}`, false, []string{`spec.rules[0].when[0].key "request.headers[x]": is not seen of a connection: write source.ip, source.namespace, source.principal, destination.ip or destination.port` + allow}},
		{`{kind: AuthorizationPolicy, spec: {rules: [{when: [{key: source.ip}]}]}}`, false, []string{`spec.rules[0].when[0] "": has neither values nor notValues: write what source.ip must or must not be` + allow}},
		{`{kind: AuthorizationPolicy, spec: {rules: [{from: [{source: {principal: [x]}}]}]}}`, false, []string{
			`spec.rules[0].from[0].source.principal "": is not a key here: write principals, notPrincipals, namespaces, notNamespaces, serviceAccounts, notServiceAccounts, ipBlocks, notIpBlocks, requestPrincipals, notRequestPrincipals, remoteIpBlocks, notRemoteIpBlocks, trustDomains or notTrustDomains` + allow}},
		{`{kind: AuthorizationPolicy, spec: {rules: [{from: [{source: {}}]}]}}`, false, []string{`spec.rules[0].from[0].source "": says nothing: write what it must be, or leave the item away` + allow}},
		{`{kind: AuthorizationPolicy, spec: {rules: [{from: [{}]}]}}`, false, []string{`spec.rules[0].from[0].source "": says nothing: write what it must be, or leave the item away` + allow}},
		{`{kind: AuthorizationPolicy, spec: {rules: [{from: [{source: {namespaces: [""], principals: ["spiffe://a/ns/b/sa/c"], ipBlocks: [10.0.0.0/33], serviceAccounts: [a/b/c]}}], to: [{operation: {ports: [http, "0", "65536"]}}]}]}}`, false, []string{
			`spec.rules[0].from[0].source.principals[0] "spiffe://a/ns/b/sa/c": begins with spiffe://, which principals do not: write what comes after it` + allow,
			`spec.rules[0].from[0].source.namespaces[0] "": is empty, which nothing is: write a text, or * for any` + allow,
			`spec.rules[0].from[0].source.serviceAccounts[0] "a/b/c": is not a service account: write its name, or namespace/name` + allow,
			`spec.rules[0].from[0].source.ipBlocks[0] "10.0.0.0/33": is not an IP address or range: write one such as 10.1.2.3 or 10.1.0.0/16` + allow,
			`spec.rules[0].to[0].operation.ports[0] "http": is not a port: write a number from 1 to 65535` + allow,
			`spec.rules[0].to[0].operation.ports[1] "0": is not a port: write a number from 1 to 65535` + allow,
			`spec.rules[0].to[0].operation.ports[2] "65536": is not a port: write a number from 1 to 65535` + allow}},
		{`{kind: AuthorizationPolicy, spec: {action: DENY, rules: [{from: [{source: {principals: ["cluster.local/ns/*/sa/web", "*/ns/demo/*"], namespaces: ["d*o"], serviceAccounts: ["*", "demo/web*"]}}]}]}}`, false, []string{
			`spec.rules[0].from[0].source.principals[0] "cluster.local/ns/*/sa/web": has a * inside, which stands for itself there, and so for nobody: write * at its beginning or at its end, or alone` + deny,
			`spec.rules[0].from[0].source.principals[1] "*/ns/demo/*": has a * inside, which stands for itself there, and so for nobody: write * at its beginning or at its end, or alone` + deny,
			`spec.rules[0].from[0].source.namespaces[0] "d*o": has a * inside, which stands for itself there, and so for nobody: write * at its beginning or at its end, or alone` + deny,
			`spec.rules[0].from[0].source.serviceAccounts[0] "*": is not a service account: write its name, or namespace/name` + deny,
			`spec.rules[0].from[0].source.serviceAccounts[1] "demo/web*": is not a service account: write its name, or namespace/name` + deny}},
		{`{kind: AuthorizationPolicy, spec: {action: DENY, selector: {matchLabels: {app: web-*}}, rules: [{}]}}`, false, []string{
			`spec.selector.matchLabels.app "web-*": has a *, which no label has: write the whole label; until then it is for every workload that it would be for without a selector`}},
		{`{kind: AuthorizationPolicy, spec: {rules: [null]}}`, false, []string{`spec.rules[0] "": is empty: write {} for a rule that always matches` + allow}},
		{`{kind: PeerAuthentication, spec: {mtls: {mode: STRCT}}}`, false, []string{`spec.mtls.mode "STRCT": is not a mode: write STRICT, PERMISSIVE, DISABLE or UNSET` + strict}},
		{`{kind: PeerAuthentication, spec: {selector: {matchLabels: {a: b}}, portLevelMtls: {http: {mode: PERMISSIVE}}}}`, false, []string{`spec.portLevelMtls.http "http": is not a port: write a number from 1 to 65535` + strict}},
		{`{kind: PeerAuthentication, spec: {portLevelMtls: {80: {mode: STRICT}}}}`, false, []string{`spec.portLevelMtls "": counts for nothing without a selector, as in Istio: add a selector, or take it away`}},
	} {
		whole := readYAML(t, c.object)
		if whole["metadata"] == nil {
			whole["apiVersion"], whole["metadata"] = "security.istio.io/v1", tree{"name": "p", "namespace": "demo"}
		}
		o, problems := Parse(whole)
		var got []string
		for _, p := range problems {
			got = append(got, fmt.Sprintf("%s %q: %s", pathOf(p.Path), p.Value, p.Message))
		}
		if !slices.Equal(got, c.want) {
			t.Errorf("%s:\ngot  %s\nwant %s", c.object, strings.Join(got, "\n     "), strings.Join(c.want, "\n     "))
		}
		if isOut := slices.ContainsFunc(problems, func(p Problem) bool { return p.Out }); isOut != c.out || (o == nil) != c.out {
			t.Errorf("%s: object %v, out %v, want out %v", c.object, o, isOut, c.out)
		}
	}
}

func pathOf(path []any) (s string) {
	for _, p := range path {
		if i, is := p.(int); is {
			s += fmt.Sprintf("[%d]", i)
		} else {
			s += "." + p.(string)
		}
	}
	return strings.TrimPrefix(s, ".")
}

// Whatever is written, the object decides, and says the same once more.
func FuzzParse(f *testing.F) {
	files, _ := filepath.Glob("testdata/*.yaml")
	for _, name := range files {
		text, err := os.ReadFile(name)
		if err != nil {
			f.Fatal(err)
		}
		f.Add(string(text))
	}
	f.Fuzz(func(t *testing.T, text string) {
		var doc tree
		if yaml.Unmarshal([]byte(text), &doc) != nil {
			return
		}
		o, problems := Parse(doc)
		if out := slices.ContainsFunc(problems, func(p Problem) bool { return p.Out }); (o == nil) != out {
			t.Fatalf("object %v with problems %v", o, problems)
		}
		for _, p := range problems {
			if p.Message == "" || len(p.Path) == 0 {
				t.Fatalf("problem %+v says nothing", p)
			}
		}
		if o == nil {
			return
		}
		set := NewSet(o.Name().Namespace, []Object{o})
		for _, c := range []Connection{{}, {From: addressOf("10.0.0.1")}} {
			e := set.For(Workload{Namespace: "demo"})
			if d := e.Decide(c); d.String() != e.Decide(c).String() || d.Verdict == Allowed && d.Rule < 0 {
				t.Fatalf("%s", d)
			}
		}
	})
}
