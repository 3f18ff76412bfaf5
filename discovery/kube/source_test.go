package kube

import (
	"context"
	"errors"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/rs/zerolog"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	utilruntime "k8s.io/apimachinery/pkg/util/runtime"
	"k8s.io/apimachinery/pkg/watch"
	dynfake "k8s.io/client-go/dynamic/fake"
	"k8s.io/client-go/kubernetes/fake"
	metafake "k8s.io/client-go/metadata/fake"
	clienttesting "k8s.io/client-go/testing"

	"github.com/isthmus-mesh/isthmus/discovery"
	"github.com/isthmus-mesh/isthmus/mesh"
)

// world is a Source of a made-up API server, and what comes of it.
type world struct {
	*Source
	api  *fake.Clientset
	meta *metafake.FakeMetadataClient
	dyn  *dynfake.FakeDynamicClient

	mu   sync.Mutex
	down error // what the API server answers, unless it is nil
	b    *discovery.Builder
	last *mesh.Snapshot
	// batches is how often something was applied.
	batches int
	stop    func()
	watches sync.Map     // of the API server
	version atomic.Value // resourceVersion of its lists, a string; empty: as they come
}

func (w *world) Apply(changes ...discovery.Change) *mesh.Snapshot {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.batches++
	w.b.Apply(changes...)
	w.last, _, _ = w.b.Commit()
	return w.last
}

// snapshot returns the last one.
func (w *world) snapshot() *mesh.Snapshot {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.last
}

func (w *world) refuse(err error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.down = err
}

// start runs a Source of these objects in a bubble. ServiceExports are not there.
func start(t *testing.T, objects ...runtime.Object) *world {
	w := prepare(t, objects...)
	w.run(t)
	return w
}

// prepare is start without running it.
func prepare(t *testing.T, objects ...runtime.Object) *world {
	scheme := runtime.NewScheme()
	metav1.AddMetaToScheme(scheme)
	w := &world{api: fake.NewSimpleClientset(objects...), meta: metafake.NewSimpleMetadataClient(scheme), b: west(),
		dyn: dynfake.NewSimpleDynamicClientWithCustomListKinds(scheme, map[schema.GroupVersionResource]string{rulesOfTests: "AuthorizationPolicyList", modesOfTests: "PeerAuthenticationList"})}
	w.last, _, _ = w.b.Commit()
	refuse := func(clienttesting.Action) (bool, runtime.Object, error) {
		w.mu.Lock()
		defer w.mu.Unlock()
		return w.down != nil, nil, w.down
	}
	w.version.Store("")
	w.api.PrependReactor("list", "*", func(a clienttesting.Action) (bool, runtime.Object, error) {
		v := w.version.Load().(string)
		if v == "" {
			return false, nil, nil
		}
		l := a.(clienttesting.ListActionImpl)
		o, err := w.api.Tracker().List(l.Resource, l.Kind, l.Namespace, l.ListOptions)
		if err == nil {
			o.(metav1.ListInterface).SetResourceVersion(v)
		}
		return true, o, err
	})
	for f, tracker := range map[*clienttesting.Fake]clienttesting.ObjectTracker{&w.api.Fake: w.api.Tracker(), &w.meta.Fake: w.meta.Tracker(), &w.dyn.Fake: w.dyn.Tracker()} {
		f.PrependReactor("*", "*", refuse)
		f.PrependWatchReactor("*", func(a clienttesting.Action) (bool, watch.Interface, error) {
			if is, _, err := refuse(a); is {
				return true, nil, err
			}
			o := metav1.ListOptions{}
			if l, ok := a.(clienttesting.WatchActionImpl); ok {
				o = l.ListOptions
			}
			x, err := tracker.Watch(a.GetResource(), a.GetNamespace(), o)
			w.watches.Store(x, nil)
			return true, x, err
		})
	}
	w.Source = open(clients{w.api, w.meta, w.dyn}, "https://10.0.0.1:6443", NewCluster("west", "istio-system"), w, zerolog.Nop())
	w.probe = func(context.Context, string) bool { return false }
	return w
}

func (w *world) run(t *testing.T) {
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan struct{})
	go func() { defer close(done); w.Run(ctx) }()
	w.stop = func() { cancel(); <-done }
	t.Cleanup(w.stop)
}

