package kubernetes

import (
	"fmt"
	"io"
	"maps"
	"net"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	authorizationv1 "k8s.io/api/authorization/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/isthmus-mesh/isthmus/controller"
	"github.com/isthmus-mesh/isthmus/discovery"
)

// wire leads to the API server, and can be cut.
type wire struct {
	net.Listener
	to string

	mu   sync.Mutex
	cut  bool
	open map[net.Conn]struct{}
}

func newWire(t *testing.T, to string) *wire {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	w := &wire{Listener: l, to: to, open: map[net.Conn]struct{}{}}
	var serving sync.WaitGroup
	serving.Go(func() {
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			serving.Go(func() { w.serve(c) })
		}
	})
	t.Cleanup(func() {
		l.Close()
		w.set(true)
		serving.Wait()
	})
	return w
}

func (w *wire) serve(c net.Conn) {
	defer c.Close()
	s, err := net.Dial("tcp", w.to)
	if err != nil {
		return
	}
	defer s.Close()
	w.mu.Lock()
	if w.cut {
		w.mu.Unlock()
		return
	}
	w.open[c], w.open[s] = struct{}{}, struct{}{}
	w.mu.Unlock()
	var both sync.WaitGroup
	for _, x := range [][2]net.Conn{{c, s}, {s, c}} {
		both.Go(func() {
			io.Copy(x[0], x[1])
			x[0].Close()
		})
	}
	both.Wait()
	w.mu.Lock()
	delete(w.open, c)
	delete(w.open, s)
	w.mu.Unlock()
}

// set cuts the wire, or mends it.
func (w *wire) set(cut bool) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.cut = cut; cut {
		for c := range w.open {
			c.Close()
		}
	}
}

// wired makes a controller reach the API server by a wire of its own.
func (o *office) wired(name string) (*wire, func(*controller.Config)) {
	o.t.Helper()
	host := strings.TrimPrefix(o.config.Host, "https://")
	w := newWire(o.t, host)
	b, err := os.ReadFile(o.kubeconfig)
	path := filepath.Join(o.dir, "wired-"+name)
	if err == nil {
		err = os.WriteFile(path, []byte(strings.ReplaceAll(string(b), host, w.Addr().String())), 0o600)
	}
	if err != nil {
		o.t.Fatal(err)
	}
	return w, func(c *controller.Config) { c.Discovery.Kube.Kubeconfig = path }
}

// allocated are the addresses and UIDs of all imports.
func (o *office) allocated() map[string]string {
	out := map[string]string{}
	for n, i := range o.imports() {
		out[n] = string(i.GetUID()) + " " + addressesOf(i) + " of " + clustersOf(i)
	}
	return out
}

// imported reports whether exactly these services are imported, each with two addresses.
func (o *office) imported(names ...string) bool {
	is := o.imports()
	for _, n := range names {
		if len(strings.Fields(addressesOf(is[n]))) != 2 || clustersOf(is[n]) == "" {
			return false
		}
	}
	return len(is) == len(names)
}

func services(prefix string, n int) (out []string) {
	for i := range n {
		out = append(out, fmt.Sprint(prefix, i))
	}
	return out
}

// writes is how many writes of imports a controller has done or tried, by what came of them.
func (d *desk) writes(t *testing.T) map[string]float64 {
	t.Helper()
	families, err := d.Registry().Gather()
	if err != nil {
		t.Fatal(err)
	}
	out := map[string]float64{}
	for _, f := range families {
		if f.GetName() != "isthmus_controller_writes_total" {
			continue
		}
		for _, m := range f.GetMetric() {
			for _, l := range m.GetLabel() {
				if l.GetName() == "result" {
					out[l.GetValue()] += m.GetCounter().GetValue()
				}
			}
		}
	}
	return out
}

func total(m map[string]float64) (sum float64) {
	for _, v := range m {
		sum += v
	}
	return sum
}

