package kubernetes

import (
	"encoding/json"
	"fmt"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/intstr"
)

// Real EndpointSlices decide where a gateway sends connections: those that the cluster writes for pods whose
// containers give one port name different numbers, and one that a user writes for a Service without a selector.
func TestGatewayFollowsEndpointSlicePorts(t *testing.T) {
	c := startCluster(t)
	global := map[string]string{"istio.io/global": "true"}
	clusterRole, binding := role()
	old, other := pod("hello", "hello-old"), pod("hello", "hello-new")
	old.Spec.Containers[0].Ports[0].ContainerPort, other.Spec.Containers[0].Ports[0].ContainerPort = 8080, 9090
	unselected := service("unselected", global, corev1.ServicePort{Name: "http", Port: 80})
	unselected.Spec.Selector = nil
	c.apply(t, clusterRole, binding,
		&corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: "istio-system"}},
		&corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: "demo", Labels: map[string]string{"istio.io/dataplane-mode": "ambient"}}},
		&corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "node-1"}},
		service("hello", global, corev1.ServicePort{Name: "http", Port: 80, TargetPort: intstr.FromString("web")}), unselected, old, other)
	c.kubelet(t, "demo", "hello-old", "10.2.0.1", "True")
	c.kubelet(t, "demo", "hello-new", "10.2.0.2", "True")
	name, port, ready := "http", int32(7000), true
	if _, err := c.DiscoveryV1().EndpointSlices("demo").Create(t.Context(), &discoveryv1.EndpointSlice{
		ObjectMeta: metav1.ObjectMeta{Name: "by-hand", Labels: map[string]string{"kubernetes.io/service-name": "unselected"}}, AddressType: discoveryv1.AddressTypeIPv4,
		Ports:     []discoveryv1.EndpointPort{{Name: &name, Port: &port}},
		Endpoints: []discoveryv1.Endpoint{{Addresses: []string{"10.2.0.1"}, Conditions: discoveryv1.EndpointConditions{Ready: &ready}, TargetRef: &corev1.ObjectReference{Kind: "Pod", Namespace: "demo", Name: "hello-old"}}},
	}, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	s := startSite(t, c.user(t, c.config.Host, "gateway"))
	want := map[string]map[string]string{
		"hello-old": {"8080": "hello.demo.svc.cluster.local:80", "7000": "unselected.demo.svc.cluster.local:80"},
		"hello-new": {"9090": "hello.demo.svc.cluster.local:80"},
	}
	var last string
	defer func() {
		if t.Failed() {
			t.Logf("got %s; want %v", last, want)
		}
	}()
	eventually(t, time.Minute, "each pod is dialed at its own ports", func() bool {
		got := map[string]map[string]string{}
		for n := range want {
			p, err := c.CoreV1().Pods("demo").Get(t.Context(), n, metav1.GetOptions{})
			if err != nil {
				t.Fatal(err)
			}
			for _, r := range s.gateway.Rows(t, "pods") {
				if r.Has("workload", string(p.UID)) {
					data, _ := json.Marshal(r["ports"])
					var ports map[string]struct{ Services []string }
					json.Unmarshal(data, &ports)
					got[n] = map[string]string{}
					for number, p := range ports {
						got[n][number] = fmt.Sprint(p.Services[0])
					}
				}
			}
		}
		last = fmt.Sprint(got)
		return last == fmt.Sprint(want)
	})
}
