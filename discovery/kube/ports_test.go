package kube

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"testing"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/intstr"

	"github.com/isthmus-mesh/isthmus/mesh"
)

// dialed returns the ports that kube-proxy would dial on a pod for a port of a Service while it prefers
// ready endpoints: those of all ready endpoints of the pod.
func dialed(slicesOf []*discoveryv1.EndpointSlice, pod, portName string) (out []uint16) {
	for _, s := range slicesOf {
		for _, e := range s.Endpoints {
			if e.TargetRef == nil || e.TargetRef.Name != pod || e.Conditions.Ready != nil && !*e.Conditions.Ready {
				continue
			}
			for _, p := range s.Ports {
				if p.Port == nil || p.Protocol != nil && *p.Protocol != corev1.ProtocolTCP || mesh.ReservedPort(uint16(*p.Port)) {
					continue
				}
				if name := ""; p.Name == nil && portName == name || p.Name != nil && *p.Name == portName {
					out = append(out, uint16(*p.Port))
				}
			}
		}
	}
	return out
}

// Services with and without selectors share pods. Slices of either family list some of the pods, with ports that are
// named, unnamed, of UDP, without a number, or missing. After every change each pod is dialed where kube-proxy would
// dial it, and nowhere if it would not.
func TestEndpointSlicePortsAreDialed(t *testing.T) {
	tcp, udp := corev1.ProtocolTCP, corev1.ProtocolUDP
	for seed := range uint64(300) {
		rng := rand.New(rand.NewPCG(seed, 11))
		c, b := NewCluster("west", "istio-system"), west()
		services, endpoints := map[string]*corev1.Service{}, map[string]*discoveryv1.EndpointSlice{}
		apply := func(e Event) {
			e.Object, _ = trim(e.Object)
			b.Apply(c.Apply(e)...)
		}
		pods := []string{"p0", "p1", "p2"}
		for i, p := range pods {
			apply(Event{Pods, "demo", p, &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "demo", Name: p, UID: types.UID("u-" + p), Labels: map[string]string{labelDataplane: "ambient"}},
				Spec:   corev1.PodSpec{NodeName: "n1", Containers: []corev1.Container{{Ports: []corev1.ContainerPort{{Name: "web", ContainerPort: 7000}}}}},
				Status: corev1.PodStatus{Phase: corev1.PodRunning, PodIP: fmt.Sprintf("10.1.0.%d", i), Conditions: []corev1.PodCondition{{Type: corev1.PodReady, Status: corev1.ConditionTrue}}}}})
		}
		for step := range 30 {
			svc := []string{"x", "y"}[rng.IntN(2)]
			switch rng.IntN(5) {
			case 0: // the Service
				s := &corev1.Service{ObjectMeta: metav1.ObjectMeta{Namespace: "demo", Name: svc, Labels: map[string]string{labelGlobal: "true"}}, Spec: corev1.ServiceSpec{ClusterIP: map[string]string{"x": "10.96.0.1", "y": "10.96.0.2"}[svc]}}
				if rng.IntN(2) == 0 {
					s.Spec.Selector = map[string]string{"app": svc}
				}
				target := func() intstr.IntOrString {
					return []intstr.IntOrString{{}, intstr.FromInt32(8080), intstr.FromString("web")}[rng.IntN(3)]
				}
				if rng.IntN(3) == 0 {
					s.Spec.Ports = []corev1.ServicePort{{Port: 80, TargetPort: target()}}
				} else {
					s.Spec.Ports = []corev1.ServicePort{{Name: "http", Port: 80, TargetPort: target()}, {Name: "admin", Port: 81, TargetPort: target()}}
				}
				if services[svc] = s; rng.IntN(6) > 0 {
					apply(Event{Services, "demo", svc, s})
				} else {
					delete(services, svc)
					b.Apply(c.Apply(Event{Services, "demo", svc, nil})...)
				}
			case 1: // a slice that goes
				n := fmt.Sprintf("%s-%d", svc, rng.IntN(3))
				delete(endpoints, n)
				b.Apply(c.Apply(Event{EndpointSlices, "demo", n, nil})...)
			default: // a slice
				n := fmt.Sprintf("%s-%d", svc, rng.IntN(3))
				s := &discoveryv1.EndpointSlice{ObjectMeta: metav1.ObjectMeta{Namespace: "demo", Name: n, Labels: map[string]string{labelOfSlice: svc}}, AddressType: []discoveryv1.AddressType{discoveryv1.AddressTypeIPv4, discoveryv1.AddressTypeIPv6}[rng.IntN(2)]}
				for _, name := range []*string{nil, new(""), new("http"), new("admin")} {
					if rng.IntN(3) == 0 {
						continue
					}
					p := discoveryv1.EndpointPort{Name: name, Port: []*int32{new(int32(8080)), new(int32(8080)), new(int32(9090)), new(int32(15008)), nil}[rng.IntN(5)], Protocol: []*corev1.Protocol{nil, &tcp, &tcp, &udp}[rng.IntN(4)]}
					if name == nil && rng.IntN(2) == 0 {
						continue
					} else if name != nil && *name == "" && slices.ContainsFunc(s.Ports, func(p discoveryv1.EndpointPort) bool { return p.Name == nil }) {
						continue // the API server refuses two unnamed ports
					}
					s.Ports = append(s.Ports, p)
				}
				for _, p := range pods {
					if rng.IntN(2) == 0 {
						s.Endpoints = append(s.Endpoints, discoveryv1.Endpoint{Addresses: []string{"10.1.0.1"}, TargetRef: &corev1.ObjectReference{Kind: "Pod", Name: p}, Conditions: discoveryv1.EndpointConditions{Ready: []*bool{nil, new(true), new(true), new(false)}[rng.IntN(4)]}})
					}
				}
				if rng.IntN(4) == 0 {
					s.Endpoints = append(s.Endpoints, discoveryv1.Endpoint{Addresses: []string{"192.0.2.1"}})
				}
				endpoints[n] = s
				apply(Event{EndpointSlices, "demo", n, s})
			}
			snap, _, _ := b.Commit()
			for name, s := range services {
				var of []*discoveryv1.EndpointSlice
				for _, slice := range endpoints {
					if slice.Labels[labelOfSlice] == name {
						of = append(of, slice)
					}
				}
				found := snap.Named(name + ".demo.svc.cluster.local")
				for _, p := range s.Spec.Ports {
					for _, pod := range pods {
						want := dialed(of, pod, p.Name)
						got := uint16(0)
						if found != nil {
							if port, ok := found.Port(uint16(p.Port)); ok {
								for _, w := range snap.Members(found, "west") {
									if w.Name == pod && found.Offer(port, []*mesh.Workload{w}).Has(w) {
										got = w.Target(port)
									}
								}
							}
						}
						if len(want) == 0 && got != 0 || len(want) > 0 && !slices.Contains(want, got) {
							t.Fatalf("seed %d, step %d: port %d (%q) of %s on %s leads to %d; kube-proxy dials %v\nproblems %v", seed, step, p.Port, p.Name, name, pod, got, want, b.Problems())
						}
					}
				}
			}
		}
	}
}
