package kube

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
)

func typesUID(i int) string { return fmt.Sprint(i) }

func typed(uid string) types.UID { return types.UID(uid) }

// crowd is n pods of one service with what belongs to them.
func crowd(n int) (out []runtime.Object) {
	for i := range n {
		out = append(out, &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "shop", Name: fmt.Sprintf("p-%02d", i), UID: typed("u" + typesUID(i))},
			Spec: corev1.PodSpec{NodeName: "n-1"}, Status: corev1.PodStatus{Phase: corev1.PodRunning, PodIP: fmt.Sprintf("10.0.1.%d", i+1), PodIPs: []corev1.PodIP{{IP: fmt.Sprintf("10.0.1.%d", i+1)}}}})
	}
	return out
}

// lose takes pods away while nobody watches.
func (w *world) lose(t *testing.T, from, to int) {
	t.Helper()
	w.refuse(errors.New("connection refused"))
	w.cut()
	after(time.Second)
	for i := from; i < to; i++ {
		if err := w.api.Tracker().Delete(corev1.SchemeGroupVersion.WithResource("pods"), "shop", fmt.Sprintf("p-%02d", i)); err != nil {
			t.Fatal(err)
		}
	}
	w.refuse(nil)
}

func (w *world) pods() int { return w.snapshot().NumWorkloads() }

// However few are missing: a pod is gone once it does not answer.
func TestMissingPodsAreAskedHoweverFewTheyAre(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := prepare(t, crowd(20)...)
		w.probe = func(_ context.Context, a string) bool { return a == "10.0.1.1" }
		w.run(t)
		<-w.Synced()
		w.lose(t, 0, 6)
		after(2 * time.Minute)
		if s := w.snapshot(); w.pods() != 15 || s.Workload("u0") == nil {
			t.Errorf("%d pods, want those 5 of 6 to be gone that do not answer", w.pods())
		}
	})
}

func TestManyMissingPodsStayWhileTheyAnswer(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := prepare(t, crowd(20)...)
		alive := map[string]bool{}
		for i := range 20 {
			alive[fmt.Sprintf("10.0.1.%d", i+1)] = true
		}
		mu := &w.mu
		w.probe = func(_ context.Context, a string) bool { mu.Lock(); defer mu.Unlock(); return alive[a] }
		w.run(t)
		<-w.Synced()
		w.lose(t, 0, 12)
		after(30 * time.Minute)
		st := w.Status()
		if n := w.pods(); n != 20 || st.Held == "" || !strings.Contains(strings.Join(st.Findings(), "\n"), "12 of 20 pods are missing") {
			t.Fatalf("%d pods, held %q, findings %q; want all of them, and word of the 12 that are missing", n, st.Held, st.Findings())
		}
		mu.Lock()
		for i := range 4 {
			delete(alive, fmt.Sprintf("10.0.1.%d", i+1))
		}
		mu.Unlock()
		after(time.Minute)
		if n := w.pods(); n != 16 {
			t.Errorf("%d pods, want 16: 4 do not answer any more", n)
		}
		if err := w.Confirm(t.Context(), "nonsense"); !errors.Is(err, ErrNotHeld) {
			t.Errorf("another name confirms: %v", err)
		}
		if err := w.Confirm(t.Context(), w.Status().Held); err != nil {
			t.Error(err)
		}
		after(time.Second)
		if n, st := w.pods(), w.Status(); n != 8 || st.Held != "" || len(st.Findings()) != 0 {
			t.Errorf("confirmed: %d pods, held %q, findings %q; want 8 and none", n, st.Held, st.Findings())
		}
	})
}

