package file

import (
	"fmt"
	"net/netip"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/isthmus-mesh/isthmus/discovery"
)

// toldShare is what west tells of one of its services.
func toldShare(name string, capacity uint32, identities ...string) discovery.Change {
	return discovery.Change{Key: discovery.Key{Kind: discovery.KindShare, Source: discovery.Told, Name: "west/" + name},
		Record: discovery.Share{Network: "west", Name: name, Ports: []discovery.SharePort{{Port: 80}}, Identities: identities, Capacity: &capacity}}
}

const (
	oneOfTwo = "networks: [{name: one}, {name: west}]\nworkloads: [{uid: a, network: one, addresses: [10.0.0.1]}]\n"
	who      = "spiffe://cluster.local/ns/default/sa/web"
)

// capacity is what the share of a service on west counts; 0: there is none.
func (w *watched) capacity(name string) uint32 {
	s := w.store.Current()
	x, ok := s.Share(s.Service(name+".default.mesh.internal"), "west")
	if !ok {
		return 0
	}
	return x.Capacity
}

func TestAnotherSourceIsInForceBesideTheFile(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := watch(t, oneOfTwo)
		sub := w.store.Subscribe()
		defer sub.Close()
		if s := w.Apply(toldShare("web", 7, who)); s != w.store.Current() || w.capacity("web") != 7 {
			t.Fatalf("not in force: %+v", s.Services())
		}
		w.want("a", 2)
		if _, changes := sub.Take(); changes.Len() != 1 {
			t.Errorf("changes %+v, want one service", changes)
		}
		if w.Apply(toldShare("web", 7, who)); w.Status().Revision != 2 {
			t.Errorf("the same again is revision %d", w.Status().Revision)
		}

		// The file may come to say it too: its word holds, and the other is no mistake.
		w.write(oneOfTwo + "shares: [{network: west, name: web, ports: [{port: 80}], identities: [\"" + who + "\"], capacity: 3}]\n")
		w.after(time.Minute)
		if got := w.capacity("web"); got != 3 || len(w.Status().Problems) > 0 {
			t.Errorf("capacity %d, problems %v; want the file's 3 and none", got, w.Status().Problems)
		}
		if w.Apply(toldShare("web", 9, who)); w.capacity("web") != 3 {
			t.Errorf("capacity %d, want the file's 3", w.capacity("web"))
		}
		w.write(oneOfTwo)
		w.after(time.Minute)
		if got := w.capacity("web"); got != 9 {
			t.Errorf("capacity %d once the file says nothing, want 9", got)
		}
		w.Apply(discovery.Change{Key: toldShare("web", 0).Key})
		if w.capacity("web") != 0 || w.store.Current().NumServices() != 0 {
			t.Error("the service outlives its last share")
		}
	})
}

func TestProblemsOfAnotherSourceAreToldApart(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := watch(t, oneOfTwo)
		w.Apply(toldShare("web", 1, "nobody"), toldShare("mail", 1, who))
		l := w.lines()
		if len(l) != 1 || l[0]["object"] != `share "west/web"` || l[0]["field"] != "identities[0]" || l[0]["level"] != "warn" {
			t.Errorf("logged %v, want one warning about the share", l)
		}
		if st := w.Status(); len(st.Problems) != 1 || st.Problems[0].Line != 0 || st.ProblemsByCause["value"] != 1 || !strings.HasPrefix(st.Findings()[0], "discovery file "+w.path+": told by another network:") {
			t.Errorf("status %+v, findings %q", st, st.Findings())
		}
		// A change of the file leaves them where they are, and has its own.
		w.write(oneOfTwo + "gateways: [{name: gw, network: west, address: \"10.0.0.9:0\"}]\n")
		w.after(time.Minute)
		if st := w.Status(); len(st.Problems) != 2 || st.Problems[0].Line != 3 || st.Problems[1].Line != 0 {
			t.Errorf("problems %+v, want that of the file first", st.Problems)
		}
		w.lines()
		w.Apply(toldShare("web", 1, who))
		if l := w.lines(); len(l) != 1 || l[0]["message"] != "a problem of what another network tells is gone" {
			t.Errorf("logged %v", l)
		}
		if st := w.Status(); len(st.Problems) != 1 || st.Problems[0].Line != 3 {
			t.Errorf("problems %+v, want that of the file", st.Problems)
		}
	})
}

