package kube

import (
	"encoding/json"
	"fmt"
	"maps"
	"math/rand/v2"
	"os"
	"path/filepath"
	"reflect"
	"slices"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/intstr"
	"pgregory.net/rapid"

	"github.com/isthmus-mesh/isthmus/discovery"
	"github.com/isthmus-mesh/isthmus/mesh"
)

// anEvent draws a change of one of a few objects, sound and odd ones, so that they meet.
func anEvent(t *rapid.T) Event {
	pick := func(words ...string) string { return rapid.SampledFrom(words).Draw(t, "word") }
	e := Event{Kind: Kind(rapid.IntRange(0, int(kinds)-1).Draw(t, "kind"))}
	labels := func(names ...string) map[string]string {
		out := map[string]string{}
		for _, n := range names {
			if v := pick("", "", "true", "global", "cluster", "segment", "ambient", "none", "odd"); v != "" {
				out[n] = v
			}
		}
		return out
	}
	space := pick("a", "b")
	gone := rapid.IntRange(0, 3).Draw(t, "gone") == 0
	meta := func(name string) metav1.ObjectMeta {
		e.Namespace, e.Name = space, name
		return metav1.ObjectMeta{Namespace: space, Name: name}
	}
	var o any
	switch e.Kind {
	case Namespaces:
		n := &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: space, Labels: labels(labelScope, labelGlobal, labelTakeover, labelDataplane, labelNetwork)}}
		n.Annotations = map[string]string{annotationDistribution: pick("", "PreferClose", "odd")}
		e.Name, o = space, n
	case Nodes:
		e.Name = pick("n1", "n2")
		o = &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: e.Name, Labels: map[string]string{labelZone: pick("z1", "z2")}}}
	case Services:
		s := &corev1.Service{ObjectMeta: meta(pick("x", "x", "y"))}
		s.Labels, s.CreationTimestamp = labels(labelGlobal, labelScope, labelTakeover), metav1.Unix(int64(rapid.IntRange(0, 2).Draw(t, "age")), 0)
		s.Spec.Type = corev1.ServiceType(pick("ClusterIP", "ClusterIP", "ClusterIP", "ClusterIP", "ExternalName"))
		s.Spec.ClusterIPs = []string{pick("10.0.0.1", "10.0.0.2", "None", "odd")}
		if rapid.Bool().Draw(t, "selects") {
			s.Spec.Selector = map[string]string{"app": "x"}
		}
		s.Spec.PublishNotReadyAddresses = rapid.Bool().Draw(t, "publish")
		for range rapid.SampledFrom([]int{1, 1, 1, 2, 0}).Draw(t, "ports") {
			s.Spec.Ports = append(s.Spec.Ports, corev1.ServicePort{Name: pick("", "p"), Port: int32(rapid.SampledFrom([]int{80, 80, 80, 81, 0, 70000}).Draw(t, "port")), Protocol: corev1.Protocol(pick("TCP", "TCP", "", "UDP")), TargetPort: rapid.SampledFrom([]intstr.IntOrString{{}, {}, intstr.FromInt32(8080), intstr.FromInt32(15008), intstr.FromString("web")}).Draw(t, "target")})
		}
		o = s
	case EndpointSlices:
		s := &discoveryv1.EndpointSlice{ObjectMeta: meta(pick("s1", "s1", "s2")), AddressType: discoveryv1.AddressTypeIPv4}
		s.Labels = map[string]string{labelOfSlice: pick("x", "x", "x", "y", "")}
		for _, name := range rapid.SampledFrom([][]*string{{nil}, {nil}, {new("p")}, {nil, new("p")}, nil}).Draw(t, "names") {
			s.Ports = append(s.Ports, discoveryv1.EndpointPort{Name: name, Port: rapid.SampledFrom([]*int32{new(int32(80)), new(int32(80)), new(int32(8080)), new(int32(15008)), nil}).Draw(t, "number")})
		}
		for range rapid.IntRange(0, 3).Draw(t, "endpoints") {
			p := discoveryv1.Endpoint{}
			p.Conditions.Ready = rapid.SampledFrom([]*bool{nil, nil, new(true), new(false)}).Draw(t, "ready")
			p.Conditions.Serving = rapid.SampledFrom([]*bool{nil, new(true), new(false)}).Draw(t, "serving")
			if pod := pick("p", "p", "q", ""); pod != "" {
				p.TargetRef = &corev1.ObjectReference{Kind: "Pod", Name: pod, UID: types.UID(pick("", "", space+pod+"1"))}
			}
			s.Endpoints = append(s.Endpoints, p)
		}
		o = s
	case Pods:
		p := &corev1.Pod{ObjectMeta: meta(pick("p", "p", "q"))}
		p.UID = types.UID(space + p.Name + pick("1", "2"))
		p.Labels = labels(labelDataplane)
		p.Spec = corev1.PodSpec{NodeName: pick("", "n1", "n2"), HostNetwork: rapid.IntRange(0, 5).Draw(t, "host") == 0, Containers: []corev1.Container{{Ports: []corev1.ContainerPort{{Name: pick("", "web"), ContainerPort: 8080}}}}}
		p.Status = corev1.PodStatus{Phase: corev1.PodPhase(pick("Running", "Running", "Running", "Succeeded")), PodIP: pick("10.1.0.1", "10.1.0.2", "10.1.0.3", "10.1.0.4", "10.1.0.5", "10.1.0.6", "", "odd")}
		p.Status.Conditions = []corev1.PodCondition{{Type: corev1.PodReady, Status: corev1.ConditionStatus(pick("True", "True", "False"))}}
		if rapid.IntRange(0, 3).Draw(t, "deleted") == 0 {
			p.DeletionTimestamp = &metav1.Time{}
		}
		o = p
	case ServiceExports:
		x := &metav1.PartialObjectMetadata{ObjectMeta: meta(pick("x", "y"))}
		x.CreationTimestamp, o = metav1.Unix(int64(rapid.IntRange(0, 2).Draw(t, "age")), 0), x
	}
	if !gone {
		e.Object = o
	}
	return e
}