func TestMissingPodsThatAreListedAgainWereNeverGone(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		all := crowd(10)
		w := prepare(t, all...)
		w.probe = func(context.Context, string) bool { return true }
		w.run(t)
		<-w.Synced()
		w.lose(t, 0, 10)
		after(2 * time.Minute)
		if n := w.pods(); n != 10 {
			t.Fatalf("%d pods, want all 10 to be held", n)
		}
		for _, p := range all {
			if err := w.api.Tracker().Add(p); err != nil {
				t.Fatal(err)
			}
		}
		after(time.Second)
		if st := w.Status(); w.pods() != 10 || st.Held != "" {
			t.Errorf("%d pods, held %q; want 10 and nothing held", w.pods(), st.Held)
		}
		// A new pod on the address of one that is held has taken its place.
		w.lose(t, 0, 10)
		after(2 * time.Minute)
		p := all[3].(*corev1.Pod).DeepCopy()
		p.Name, p.UID = "other", "other"
		if err := w.api.Tracker().Add(p); err != nil {
			t.Fatal(err)
		}
		after(lookEvery + pace)
		if s := w.snapshot(); s.Workload("u"+typesUID(3)) != nil || s.Workload("other") == nil || s.NumWorkloads() != 10 {
			t.Errorf("%d pods; want the new one in the place of the one that was held", s.NumWorkloads())
		}
	})
}

func TestDeletionsThatAWatchTellsAreBelieved(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := prepare(t, crowd(20)...)
		w.probe = func(context.Context, string) bool { return true }
		w.run(t)
		<-w.Synced()
		for i := range 20 {
			if err := w.api.CoreV1().Pods("shop").Delete(t.Context(), fmt.Sprintf("p-%02d", i), metav1.DeleteOptions{}); err != nil {
				t.Fatal(err)
			}
		}
		after(time.Second)
		if n := w.pods(); n != 0 {
			t.Errorf("%d pods; want none: somebody has deleted them", n)
		}
	})
}

func TestSourceStartsFromItsCache(t *testing.T) {
	path := filepath.Join(t.TempDir(), "cache")
	synctest.Test(t, func(t *testing.T) {
		w := prepare(t, objects(t, "testdata/istio-global.yaml")...)
		w.saver.path = path
		w.run(t)
		<-w.Synced()
		after(time.Minute)
		was := facts(w.snapshot())
		w.stop()

		x := prepare(t, objects(t, "testdata/istio-global.yaml")...)
		x.saver.path = path
		x.refuse(errors.New("connection refused"))
		x.run(t)
		after(time.Second)
		select {
		case <-x.Synced():
		default:
			t.Fatal("it does not start from its cache")
		}
		if got := facts(x.snapshot()); got != was {
			t.Errorf("from the cache\n%s\nwant\n%s", got, was)
		}
		if st := x.Status(); !st.Cache.Restored || st.AgeMS < 1000 {
			t.Errorf("status %+v; want the age of the cache", st)
		}
		x.refuse(nil)
		if err := x.api.CoreV1().Pods("shop").Delete(t.Context(), "cart-1", metav1.DeleteOptions{}); err != nil {
			t.Fatal(err)
		}
		after(3 * time.Minute)
		if st := x.Status(); st.Cache.Restored || st.AgeMS != 0 || st.Held != "" {
			t.Errorf("the API server is back: %+v", st)
		}
		if got := members(x.snapshot(), cart); len(got) != 2 {
			t.Errorf("members %q; want what went meanwhile to be gone", got)
		}
		x.stop()
	})
}

func TestCacheOfAnotherClusterIsForgottenWhenThatIsKnown(t *testing.T) {
	path := filepath.Join(t.TempDir(), "cache")
	system := func(uid string) runtime.Object {
		return &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: "kube-system", UID: typed(uid)}}
	}
	synctest.Test(t, func(t *testing.T) {
		w := prepare(t, append(crowd(20), system("one"))...)
		w.saver.path = path
		w.run(t)
		<-w.Synced()
		after(time.Minute)
		w.stop()
		x := prepare(t, system("two"))
		x.probe = func(context.Context, string) bool { return true }
		x.saver.path = path
		x.run(t)
		after(time.Minute)
		if n, st := x.pods(), x.Status(); n != 0 || st.Held != "" {
			t.Errorf("%d pods of another cluster, held %q", n, st.Held)
		}
		x.stop()
	})
}

