package kube

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"testing"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/intstr"

	"github.com/isthmus-mesh/isthmus/discovery"
	"github.com/isthmus-mesh/isthmus/mesh"
	"github.com/isthmus-mesh/isthmus/route"
)

// TestExportFollowsServiceNotPods runs random schedules of pods that start, become ready, restart, lose their labels
// and go, each seen in the Pod and in the EndpointSlice at different times. As long as the Service is exported, the gateways
// of its network export it, and only identities and capacity change. They serve its connections, or refuse them for want
// of an endpoint. Without the ServiceExport or the Service there is no export.
func TestExportFollowsServiceNotPods(t *testing.T) {
	const host = "hello.demo.svc.cluster.local"
	for seed := range uint64(60) {
		rng := rand.New(rand.NewPCG(seed, 8))
		cluster, builder := NewCluster("west", "istio-system"), discovery.NewBuilder(0)
		builder.Apply(discovery.Change{Key: discovery.Key{Kind: discovery.KindNetwork, Name: "west"}, Record: discovery.Network{Name: "west"}})
		age := func(seconds int64) metav1.Time { return metav1.Unix(1_700_000_000+seconds, 0) }
		meta := func(name string) metav1.ObjectMeta { return metav1.ObjectMeta{Namespace: "demo", Name: name} }
		labelled, headless := rng.IntN(2) == 0, rng.IntN(3) == 0
		service := &corev1.Service{ObjectMeta: meta("hello"), Spec: corev1.ServiceSpec{ClusterIP: "10.0.0.1", Selector: map[string]string{"a": "b"},
			Ports: []corev1.ServicePort{{Name: "http", Port: 80, Protocol: "TCP", TargetPort: intstr.FromString("web")}, {Name: "admin", Port: 9000, Protocol: "TCP"}}}}
		service.CreationTimestamp = age(5)
		if labelled {
			service.Labels = map[string]string{"istio.io/global": "true"}
		}
		if headless {
			service.Spec.ClusterIP = corev1.ClusterIPNone
		}
		type state struct{ exists, ready, listed, says bool }
		var pods [3]state
		hasService, exportedAt := true, int64(0) // of the ServiceExport; 0: there is none
		slice := func() Event {
			s := &discoveryv1.EndpointSlice{ObjectMeta: meta("hello-x"), AddressType: discoveryv1.AddressTypeIPv4}
			s.Labels = map[string]string{discoveryv1.LabelServiceName: "hello"}
			for i, p := range pods {
				if p.listed {
					s.Endpoints = append(s.Endpoints, discoveryv1.Endpoint{Addresses: []string{fmt.Sprint("10.1.0.", i+1)}, Conditions: discoveryv1.EndpointConditions{Ready: new(p.says)},
						TargetRef: &corev1.ObjectReference{Kind: "Pod", Name: fmt.Sprint("hello-", i)}})
				}
			}
			return Event{Kind: EndpointSlices, Namespace: "demo", Name: "hello-x", Object: s}
		}
		events := []Event{{Kind: Services, Namespace: "demo", Name: "hello", Object: service}}
		for step := range 80 {
			i := rng.IntN(len(pods))
			p := &pods[i]
			name := fmt.Sprint("hello-", i)
			switch op := rng.IntN(20); {
			case op < 9: // a pod as it is now: another life, ready or not, in the mesh or not, with the named port or not
				p.exists, p.ready = rng.IntN(4) > 0, rng.IntN(2) == 0
				e := Event{Kind: Pods, Namespace: "demo", Name: name}
				if p.exists {
					o := &corev1.Pod{ObjectMeta: meta(name), Spec: corev1.PodSpec{NodeName: "n1", ServiceAccountName: fmt.Sprint("sa-", rng.IntN(2))},
						Status: corev1.PodStatus{Phase: corev1.PodRunning, PodIP: fmt.Sprint("10.1.0.", i+1)}}
					o.UID = types.UID(fmt.Sprint(name, "-", rng.IntN(2)))
					o.Labels = map[string]string{"istio.io/dataplane-mode": []string{"ambient", "ambient", "none"}[rng.IntN(3)]}
					o.Spec.Containers = []corev1.Container{{Ports: []corev1.ContainerPort{{Name: []string{"web", "other"}[rng.IntN(2)], ContainerPort: 8080}}}}
					o.Status.Conditions = []corev1.PodCondition{{Type: corev1.PodReady, Status: map[bool]corev1.ConditionStatus{true: corev1.ConditionTrue, false: corev1.ConditionFalse}[p.ready]}}
					if rng.IntN(6) == 0 {
						o.DeletionTimestamp = &metav1.Time{}
					}
					e.Object = o
				}
				events = append(events, e)
			case op < 16: // the EndpointSlice follows
				p.listed, p.says = p.exists, p.ready
				events = append(events, slice())
			case op == 16:
				events = append(events, Event{Kind: EndpointSlices, Namespace: "demo", Name: "hello-x"})
			case op == 17: // the ServiceExport is made, or deleted
				e := Event{Kind: ServiceExports, Namespace: "demo", Name: "hello"}
				if exportedAt == 0 {
					exportedAt = 10 + int64(step)
					o := &metav1.PartialObjectMetadata{ObjectMeta: meta("hello")}
					o.CreationTimestamp = age(exportedAt)
					e.Object = o
				} else {
					exportedAt = 0
				}
				events = append(events, e)
			case op == 18 && rng.IntN(3) == 0:
				e := Event{Kind: Services, Namespace: "demo", Name: "hello"}
				if hasService = !hasService; hasService {
					e.Object = service
				}
				events = append(events, e)
			}
			if rng.IntN(3) == 0 {
				continue // in one batch with the next
			}
			builder.Apply(cluster.Apply(events...)...)
			events = nil
			snap, _, _ := builder.Commit()
			x, is := mesh.Export{}, false
			if svc := snap.Named(host); svc != nil {
				x, is = mesh.ExportOf(svc, snap.Members(svc, "west"))
			}
			want := hasService && (labelled || exportedAt > 0)
			if is != want {
				t.Fatalf("seed %d, step %d: exported %v; want %v (Service %v, label %v, ServiceExport %v) with pods %+v", seed, step, is, want, hasService, labelled, exportedAt > 0, pods)
			}
			if !want {
				continue
			}
			created := int64(1_700_000_005)
			if exportedAt > 0 {
				created = 1_700_000_000 + exportedAt
			}
			if fmt.Sprint(x.Ports) != "[{http 80} {admin 9000}]" || x.Headless != headless || x.Created != created {
				t.Fatalf("seed %d, step %d: the export is %+v; want ports 80 and 9000, headless %v, created %d, with pods %+v", seed, step, x, headless, created, pods)
			}
			if len(x.Identities) == 0 && x.Capacity > 0 {
				t.Fatalf("seed %d, step %d: without identities the capacity is %d", seed, step, x.Capacity)
			}
			for _, p := range x.Ports {
				var refused *route.Error
				if e, err := route.Export(snap, "west", fmt.Sprint(host, ":", p.Port)); err == nil && len(e.Members) == 0 || err != nil && (!errors.As(err, &refused) || refused.Kind != route.NoEndpoint) {
					t.Fatalf("seed %d, step %d: a connection to port %d: %v; want it served, or refused for want of an endpoint", seed, step, p.Port, err)
				}
			}
		}
	}
}