// objects returns those of a fixture as an API server has them.
func objects(t *testing.T, path string) (out []runtime.Object) {
	for _, e := range fixture(t, path) {
		if o, ok := e.Object.(runtime.Object); ok && e.Kind != ServiceExports {
			out = append(out, o)
		}
	}
	return out
}

// after lets time pass in the bubble.
func after(d time.Duration) {
	time.Sleep(d)
	synctest.Wait()
}

func members(s *mesh.Snapshot, hostname string) (uids []string) {
	if svc := s.Named(hostname); svc != nil {
		for _, w := range s.Members(svc, "west") {
			uids = append(uids, w.UID+" "+w.State.String())
		}
	}
	return uids
}

// One of client-go's handlers of errors bounds how often it is called by a time from
// outside of the bubble, and would sleep until then.
func init() { utilruntime.ErrorHandlers = nil }

const (
	exportsGroup = "multicluster.x-k8s.io"
	exportsEvery = 30 * time.Second
)

const cart = "cart.shop.svc.cluster.local"

func TestClusterIsInForceOnceItIsRead(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := start(t, objects(t, "testdata/istio-global.yaml")...)
		<-w.Synced()
		if got := members(w.snapshot(), cart); !slices.Equal(got, []string{"u-1 ready", "u-2 serving", "u-3 notReady"}) {
			t.Errorf("members %q", got)
		}
		if w.batches != 1 {
			t.Errorf("%d batches, want the whole cluster in one", w.batches)
		}
		st := w.Status()
		if !st.Synced || st.AgeMS != 0 || len(st.Findings()) != 0 {
			t.Errorf("status %+v", st)
		}
		for _, l := range st.Lists {
			if want := map[string]int{"namespaces": 2, "nodes": 1, "services": 1, "endpointslices": 1, "pods": 5}[l.Kind]; l.Objects != want || l.Absent != slices.Contains([]string{"serviceexports", "authorizationpolicies", "peerauthentications"}, l.Kind) {
				t.Errorf("%+v, want %d objects", l, want)
			}
		}
	})
}

func TestChangeOfAPodIsInForceAtOnce(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := start(t, objects(t, "testdata/istio-global.yaml")...)
		<-w.Synced()
		after(time.Second)
		pods := w.api.CoreV1().Pods("shop")
		p, err := pods.Get(t.Context(), "cart-1", metav1.GetOptions{})
		if err != nil {
			t.Fatal(err)
		}
		p = p.DeepCopy()
		p.Status.Conditions = []corev1.PodCondition{{Type: corev1.PodReady, Status: corev1.ConditionFalse}}
		began := time.Now()
		if _, err := pods.UpdateStatus(t.Context(), p, metav1.UpdateOptions{}); err != nil {
			t.Fatal(err)
		}
		synctest.Wait()
		if got := members(w.snapshot(), cart); got[0] != "u-1 notReady" || time.Since(began) != 0 {
			t.Errorf("after %v: members %q", time.Since(began), got)
		}
		if err := pods.Delete(t.Context(), "cart-1", metav1.DeleteOptions{}); err != nil {
			t.Fatal(err)
		}
		after(pace)
		if got := members(w.snapshot(), cart); len(got) != 2 {
			t.Errorf("deleted: members %q", got)
		}
	})
}

func TestManyChangesAreFewBatches(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := start(t)
		<-w.Synced()
		before := w.batches
		for i := range 100 {
			p := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "shop", Name: "p-" + string(rune('a'+i%26)) + string(rune('a'+i/26)), UID: "u"}}
			if _, err := w.api.CoreV1().Pods("shop").Create(t.Context(), p, metav1.CreateOptions{}); err != nil {
				t.Fatal(err)
			}
			time.Sleep(time.Millisecond)
		}
		after(pace)
		if n := w.batches - before; n < 2 || n > 7 {
			t.Errorf("100 pods in 100 ms are %d batches; want about one each %v", n, pace)
		}
	})
}

