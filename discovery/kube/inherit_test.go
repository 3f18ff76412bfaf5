package kube

import (
	"fmt"
	"maps"
	"testing"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/isthmus-mesh/isthmus/discovery"
	"github.com/isthmus-mesh/isthmus/mesh"
)

// podEvent is a ready pod of namespace demo. Mode is its label istio.io/dataplane-mode; "host" is a pod on
// the network of its node.
func podEvent(name, mode string) Event {
	p := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "demo", Name: name, Labels: map[string]string{}}, Spec: corev1.PodSpec{NodeName: "n"},
		Status: corev1.PodStatus{Phase: corev1.PodRunning, PodIP: "10.1.0.1", Conditions: []corev1.PodCondition{{Type: corev1.PodReady, Status: corev1.ConditionTrue}}}}
	if p.UID = "u"; mode == "host" {
		p.Spec.HostNetwork = true
		mode = "ambient"
	}
	p.Labels[labelDataplane] = mode
	return Event{Pods, "demo", name, p}
}

// sliceEvent is a slice of Service web that lists pods; an empty name is an endpoint that is no pod.
func sliceEvent(pods ...string) Event {
	s := &discoveryv1.EndpointSlice{ObjectMeta: metav1.ObjectMeta{Namespace: "demo", Name: "web-1", Labels: map[string]string{labelOfSlice: "web"}}, AddressType: discoveryv1.AddressTypeIPv4,
		Ports: []discoveryv1.EndpointPort{{Port: new(int32(80))}}}
	for _, p := range pods {
		e := discoveryv1.Endpoint{Addresses: []string{"172.18.0.2"}}
		if p != "" {
			e.TargetRef = &corev1.ObjectReference{Kind: "Pod", Namespace: "demo", Name: p}
		}
		s.Endpoints = append(s.Endpoints, e)
	}
	return Event{EndpointSlices, "demo", "web-1", s}
}

// webOf is Service web of namespace demo, whose mode is ambient. Set are its labels, or more of the namespace.
func webOf(selects, atService bool, set map[string]string) []Event {
	svc := &corev1.Service{ObjectMeta: metav1.ObjectMeta{Namespace: "demo", Name: "web"}, Spec: corev1.ServiceSpec{ClusterIP: "10.96.0.7", Ports: []corev1.ServicePort{{Port: 80}}}}
	ns := &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: "demo", Labels: map[string]string{labelDataplane: "ambient"}}}
	if selects {
		svc.Spec.Selector = map[string]string{"app": "web"}
	}
	if atService {
		svc.Labels = set
	} else {
		maps.Copy(ns.Labels, set)
	}
	return []Event{{Namespaces, "", "demo", ns}, {Services, "demo", "web", svc}}
}

var reaches = []map[string]string{{labelGlobal: "true"}, {labelScope: scopeGlobal}, {labelScope: scopeSegment}, {labelScope: scopeGlobalOnly}, {labelScope: scopeGlobal, labelTakeover: "true"}}

// A label of the namespace makes a Service global if it has a pod in the mesh, or if it selects pods, has no endpoint
// yet, and the mode of the namespace is ambient. Any other keeps its cluster IP with the kernel, and is not exported. A label at the Service counts always.
func TestNamespaceReachNeedsMeshPods(t *testing.T) {
	for _, x := range []struct {
		name     string
		selects  bool
		pods     []string // of modes, which are their names too
		want     bool
		problems int
	}{
		{"selector, no endpoint", true, nil, true, 0},
		{"selector, a pod in the mesh", true, []string{"ambient"}, true, 0},
		{"selector, a pod in the mesh and one that is not", true, []string{"none", "ambient"}, true, 0},
		{"selector, pods that are not known yet", true, []string{"unknown"}, true, 0},
		{"selector, a pod outside the mesh", true, []string{"none"}, false, 1},
		{"selector, a pod on the host network", true, []string{"host"}, false, 0},
		{"selector, pods on the host network and outside", true, []string{"host", "none"}, false, 1},
		{"no selector, no endpoint", false, nil, false, 0},
		{"no selector, an address that is no pod", false, []string{""}, false, 0},
		{"no selector, a pod in the mesh", false, []string{"ambient"}, true, 0},
	} {
		for _, set := range reaches {
			for _, atService := range []bool{false, true} {
				c, b := NewCluster("west", "istio-system"), west()
				b.Apply(c.Apply(append(webOf(x.selects, atService, set), sliceEvent(x.pods...))...)...)
				for _, p := range x.pods {
					if p != "" && p != "unknown" {
						b.Apply(c.Apply(podEvent(p, p))...)
					}
				}
				snap, _, _ := b.Commit()
				svc := snap.Named("web.demo.svc.cluster.local")
				if got, want := mesh.Exports(svc, snap.Members(svc, "west")), x.want || atService; got != want || !want && svc.Takeover {
					t.Errorf("%s, %v (at the Service: %t): exported %t, takeover %t; want %t", x.name, set, atService, got, svc.Takeover, want)
				}
				if !atService && !x.want && len(b.Problems()) != x.problems {
					t.Errorf("%s, %v: problems %v; want %d", x.name, set, b.Problems(), x.problems)
				}
			}
		}
	}
}

