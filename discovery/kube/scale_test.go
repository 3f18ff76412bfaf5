package kube

import (
	"crypto/sha256"
	"fmt"
	"os"
	"path/filepath"
	"runtime"
	"runtime/pprof"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
)

// large is a cluster of so many services with ten pods each, on a node for each hundred pods.
func large(services int) (out []Event) {
	add := func(k Kind, namespace, name string, o any) { out = append(out, Event{k, namespace, name, o}) }
	add(Namespaces, "", "demo", &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: "demo", Labels: map[string]string{labelDataplane: "ambient"}}})
	nodes := services / 10
	for i := range nodes {
		n := fmt.Sprintf("node-%d", i)
		add(Nodes, "", n, &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: n, UID: uidOf("node", i), Labels: map[string]string{labelZone: fmt.Sprintf("z-%d", i%3)}}})
	}
	yes := true
	for i := range services {
		n := fmt.Sprintf("s-%d", i)
		add(Services, "demo", n, &corev1.Service{ObjectMeta: metav1.ObjectMeta{Namespace: "demo", Name: n, UID: uidOf("service", i), ResourceVersion: fmt.Sprint(100_000 + i), Labels: map[string]string{labelGlobal: "true"}},
			Spec: corev1.ServiceSpec{Type: corev1.ServiceTypeClusterIP, ClusterIP: fmt.Sprintf("10.96.%d.%d", i/250, 1+i%250), Ports: []corev1.ServicePort{{Port: 80, Protocol: "TCP"}}}})
		slice := &discoveryv1.EndpointSlice{ObjectMeta: metav1.ObjectMeta{Namespace: "demo", Name: n + "-abcde", UID: uidOf("slice", i), ResourceVersion: fmt.Sprint(300_000 + i), Labels: map[string]string{labelOfSlice: n}}, AddressType: discoveryv1.AddressTypeIPv4}
		for k := range 10 {
			j := i + k*services
			p := fmt.Sprintf("s-%d-6d4cf56db6-%05x", i, j)
			ip := fmt.Sprintf("10.%d.%d.%d", 100+j/62500, j/250%250, 1+j%250)
			slice.Endpoints = append(slice.Endpoints, discoveryv1.Endpoint{Addresses: []string{ip}, Conditions: discoveryv1.EndpointConditions{Ready: &yes, Serving: &yes}, TargetRef: &corev1.ObjectReference{Kind: "Pod", Namespace: "demo", Name: p, UID: uidOf("pod", j)}})
			o := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "demo", Name: p, UID: uidOf("pod", j), ResourceVersion: fmt.Sprint(200_000 + j), Labels: map[string]string{"app": n, "pod-template-hash": "6d4cf56db6"}, Annotations: map[string]string{"checksum/config": strings.Repeat("0123456789abcdef", 8)}},
				Spec:   corev1.PodSpec{NodeName: fmt.Sprintf("node-%d", (i+37*k)%nodes), ServiceAccountName: n, Containers: []corev1.Container{{Name: "c", Image: "x", Ports: []corev1.ContainerPort{{Name: "web", ContainerPort: 8080, Protocol: "TCP"}}}}},
				Status: corev1.PodStatus{Phase: corev1.PodRunning, PodIP: ip, PodIPs: []corev1.PodIP{{IP: ip}}, Conditions: []corev1.PodCondition{{Type: corev1.PodReady, Status: corev1.ConditionTrue}}}}
			add(Pods, "demo", p, o)
		}
		add(EndpointSlices, "demo", slice.Name, slice)
	}
	for i := range out {
		out[i].Object, _ = trim(out[i].Object)
	}
	return out
}

func heap() uint64 {
	runtime.GC()
	runtime.GC()
	var m runtime.MemStats
	runtime.ReadMemStats(&m)
	return m.HeapAlloc
}

// BenchmarkCache20000Pods is what a start from a cache of 20 000 pods and 2 000 services costs: bytes in
// use of its objects, and of what is made of them.
func BenchmarkCache20000Pods(b *testing.B) {
	path := filepath.Join(b.TempDir(), "cache")
	if err := writeCache(path, cacheHeader{Network: "west"}, large(2000), nil); err != nil {
		b.Fatal(err)
	}
	for b.Loop() {
		before := heap()
		_, objects, _, err := readCache(path)
		if err != nil {
			b.Fatal(err)
		}
		read := heap()
		c, m := NewCluster("west", "istio-system"), west()
		began := time.Now()
		changes := c.Apply(objects...)
		applied := time.Since(began)
		objects = nil
		cluster := heap()
		m.Apply(changes...)
		s, _, _ := m.Commit()
		changes = nil
		all := heap()
		b.ReportMetric(float64(read-before)/(1<<20), "MiB-read")
		b.ReportMetric(float64(cluster-before)/(1<<20), "MiB-cluster+changes")
		b.ReportMetric(float64(all-before)/(1<<20), "MiB-all")
		b.ReportMetric(applied.Seconds(), "s-translate")
		if f := os.Getenv("HEAP"); f != "" {
			o, _ := os.Create(f)
			pprof.Lookup("heap").WriteTo(o, 0)
			o.Close()
		}
		runtime.KeepAlive(objects)
		runtime.KeepAlive(c)
		runtime.KeepAlive(m)
		runtime.KeepAlive(s)
	}
}

// uidOf is a UID of the API server's form.
func uidOf(kind string, i int) types.UID {
	sum := sha256.Sum256(fmt.Append(nil, kind, i))
	return types.UID(fmt.Sprintf("%x-%x-%x-%x-%x", sum[:4], sum[4:6], sum[6:8], sum[8:10], sum[10:16]))
}
