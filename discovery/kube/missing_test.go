package kube

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/tools/cache"
)

// modelled is what the model has of one pod.
type modelled struct {
	version int  // 0: there is none
	missing bool // the latest news is that a list lacked it
}

// storeThatIs answers what it is told to, and lets something happen before it does.
type storeThatIs struct {
	cache.Store
	has    func(key string) bool
	before func(key string)
}

func (s storeThatIs) GetByKey(key string) (any, bool, error) {
	has := s.has(key)
	s.before(key)
	return nil, has, nil
}

// Whatever lists, watches, probes and operators say in which order: the latest news of an object
// holds. One that is there is in force as it is, one that was deleted is gone, and one that
// a list lacks is in force, as it was, for as long as the guard holds it, and gone then.
func TestLaterNewsAlwaysWins(t *testing.T) {
	for seed := range uint64(500) {
		rng := rand.New(rand.NewPCG(seed, 2))
		w := prepare(t)
		ctx, cancel := context.WithCancel(t.Context())
		var running sync.WaitGroup
		now, version := time.Now(), 0
		model := map[string]*modelled{}
		var story []string
		tell := func(format string, a ...any) { story = append(story, fmt.Sprintf(format, a...)) }
		pod := func(n string, version int) *corev1.Pod {
			return &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "shop", Name: n, UID: typed(n), ResourceVersion: fmt.Sprint(version)},
				Status: corev1.PodStatus{Phase: corev1.PodRunning, PodIP: "10.0.1." + n}}
		}
		for i := range 5 {
			model[fmt.Sprint(i)] = &modelled{}
		}
		event := func(n string) { // of a watch, or of what a list has
			m := model[n]
			if rng.IntN(3) == 0 && m.version > 0 {
				tell("%s is deleted", n)
				w.noteObject(Pods, pod(n, m.version), true)
				*m = modelled{}
				return
			}
			version++
			*m = modelled{version: version}
			tell("%s is at %d", n, version)
			w.noteObject(Pods, pod(n, version), false)
		}
		lacks := func(n string) {
			if m := model[n]; m.version > 0 {
				tell("a list lacks %s", n)
				w.noteObject(Pods, cache.DeletedFinalStateUnknown{Key: "shop/" + n, Obj: pod(n, m.version)}, false)
				m.missing = true
			}
		}
		check := func(final bool) {
			w.apply()
			for n, m := range model {
				p, held := w.cluster.pods[name{"shop", n}], false
				w.Source.mu.Lock()
				_, held = w.missing[Event{Kind: Pods, Namespace: "shop", Name: n}]
				w.Source.mu.Unlock()
				switch {
				case p == nil && m.version > 0 && !m.missing:
					t.Fatalf("seed %d: pod %s is gone, and the latest news is version %d\n%s", seed, n, m.version, strings.Join(story, "\n"))
				case p == nil && m.missing:
					*m = modelled{} // the guard has believed it
				case p != nil && p.ResourceVersion != fmt.Sprint(m.version):
					t.Fatalf("seed %d: pod %s is at %s, and the latest news is version %d\n%s", seed, n, p.ResourceVersion, m.version, strings.Join(story, "\n"))
				case held != m.missing, held && final:
					t.Fatalf("seed %d: pod %s is held: %v, is missing: %v\n%s", seed, n, held, m.missing, strings.Join(story, "\n"))
				}
			}
		}
		for range 150 {
			n := fmt.Sprint(rng.IntN(5))
			switch rng.IntN(10) {
			case 0, 1, 2:
				event(n)
			case 3, 4:
				lacks(n)
			case 5:
				now = now.Add(time.Duration(rng.IntN(3)) * judgeAfter / 2)
				tell("the guard looks")
				w.asked = now // asking is a step of its own
				w.look(ctx, &running, now)
			case 6:
				got := probes{}
				for _, v := range w.guard.probe(3) {
					got[v] = rng.IntN(3) == 0
				}
				for range rng.IntN(3) { // while they are asked
					event(n)
				}
				tell("probes %v", got)
				w.judgeProbes(got)
			case 7:
				if rng.IntN(8) == 0 {
					tell("an operator confirms")
					w.release(confirmation{w.guard.id(), make(chan error, 1)})
				}
			case 8: // what a cache had is compared with the first list
				if rng.IntN(4) == 0 {
					believed := rng.IntN(2) == 0
					tell("withdrawn, believed: %v", believed)
					had := map[string]bool{}
					for n, m := range model {
						had["shop/"+n] = m.version > 0 && !m.missing && rng.IntN(2) == 0
					}
					touched := map[string]bool{}
					w.withdraw(Pods, storeThatIs{has: func(k string) bool { return had[k] }, before: func(key string) {
						n := strings.TrimPrefix(key, "shop/")
						if rng.IntN(3) == 0 {
							touched[n] = true
							event(n)
							return
						}
						if m := model[n]; !had[key] {
							if m.missing = true; believed {
								*m = modelled{}
							}
						}
					}}, believed)
				}
			default:
				check(false)
			}
		}
		check(false)
		for range 5 { // nobody answers
			now = now.Add(judgeAfter)
			w.asked = now
			w.look(ctx, &running, now)
			got := probes{}
			for _, v := range w.guard.probe(10) {
				got[v] = false
			}
			w.judgeProbes(got)
		}
		check(true)
		cancel()
		running.Wait()
	}
}

