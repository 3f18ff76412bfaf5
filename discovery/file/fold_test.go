package file

import (
	"fmt"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/isthmus-mesh/isthmus/mesh"
)

// city describes a mesh whose network west has n pods of one service from the first-th
// on, and east one.
func city(first, n int) string {
	var b strings.Builder
	b.WriteString("networks: [{name: east}, {name: west}]\nservices: [{name: web, global: true, ports: [{port: 80}]}]\nworkloads:\n- {uid: a, network: east, addresses: [10.9.9.9]}\n")
	for i := first; i < first+n; i++ {
		fmt.Fprintf(&b, "- {uid: p%d, network: west, addresses: [10.0.0.%d], services: [web.default.svc.cluster.local]}\n", i, i+1)
	}
	return b.String()
}

// A process on one network keeps no workload of others, and is held to its file and told
// of it all the same.
func TestWorkloadsElsewhereAreFolded(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := watchFor(t, "east", city(0, 9))
		w.write(city(0, 10))
		w.after(time.Minute)
		id := mesh.EndpointIDOf("west", "p3")
		s := w.store.Current()
		x, ok := s.Share(s.Service("web.default.mesh.internal"), "west")
		if !ok || x.Capacity != 10 || s.NumWorkloads() != 1 || w.NameOf(id) != "p3" || w.NameOf(1) != "" {
			t.Fatalf("share %+v, %d workloads, p3 is %q; want a share of 10, one workload, and names", x.Export, s.NumWorkloads(), w.NameOf(id))
		}
		if l := w.lines(); len(l) != 1 || l[0]["workloads"] != 11.0 {
			t.Errorf("logged %v, want all workloads counted", l)
		}

		// One pod for another is no new share, so no new revision.
		w.write(strings.Replace(city(0, 10), "uid: p3", "uid: q3", 1))
		w.after(time.Minute)
		if w.store.Current() != s || w.NameOf(id) != "" || w.NameOf(mesh.EndpointIDOf("west", "q3")) != "q3" {
			t.Errorf("revision %d after %d, p3 is %q, q3 %q", w.store.Current().Revision, s.Revision, w.NameOf(id), w.NameOf(mesh.EndpointIDOf("west", "q3")))
		}
		w.lines()

		// A problem of a pod there has its line, and says when it is gone.
		w.write(city(0, 10) + "- {uid: zodd, network: west, addresses: [10.0.0.1], services: [web.default.svc.cluster.local]}\n")
		w.after(time.Minute)
		if st := w.Status(); len(st.Problems) != 1 || st.Problems[0].Line != 15 || st.Problems[0].Object != `workload "zodd"` {
			t.Errorf("problems %+v, want one in line 15", st.Problems)
		}
		if l := w.lines(); len(l) != 2 || l[0]["level"] != "error" {
			t.Errorf("logged %v, want the problem", l)
		}
		w.write(city(0, 10))
		w.after(time.Minute)
		if l := w.lines(); len(l) != 2 || l[0]["message"] != "a problem of the discovery file is gone with its object" || len(w.Status().Problems) > 0 {
			t.Errorf("logged %v, problems %v", l, w.Status().Problems)
		}

		// The guard counts them, and names them.
		w.write(city(0, 6))
		w.after(time.Minute)
		if l := w.lines(); len(l) != 1 || l[0]["reason"] != "it removes 4 of 11 workloads, more than 30 %: p6, p7, p8, p9" {
			t.Errorf("logged %v, want it to be held", l)
		}
		if err := w.Confirm(t.Context(), w.Status().Held); err != nil {
			t.Fatal(err)
		}
		s = w.store.Current()
		if x, _ := s.Share(s.Service("web.default.mesh.internal"), "west"); x.Capacity != 6 {
			t.Errorf("capacity %d once confirmed, want 6", x.Capacity)
		}
		w.lines()
		w.write(city(0, 6) + "confirm: \"\"\n")
		w.after(time.Minute)
		w.write(strings.Replace(city(0, 0), "workloads:", "workloads:\n- {uid: p0, network: west, addresses: [10.0.0.1]}\n- {uid: p1, network: west, addresses: [10.0.0.2]}\n- {uid: p2, network: west, addresses: [10.0.0.3]}\n- {uid: p3, network: west, addresses: [10.0.0.4]}", 1))
		w.after(time.Minute)
		found := false
		for _, l := range w.lines() {
			found = found || l["message"] == "services have lost their last workload" && l["services"] == "web.default.svc.cluster.local"
		}
		if !found {
			t.Error("nobody says that the service lost its last workload")
		}
	})
}

// A file that lists no workload of another network any more, and did, is looked at as well.
func TestAFileThatLosesAllWorkloadsElsewhereIsHeld(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		idle := func(n int) string {
			return strings.ReplaceAll(city(0, n), ", services: [web.default.svc.cluster.local]", "")
		}
		w := watchFor(t, "east", idle(9))
		w.after(5 * time.Second)
		w.write(idle(0))
		w.after(5 * time.Second)
		if s := w.Status(); !strings.HasPrefix(s.LastError, "held: it removes 9 of 10 workloads, ") {
			t.Errorf("%+v; want it held", s)
		}
	})
}
