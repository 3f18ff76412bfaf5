package kube

import (
	"encoding/json"
	"math/rand/v2"
	"reflect"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// What is kept of a pod is the same when it comes back from a cache, or again from the API server: else
// it would count as changed.
func TestAKeptPodIsTheSameFromACache(t *testing.T) {
	rng := rand.New(rand.NewPCG(1, 1))
	pick := func(of ...string) string { return of[rng.IntN(len(of))] }
	always := corev1.ContainerRestartPolicyAlways
	container := func() (c corev1.Container) {
		for range rng.IntN(3) {
			c.Ports = append(c.Ports, corev1.ContainerPort{Name: pick("", "web", "hbone"), ContainerPort: []int32{8080, 15008}[rng.IntN(2)], HostPort: int32(rng.IntN(2)) * 31508, Protocol: corev1.Protocol(pick("", "TCP", "UDP"))})
		}
		if rng.IntN(2) == 0 {
			c.RestartPolicy = &always
		}
		return c
	}
	for range 2000 {
		o := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "a", Name: "b", UID: "c", ResourceVersion: "7", Labels: map[string]string{"x": "y", labelDataplane: pick("", "none")}, Annotations: map[string]string{annotationRedirection: pick("", "enabled")}},
			Spec:   corev1.PodSpec{NodeName: pick("", "n"), ServiceAccountName: pick("", "sa"), HostNetwork: rng.IntN(2) == 0},
			Status: corev1.PodStatus{Phase: corev1.PodPhase(pick("", "Running", "Failed")), PodIP: pick("", "10.0.0.1")}}
		if rng.IntN(2) == 0 {
			o.Labels, o.Annotations = nil, nil
			o.Status.PodIPs, o.Status.HostIPs = []corev1.PodIP{{IP: "10.0.0.1"}, {IP: "2001:db8::1"}}, []corev1.HostIP{{IP: "10.0.0.9"}}
			o.DeletionTimestamp = new(metav1.Unix(1e9, 0))
		}
		for range rng.IntN(3) {
			o.Spec.Containers, o.Spec.InitContainers = append(o.Spec.Containers, container()), append(o.Spec.InitContainers, container())
			o.Status.Conditions = append(o.Status.Conditions, corev1.PodCondition{Type: corev1.PodConditionType(pick("Ready", "Initialized")), Status: corev1.ConditionStatus(pick("True", "False"))})
		}
		kept := keepPod(o)
		b, err := json.Marshal(kept.object())
		if err != nil {
			t.Fatal(err)
		}
		back := &corev1.Pod{}
		if err := json.Unmarshal(b, back); err != nil {
			t.Fatal(err)
		}
		if got := keepPod(back); !reflect.DeepEqual(got, kept) {
			t.Fatalf("%+v is %+v when it was written and read", kept, got)
		}
	}
}
