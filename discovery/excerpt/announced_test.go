package excerpt

import (
	"net/netip"
	"testing"
	"time"

	"github.com/isthmus-mesh/isthmus/discovery"
)

// A pod whose sandbox is made anew has another address before a gateway can tell: its status has the old one until the
// sandbox is ready, which waits for the capture at the new one.
func TestAnAddressThatThisNodeAnnouncesIsNewerThanTheOneThatWasTold(t *testing.T) {
	now := time.Unix(1e9, 0)
	v, _ := cluster(1)
	at := func(a string, labels map[string]string) discovery.Change {
		c := localPod("w", labels)
		p := c.Record.(discovery.Workload)
		p.Addresses = []netip.Addr{netip.MustParseAddr(a)}
		c.Record = p
		return c
	}
	v.apply(at("10.9.9.1", nil))
	x := NewIndex(modelNetwork, v.snap)
	h, node := NewHeld(modelNetwork, modelNode, "cluster.local"), newView()
	h.Lead("a")
	r := x.Add(modelNode, nil, func() {})
	told(t, r, h, node, now)
	tell := func(c discovery.Change) {
		changes, _ := v.apply(c)
		x.Revise(v.snap, changes)
		told(t, r, h, node, now)
	}
	check := func(when, want string) {
		t.Helper()
		if p := node.snap.Workload("w"); p == nil || p.Addresses[0].String() != want {
			t.Errorf("%s it is %+v, want it at %s", when, p, want)
		}
	}
	announce := func(a string) { node.apply(h.Announce("w", []netip.Addr{netip.MustParseAddr(a)})...) }
	check("told,", "10.9.9.1")
	announce("10.9.9.2")
	check("announced at another address,", "10.9.9.2")
	tell(at("10.9.9.1", labelsOfTests[1]))
	check("told with other labels,", "10.9.9.2")
	announce("10.9.9.3")
	check("announced once more,", "10.9.9.3")
	node.apply(h.Forget("w")...)
	check("forgotten,", "10.9.9.1")
	announce("10.9.9.4")
	tell(at("10.9.9.4", nil))
	check("told what was announced,", "10.9.9.4")
	tell(at("10.9.9.1", nil))
	check("told another one later,", "10.9.9.1")
	announce("10.9.9.1")
	tell(at("10.9.9.5", nil))
	check("told another one than was told and announced,", "10.9.9.5")
	if len(h.announced) > 0 {
		t.Errorf("%v is kept", h.announced)
	}
}

// What was announced of a pod ends with it, also where no gateway says that it has gone but one that leads does not list it.
func TestAnAnnouncementEndsWithItsPod(t *testing.T) {
	now := time.Unix(1e9, 0)
	v, _ := cluster(1)
	pod := localPod("w", nil)
	p := pod.Record.(discovery.Workload)
	p.Addresses, p.Services, p.Scheduled = nil, nil, true
	pod.Record = p
	without := NewIndex(modelNetwork, v.snap)
	v.apply(pod)
	h, node := NewHeld(modelNetwork, modelNode, "cluster.local"), newView()
	h.Lead("a")
	told(t, NewIndex(modelNetwork, v.snap).Add(modelNode, nil, func() {}), h, node, now)
	node.apply(h.Announce("w", []netip.Addr{netip.MustParseAddr("10.9.9.2")})...)
	if node.snap.Workload("w") == nil {
		t.Fatal("the pod is not there")
	}
	h.Lead("b")
	told(t, without.Add(modelNode, nil, func() {}), h, node, now)
	node.apply(h.Settle(now.Add(LongDoubt))...)
	if node.snap.Workload("w") != nil || len(h.announced) > 0 {
		t.Errorf("the pod is %+v, and announced is %v", node.snap.Workload("w"), h.announced)
	}
}