// A leader that dies does not give its Lease back. The next one leads within the time of
// the Lease, changes nothing, and goes on with what has changed meanwhile.
func TestALeaderThatDiesIsFollowedWithinItsLease(t *testing.T) {
	o := openOffice(t)
	all := services("s", 20)
	for _, n := range all {
		o.export("east", n, 80, 8080)
	}
	o.open()
	const lease = 3 * time.Second
	first, wired := o.wired("1")
	short := func(c *controller.Config) { c.Lease.Duration = lease }
	dead := o.hire("controller-1", wired, short)
	eventually(t, 30*time.Second, "controller-1 leads", func() bool { return o.leader() == "controller-1" })
	next := o.hire("controller-2", short)
	eventually(t, 60*time.Second, "all are imported", func() bool { return o.imported(all...) })
	before := o.allocated()

	began := time.Now()
	first.set(true) // from one moment to the next, as when its node dies
	o.EditService("s3", func(s *discovery.Service) { s.Global = false })
	o.export("east", "late", 80, 8080)
	o.Write()
	eventually(t, 30*time.Second, "controller-2 leads", func() bool { return o.leader() == "controller-2" })
	took := time.Since(began)
	t.Logf("leader dead → the next one leads: %v, with a Lease of %v", took.Round(time.Millisecond), lease)
	if limit := lease + lease/2; took > limit { // it asks each eighth of the time, with jitter
		t.Errorf("the next one leads after %v; want within %v", took, limit)
	}
	want := slices.DeleteFunc(append(slices.Clone(all), "late"), func(n string) bool { return n == "s3" })
	eventually(t, 30*time.Second, "what has changed meanwhile is imported", func() bool { return o.imported(want...) })
	after := o.allocated()
	delete(before, "s3")
	delete(after, "late")
	if !maps.Equal(before, after) {
		t.Errorf("under the next leader imports are %v; before %v", after, before)
	}
	if n := total(next.writes(t)); n > 4 {
		t.Errorf("the next leader has written %v; want one creation and one deletion", next.writes(t))
	}
	first.set(false) // it comes back, and thinks whatever it thinks
	done := total(dead.writes(t))
	eventually(t, 30*time.Second, "controller-1 sees who leads", func() bool { return strings.Contains(dead.log.String(), `"leader":"controller-2"`) })
	if now := o.allocated(); total(dead.writes(t)) != done || len(now) != len(want) {
		t.Errorf("who was thought dead has tried to write: %v, of these since it was back %v; there are %d imports, want %d", dead.writes(t), total(dead.writes(t))-done, len(now), len(want))
	}
}

// While the API server is away nothing is lost; when it is back nothing is written that has
// not changed, and the rest at once.
func TestAControllerWithoutItsAPIServer(t *testing.T) {
	o := openOffice(t)
	all := services("s", 30)
	for _, n := range all {
		o.export("east", n, 80, 8080)
	}
	o.open()
	lines := map[string]*wire{}
	for _, n := range []string{"controller-1", "controller-2"} {
		w, wired := o.wired(n)
		lines[n] = w
		o.hire(n, wired)
	}
	eventually(t, 60*time.Second, "all are imported", func() bool { return o.imported(all...) })
	before := o.allocated()
	written := func() (n float64) {
		for _, d := range o.running {
			n += total(d.writes(t))
		}
		return n
	}
	was := written()
	for _, w := range lines {
		w.set(true)
	}
	o.server.Process.Kill() // of the controllers, the gateway and this test
	o.server.Wait()
	gone := time.Now()
	o.EditService("s4", func(s *discovery.Service) { s.Global = false })
	o.export("east", "late", 80, 8080)
	o.Write()
	eventually(t, outage(t)+10*time.Second, "the outage is over", func() bool { return time.Since(gone) > outage(t) })
	if n := written() - was; n > 20 {
		t.Errorf("%v writes were tried in %v without an API server", n, time.Since(gone).Round(time.Second))
	}
	o.server = o.serve()
	o.await(t)
	back := time.Now()
	tried := written()
	for _, w := range lines {
		w.set(false)
	}
	want := slices.DeleteFunc(append(slices.Clone(all), "late"), func(n string) bool { return n == "s4" })
	eventually(t, time.Minute, "what has changed meanwhile is imported", func() bool { return o.imported(want...) })
	t.Logf("API server back → what has changed is imported: %v", time.Since(back).Round(time.Millisecond))
	after := o.allocated()
	delete(before, "s4")
	delete(after, "late")
	if !maps.Equal(before, after) {
		t.Errorf("after it imports are %v; before %v", after, before)
	}
	if n := written() - tried; n > 6 {
		t.Errorf("%v writes when it is back; want a creation and a deletion", n)
	}
}

