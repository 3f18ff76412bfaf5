package kube

import (
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/isthmus-mesh/isthmus/mesh"
)

// setTo returns an object with the settings that are not empty, Solo's as annotations if so asked.
func setTo(global, takeover, scope string, annotated bool) (m metav1.ObjectMeta) {
	m = metav1.ObjectMeta{Name: "demo", Namespace: "demo", Labels: map[string]string{}, Annotations: map[string]string{}}
	solo := m.Labels
	if annotated {
		solo = m.Annotations
	}
	for _, s := range []struct {
		on         map[string]string
		key, value string
	}{{m.Labels, labelGlobal, global}, {solo, labelTakeover, takeover}, {solo, labelScope, scope}} {
		if s.value != "" {
			s.on[s.key] = s.value
		}
	}
	return m
}

// Every combination of what a Service, its namespace and a ServiceExport set has the scope of the first of
// these that sets one, and nothing that the Service sets is without effect and without a problem.
func TestServiceScopePrecedence(t *testing.T) {
	scopes := map[string]mesh.Scope{"cluster": "", "segment": mesh.ScopeSegment, "global": mesh.ScopeGlobal, "global-only": mesh.ScopeGlobal, "odd": ""}
	words := []string{"", "cluster", "segment", "global", "global-only", "odd"}
	flags := []string{"", "true", "false"}
	first := func(values ...string) string {
		for _, v := range values {
			if v != "" {
				return v
			}
		}
		return ""
	}
	each(words, flags, flags, func(scope, takeover, global string) {
		each(words, flags, flags, func(nsScope, nsTakeover, nsGlobal string) {
			for _, exported := range []bool{false, true} {
				for _, segmented := range []bool{false, true} {
					annotated := (len(scope)+len(nsScope))%2 == 0
					ns := &corev1.Namespace{ObjectMeta: setTo(nsGlobal, nsTakeover, nsScope, !annotated)}
					ns.Labels[labelDataplane] = "ambient"
					s := service{name: name{"demo", "demo"}, segmented: segmented, namespace: ns, object: &corev1.Service{ObjectMeta: setTo(global, takeover, scope, annotated), Spec: corev1.ServiceSpec{Selector: map[string]string{"a": "b"}, ClusterIP: "10.96.0.1", Ports: []corev1.ServicePort{{Port: 80}}}}}
					if exported {
						s.export = &metav1.PartialObjectMetadata{}
					}
					var want mesh.Scope
					switch {
					case scope != "":
						want = scopes[scope]
					case global == "true" || exported:
						want = mesh.ScopeGlobal
					case global == "false":
					case nsScope != "":
						want = scopes[nsScope]
					case nsGlobal == "true":
						want = mesh.ScopeGlobal
					}
					if segmented && want == mesh.ScopeSegment {
						want = ""
					}
					own := map[bool]string{true: "true"}[global == "true" || scope == "global-only"]
					inherited := map[bool]string{true: "true"}[first(global, nsGlobal) == "true" || scope == "" && global == "" && nsScope == "global-only"]
					wantTakeover := want != "" && first(takeover, own, nsTakeover, inherited) == "true"
					r, f := s.read()
					if mesh.Scope(r.Scope) != want || r.Takeover != wantTakeover {
						t.Fatalf("Service %+v, namespace %+v, exported %t, segmented %t: %q, takeover %t; want %q, %t", s.object.ObjectMeta, ns.ObjectMeta, exported, segmented, r.Scope, r.Takeover, want, wantTakeover)
					}
					ignored := scope == "odd" || scope == "segment" && want == "" || scope == "cluster" && exported || takeover == "true" && !wantTakeover || global == "true" && want != mesh.ScopeGlobal || exported && want != mesh.ScopeGlobal
					if ignored != (len(f) > 0) {
						t.Fatalf("Service %+v, namespace %+v, exported %t, segmented %t: %q; problems %v, want some: %t", s.object.ObjectMeta, ns.ObjectMeta, exported, segmented, r.Scope, f, ignored)
					}
					narrow := nsScope == "cluster" || nsScope == "segment"
					if got, want := len((namespace{object: ns, segmented: segmented}).read()) > 0, nsScope == "odd" || nsScope == "segment" && segmented || narrow && nsGlobal == "true"; got != want {
						t.Fatalf("namespace %+v, segmented %t: problems %t, want %t", ns.ObjectMeta, segmented, got, want)
					}
				}
			}
		})
	})
}

func each(as, bs, cs []string, f func(a, b, c string)) {
	for _, a := range as {
		for _, b := range bs {
			for _, c := range cs {
				f(a, b, c)
			}
		}
	}
}

// The label admin.solo.io/segment of the system namespace, which is not supported, keeps services of scope
// segment in the cluster, and its removal exports them, in whatever order the objects come.
func TestSystemNamespaceSegmentKeepsServices(t *testing.T) {
	system := func(segment string) Event {
		return Event{Namespaces, "", "istio-system", &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: "istio-system", Labels: map[string]string{labelSegment: segment}}}}
	}
	space := Event{Namespaces, "", "demo", &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: "demo", Labels: map[string]string{labelScope: "segment", labelDataplane: "ambient"}}}}
	svc := Event{Services, "demo", "hello", &corev1.Service{ObjectMeta: metav1.ObjectMeta{Namespace: "demo", Name: "hello"}, Spec: corev1.ServiceSpec{ClusterIP: "10.96.0.1", Selector: map[string]string{"a": "b"}, Ports: []corev1.ServicePort{{Port: 80}}}}}
	for _, order := range [][]Event{{system("prod"), space, svc}, {svc, space, system("prod")}, {space, svc, system("prod")}} {
		c, b := NewCluster("west", "istio-system"), west()
		for _, e := range order {
			b.Apply(c.Apply(e)...)
		}
		snap, _, _ := b.Commit()
		if found := snap.Named("hello.demo.svc.cluster.local"); found.Exported() || len(b.Problems()) != 2 {
			t.Errorf("scope %q, problems %v; want it in its cluster, and a problem of either namespace", found.Scope, b.Problems())
		}
		b.Apply(c.Apply(system(""))...)
		snap, _, _ = b.Commit()
		if found := snap.Named("hello.demo.svc.cluster.local"); found.Scope != mesh.ScopeSegment || len(b.Problems()) != 0 {
			t.Errorf("without the label: scope %q, problems %v", found.Scope, b.Problems())
		}
	}
}