func TestANetworkCannotFillTheLogByWhatItTells(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := watch(t, oneOfTwo)
		flap := func() {
			w.Apply(toldShare("web", 1, "nobody"))
			w.Apply(toldShare("web", 1, who))
		}
		for range 100 {
			flap()
		}
		if l := w.lines(); len(l) != 2 {
			t.Errorf("%d lines of one field that changed 200 times within a moment, want 2", len(l))
		}
		time.Sleep(toldEvery)
		flap()
		if l := w.lines(); len(l) != 2 || l[0]["suppressed"] != 99.0 || l[1]["suppressed"] != 99.0 {
			t.Errorf("logged %v, want two lines with 99 before each that were not", l)
		}
	})
}

// Whoever applies, and the file, each have their last word, in snapshots that follow
// each other.
func TestSourcesMayApplyAtOnce(t *testing.T) {
	w := watch(t, oneOfTwo)
	var running sync.WaitGroup
	for i := range 4 {
		running.Go(func() {
			for n := range uint32(50) {
				w.Apply(toldShare(fmt.Sprint("s", i), n%9+1, who))
				w.Status()
			}
		})
	}
	w.write(strings.Replace(oneOfTwo, "uid: a", "uid: b", 1))
	w.Reload()
	running.Wait()
	for w.store.Current().Workload("b") == nil {
		w.Reload()
		time.Sleep(time.Millisecond)
	}
	for i := range 4 {
		if got := w.capacity(fmt.Sprint("s", i)); got != 49%9+1 {
			t.Errorf("capacity of s%d is %d, want the last that was applied", i, got)
		}
	}
}

// What a cluster says goes on beside the file: its problems are told as its own, and a
// change of the file is no removal of the cluster's pods.
func TestAClusterBesideTheFileHasItsOwnProblemsAndIsNotGuarded(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := watch(t, oneOfTwo)
		for i := range 10 {
			uid := fmt.Sprintf("pod-%d", i)
			c := discovery.Change{Key: discovery.Key{Kind: discovery.KindWorkload, Source: discovery.Cluster, Name: "demo/" + uid},
				Record: discovery.Workload{UID: uid, Network: "one", Addresses: []netip.Addr{netip.AddrFrom4([4]byte{10, 0, 1, byte(i)})}}}
			if i == 0 {
				c.Faults = []discovery.Problem{{Cause: discovery.CauseValue, Field: "metadata.labels[x]", Value: "odd", Message: "means nothing"}}
			}
			w.Apply(c)
		}
		if n := w.store.Current().NumWorkloads(); n != 11 {
			t.Fatalf("%d workloads, want 11", n)
		}
		s := w.Status()
		if len(s.Problems) != 1 || s.Problems[0].Source != "kubernetes" || s.ProblemsByCause["value"] != 1 {
			t.Errorf("problems %+v, want the cluster's", s.Problems)
		}
		if f := s.Findings(); len(f) != 1 || !strings.Contains(f[0], `told by Kubernetes: of workload "demo/pod-0" a field is not used: metadata.labels[x] "odd": means nothing`) {
			t.Errorf("findings %q", f)
		}
		w.write("networks: [{name: one}, {name: west}, {name: north}]\nworkloads: [{uid: b, network: one, addresses: [10.0.0.2]}]\n")
		w.after(time.Minute)
		if s := w.Status(); s.Failing || w.store.Current().Workload("b") == nil || w.store.Current().NumWorkloads() != 11 {
			t.Errorf("%d workloads, %+v; want the change of the file in force", w.store.Current().NumWorkloads(), s)
		}
	})
}
