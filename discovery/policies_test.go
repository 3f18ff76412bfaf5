package discovery

import (
	"fmt"
	"strings"
	"testing"

	"github.com/spiffe/go-spiffe/v2/spiffeid"

	"github.com/isthmus-mesh/isthmus/policy"
)

func policyOf(ns, name, action string) Policy {
	return Policy{"apiVersion": "security.istio.io/v1", "kind": "AuthorizationPolicy", "metadata": map[string]any{"name": name, "namespace": ns}, "spec": map[string]any{"action": action, "rules": []any{map[string]any{}}}}
}

func keyOf(s Source, ns, name string) Key {
	return Key{Kind: KindPolicy, Source: s, Name: "AuthorizationPolicy " + ns + "/" + name}
}

func denied(b *Builder, ns string) bool {
	s, _, _ := b.Commit()
	return !s.Policies().For(policy.Workload{Namespace: ns}).Decide(policy.Connection{}).Allowed()
}

// Until all policies of a cluster are known nobody is told that there are none.
func TestTheRootNamespaceOfTheClusterGoesFirst(t *testing.T) {
	b := NewBuilder(0)
	b.SetRootNamespace("written")
	b.Apply(Change{Key: keyOf(Cluster, "told", "all"), Record: policyOf("told", "all", "DENY")})
	s, _, _ := b.Commit()
	if s.Policies().Root() != "written" || s.Policies().HasCluster() || denied(b, "demo") {
		t.Errorf("root %q before the cluster is known", s.Policies().Root())
	}
	b.Apply(Change{Key: RootNamespaceKey(), Record: RootNamespace{Name: "told"}})
	s, changes, _ := b.Commit()
	if s.Policies().Root() != "told" || !s.Policies().HasCluster() || !changes.Policies || !denied(b, "demo") {
		t.Errorf("root %q, changes %+v", s.Policies().Root(), changes)
	}
	b.Apply(Change{Key: keyOf(Cluster, "told", "all")})
	if s, _, _ = b.Commit(); !s.Policies().HasCluster() || denied(b, "demo") {
		t.Error("without policies of a cluster that is known")
	}
	b.Apply(Change{Key: RootNamespaceKey()})
	if s, _, _ = b.Commit(); s.Policies().HasCluster() {
		t.Error("the cluster is not known any more")
	}
	if n := len(b.Problems()); n > 0 {
		t.Error(b.Problems())
	}
}

func TestANamespaceThatIsFullOfPoliciesIsAProblem(t *testing.T) {
	b := NewBuilder(0)
	b.Apply(Change{Key: RootNamespaceKey(), Record: RootNamespace{Name: "root"}}, Change{Key: Key{Kind: KindNamespace, Source: Cluster, Name: "demo"}, Faults: []Problem{{Message: "something else"}}})
	long := policyOf("demo", "x", "ALLOW")
	long["spec"].(map[string]any)["selector"] = map[string]any{"matchLabels": map[string]any{"app": strings.Repeat("x", 60_000)}}
	for i := range 40 {
		p := Policy{}
		for k, v := range long {
			p[k] = v
		}
		p["metadata"] = map[string]any{"name": fmt.Sprint(i), "namespace": "demo"}
		b.Apply(Change{Key: keyOf(Cluster, "demo", fmt.Sprint(i)), Record: p})
	}
	if !denied(b, "demo") || denied(b, "other") {
		t.Error("a namespace that is full is not closed, or another one is")
	}
	if list := b.Problems(); len(list) != 2 || !strings.Contains(list[1].Message, "2 MiB") {
		t.Errorf("problems %v", list)
	}
	b.Apply(Change{Key: keyOf(Cluster, "demo", "0")}, Change{Key: keyOf(Cluster, "demo", "1")}, Change{Key: keyOf(Cluster, "demo", "2")}, Change{Key: keyOf(Cluster, "demo", "3")}, Change{Key: keyOf(Cluster, "demo", "4")}, Change{Key: keyOf(Cluster, "demo", "5")})
	if denied(b, "demo") || len(b.Problems()) != 1 {
		t.Errorf("it is not full any more, and is closed, or a problem: %v", b.Problems())
	}
}