// shopOf is one of some services of a pod each, with what belongs to it.
func shopOf(i int) (service *corev1.Service, slice *discoveryv1.EndpointSlice, pod *corev1.Pod) {
	n := fmt.Sprintf("s-%d", i)
	yes := true
	service = &corev1.Service{ObjectMeta: metav1.ObjectMeta{Namespace: "shop", Name: n}, Spec: corev1.ServiceSpec{ClusterIP: fmt.Sprintf("10.96.0.%d", i+1), Ports: []corev1.ServicePort{{Port: 80}}}}
	pod = crowd(i + 1)[i].(*corev1.Pod)
	slice = &discoveryv1.EndpointSlice{ObjectMeta: metav1.ObjectMeta{Namespace: "shop", Name: n + "-x", Labels: map[string]string{labelOfSlice: n}}, AddressType: discoveryv1.AddressTypeIPv4,
		Endpoints: []discoveryv1.Endpoint{{Addresses: []string{pod.Status.PodIP}, Conditions: discoveryv1.EndpointConditions{Ready: &yes}, TargetRef: &corev1.ObjectReference{Kind: "Pod", Namespace: "shop", Name: pod.Name, UID: pod.UID}}}}
	return service, slice, pod
}

// shops are n services.
func shops(n int) (out []runtime.Object) {
	for i := range n {
		a, b, c := shopOf(i)
		out = append(out, a, b, c)
	}
	return out
}

// restore lets the API server go on as if its etcd came from a backup in which service i was not
// yet, with lists of a resourceVersion.
func (w *world) restore(t *testing.T, i int, version string) {
	t.Helper()
	w.refuse(errors.New("connection refused"))
	w.cut()
	after(time.Second)
	s, slice, _ := shopOf(i)
	if err := errors.Join(w.api.Tracker().Delete(corev1.SchemeGroupVersion.WithResource("services"), "shop", s.Name),
		w.api.Tracker().Delete(discoveryv1.SchemeGroupVersion.WithResource("endpointslices"), "shop", slice.Name)); err != nil {
		t.Fatal(err)
	}
	w.version.Store(version)
	w.refuse(nil)
}

// An etcd from an old backup may lack one service of four, whose pods run: that is not
// believed at once, and for a day if the API server counts backwards.
func TestOneMissingServiceOfFourIsHeld(t *testing.T) {
	for what, held := range map[string]time.Duration{"100": restoredFor, "300": holdFor} {
		synctest.Test(t, func(t *testing.T) {
			w := prepare(t, shops(4)...)
			w.version.Store("200")
			w.run(t)
			<-w.Synced()
			after(5 * time.Second)
			const lost = "s-1.shop.svc.cluster.local"
			if got := members(w.snapshot(), lost); len(got) != 1 {
				t.Fatalf("members %q", got)
			}
			w.restore(t, 1, what)
			after(held - 5*time.Second)
			if got := members(w.snapshot(), lost); len(got) != 1 {
				t.Fatalf("lists at %s: the service that they lack has members %q after %v; want it to be held", what, got, held-5*time.Second)
			}
			if st := w.Status(); st.Held == "" || !strings.Contains(strings.Join(st.Findings(), "\n"), "1 of 4 services are missing") {
				t.Errorf("held %q, findings %q", st.Held, st.Findings())
			}
			after(2 * time.Minute)
			if s := w.snapshot().Named(lost); s != nil || w.Status().Held != "" {
				t.Errorf("lists at %s: %v is held for more than %v: %q", what, s, held, w.Status().Findings())
			}
		})
	}
}

