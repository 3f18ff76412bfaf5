package kube

import (
	"errors"
	"fmt"
	"maps"
	"math/rand/v2"
	"path/filepath"
	"reflect"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	clienttesting "k8s.io/client-go/testing"

	"github.com/isthmus-mesh/isthmus/discovery"
	"github.com/isthmus-mesh/isthmus/mesh"
	"github.com/isthmus-mesh/isthmus/policy"
)

var (
	rulesOfTests = schema.GroupVersionResource{Group: "security.istio.io", Version: "v1", Resource: "authorizationpolicies"}
	modesOfTests = schema.GroupVersionResource{Group: "security.istio.io", Version: "v1", Resource: "peerauthentications"}
	servedOfIt   = []*metav1.APIResourceList{{GroupVersion: "security.istio.io/v1", APIResources: []metav1.APIResource{{Name: "authorizationpolicies"}, {Name: "peerauthentications"}}}}
)

// denyAll is a policy that denies everything to the pods of ns that have these labels.
func denyAll(ns, name string, labels map[string]string) *unstructured.Unstructured {
	spec := map[string]any{"action": "DENY", "rules": []any{map[string]any{}}}
	if labels != nil {
		m := map[string]any{}
		for k, v := range labels {
			m[k] = v
		}
		spec["selector"] = map[string]any{"matchLabels": m}
	}
	return &unstructured.Unstructured{Object: map[string]any{"apiVersion": "security.istio.io/v1", "kind": "AuthorizationPolicy", "metadata": map[string]any{"name": name, "namespace": ns, "uid": "u", "managedFields": []any{map[string]any{}}}, "spec": spec}}
}

// denied reports whether a pod of a snapshot is closed.
func denied(s *mesh.Snapshot, uid string) bool {
	w := s.Workload(uid)
	return w != nil && !s.Policies().For(policy.Workload{Namespace: w.Namespace, Labels: w.Labels}).Decide(policy.Connection{}).Allowed()
}

func labelledPod(ns, name string, labels map[string]string) *corev1.Pod {
	o := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: ns, Name: name, UID: uidOf(name, 0), Labels: labels},
		Spec:   corev1.PodSpec{NodeName: "n", ServiceAccountName: "a"},
		Status: corev1.PodStatus{Phase: corev1.PodRunning, PodIP: fmt.Sprintf("10.0.0.%d", 1+len(name)), Conditions: []corev1.PodCondition{{Type: corev1.PodReady, Status: corev1.ConditionTrue}}}}
	o.Status.PodIP = fmt.Sprintf("10.%d.%d.%d", o.UID[0], o.UID[1], o.UID[2])
	return o
}

func TestPoliciesMayComeAndGo(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		web, job := labelledPod("demo", "web", map[string]string{"app": "web", "v": "1"}), labelledPod("demo", "job", map[string]string{"app": "job"})
		w := start(t, web, job)
		<-w.Synced()
		is := func(what string, known, webDenied, jobDenied bool) {
			t.Helper()
			s := w.snapshot()
			if s.Policies().HasCluster() != known || denied(s, string(web.UID)) != webDenied || denied(s, string(job.UID)) != jobDenied {
				t.Errorf("%s: known %v, web denied %v, job denied %v", what, s.Policies().HasCluster(), denied(s, string(web.UID)), denied(s, string(job.UID)))
			}
		}
		is("without the definitions", true, false, false)
		if err := w.dyn.Tracker().Create(rulesOfTests, denyAll("demo", "x", map[string]string{"app": "web"}), "demo"); err != nil {
			t.Fatal(err)
		}
		w.define(servedOfIt)
		after(10 * time.Second)
		is("the definitions have come", true, true, false)
		if l := w.snapshot().Workload(string(web.UID)).Labels; !maps.Equal(l, web.Labels) {
			t.Errorf("labels %v, want all: a node proxy may know other policies", l)
		}
		if err := w.dyn.Tracker().Update(rulesOfTests, denyAll("demo", "x", map[string]string{"app": "job"}), "demo"); err != nil {
			t.Fatal(err)
		}
		after(2 * pace)
		is("another selector", true, false, true)
		job.Labels = map[string]string{"app": "other"}
		if err := w.api.Tracker().Update(corev1.SchemeGroupVersion.WithResource("pods"), job, "demo"); err != nil {
			t.Fatal(err)
		}
		after(2 * pace)
		is("another label", true, false, false)
		if err := w.dyn.Tracker().Create(rulesOfTests, denyAll("istio-system", "all", nil), "istio-system"); err != nil {
			t.Fatal(err)
		}
		after(2 * pace)
		is("for all", true, true, true)

		// An API server that is lost, and comes back without it.
		w.refuse(errors.New("connection refused"))
		w.cut()
		after(time.Hour)
		is("the API server is lost", true, true, true)
		if err := w.dyn.Tracker().Delete(rulesOfTests, "istio-system", "all"); err != nil {
			t.Fatal(err)
		}
		w.refuse(nil)
		after(holdFor - time.Minute)
		is("a list that was read anew lacks it", true, true, true)
		after(2 * time.Minute)
		is("for long", true, false, false)
		if err := w.dyn.Tracker().Create(rulesOfTests, denyAll("istio-system", "all", nil), "istio-system"); err != nil {
			t.Fatal(err)
		}
		after(2 * pace)
		is("for all again", true, true, true)
		if err := w.dyn.Tracker().Delete(rulesOfTests, "istio-system", "all"); err != nil {
			t.Fatal(err)
		}
		after(2 * pace)
		is("deleted", true, false, false)
		for _, l := range w.Status().Lists {
			if l.Kind == "authorizationpolicies" && (l.Objects != 1 || l.Absent || l.Failing) {
				t.Errorf("status %+v", l)
			}
		}
	})
}