// Without the right to write, the rest goes on, some requests tell of it, and one warning;
// when the right is back all is written within seconds.
func TestARightIsTakenAwayAndGivenBack(t *testing.T) {
	o := openOffice(t)
	all := services("s", 10)
	for _, n := range all {
		o.export("east", n, 80, 8080)
	}
	o.open()
	d := o.hire("controller-1")
	eventually(t, 60*time.Second, "all are imported", func() bool { return o.imported(all...) })
	before := o.allocated()
	allow := func(verbs ...string) {
		t.Helper()
		r, err := o.RbacV1().ClusterRoles().Get(t.Context(), "controller", metav1.GetOptions{})
		if err != nil {
			t.Fatal(err)
		}
		for i, rule := range r.Rules {
			if slices.Equal(rule.Resources, []string{"serviceimports"}) {
				r.Rules[i] = rbacv1.PolicyRule{APIGroups: rule.APIGroups, Resources: rule.Resources, Verbs: append([]string{"get", "list", "watch"}, verbs...)}
			}
		}
		if _, err := o.RbacV1().ClusterRoles().Update(t.Context(), r, metav1.UpdateOptions{}); err != nil {
			t.Fatal(err)
		}
		may := func(verb string) bool { // the API server follows its own roles a little later
			r, err := o.AuthorizationV1().SubjectAccessReviews().Create(t.Context(), &authorizationv1.SubjectAccessReview{Spec: authorizationv1.SubjectAccessReviewSpec{User: "controller",
				ResourceAttributes: &authorizationv1.ResourceAttributes{Namespace: "default", Verb: verb, Group: "multicluster.x-k8s.io", Resource: "serviceimports"}}}, metav1.CreateOptions{})
			return err == nil && r.Status.Allowed
		}
		for _, verb := range []string{"create", "delete"} {
			eventually(t, 10*time.Second, "the role is in force", func() bool { return may(verb) == slices.Contains(verbs, verb) })
		}
	}
	allow("delete")
	more := services("more", 60)
	for _, n := range more {
		o.export("east", n, 80, 8080)
	}
	o.EditService("s0", func(s *discovery.Service) { s.Global = false })
	o.Write()
	began := time.Now()
	eventually(t, 20*time.Second, "what the role allows is done: an import is deleted", func() bool { return o.imports()["s0"] == nil })
	eventually(t, 20*time.Second, "a creation is refused", func() bool { return d.writes(t)["refused"] > 0 })
	eventually(t, 20*time.Second, "some time passes", func() bool { return time.Since(began) > 8*time.Second })
	took := time.Since(began)
	if n := d.writes(t)["refused"]; n > 2*took.Seconds() {
		t.Errorf("%v creations were tried in %v without the right", n, took)
	}
	if n := strings.Count(d.log.String(), `"request":"create serviceimports"`); n != 1 {
		t.Errorf("%d lines of the log warn of it; want one", n)
	}
	allow("create", "update", "delete")
	back := time.Now()
	want := append(slices.Clone(all[1:]), more...)
	eventually(t, 30*time.Second, "all are imported", func() bool { return o.imported(want...) })
	t.Logf("right back → %d imports made: %v", len(more), time.Since(back).Round(time.Millisecond))
	after := o.allocated()
	for _, n := range all[1:] {
		if before[n] != after[n] {
			t.Errorf("%s was %s and is %s", n, before[n], after[n])
		}
	}
}