// What somebody has copied from a cluster into a file says nothing of what is newer.
func TestAFileHasNoRevisions(t *testing.T) {
	for _, from := range []Source{Written, Cluster} {
		p := policyOf("demo", "x", "DENY")
		p["metadata"].(map[string]any)["resourceVersion"] = "700"
		b := NewBuilder(0)
		b.Apply(Change{Key: keyOf(from, "demo", "x"), Record: p})
		s, _, _ := b.Commit()
		if got := s.Policies().Objects()[0].Revised(); (got == 700) != (from == Cluster) {
			t.Errorf("source %v: revision %d", from, got)
		}
	}
}

// What has no kind that is known, or the name of one before it, is as if nobody had written it: it closes nothing.
func TestAPolicyThatIsLeftOutClosesNothing(t *testing.T) {
	closing := func(ns, name, kind string) Policy {
		p := policyOf(ns, name, "DENY")
		p["kind"] = kind
		return p
	}
	b := NewBuilder(0)
	for i, p := range []Policy{closing("misspelt", "all", "AuthorisationPolicy"), closing("open", "all", "AuthorizationPolicy"), closing("closed", "all", "AuthorizationPolicy")} {
		if i == 1 {
			p["spec"] = map[string]any{"action": "DENY"} // no rules
		}
		b.Apply(Change{Key: Key{Kind: KindPolicy, Source: Written, Nth: i}, Record: p})
	}
	b.Apply(Change{Key: Key{Kind: KindPolicy, Source: Written, Nth: 3}, Record: closing("open", "all", "AuthorizationPolicy")})
	for ns, want := range map[string]bool{"misspelt": false, "open": false, "closed": true} {
		if denied(b, ns) != want {
			t.Errorf("namespace %s is closed: %v, want %v", ns, !want, want)
		}
	}
	list := b.Problems()
	if len(list) != 2 || !list[0].Out || list[0].Field != "kind" || !list[1].Out || list[1].Field != "metadata.name" {
		t.Errorf("problems %+v", list)
	}
}

// What a gateway tells of a policy is its text, and who is told reads it in its own mesh: so what cluster.local in a principal
// stands for is found here alone, and again when the trust domain is another one.
func TestPrincipalsFollowTheTrustDomainOfTheMesh(t *testing.T) {
	for _, from := range []Source{Written, Cluster} {
		p := policyOf("demo", "x", "ALLOW")
		p["spec"].(map[string]any)["rules"] = []any{map[string]any{"from": []any{map[string]any{"source": map[string]any{"principals": []any{"cluster.local/ns/demo/sa/web"}}}}}}
		b := NewBuilder(0)
		b.Apply(Change{Key: keyOf(from, "demo", "x"), Record: p})
		for _, own := range []string{"cluster.local", "west.local", "east.local"} {
			b.SetTrustDomain(own)
			s, _, _ := b.Commit()
			for _, of := range []string{"cluster.local", "west.local", "east.local"} {
				who := policy.Connection{Source: spiffeid.RequireFromString("spiffe://" + of + "/ns/demo/sa/web")}
				if d := s.Policies().For(policy.Workload{Namespace: "demo"}).Decide(who); d.Allowed() != (of == own) {
					t.Errorf("source %v, in %s: %s is %s", from, own, who.Source, d)
				}
			}
			for _, linked := range [][]string{{"east.local"}, {"cluster.local", "east.local"}} {
				if got := s.PointingPolicies(linked); (len(got) == 1) != (own != "cluster.local" && len(linked) == 2) {
					t.Errorf("source %v, in %s with links to %s: %v", from, own, linked, got)
				}
			}
		}
	}
}