func TestMissingServiceThatIsMadeAnewWasNeverGone(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := prepare(t, shops(4)...)
		w.run(t)
		<-w.Synced()
		w.restore(t, 1, "")
		after(2 * time.Minute)
		s, slice, _ := shopOf(1)
		if err := errors.Join(w.api.Tracker().Add(s), w.api.Tracker().Add(slice)); err != nil {
			t.Fatal(err)
		}
		after(lookEvery)
		if st := w.Status(); st.Held != "" || len(members(w.snapshot(), "s-1.shop.svc.cluster.local")) != 1 {
			t.Errorf("held %q, members %q", st.Held, members(w.snapshot(), "s-1.shop.svc.cluster.local"))
		}
		if err := w.api.CoreV1().Services("shop").Delete(t.Context(), "s-1", metav1.DeleteOptions{}); err != nil {
			t.Fatal(err)
		}
		after(lookEvery)
		if w.snapshot().Named("s-1.shop.svc.cluster.local") != nil {
			t.Error("a watch tells that it was deleted, and it stays")
		}
	})
}

// Of what nobody needs a list is believed: a node without pods, a slice whose pods another one
// lists or that are gone.
func TestWhatNobodyNeedsIsNotHeld(t *testing.T) {
	c := NewCluster("west", "istio-system")
	service, slice, pod := shopOf(0)
	copied := slice.DeepCopy()
	copied.Name = "copy"
	events := []Event{{Services, "shop", service.Name, service}, {EndpointSlices, "shop", slice.Name, slice}, {EndpointSlices, "shop", copied.Name, copied}, {Pods, "shop", pod.Name, pod},
		{Nodes, "", "n-1", &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "n-1"}}}, {Nodes, "", "n-2", &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "n-2"}}},
		{Namespaces, "", "shop", &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: "shop"}}}, {Namespaces, "", "empty", &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: "empty"}}}}
	c.Apply(events...)
	missing := map[Event]bool{}
	is := func(k Kind, n name) bool { return missing[Event{Kind: k, Namespace: n.namespace, Name: n.name}] }
	for _, x := range []struct {
		k     Kind
		n     name
		needs bool
	}{
		{Pods, name{"shop", pod.Name}, true}, {Services, name{"shop", service.Name}, true}, {Nodes, name{"", "n-1"}, true}, {Nodes, name{"", "n-2"}, false},
		{Namespaces, name{"", "shop"}, true}, {Namespaces, name{"", "empty"}, false}, {EndpointSlices, name{"shop", slice.Name}, false},
	} {
		if got := c.needs(x.k, x.n, is); got != x.needs {
			t.Errorf("%s %s is needed: %v, want %v", x.k, x.n, got, x.needs)
		}
	}
	missing[Event{Kind: EndpointSlices, Namespace: "shop", Name: "copy"}] = true
	missing[Event{Kind: EndpointSlices, Namespace: "shop", Name: slice.Name}] = true
	if !c.needs(EndpointSlices, name{"shop", slice.Name}, is) {
		t.Error("the other slice is missing too, and nobody else lists the pod")
	}
	c.Apply(Event{Pods, "shop", pod.Name, nil})
	if c.needs(EndpointSlices, name{"shop", slice.Name}, is) {
		t.Error("its pod is gone, and it is needed")
	}
}

