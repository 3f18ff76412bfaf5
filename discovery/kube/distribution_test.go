package kube

import (
	"net/netip"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/isthmus-mesh/isthmus/discovery"
	"github.com/isthmus-mesh/isthmus/mesh"
	"github.com/isthmus-mesh/isthmus/route"
)

// internalTrafficPolicy holds for clients of the cluster alone. Whatever it is beside every source
// of a traffic distribution, other networks are told the same distribution and have a candidate,
// and nothing is a problem.
func TestLocalPolicyServesOtherNetworks(t *testing.T) {
	words := []string{"", "PreferClose", "PreferSameNode", "PreferNetwork", "Any"}
	local, cluster := corev1.ServiceInternalTrafficPolicyLocal, corev1.ServiceInternalTrafficPolicyCluster
	for _, spec := range words {
		for _, own := range words {
			for _, space := range words {
				want := mesh.PreferNetwork
				for _, w := range []string{space, own, spec} {
					if w != "" {
						want = mesh.Distribution(w)
					}
				}
				for _, policy := range []*corev1.ServiceInternalTrafficPolicy{nil, &cluster, &local} {
					svc := &corev1.Service{ObjectMeta: metav1.ObjectMeta{Namespace: "demo", Name: "hello", Labels: map[string]string{labelGlobal: "true"}, Annotations: map[string]string{annotationDistribution: own}},
						Spec: corev1.ServiceSpec{ClusterIP: "10.96.0.1", Selector: map[string]string{"app": "hello"}, InternalTrafficPolicy: policy, TrafficDistribution: &spec, Ports: []corev1.ServicePort{{Port: 80}}}}
					snap, problems := helloOnWest(t, svc, map[string]string{annotationDistribution: space})
					if len(problems) > 0 {
						t.Errorf("%v", problems)
					}
					found := snap.Named("hello.demo.svc.cluster.local")
					if found == nil {
						t.Fatal("no service")
					}
					export, ok := mesh.ExportOf(found, snap.Members(found, "west"))
					if !ok || export.Distribution != want {
						t.Errorf("policy %v, spec %q, service %q, namespace %q: exported %v with %q; want %q", policy, spec, own, space, ok, export.Distribution, want)
					}
					if got := eastReaches(t, export); !got {
						t.Errorf("policy %v, spec %q, service %q, namespace %q: a client of another network has no candidate", policy, spec, own, space)
					}
					for client, node := range map[string]string{"u-near": "n1", "u-far": "n2"} {
						plan, err := route.Resolve(snap, route.Flow{Source: snap.Workload(client), Host: "hello.demo.mesh.internal", Port: 80})
						strict := policy == &local && node != "n1"
						if (err != nil) != strict || err == nil && len(plan.Candidates) != 1 || strict && !strings.Contains(err.Error(), "internalTrafficPolicy: Local") {
							t.Errorf("policy %v: a client on %s has %v, %v; want the pod on n1 unless the policy is Local and it is on another node", policy, node, plan, err)
						}
					}
				}
			}
		}
	}
}

// helloOnWest is network west with svc, one pod of it on node n1 and a client on each of n1 and n2.
func helloOnWest(t *testing.T, svc *corev1.Service, annotations map[string]string) (*mesh.Snapshot, []discovery.Problem) {
	t.Helper()
	c, b := NewCluster("west", "istio-system"), discovery.NewBuilder(0)
	b.Apply(discovery.Change{Key: discovery.Key{Kind: discovery.KindNetwork, Name: "west"}, Record: discovery.Network{Name: "west"}})
	pod := func(name, node, ip string) Event {
		return Event{Pods, "demo", name, &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "demo", Name: name, UID: types.UID("u-" + name)}, Spec: corev1.PodSpec{NodeName: node},
			Status: corev1.PodStatus{Phase: corev1.PodRunning, PodIP: ip, Conditions: []corev1.PodCondition{{Type: corev1.PodReady, Status: corev1.ConditionTrue}}}}}
	}
	for _, e := range []Event{
		{Namespaces, "", "demo", &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: "demo", Labels: map[string]string{labelDataplane: "ambient"}, Annotations: annotations}}},
		{Services, "demo", svc.Name, svc}, pod("hello", "n1", "10.1.0.1"), pod("near", "n1", "10.1.0.2"), pod("far", "n2", "10.1.0.3"),
		{EndpointSlices, "demo", "hello-x", &discoveryv1.EndpointSlice{ObjectMeta: metav1.ObjectMeta{Namespace: "demo", Name: "hello-x", Labels: map[string]string{labelOfSlice: svc.Name}}, AddressType: discoveryv1.AddressTypeIPv4,
			Ports:     []discoveryv1.EndpointPort{{Port: &svc.Spec.Ports[0].Port}},
			Endpoints: []discoveryv1.Endpoint{{Addresses: []string{"10.1.0.1"}, TargetRef: &corev1.ObjectReference{Kind: "Pod", Name: "hello"}}}}},
	} {
		e.Object, _ = trim(e.Object)
		b.Apply(c.Apply(e)...)
	}
	snap, _, _ := b.Commit()
	return snap, b.Problems()
}

// eastReaches reports whether a client of another network, which knows of e alone, has a candidate.
func eastReaches(t *testing.T, e mesh.Export) bool {
	t.Helper()
	b := discovery.NewBuilder(0)
	for _, r := range []struct {
		kind   discovery.Kind
		name   string
		record discovery.Record
	}{
		{discovery.KindNetwork, "east", discovery.Network{Name: "east"}}, {discovery.KindNetwork, "west", discovery.Network{Name: "west"}},
		{discovery.KindGateway, "gw", discovery.Gateway{Name: "gw", Network: "west", Address: netip.MustParseAddrPort("192.0.2.1:15008")}},
		{discovery.KindWorkload, "shop", discovery.Workload{UID: "shop", Network: "east", Node: "n1", Addresses: []netip.Addr{netip.MustParseAddr("10.0.0.1")}}},
		{discovery.KindShare, "hello", discovery.Share{Network: "west", Name: e.Name, Namespace: e.Namespace, Ports: []discovery.SharePort{{Port: 80}}, TrafficDistribution: string(e.Distribution), Identities: []string{e.Identities[0].String()}}},
	} {
		b.Apply(discovery.Change{Key: discovery.Key{Kind: r.kind, Name: r.name}, Record: r.record})
	}
	snap, _, _ := b.Commit()
	plan, err := route.Resolve(snap, route.Flow{Source: snap.Workload("shop"), Host: "hello.demo.mesh.internal", Port: 80})
	return err == nil && len(plan.Candidates) == 1
}