// facts writes all that a snapshot says.
func facts(s *mesh.Snapshot) string {
	var lines []string
	for _, svc := range s.Services() {
		text := fmt.Sprintf("service %+v:", *svc)
		for _, n := range s.Networks(svc) {
			share, _ := s.Share(svc, n)
			text += fmt.Sprintf(" %s %+v", n, *share.Export)
			for _, w := range s.Members(svc, n) {
				text += " " + w.UID
			}
		}
		lines = append(lines, text)
	}
	for _, w := range s.Workloads() {
		lines = append(lines, fmt.Sprintf("workload %+v", *w))
	}
	slices.Sort(lines)
	return strings.Join(lines, "\n")
}

func west(changes ...discovery.Change) *discovery.Builder {
	b := discovery.NewBuilder(0)
	b.Apply(discovery.Change{Key: discovery.Key{Kind: discovery.KindNetwork, Name: "west"}, Record: discovery.Network{Name: "west"}})
	b.Apply(changes...)
	return b
}

// trio is a pod of a service, with which everything begins.
var trio = []Event{
	{Services, "a", "x", &corev1.Service{Spec: corev1.ServiceSpec{Ports: []corev1.ServicePort{{Port: 80}}}}},
	{EndpointSlices, "a", "s1", &discoveryv1.EndpointSlice{ObjectMeta: metav1.ObjectMeta{Namespace: "a", Name: "s1", Labels: map[string]string{labelOfSlice: "x"}}, AddressType: discoveryv1.AddressTypeIPv4,
		Ports: []discoveryv1.EndpointPort{{Port: new(int32(80))}}, Endpoints: []discoveryv1.Endpoint{{TargetRef: &corev1.ObjectReference{Kind: "Pod", Name: "p"}}}}},
	{Pods, "a", "p", &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "a", Name: "p", UID: "ap0"}, Status: corev1.PodStatus{Phase: corev1.PodRunning, PodIP: "10.1.0.9", Conditions: []corev1.PodCondition{{Type: corev1.PodReady, Status: corev1.ConditionTrue}}}}},
}