// What a gateway is refused it does not know: it tells nobody that there is none.
func TestPoliciesThatAreForbiddenAreNotKnown(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := prepare(t, labelledPod("demo", "web", nil))
		w.define(servedOfIt)
		if err := w.dyn.Tracker().Create(modesOfTests, &unstructured.Unstructured{Object: map[string]any{"apiVersion": "security.istio.io/v1", "kind": "PeerAuthentication", "metadata": map[string]any{"name": "x", "namespace": "demo"}, "spec": map[string]any{"mtls": map[string]any{"mode": "STRICT"}}}}, "demo"); err != nil {
			t.Fatal(err)
		}
		var forbidden error = apierrors.NewForbidden(modesOfTests.GroupResource(), "", errors.New("no"))
		w.dyn.PrependReactor("list", "peerauthentications", refusing(&w.mu, &forbidden))
		w.run(t)
		<-w.Synced()
		after(time.Minute)
		if s := w.snapshot(); s.Policies().HasCluster() || len(s.Workloads()) != 1 {
			t.Errorf("known: %v, %d pods", s.Policies().HasCluster(), len(s.Workloads()))
		}
		w.mu.Lock()
		forbidden = nil
		w.mu.Unlock()
		after(2 * time.Minute)
		if s := w.snapshot(); !s.Policies().HasCluster() || !denied(s, s.Workloads()[0].UID) {
			t.Errorf("permitted: known: %v, %v", s.Policies().HasCluster(), s.Policies().Objects())
		}
	})
}

// A start from a cache of a version that knew no policies knows none, and one that knew them does.
func TestPoliciesAreKnownFromACache(t *testing.T) {
	for _, policed := range []bool{false, true} {
		path := filepath.Join(t.TempDir(), "cache")
		synctest.Test(t, func(t *testing.T) {
			pod := labelledPod("demo", "web", map[string]string{"app": "a<b", "x": "y"})
			x := keepPolicy(AuthorizationPolicies, "demo", "x", denyAll("demo", "x", map[string]string{"app": "a<b"}).Object)
			objects := []Event{{Pods, "demo", "web", keepPod(pod)}}
			if policed {
				objects = append(objects, Event{AuthorizationPolicies, "demo", "x", x})
			}
			if err := writeCache(path, cacheHeader{Network: "west", Saved: time.Now(), Policed: policed}, objects, nil); err != nil {
				t.Fatal(err)
			}
			w := prepare(t)
			w.saver.path = path
			w.refuse(errors.New("connection refused"))
			w.run(t)
			<-w.Synced()
			if s := w.snapshot(); s.Policies().HasCluster() != policed || denied(s, string(pod.UID)) != policed || len(s.Workloads()) != 1 {
				t.Errorf("policed %v: known %v, denied %v, %d pods", policed, s.Policies().HasCluster(), denied(s, string(pod.UID)), len(s.Workloads()))
			}
		})
	}
}

