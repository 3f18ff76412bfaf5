package pods

import (
	"net/netip"
	"strings"
	"testing"
	"time"

	"github.com/isthmus-mesh/isthmus/discovery"
	"github.com/isthmus-mesh/isthmus/mesh"
	"github.com/isthmus-mesh/isthmus/nodeproxy/capture"
	"github.com/isthmus-mesh/isthmus/nodeproxy/cnisocket"
	"github.com/isthmus-mesh/isthmus/nodeproxy/podns"
)

// A pod that cannot be entered while this process lacks descriptors is tried again for as long as the plugin waits, and does not
// start without capture before. Then the plugin hears why.
func TestAPodIsTriedAgainWhileDescriptorsAreLacking(t *testing.T) {
	const uid = "0a1b2c3d-0000-0000-0000-000000000001"
	open := func() *podns.Namespace {
		ns, err := podns.Open("/proc/self/ns/net")
		if err != nil {
			t.Fatal(err)
		}
		return ns
	}
	b := discovery.NewBuilder(0)
	b.Apply(discovery.Change{Key: discovery.Key{Kind: discovery.KindNetwork, Name: "east"}, Record: discovery.Network{Name: "east"}},
		discovery.Change{Key: discovery.Key{Kind: discovery.KindWorkload, Name: uid}, Record: discovery.Workload{UID: uid, Name: "shop", Namespace: "demo", Network: "east", Node: "n1", Addresses: []netip.Addr{netip.MustParseAddr("10.0.0.1")}}})
	snap, _, _ := b.Commit()
	p := alone()
	p.Data = t.Context()
	p.Store.Swap(snap)
	c := &Set{p: p, cfg: Options{Network: "east", Node: "n1"}, held: map[string]*Pod{}, failing: map[string]*lack{}, announced: map[string]*announcement{}, wake: make(chan struct{}, 1)}
	a := &announcement{uid: uid, container: "a", ns: open(), decided: make(chan struct{})}
	c.announce(a)
	defer c.discard(a)
	at := place{ns: open(), told: a}
	withFiles(t, 0, func() {
		c.enter(&mesh.Workload{UID: uid, Addresses: []netip.Addr{netip.MustParseAddr("10.0.0.1")}}, at, capture.Rules{})
	})
	select {
	case <-a.decided:
		t.Fatalf("the plugin is told %+v at once, want that the pod is tried again", a.reply)
	default:
	}
	if got := c.undecidedReply(cnisocket.Request{UID: uid}, time.Second); got.Verdict != cnisocket.Failed || !strings.Contains(got.Reason, "too many open files") {
		t.Errorf("after that it is told %+v, want what was lacking", got)
	}
}