// Whatever happens in whatever order and in whatever batches, what a Cluster has said is
// what a new one says of the objects that there are, in another order; and so is what a
// Builder makes of it, problems included.
func TestWhatIsSaidDependsOnTheObjectsAlone(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		c, got, there := NewCluster("west", "a"), said{}, map[Event]any{}
		b := west()
		for i := range rapid.IntRange(5, 30).Draw(t, "batches") {
			batch := slices.Clone(trio)
			if i > 0 {
				batch = nil
				for range rapid.IntRange(1, 3).Draw(t, "events") {
					batch = append(batch, anEvent(t))
				}
			}
			for _, e := range batch {
				o := e.Object
				e.Object = nil
				if delete(there, e); o != nil {
					there[e] = o
				}
			}
			changes := c.Apply(batch...)
			got.take(changes)
			b.Apply(changes...)
			s, _, _ := b.Commit()

			var all []Event
			for e, o := range there {
				e.Object = o
				all = append(all, e)
			}
			rand.Shuffle(len(all), func(i, j int) { all[i], all[j] = all[j], all[i] })
			want, anew := said{}, NewCluster("west", "a")
			for _, e := range all {
				want.take(anew.Apply(e))
			}
			if !reflect.DeepEqual(got, want) {
				t.Fatalf("step by step\n%vfrom scratch\n%v", got, want)
			}
			scratch := west(slices.Collect(maps.Values(want))...)
			if s2, _, _ := scratch.Commit(); facts(s) != facts(s2) {
				t.Fatalf("the snapshot is\n%s\nand from scratch\n%s", facts(s), facts(s2))
			}
			if p, q := fmt.Sprint(b.Problems()), fmt.Sprint(scratch.Problems()); p != q {
				t.Fatalf("the problems are\n%s\nand from scratch\n%s", p, q)
			}
		}
		for e := range there {
			got.take(c.Apply(e))
		}
		if len(got) > 0 || !reflect.DeepEqual(c, NewCluster("west", "a")) {
			t.Fatalf("without objects it says\n%vand keeps\n%+v", got, c)
		}
	})
}

// Some object, as odd as can be, beside good ones: nothing panics, it is known again when
// it has gone, and the good ones are as they were.
func FuzzTranslation(f *testing.F) {
	kinds := []string{"Namespace", "Node", "Service", "EndpointSlice", "Pod", "ServiceExport"}
	files, err := filepath.Glob("testdata/*.yaml")
	if err != nil {
		f.Fatal(err)
	}
	for _, path := range files {
		if _, err := os.Stat(path); err != nil {
			f.Fatal(err)
		}
		for _, e := range fixture(f, path) {
			if data, err := json.Marshal(e.Object); err == nil {
				f.Add(uint8(e.Kind), data)
			}
		}
	}
	good := slices.DeleteFunc(fixture(f, "testdata/istio-global.yaml"), func(e Event) bool { return e.Kind == Pods && e.Name != "cart-1" }) // the ready one, whom nobody outranks
	names := [...]string{Namespaces: kinds[0], Nodes: kinds[1], Services: kinds[2], EndpointSlices: kinds[3], Pods: kinds[4], ServiceExports: kinds[5]}
	f.Fuzz(func(t *testing.T, kind uint8, data []byte) {
		e, err := decode(names[int(kind)%len(names)], data)
		if err != nil {
			return
		}
		if e.Namespace = "tail"; e.Kind == Namespaces || e.Kind == Nodes { // behind the good ones, who have what both claim
			e.Namespace, e.Name = "", "tail"
		}
		c := NewCluster("west", "istio-system")
		b := west(c.Apply(good...)...)
		before, _, _ := b.Commit()
		b.Apply(c.Apply(e)...)
		with, _, _ := b.Commit()
		for _, w := range before.Workloads() {
			if now := with.Workload(w.UID); now == nil || !reflect.DeepEqual(w, now) {
				t.Errorf("workload %s is %+v beside it", w.UID, now)
			}
		}
		cart := before.Services()[0]
		if now := with.Named(cart.Hostname); now == nil || !reflect.DeepEqual(cart, now) || len(with.Members(now, "west")) != len(before.Members(cart, "west")) {
			t.Errorf("service %s is %+v beside it", cart.Hostname, now)
		}
		for _, p := range b.Problems() {
			if p.Message == "" || p.Field == "" {
				t.Errorf("problem %+v says nothing", p)
			}
		}
		e.Object = nil
		b.Apply(c.Apply(e)...)
		if after, _, _ := b.Commit(); facts(after) != facts(before) {
			t.Errorf("it is gone, and the snapshot is\n%s\nnot\n%s", facts(after), facts(before))
		}
		if len(b.Problems()) != 0 {
			t.Errorf("it is gone, and the problems are %v", b.Problems())
		}
	})
}
