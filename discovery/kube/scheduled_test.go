package kube

import (
	"fmt"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/isthmus-mesh/isthmus/discovery"
)

// A pod is known to its node from when it is scheduled, and to others from when it has an address.
func TestAPodIsKnownToItsNodeBeforeItHasAnAddress(t *testing.T) {
	c := NewCluster("east", "isthmus-system")
	b := discovery.NewBuilder(0)
	b.Apply(discovery.Change{Key: discovery.Key{Kind: discovery.KindNetwork, Name: "east"}, Record: discovery.Network{Name: "east"}})
	c.Apply(Event{Kind: Namespaces, Name: "demo", Object: &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: "demo", Labels: map[string]string{labelDataplane: "ambient"}}}})
	step := func(p *corev1.Pod) {
		t.Helper()
		e := Event{Kind: Pods, Namespace: "demo", Name: "shop"}
		if p != nil {
			e.Object = p
		}
		b.Apply(c.Apply(e)...)
	}
	shop := func(change func(*corev1.Pod)) *corev1.Pod {
		p := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "demo", Name: "shop", UID: "u-1"}, Spec: corev1.PodSpec{ServiceAccountName: "shop"}, Status: corev1.PodStatus{Phase: corev1.PodPending}}
		change(p)
		return p
	}
	check := func(when string, scheduled, addressed bool) {
		t.Helper()
		s, _, _ := b.Commit()
		if w := s.Scheduled("u-1"); (w != nil) != scheduled || len(s.ScheduledOn("east", "n-1")) > 0 != scheduled || w != nil && (w.Identity.String() != "spiffe://cluster.local/ns/demo/sa/shop" || w.Plain) {
			t.Errorf("%s: scheduled is %+v, want one: %v", when, w, scheduled)
		}
		if w := s.Workload("u-1"); (w != nil) != addressed || s.NumWorkloads() > 0 != addressed || len(s.OnNode("east", "n-1")) > 0 != addressed {
			t.Errorf("%s: the workload is %+v, want one: %v", when, w, addressed)
		}
		if p := b.Problems(); len(p) > 0 {
			t.Errorf("%s: %v", when, p)
		}
	}
	step(shop(func(*corev1.Pod) {}))
	check("not scheduled", false, false)
	step(shop(func(p *corev1.Pod) { p.Spec.NodeName = "n-1" }))
	check("scheduled", true, false)
	step(shop(func(p *corev1.Pod) {
		p.Spec.NodeName, p.Status.PodIP = "n-1", "10.0.0.7"
	}))
	check("with an address", false, true)
	step(shop(func(p *corev1.Pod) { p.Spec.NodeName = "n-1" }))
	check("without it again", true, false)
	step(shop(func(p *corev1.Pod) { p.Spec.NodeName, p.Status.Phase = "n-1", corev1.PodFailed }))
	check("over", false, false)
	step(shop(func(p *corev1.Pod) { p.Spec.NodeName, p.Spec.HostNetwork = "n-1", true }))
	check("on the network of its node", false, false)
	step(shop(func(p *corev1.Pod) { p.Spec.NodeName = "n-1" }))
	step(nil)
	check("gone", false, false)
}

// A pod that a fault keeps out of the mesh is told to its node as such, whether it has an address or not: its CNI plugin
// would wait for it otherwise.
func TestANodeIsToldOfItsPodsThatAreNotInTheMesh(t *testing.T) {
	many := map[string]string{}
	for i := range maxLabels + 1 {
		many[fmt.Sprint("l", i)] = ""
	}
	for name, x := range map[string]struct {
		pod     corev1.Pod
		outside bool
	}{
		"with too many labels":             {corev1.Pod{ObjectMeta: metav1.ObjectMeta{Labels: many}, Spec: corev1.PodSpec{NodeName: "n-1"}}, true},
		"the same, with an address":        {corev1.Pod{ObjectMeta: metav1.ObjectMeta{Labels: many}, Spec: corev1.PodSpec{NodeName: "n-1"}, Status: corev1.PodStatus{PodIP: "10.0.0.7"}}, true},
		"the same, on no node yet":         {corev1.Pod{ObjectMeta: metav1.ObjectMeta{Labels: many}}, false},
		"with an address that is none":     {corev1.Pod{Spec: corev1.PodSpec{NodeName: "n-1"}, Status: corev1.PodStatus{PodIP: "10.0.0.777"}}, true},
		"of a network that nobody lists":   {corev1.Pod{ObjectMeta: metav1.ObjectMeta{Labels: map[string]string{labelNetwork: "south"}}, Spec: corev1.PodSpec{NodeName: "n-1"}}, true},
		"of another network":               {corev1.Pod{ObjectMeta: metav1.ObjectMeta{Labels: map[string]string{labelNetwork: "west"}}, Spec: corev1.PodSpec{NodeName: "n-1"}}, true},
		"the same, with an address of its": {corev1.Pod{ObjectMeta: metav1.ObjectMeta{Labels: map[string]string{labelNetwork: "west"}}, Spec: corev1.PodSpec{NodeName: "n-1"}, Status: corev1.PodStatus{PodIP: "10.0.0.7"}}, true},
		"on the network of its node":       {corev1.Pod{Spec: corev1.PodSpec{NodeName: "n-1", HostNetwork: true}}, false}, // no plugin is called for it
		"as pods are":                      {corev1.Pod{Spec: corev1.PodSpec{NodeName: "n-1"}}, false},
	} {
		c, b := NewCluster("east", "isthmus-system"), discovery.NewBuilder(0)
		for _, n := range []string{"east", "west"} {
			b.Apply(discovery.Change{Key: discovery.Key{Kind: discovery.KindNetwork, Name: n}, Record: discovery.Network{Name: n}})
		}
		p := x.pod
		p.Namespace, p.Name, p.UID = "demo", "shop", "u-1"
		b.Apply(c.Apply(Event{Kind: Pods, Namespace: "demo", Name: "shop", Object: &p})...)
		s, _, _ := b.Commit()
		if got := len(s.OutsideOn("east", "n-1")) == 1; got != x.outside {
			t.Errorf("a pod %s is outside: %v, want %v", name, got, x.outside)
		}
		if w := s.Workload("u-1"); w != nil && w.Network == "east" {
			t.Errorf("a pod %s is %+v", name, w)
		}
		if len(s.ScheduledOn("east", "n-1")) > 0 == x.outside && name != "on the network of its node" && p.Spec.NodeName != "" {
			t.Errorf("a pod %s is among those that get an address", name)
		}
		b.Apply(c.Apply(Event{Kind: Pods, Namespace: "demo", Name: "shop"})...)
		if s, _, _ := b.Commit(); len(s.OutsideOn("east", "n-1")) > 0 {
			t.Errorf("a pod %s is outside after it has gone", name)
		}
	}
}
