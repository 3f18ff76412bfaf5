//go:build linux

package pods

import (
	"context"
	"net/netip"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/isthmus-mesh/isthmus/discovery"
	"github.com/isthmus-mesh/isthmus/discovery/excerpt"
	pb "github.com/isthmus-mesh/isthmus/federation/federationpb"
	"github.com/isthmus-mesh/isthmus/nodeproxy/cnisocket"
	"github.com/isthmus-mesh/isthmus/nodeproxy/podns"
)

// What ends of a pod's sandbox that is no more takes nothing from the next one, which has been announced meanwhile: not its
// addresses, without which nobody would capture it.
func TestTheEndOfASandboxTakesNothingFromTheNextOne(t *testing.T) {
	const uid = "0a1b2c3d-0000-0000-0000-000000000001"
	for name, ended := range map[string]func(c *Set, old *announcement){
		"DEL":            func(c *Set, old *announcement) { plugins{c}.Delete(cnisocket.Request{UID: uid, Container: "old"}) },
		"an old verdict": func(c *Set, old *announcement) { c.decide(old, cnisocket.Reply{Verdict: cnisocket.Unknown}) },
	} {
		var address netip.Addr // of the pod
		apply := func(changes ...discovery.Change) {
			for _, x := range changes {
				if x.Key.Kind != discovery.KindWorkload {
					continue
				}
				address = netip.Addr{}
				if w, is := x.Record.(discovery.Workload); is {
					address = w.Addresses[0]
				}
			}
		}
		keeper := excerpt.NewKeeper(excerpt.NewHeld("east", "n1", "cluster.local"), apply, func(string) bool { return true }, time.Now)
		keeper.Lead("gw")
		if _, err := keeper.Take(&pb.Excerpt{Whole: true, End: true, Base: &pb.Base{TrustDomain: "cluster.local", Networks: []*pb.ExcerptNetwork{{Name: "east"}}},
			Scheduled: []*pb.ExcerptWorkload{{Uid: uid, Namespace: "demo", Node: "n1"}}}); err != nil {
			t.Fatal(err)
		}
		c := &Set{p: toldBy(alone(), keeper), held: map[string]*Pod{}, failing: map[string]*lack{}, announced: map[string]*announcement{}, wake: make(chan struct{}, 1)}
		announce := func(container, a string) *announcement {
			ns, err := podns.Open("/proc/self/ns/net")
			if err != nil {
				t.Fatal(err)
			}
			x := &announcement{uid: uid, container: container, ns: ns, decided: make(chan struct{})}
			c.announce(x)
			keeper.Announce(uid, []netip.Addr{netip.MustParseAddr(a)})
			return x
		}
		old := announce("old", "10.0.0.1")
		h := &Pod{uid: uid, place: place{ns: &podns.Namespace{}, told: old}} // of the sandbox before, until Run leaves it
		c.held[uid] = h
		announce("new", "10.0.0.2")
		ended(c, old)
		if address.String() != "10.0.0.2" {
			t.Errorf("%s: the pod is at %v, want that of its next sandbox", name, address)
		}
		if old.gone.Load() && c.announcementOf(uid) == nil {
			t.Errorf("%s: the next sandbox is not announced any more", name)
		}
		plugins{c}.Delete(cnisocket.Request{UID: uid, Container: "new"})
		if address.IsValid() {
			t.Errorf("%s: after the end of the last sandbox the pod is at %v", name, address)
		}
	}
}

// Who asks about a pod that is not in the mesh is answered as soon as a gateway has said so, before or after it asks.
func TestAPodThatIsNotInTheMeshWaitsForNobody(t *testing.T) {
	const uid = "0a1b2c3d-0000-0000-0000-000000000001"
	for _, first := range []string{"the gateway", "the plugin"} {
		p := alone()
		b := discovery.NewBuilder(0)
		keeper := excerpt.NewKeeper(excerpt.NewHeld("east", "n1", "cluster.local"), func(changes ...discovery.Change) {
			b.Apply(changes...)
			snap, _, _ := b.Commit()
			p.Store.Swap(snap)
		}, func(string) bool { return true }, time.Now)
		c := &Set{p: toldBy(p, keeper), cfg: Options{Network: "east", Node: "n1"}, held: map[string]*Pod{}, failing: map[string]*lack{}, announced: map[string]*announcement{}, wake: make(chan struct{}, 1)}
		tell := func() {
			keeper.Lead("gw")
			if _, err := keeper.Take(&pb.Excerpt{Whole: true, End: true, Base: &pb.Base{TrustDomain: "cluster.local", Networks: []*pb.ExcerptNetwork{{Name: "east"}}}, Outside: []string{uid}}); err != nil {
				t.Fatal(err)
			}
		}
		replies := make(chan cnisocket.Reply)
		ask := func() {
			f, err := os.Open("/proc/self/ns/net")
			if err != nil {
				t.Fatal(err)
			}
			ctx, cancel := context.WithTimeout(t.Context(), 10*time.Second)
			go func() {
				defer cancel()
				replies <- plugins{c}.Add(ctx, cnisocket.Request{UID: uid, Container: "a", Addresses: []netip.Addr{netip.MustParseAddr("10.0.0.1")}}, f)
			}()
			<-c.wake // it is announced
		}
		if first == "the gateway" {
			tell()
			ask()
		} else {
			ask()
			tell()
		}
		c.judge(p.Store.Current()) // as Run does when it is woken, and when the snapshot changes
		if got := <-replies; got.Verdict != cnisocket.Outside {
			t.Errorf("%s first: the reply is %+v, want that it is outside", first, got)
		}
		if got := (plugins{c}).Check(cnisocket.Request{UID: uid}); got.Verdict != cnisocket.Outside {
			t.Errorf("%s first: the reply to CHECK is %+v, want that it is outside", first, got)
		}
		if len(c.announced) > 0 {
			t.Errorf("%s first: its namespace is kept", first)
		}
	}
}