func TestWithoutTheAPIServerAllStaysAsItWasAndTheAgeShows(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := start(t, objects(t, "testdata/istio-global.yaml")...)
		<-w.Synced()
		was := facts(w.snapshot())
		w.refuse(errors.New("connection refused"))
		w.cut()
		after(5 * time.Minute)
		st := w.Status()
		if facts(w.snapshot()) != was {
			t.Errorf("the snapshot is\n%s\nwas\n%s", facts(w.snapshot()), was)
		}
		if age := time.Duration(st.AgeMS) * time.Millisecond; age < 5*time.Minute || age > 5*time.Minute+time.Second {
			t.Errorf("age %v, want 5 minutes", age)
		}
		if f := st.Findings(); len(f) == 0 || !strings.Contains(f[0], "connection refused") || !strings.Contains(f[0], "5m0s ago") {
			t.Errorf("findings %q", f)
		}
		w.refuse(nil)
		if err := w.api.CoreV1().Pods("shop").Delete(t.Context(), "cart-1", metav1.DeleteOptions{}); err != nil {
			t.Fatal(err)
		}
		after(2 * time.Minute)
		if got := members(w.snapshot(), cart); len(got) != 2 {
			t.Errorf("it is back: members %q, want what has gone meanwhile to be gone", got)
		}
		if st := w.Status(); st.AgeMS != 0 || len(st.Findings()) != 0 {
			t.Errorf("it is back: status %+v", st)
		}
	})
}

// define says which kinds the API server has beside those of Kubernetes.
func (w *world) define(list []*metav1.APIResourceList) {
	w.api.Fake.Lock()
	defer w.api.Fake.Unlock()
	w.api.Resources = list
}

// cut ends all watches, as a lost connection does. A source is synced before its watches are open: those count too.
func (w *world) cut() {
	synctest.Wait()
	w.watches.Range(func(k, _ any) bool { k.(watch.Interface).Stop(); return true })
}

func TestServiceExportsMayComeAndGo(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := start(t, objects(t, "testdata/service-export.yaml")...)
		<-w.Synced()
		const web = "web.demo.svc.cluster.local"
		if svc := w.snapshot().Named(web); svc == nil || svc.Exported() {
			t.Fatalf("without the API: %+v", svc)
		}
		gvr := schema.GroupVersionResource{Group: exportsGroup, Version: "v1beta1", Resource: "serviceexports"}
		export := &metav1.PartialObjectMetadata{TypeMeta: metav1.TypeMeta{APIVersion: exportsGroup + "/v1beta1", Kind: "ServiceExport"}, ObjectMeta: metav1.ObjectMeta{Namespace: "demo", Name: "web"}}
		if err := w.meta.Tracker().Create(gvr, export, "demo"); err != nil {
			t.Fatal(err)
		}
		w.define([]*metav1.APIResourceList{{GroupVersion: exportsGroup + "/v1beta1", APIResources: []metav1.APIResource{{Name: "serviceexports"}}}})
		after(2 * exportsEvery)
		if svc := w.snapshot().Named(web); svc == nil || !svc.Exported() || svc.Takeover {
			t.Errorf("exported: %+v", svc)
		}
		if err := w.meta.Tracker().Delete(gvr, "demo", "web"); err != nil {
			t.Fatal(err)
		}
		after(pace)
		if svc := w.snapshot().Named(web); svc == nil || svc.Exported() {
			t.Errorf("exported no more: %+v", svc)
		}

		// The definition goes, and the objects with it. What happened while nobody followed
		// them is known when it is back.
		if err := w.meta.Tracker().Create(gvr, export, "demo"); err != nil {
			t.Fatal(err)
		}
		after(pace)
		served := w.api.Resources
		w.define(nil)
		w.refuse(apierrors.NewNotFound(gvr.GroupResource(), ""))
		w.cut()
		after(2 * exportsEvery)
		w.refuse(nil)
		after(2 * exportsEvery)
		if svc := w.snapshot().Named(web); svc == nil || !svc.Exported() {
			t.Errorf("the definition is gone, or lost: %+v", svc)
		}
		after(holdFor)
		if svc := w.snapshot().Named(web); svc == nil || svc.Exported() {
			t.Errorf("the definition has been gone for long: %+v", svc)
		}
		w.define(served)
		after(2 * exportsEvery)
		if svc := w.snapshot().Named(web); svc == nil || !svc.Exported() {
			t.Errorf("the definition is back: %+v", svc)
		}
	})
}
