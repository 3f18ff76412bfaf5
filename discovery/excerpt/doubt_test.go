package excerpt

import (
	"fmt"
	"testing"
	"time"

	"github.com/isthmus-mesh/isthmus/discovery"
)

// ownPods are pods of the model's node, by UID.
func ownPods(names ...string) map[string]discovery.Workload {
	out := map[string]discovery.Workload{}
	for _, n := range names {
		out[n] = discovery.Workload{UID: n, Name: n, Namespace: "shop", Network: modelNetwork, Node: modelNode}
	}
	return out
}

func all(string) bool { return true }

// A gateway may tell everything anew while it leads: what it does not list then it has
// withdrawn, as if it had named it.
func TestEverythingAnewWithdrawsWhatItDoesNotList(t *testing.T) {
	now := time.Unix(1e9, 0)
	h := NewHeld(modelNetwork, modelNode, "cluster.local")
	take := func(c change) {
		h.take(c, all, now)
		h.changes() // as Take does
	}
	whole := func(names ...string) { take(change{whole: true, pods: ownPods(names...)}) }
	h.Lead("gw-1")
	whole("a", "b", "c")
	take(change{gonePods: []string{"a"}})
	h.Lead("gw-2") // it has not heard yet that a is gone, and then it has
	whole("a", "b", "c")
	whole("b", "c")
	if h.Settle(now.Add(time.Hour)); len(h.pods) != 2 {
		t.Errorf("%d pods are held an hour later; want b and c alone: %v", len(h.pods), h.pods)
	}
	now = now.Add(2 * time.Hour)
	whole("b")
	h.Lead("gw-3")
	whole("b", "c")
	if _, back := h.pods["c"]; back {
		t.Error("the next gateway brings back at once what the one before has withdrawn")
	}
	if h.Settle(now.Add(Doubt)); len(h.pods) != 2 {
		t.Errorf("what the next gateway goes on listing stays out: %v", h.pods)
	}
}

func TestEverythingAnewLeavesWhatIsInDoubt(t *testing.T) {
	now := time.Unix(1e9, 0)
	h := NewHeld(modelNetwork, modelNode, "cluster.local")
	var names []string
	for i := range 20 {
		names = append(names, fmt.Sprintf("pod-%d", i))
	}
	h.Lead("gw-1")
	h.take(change{whole: true, pods: ownPods(names...)}, all, now)
	h.Lead("gw-2")
	for range 2 {
		h.take(change{whole: true, pods: ownPods(names[:2]...)}, all, now)
	}
	if h.Settle(now.Add(LongDoubt - time.Second)); len(h.pods) != 20 {
		t.Errorf("%d of 20 pods are held before the doubt has ended", len(h.pods))
	}
	if h.Settle(now.Add(LongDoubt)); len(h.pods) != 2 {
		t.Errorf("%d pods are held when it has; want 2", len(h.pods))
	}
}