// A Service of a global namespace follows its pods: one that gets the label of the mesh, or loses it, and the last
// one that goes. While it restarts it stays exported.
func TestNamespaceReachFollowsPods(t *testing.T) {
	c, b := NewCluster("west", "istio-system"), west()
	b.Apply(c.Apply(webOf(true, false, map[string]string{labelGlobal: "true"})...)...)
	for i, step := range []struct {
		event Event
		want  bool
	}{
		{sliceEvent("p"), true},
		{podEvent("p", "none"), false},
		{podEvent("p", "ambient"), true},
		{podEvent("p", "host"), false},
		{podEvent("p", "ambient"), true},
		{Event{Pods, "demo", "p", nil}, true},
		{sliceEvent(), true},
		{sliceEvent(""), false},
		{Event{EndpointSlices, "demo", "web-1", nil}, true},
		{podEvent("p", "ambient"), true},
		{sliceEvent("p"), true},
	} {
		b.Apply(c.Apply(step.event)...)
		snap, _, _ := b.Commit()
		if svc := snap.Named("web.demo.svc.cluster.local"); svc.Exported() != step.want || svc.Takeover != step.want {
			t.Fatalf("step %d: scope %q, takeover %t; want exported %t", i, svc.Scope, svc.Takeover, step.want)
		}
	}
}

// While the pods of a Service outside the mesh are replaced, its cluster IP must not lead to another network. That goes by
// the mode of the namespace, so that gateways agree whenever they started.
func TestNamespaceReachWithoutEndpointsFollowsMode(t *testing.T) {
	for _, mode := range []string{"", "none", "ambient"} {
		events := webOf(true, false, map[string]string{labelGlobal: "true", labelDataplane: mode})
		c, b := NewCluster("west", "istio-system"), west()
		b.Apply(c.Apply(events...)...)
		for i, step := range []struct {
			events []Event
			want   bool
		}{
			{[]Event{podEvent("db-0", "none"), sliceEvent("db-0")}, false},
			{[]Event{sliceEvent(), {Pods, "demo", "db-0", nil}}, mode == "ambient"},
			{[]Event{podEvent("db-0", "ambient")}, mode == "ambient"},
			{[]Event{sliceEvent("db-0")}, true},
		} {
			b.Apply(c.Apply(step.events...)...)
			snap, _, _ := b.Commit()
			if svc := snap.Named("web.demo.svc.cluster.local"); svc.Exported() != step.want || svc.Takeover != step.want {
				t.Errorf("namespace of mode %q, step %d: scope %q, takeover %t; want exported %t", mode, i, svc.Scope, svc.Takeover, step.want)
			}
		}
	}
}

// solo.io/service-takeover: "false" at a Service keeps its cluster IP in the cluster, whatever else is set there or
// at its namespace. The Service is exported all the same.
func TestTakeoverFalseAtServiceWins(t *testing.T) {
	for _, set := range reaches {
		for _, atService := range []bool{false, true} {
			t.Run(fmt.Sprint(set, atService), func(t *testing.T) {
				events := webOf(true, atService, set)
				svc := events[1].Object.(*corev1.Service)
				svc.Annotations = map[string]string{labelTakeover: "false"}
				if atService && set[labelTakeover] != "" {
					t.Skip("the label contradicts the annotation, and counts")
				}
				for _, ch := range NewCluster("west", "istio-system").Apply(events...) {
					if r, is := ch.Record.(discovery.Service); is && (r.Scope == "" || r.Takeover || len(ch.Faults) > 0) {
						t.Errorf("scope %q, takeover %t, problems %v", r.Scope, r.Takeover, ch.Faults)
					}
				}
			})
		}
	}
}