// Which state of a policy is the newer one, and up to which all is known, is told, deletions and a start from the
// cache included.
func TestRevisionsOfPoliciesAreTold(t *testing.T) {
	path := filepath.Join(t.TempDir(), "cache")
	at := func(version string, labels map[string]string) *unstructured.Unstructured {
		o := denyAll("demo", "x", labels)
		o.SetResourceVersion(version)
		return o
	}
	named := policy.Name{Kind: policy.KindAuthorization, Namespace: "demo", Name: "x"}
	synctest.Test(t, func(t *testing.T) {
		w := prepare(t, labelledPod("demo", "web", nil))
		w.saver.path = path
		w.define(servedOfIt)
		w.run(t)
		<-w.Synced()
		is := func(what string, revision, known uint64) {
			t.Helper()
			after(2 * pace)
			s, got := w.snapshot().Policies(), uint64(0)
			if o := s.Get(named); o != nil {
				got = o.Revised()
			}
			if got != revision || s.Known().Authorizations != known {
				t.Errorf("%s: revision %d, known up to %+v; want %d, %d", what, got, s.Known(), revision, known)
			}
		}
		if err := w.dyn.Tracker().Create(rulesOfTests, at("700", nil), "demo"); err != nil {
			t.Fatal(err)
		}
		is("made", 700, 700)
		if err := w.dyn.Tracker().Update(rulesOfTests, at("705", nil), "demo"); err != nil { // its status, for example
			t.Fatal(err)
		}
		is("as it was", 705, 705)
		after(time.Minute) // the cache is written
		w.stop()
	})
	synctest.Test(t, func(t *testing.T) {
		w := prepare(t)
		w.saver.path = path
		w.refuse(errors.New("connection refused"))
		w.run(t)
		<-w.Synced()
		if s := w.snapshot().Policies(); s.Get(named) == nil || s.Get(named).Revised() != 705 || s.Known().Authorizations != 705 {
			t.Errorf("from the cache: %+v, known %+v", s.Get(named), s.Known())
		}
	})
	l := list{heard: 705}
	l.hear(keepPolicy(AuthorizationPolicies, "demo", "x", at("710", nil).Object)) // the object of a deletion has its version
	if l.heard != 710 {
		t.Errorf("heard of %d", l.heard)
	}
}

// A Cluster says the same of pods and policies in whichever order they come, and all that decides.
func TestPoliciesInAnyOrder(t *testing.T) {
	for seed := range uint64(200) {
		r := rand.New(rand.NewPCG(seed, 3))
		pick := func(of ...string) string { return of[r.IntN(len(of))] }
		c, b := NewCluster("west", "istio-system"), west()
		c.policies.known = true
		objects := map[policyName]Event{}
		var last *mesh.Snapshot
		for range 60 {
			e := Event{Kind: Pods, Namespace: pick("demo", "shop", "istio-system"), Name: pick("a", "b", "c")}
			some := func() map[string]string {
				m := map[string]string{}
				for _, k := range []string{"app", "tier", "v"} {
					if r.IntN(2) == 0 {
						m[k] = pick("1", "2")
					}
				}
				return m
			}
			switch {
			case r.IntN(2) == 0:
				p := labelledPod(e.Namespace, e.Name, some())
				p.UID = uidOf(e.Namespace+e.Name, 0)
				p.Status.PodIP = fmt.Sprintf("10.%d.%d.%d", p.UID[0], p.UID[1], p.UID[2])
				e.Object = keepPod(p)
			default:
				e.Kind = AuthorizationPolicies
				e.Object = keepPolicy(e.Kind, e.Namespace, e.Name, denyAll(e.Namespace, e.Name, some()).Object)
			}
			if r.IntN(4) == 0 {
				e.Object = nil
			}
			objects[policyName{e.Kind, name{e.Namespace, e.Name}}] = e
			b.Apply(c.Apply(e)...)
			last, _, _ = b.Commit()
		}
		for _, e := range objects {
			p, is := e.Object.(*keptPod)
			if !is {
				continue
			}
			want := false
			for _, x := range objects {
				if k, is := x.Object.(*keptPolicy); is && (x.Namespace == e.Namespace || x.Namespace == "istio-system") {
					tree, _ := policy.Read(k.text)
					o, _ := policy.Parse(tree)
					want = want || o.(*policy.Authorization).Selector.Selects(p.Labels.all())
				}
			}
			if got := denied(last, string(p.UID)); got != want {
				t.Fatalf("seed %d: pod %s/%s %v: denied %v, want %v", seed, e.Namespace, e.Name, p.Labels.all(), got, want)
			}
		}
		again, all := NewCluster("west", "istio-system"), said{}
		for _, e := range objects {
			c.Apply(Event{Kind: e.Kind, Namespace: e.Namespace, Name: e.Name}) // all goes
		}
		again.policies.known = true
		var events []Event
		for _, e := range objects {
			events = append(events, e)
		}
		all.take(again.Apply(events...))
		for _, w := range last.Workloads() {
			k := discovery.Key{Kind: discovery.KindWorkload, Source: discovery.Cluster, Name: w.Namespace + "/" + w.Name}
			if got := all[k].Record.(discovery.Workload).Labels; !maps.Equal(got, w.Labels) {
				t.Fatalf("seed %d: labels %v at once, %v one by one", seed, got, w.Labels)
			}
		}
		if n := len(c.policies.all) + len(c.policies.stale); n > 0 {
			t.Fatalf("seed %d: %d entries are left", seed, n)
		}
	}
}

