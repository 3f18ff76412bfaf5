package policy

import (
	"fmt"
	"strings"
	"testing"

	"github.com/spiffe/go-spiffe/v2/spiffeid"
)

func TestAPrincipalOfNobodyIsAProblem(t *testing.T) {
	const (
		form   = "has not the form of a workload's identity"
		domain = "has no trust domain before ns/"
	)
	for written, want := range map[string]string{
		"ns/demo/sa/web": domain, "ns/demo/*": domain, "ns/*": domain,
		"web": form, "demo/web": form, "cluster.local/ns/demo": form, "cluster.local/ns/demo/sa/web/": form, "cluster.local/ns/demo/web": form, "/ns/demo/sa/web": form, "cluster.local//ns/demo/sa/web": form,
		"Cluster.Local/ns/demo/sa/web": form, "cluster.local/ns/demo/sa/we b": form, "cluster.local/sa/*": form, "/ns/*": form, "cluster.local/ns/demo/sa/web/node/east": form, "*/ns/demo/sa/web/": form, "*//demo": form, "*spiffe://a": form,
		"cluster.local/ns/demo/sa/web": "", "cluster.local/ns/demo/sa/web/node/east/worker-1": "", "*": "", "*/sa/web": "", "*web": "", "cluster.local/*": "", "cluster*": "", "cluster.local/n*": "", "cluster.local/ns/de*": "",
		"cluster.local/ns/demo/sa/*": "", "cluster.local/ns/demo/sa/web/*": "", "n*": "", "ns*": "", "ns.example/ns/demo/sa/web": "",
	} {
		for _, list := range []struct{ rule, path, means string }{
			{"{from: [{source: {principals: [%q]}}]}", "spec.rules[0].from[0].source.principals[0]", "matches nobody"},
			{"{from: [{source: {notPrincipals: [%q]}}]}", "spec.rules[0].from[0].source.notPrincipals[0]", "leaves nobody out"},
			{"{when: [{key: source.principal, values: [%q]}]}", "spec.rules[0].when[0].values[0]", "matches nobody"},
			{"{when: [{key: source.principal, notValues: [%q]}]}", "spec.rules[0].when[0].notValues[0]", "leaves nobody out"},
		} {
			_, problems := Parse(readYAML(t, "{apiVersion: security.istio.io/v1, kind: AuthorizationPolicy, metadata: {name: p, namespace: demo}, spec: {rules: ["+fmt.Sprintf(list.rule, written)+"]}}"))
			if want == "" {
				if len(problems) > 0 {
					t.Errorf("%s: %+v", written, problems)
				}
				continue
			}
			if len(problems) != 1 || pathOf(problems[0].Path) != list.path || problems[0].Value != written || !strings.HasPrefix(problems[0].Message, want+", and "+list.means+": write ") || problems[0].Out {
				t.Errorf("%s of %s: %+v, want %s, and %s", written, list.path, problems, want, list.means)
			}
		}
	}
}

// It is said, and changes nothing of who may connect.
func TestAPrincipalOfNobodyMatchesNobodyAsBefore(t *testing.T) {
	web := Connection{Source: spiffeid.RequireFromString("spiffe://cluster.local/ns/demo/sa/web")}
	for rule, want := range map[string][2]bool{ // whether ALLOW and DENY allow
		`principals: ["ns/demo/sa/web"]`:                                    {false, true},
		`principals: ["ns/demo/sa/web", "cluster.local/ns/demo/sa/web"]`:    {true, false},
		`notPrincipals: ["ns/demo/sa/web"]`:                                 {true, false},
		`notPrincipals: ["ns/demo/sa/web", "cluster.local/ns/demo/sa/web"]`: {false, true},
	} {
		for i, action := range []string{"ALLOW", "DENY"} {
			o, _ := Parse(readYAML(t, fmt.Sprintf("{apiVersion: security.istio.io/v1, kind: AuthorizationPolicy, metadata: {name: p, namespace: demo}, spec: {action: %s, rules: [{from: [{source: {%s}}]}]}}", action, rule)))
			if d := NewSet("root", []Object{o}).For(Workload{Namespace: "demo"}).Decide(web); d.Allowed() != want[i] {
				t.Errorf("%s %s: %s", action, rule, d)
			}
		}
	}
}