// Who announces a pod while that is being entered, since a process of it was found, is told that it is captured: nobody else
// looks for it any more.
func TestAPodThatIsFoundWhileItIsAnnouncedIsCaptured(t *testing.T) {
	const uid = "0a1b2c3d-0000-0000-0000-000000000001"
	c := &Set{p: alone(), held: map[string]*Pod{}, failing: map[string]*lack{}, announced: map[string]*announcement{}, wake: make(chan struct{}, 1)}
	f, err := os.Open("/proc/self/ns/net")
	if err != nil {
		t.Fatal(err)
	}
	found, err := podns.Open("/proc/self/ns/net")
	if err != nil {
		t.Fatal(err)
	}
	defer found.Close()
	ctx, cancel := context.WithTimeout(t.Context(), 10*time.Second)
	defer cancel()
	replies := make(chan cnisocket.Reply, 1)
	go func() {
		replies <- plugins{c}.Add(ctx, cnisocket.Request{UID: uid, Container: "a", Addresses: []netip.Addr{netip.MustParseAddr("10.0.0.1")}}, f)
	}()
	<-c.wake // it is announced
	c.mu.Lock()
	c.held[uid] = &Pod{uid: uid, place: place{ns: found, sandbox: &podns.Sandbox{Namespace: found}}} // what Run was about to enter
	c.mu.Unlock()
	c.judge(c.p.Store.Current())
	if got := <-replies; got.Verdict != cnisocket.Captured {
		t.Errorf("the reply is %+v, want that it is captured", got)
	}
	if len(c.announced) > 0 {
		t.Error("the namespace that was announced is kept beside the one that was found")
	}
}

// Who has waited in vain hears whether nobody has told of the pod, or the node proxy has not come to it, and what it did.
func TestWhoWaitsInVainHearsWhy(t *testing.T) {
	const uid = "0a1b2c3d-0000-0000-0000-000000000001"
	end := make(chan struct{})
	for _, row := range []struct {
		what    string
		told    bool
		begin   bool
		verdict cnisocket.Verdict
		reason  string
	}{
		{"nobody has told", false, false, cnisocket.Unknown, "no gateway has told this node proxy within "},
		{"told, and nothing is begun", true, false, cnisocket.Failed, "it has not come to the pod"},
		{"told, and it is being entered", true, true, cnisocket.Failed, "entering its network namespace has taken "},
	} {
		p := alone()
		b := discovery.NewBuilder(0)
		keeper := excerpt.NewKeeper(excerpt.NewHeld("east", "n1", "cluster.local"), func(changes ...discovery.Change) {
			b.Apply(changes...)
			snap, _, _ := b.Commit()
			p.Store.Swap(snap)
		}, func(string) bool { return true }, time.Now)
		keeper.Lead("gw")
		excerpt := &pb.Excerpt{Whole: true, End: true, Base: &pb.Base{TrustDomain: "cluster.local", Networks: []*pb.ExcerptNetwork{{Name: "east"}}}}
		if row.told {
			excerpt.Scheduled = []*pb.ExcerptWorkload{{Uid: uid, Namespace: "demo", Node: "n1", ServiceAccount: "shop"}}
		}
		if _, err := keeper.Take(excerpt); err != nil {
			t.Fatal(err)
		}
		c := &Set{p: toldBy(p, keeper), cfg: Options{Network: "east", Node: "n1"}, held: map[string]*Pod{}, failing: map[string]*lack{}, announced: map[string]*announcement{}, wake: make(chan struct{}, 1)}
		if row.begin {
			begun := make(chan struct{})
			c.works.begin(uid, "entering its network namespace", podns.ID{}, func() { close(begun); <-end })
			<-begun
		}
		f, err := os.Open("/proc/self/ns/net")
		if err != nil {
			t.Fatal(err)
		}
		ctx, cancel := context.WithTimeout(t.Context(), 10*time.Millisecond)
		got := plugins{c}.Add(ctx, cnisocket.Request{UID: uid, Namespace: "demo", Name: "shop", Container: "a", Addresses: []netip.Addr{netip.MustParseAddr("10.0.0.1")}}, f)
		cancel()
		if got.Verdict != row.verdict || !strings.Contains(got.Reason, row.reason) {
			t.Errorf("%s: the reply is %+v, want %s: … %s …", row.what, got, row.verdict, row.reason)
		}
		if len(c.announced) > 0 {
			t.Errorf("%s: its namespace is kept", row.what)
		}
		ctx, cancel = context.WithCancel(t.Context())
		cancel() // it stops, or the plugin has gone
		f, err = os.Open("/proc/self/ns/net")
		if err != nil {
			t.Fatal(err)
		}
		if got := (plugins{c}).Add(ctx, cnisocket.Request{UID: uid, Container: "b", Addresses: []netip.Addr{netip.MustParseAddr("10.0.0.1")}}, f); got.Verdict != cnisocket.Stopping {
			t.Errorf("%s: when this process stops the reply is %+v", row.what, got)
		}
		defer c.works.wait()
	}
	close(end)
}