// A policy that is not understood is a problem of its own object, and closes.
func TestAFaultyPolicyIsAProblemOfItsObject(t *testing.T) {
	c, b := NewCluster("west", "istio-system"), west()
	x := denyAll("demo", "x", nil)
	x.Object["spec"].(map[string]any)["rules"] = []any{map[string]any{"to": []any{map[string]any{"operation": map[string]any{"methods": []any{"GET"}}}}}}
	way := denyAll("demo", "way", nil)
	way.Object["spec"].(map[string]any)["targetRefs"] = []any{map[string]any{"kind": "Gateway", "name": "waypoint"}}
	pod := labelledPod("demo", "web", nil)
	changes := c.Apply(Event{Pods, "demo", "web", pod}, Event{AuthorizationPolicies, "demo", "x", must(trim(x))}, Event{AuthorizationPolicies, "demo", "way", must(trim(way))})
	b.Apply(changes...)
	s, _, _ := b.Commit()
	got := said{}
	got.take(changes)
	text := got.String()
	for _, want := range []string{`policy "AuthorizationPolicy demo/x" PROBLEM (unsupported, field) spec.rules[0].to[0].operation.methods`, `policy "AuthorizationPolicy demo/way" PROBLEM (unsupported, out) spec.targetRefs`} {
		if !strings.Contains(text, want) {
			t.Errorf("%s\nlacks %s", text, want)
		}
	}
	if !denied(s, string(pod.UID)) || len(s.Policies().Objects()) != 1 {
		t.Errorf("denied %v, %d policies", denied(s, string(pod.UID)), len(s.Policies().Objects()))
	}
	if list := b.Problems(); len(list) != 2 {
		t.Errorf("problems %v, want each once", list)
	}
}

func must(o any, err error) any {
	if err != nil {
		panic(err)
	}
	return o
}

func TestLabelsArePackedAndUnpacked(t *testing.T) {
	for _, m := range []map[string]string{nil, {"a": ""}, {"a": "b", "c": "d", "": "x"}, {"app.kubernetes.io/name": "x"}} {
		if got := labelsOf(m).all(); !reflect.DeepEqual(got, m) {
			t.Errorf("%v is %v", m, got)
		}
	}
	if labelsOf(map[string]string{"a": "b", "c": "d"}) != labelsOf(map[string]string{"c": "d", "a": "b"}) {
		t.Error("the same labels are not the same")
	}
	if got := labelsOf(map[string]string{"a": "b", "c": "d"}).get("c"); got != "d" {
		t.Errorf("got %q", got)
	}
}

// Who may create pods has node proxies hold their labels, and gateways: what is beyond a bound takes the pod out,
// not the others of its node, and not its policies alone.
func TestAPodWithLabelsWithoutEndIsNotInTheMesh(t *testing.T) {
	many, long := map[string]string{}, map[string]string{}
	for i := range maxLabels + 1 {
		many[fmt.Sprint("l", i)] = ""
		if i < maxLabels/2 {
			long[fmt.Sprint(strings.Repeat("x", 240), "/l", i)] = strings.Repeat("v", 63)
		}
	}
	for what, labels := range map[string]map[string]string{"many": many, "long": long} {
		c, b := NewCluster("west", "istio-system"), west()
		pod := labelledPod("demo", "web", labels)
		kept := keepPod(pod)
		again := keepPod(kept.object()) // as after a start
		if n := len(kept.Labels.packed.Value()); n > maxLabelBytes || again.Labels != kept.Labels {
			t.Errorf("%s: %d bytes are kept; after a start %v", what, n, again.Labels.all())
		}
		changes := c.Apply(Event{Pods, "demo", "web", again})
		b.Apply(changes...)
		s, _, _ := b.Commit()
		got := said{}
		got.take(changes)
		if s.Workload(string(pod.UID)) != nil || !strings.Contains(got.String(), "metadata.labels") {
			t.Errorf("%s: in the mesh, or nothing is said of it: %s", what, got.String())
		}
	}
	few := labelledPod("demo", "web", map[string]string{"app": "web"})
	c, b := NewCluster("west", "istio-system"), west()
	b.Apply(c.Apply(Event{Pods, "demo", "web", keepPod(few)})...)
	if s, _, _ := b.Commit(); s.Workload(string(few.UID)) == nil {
		t.Error("one with a label is not in the mesh")
	}
}

// refusing answers with *err, unless it is nil.
func refusing(mu *sync.Mutex, err *error) clienttesting.ReactionFunc {
	return func(clienttesting.Action) (bool, runtime.Object, error) {
		mu.Lock()
		defer mu.Unlock()
		return *err != nil, nil, *err
	}
}