func TestDamagedCacheIsLeftAside(t *testing.T) {
	path := filepath.Join(t.TempDir(), "cache")
	h := cacheHeader{Network: "west", Saved: time.Now()}
	if err := writeCache(path, h, NewCluster("west", "istio-system").Objects(), nil); err != nil {
		t.Fatal(err)
	}
	whole, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	if i, err := os.Stat(path); err != nil || i.Mode().Perm() != 0o600 {
		t.Errorf("mode %v, want that nobody else reads it", i.Mode())
	}
	for i := range whole {
		for what, b := range map[string][]byte{"cut": whole[:i], "flipped": slices.Concat(whole[:i], []byte{whole[i] ^ 0x10}, whole[i+1:])} {
			if err := os.WriteFile(path, b, 0o600); err != nil {
				t.Fatal(err)
			}
			got, objects, _, err := readCache(path)
			if err == nil && (!got.Saved.Equal(h.Saved) || len(objects) != 0 || got.Network != "west") {
				t.Fatalf("%s at %d: %+v %v is believed", what, i, got, objects)
			}
		}
	}
	if err := os.WriteFile(path, []byte("nonsense"), 0o600); err != nil {
		t.Fatal(err)
	}
	synctest.Test(t, func(t *testing.T) {
		w := prepare(t, crowd(3)...)
		w.saver.path = path
		w.run(t)
		after(lookEvery / 2)
		if st := w.Status(); w.pods() != 3 || st.Cache.Error == "" || st.Cache.Restored {
			t.Errorf("%d pods, %+v; want those of the API server, and word of the cache", w.pods(), st.Cache)
		}
		after(time.Minute)
		if st := w.Status(); st.Cache.Error != "" {
			t.Errorf("it has been written anew: %+v", st.Cache)
		}
		w.stop()
	})
}

func FuzzCache(f *testing.F) {
	path := filepath.Join(f.TempDir(), "cache")
	if err := writeCache(path, cacheHeader{Network: "west"}, []Event{{Pods, "a", "b", &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "a", Name: "b"}}}, {ServiceExports, "a", "b", struct{}{}}},
		map[Event]cacheMissing{{ServiceExports, "a", "b", nil}: {600_000, true}}); err != nil {
		f.Fatal(err)
	}
	b, err := os.ReadFile(path)
	if err != nil {
		f.Fatal(err)
	}
	f.Add(b)
	f.Fuzz(func(t *testing.T, b []byte) {
		_, objects, _, err := decodeCache(strings.NewReader(string(b)))
		if err == nil {
			NewCluster("west", "istio-system").Apply(objects...) // nothing of it may end the process
		}
	})
}

// While the watch was lost a service was deleted, and another one got its ClusterIP.
func TestAHeldServiceGivesItsClusterIPToWhoHasItNow(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := prepare(t, shops(4)...)
		w.probe = func(context.Context, string) bool { return true }
		w.run(t)
		<-w.Synced()
		after(5 * time.Second)
		w.refuse(errors.New("connection refused"))
		w.cut()
		after(time.Second)
		old, oldSlice, _ := shopOf(1)
		_, _, pod := shopOf(5)
		service, slice := old.DeepCopy(), oldSlice.DeepCopy()
		service.Name, slice.Name = "z-new", "z-new-x"
		slice.Labels = map[string]string{labelOfSlice: service.Name}
		slice.Endpoints[0].Addresses = []string{pod.Status.PodIP}
		slice.Endpoints[0].TargetRef = &corev1.ObjectReference{Kind: "Pod", Namespace: "shop", Name: pod.Name, UID: pod.UID}
		objects := w.api.Tracker()
		if err := errors.Join(objects.Delete(corev1.SchemeGroupVersion.WithResource("services"), "shop", old.Name),
			objects.Delete(discoveryv1.SchemeGroupVersion.WithResource("endpointslices"), "shop", oldSlice.Name),
			objects.Add(service), objects.Add(slice), objects.Add(pod)); err != nil {
			t.Fatal(err)
		}
		w.refuse(nil)
		for _, d := range []time.Duration{5 * time.Second, time.Minute, 7 * time.Minute} {
			after(d)
			at := w.snapshot().ServiceAt(netip.MustParseAddr(old.Spec.ClusterIP))
			if at == nil || at.Hostname != "z-new.shop.svc.cluster.local" {
				t.Errorf("after another %v: %s leads to %v, want z-new", d, old.Spec.ClusterIP, at)
			}
		}
	})
}