// A pod that was there when another one vanished, with its address, has taken its place.
func TestAddressThatAnotherPodHasIsNoSignOfLife(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		all := crowd(10)
		w := prepare(t, all...)
		w.probe = func(context.Context, string) bool { return true }
		w.run(t)
		<-w.Synced()
		w.refuse(errors.New("connection refused"))
		w.cut()
		after(time.Second)
		p := all[3].(*corev1.Pod).DeepCopy()
		p.Name, p.UID = "other", "other"
		if err := errors.Join(w.api.Tracker().Delete(corev1.SchemeGroupVersion.WithResource("pods"), "shop", "p-03"), w.api.Tracker().Add(p)); err != nil {
			t.Fatal(err)
		}
		w.refuse(nil)
		after(2 * time.Minute)
		if s := w.snapshot(); s.Workload("u3") != nil || s.Workload("other") == nil || w.Status().Held != "" {
			t.Errorf("%d pods, held %q; want the new one alone at its address", s.NumWorkloads(), w.Status().Held)
		}
	})
}

// Who has the address of a missing pod may be nobody that this cluster knows, and answer for ever.
func TestMissingPodThatAnswersIsHeldForADay(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := prepare(t, crowd(10)...)
		w.probe = func(context.Context, string) bool { return true }
		w.run(t)
		<-w.Synced()
		w.lose(t, 3, 4)
		after(restoredFor - time.Minute)
		if w.snapshot().Workload("u3") == nil {
			t.Fatalf("gone before %v, and it answers", restoredFor)
		}
		after(2 * time.Minute)
		if s := w.snapshot(); s.Workload("u3") != nil || s.NumWorkloads() != 9 || w.Status().Held != "" {
			t.Errorf("%d pods, held %q; want the missing one to be gone after %v", s.NumWorkloads(), w.Status().Held, restoredFor)
		}
	})
}

// A node that has the address of a missing pod has taken its place, as where nodes and pods get theirs from one range.
func TestAddressThatANodeHasIsNoSignOfLife(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		all := crowd(10)
		w := prepare(t, all...)
		w.probe = func(context.Context, string) bool { return true }
		w.run(t)
		<-w.Synced()
		if err := w.api.Tracker().Add(&corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "new"}, Status: corev1.NodeStatus{Addresses: []corev1.NodeAddress{{Type: corev1.NodeInternalIP, Address: all[3].(*corev1.Pod).Status.PodIP}}}}); err != nil {
			t.Fatal(err)
		}
		w.lose(t, 3, 4)
		after(2 * time.Minute)
		if s := w.snapshot(); s.Workload("u3") != nil || w.Status().Held != "" {
			t.Errorf("%d pods, held %q; want the one whose address a node has to be gone", s.NumWorkloads(), w.Status().Held)
		}
	})
}

// A list that is read anew, or that comes after a cache, is not in memory a second time: what has not
// changed is what was known.
func TestObjectsThatHaveNotChangedAreKeptOnce(t *testing.T) {
	path := filepath.Join(t.TempDir(), "cache")
	synctest.Test(t, func(t *testing.T) {
		first(t, path)
		w := life(t, path, "300", 0)
		w.refuse(errors.New("connection refused"))
		w.run(t)
		after(time.Second)
		known := func() map[name]any {
			out := map[name]any{}
			for _, e := range w.cluster.Objects() {
				if e.Kind == Pods || e.Kind == Services || e.Kind == EndpointSlices {
					out[name{e.Kind.String() + "/" + e.Namespace, e.Name}] = e.Object
				}
			}
			return out
		}
		had := known()
		w.refuse(nil)
		after(2 * time.Minute)
		if w.Status().Cache.Restored {
			t.Fatal("the API server is not followed")
		}
		for n, o := range known() {
			if o != had[n] {
				t.Errorf("%s is in memory twice", n)
			}
		}
		// The same resourceVersion, and something else: an etcd that was restored counts again.
		p := crowd(2)[1].(*corev1.Pod)
		p.ResourceVersion, p.Status.PodIP, p.Status.PodIPs = "50", "10.9.9.9", []corev1.PodIP{{IP: "10.9.9.9"}}
		if err := w.api.Tracker().Update(corev1.SchemeGroupVersion.WithResource("pods"), p, "shop"); err != nil {
			t.Fatal(err)
		}
		after(time.Second)
		if got := w.snapshot().Workload("u1").Addresses; len(got) != 1 || got[0].String() != "10.9.9.9" {
			t.Errorf("addresses %v, want the new one", got)
		}
		w.stop()
	})
}
