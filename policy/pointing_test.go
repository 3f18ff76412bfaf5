package policy

import (
	"fmt"
	"slices"
	"testing"

	"github.com/spiffe/go-spiffe/v2/spiffeid"
)

// cluster.local before the first slash of a principal is the trust domain of the mesh, and not the one of that name; what is
// written otherwise is itself.
func TestClusterLocalIsTheTrustDomainOfTheMesh(t *testing.T) {
	const own, link, third = "spiffe://west.local/ns/demo/sa/web", "spiffe://cluster.local/ns/demo/sa/web", "spiffe://east.local/ns/demo/sa/web"
	for written, want := range map[string][]string{
		"cluster.local/ns/demo/sa/web": {own}, "cluster.local/ns/demo/sa/*": {own}, "cluster.local/ns/demo/*": {own}, "cluster.local/ns/*": {own}, "cluster.local/*": {own},
		"west.local/ns/demo/sa/web": {own}, "west.local/*": {own}, "*/ns/demo/sa/web": {own, link, third}, "*": {own, link, third},
		"*cluster.local/ns/demo/sa/web": {link}, "cluster.local*": {link}, "cluster*": {link}, "east.local/ns/demo/sa/web": {third}, "*local/ns/demo/sa/web": {own, link, third},
	} {
		for field, of := range map[string]string{
			"from: [{source: {principals: [%q]}}]": "is", "from: [{source: {notPrincipals: [%q]}}]": "not",
			"when: [{key: source.principal, values: [%q]}]": "is", "when: [{key: source.principal, notValues: [%q]}]": "not",
		} {
			for _, action := range []string{"ALLOW", "DENY"} {
				o, problems := ParseIn("west.local", readYAML(t, fmt.Sprintf("{apiVersion: security.istio.io/v1, kind: AuthorizationPolicy, metadata: {name: p, namespace: demo}, spec: {action: %s, rules: [{"+field+"}]}}", action, written)))
				if len(problems) > 0 {
					t.Fatalf("%s: %+v", written, problems)
				}
				for _, who := range []string{own, link, third} {
					matches := slices.Contains(want, who) == (of == "is")
					d := NewSet("root", []Object{o}).For(Workload{Namespace: "demo"}).Decide(Connection{Source: spiffeid.RequireFromString(who)})
					if d.Allowed() != (matches == (action == "ALLOW")) {
						t.Errorf("%s %s to %s: %s", action, fmt.Sprintf(field, written), who, d)
					}
				}
			}
		}
	}
}

// What a policy says of itself and what is told of it is what its author wrote.
func TestAPolicyKeepsItsPrincipalsAsTheyAreWritten(t *testing.T) {
	x := readYAML(t, `{apiVersion: security.istio.io/v1, kind: AuthorizationPolicy, metadata: {name: p, namespace: demo}, spec: {rules: [{from: [{source: {principals: [cluster.local/ns/demo/web]}}]}]}}`)
	written, before := Parse(x)
	in, problems := ParseIn("west.local", x)
	if written.Text() != in.Text() || len(problems) != 1 || fmt.Sprint(problems) != fmt.Sprint(before) || problems[0].Value != "cluster.local/ns/demo/web" {
		t.Errorf("in west.local %s with %+v, as written %s with %+v", in.Text(), problems, written.Text(), before)
	}
}

func TestPrincipalsThatDoNotNameALinkAreSaid(t *testing.T) {
	policies := []tree{
		readYAML(t, `{apiVersion: security.istio.io/v1, kind: AuthorizationPolicy, metadata: {name: one, namespace: demo}, spec: {rules: [{from: [{source: {principals: [west.local/ns/a/sa/b, cluster.local/ns/demo/*]}}]}]}}`),
		readYAML(t, `{apiVersion: security.istio.io/v1, kind: AuthorizationPolicy, metadata: {name: two, namespace: demo}, spec: {action: DENY, rules: [{from: [{source: {notPrincipals: [cluster.local/ns/a/sa/b]}}]}, {when: [{key: source.principal, values: [cluster.local/ns/a/sa/c]}]}]}}`),
		readYAML(t, `{apiVersion: security.istio.io/v1, kind: AuthorizationPolicy, metadata: {name: none, namespace: demo}, spec: {rules: [{from: [{source: {principals: ["*cluster.local/ns/a/sa/b"]}}]}]}}`),
	}
	const then = " if that is meant, and each client of the link that is as *cluster.local/ns/NAMESPACE/sa/ACCOUNT; until then an ALLOW policy does not let those in, and a DENY policy does"
	want := []string{
		"AuthorizationPolicy demo/one does not name the clients of the linked trust domain cluster.local: its principal cluster.local/ns/demo/* stands for west.local/ns/demo/*, of this mesh, as in Istio: write west.local/ns/demo/*" + then,
		"AuthorizationPolicy demo/two does not name the clients of the linked trust domain cluster.local: its principal cluster.local/ns/a/sa/b (and 1 more) stands for west.local/ns/a/sa/b, of this mesh, as in Istio: write west.local/ns/a/sa/b" + then,
	}
	var got []string
	for _, p := range setIn(t, "west.local", policies).Pointing("west.local") {
		got = append(got, p.String())
	}
	if !slices.Equal(got, want) {
		t.Errorf("got %q\nwant %q", got, want)
	}
	if got := setOf(t, policies).Pointing("cluster.local"); len(got) > 0 {
		t.Errorf("in cluster.local itself: %v", got)
	}
}
