package excerpt

import (
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"testing"
	"time"

	"google.golang.org/protobuf/proto"

	"github.com/isthmus-mesh/isthmus/discovery"
	pb "github.com/isthmus-mesh/isthmus/federation/federationpb"
	"github.com/isthmus-mesh/isthmus/mesh"
	"github.com/isthmus-mesh/isthmus/policy"
)

var (
	rootOfTests       = discovery.Change{Key: discovery.RootNamespaceKey(), Record: discovery.RootNamespace{Name: "root"}}
	namespacesOfTests = []string{"default", "shop", "root"}
	labelsOfTests     = []map[string]string{nil, {"app": "a"}, {"app": "b", "v": "1"}}
)

// policyOf is a policy of a namespace for the pods that have labels, which differs by n.
func policyOf(ns, name, action string, labels map[string]string, n int) discovery.Change {
	match := map[string]any{}
	for k, v := range labels {
		match[k] = v
	}
	o := discovery.Policy{"apiVersion": "security.istio.io/v1", "kind": "AuthorizationPolicy", "metadata": map[string]any{"name": name, "namespace": ns},
		"spec": map[string]any{"action": action, "selector": map[string]any{"matchLabels": match}, "rules": []any{map[string]any{"to": []any{map[string]any{"operation": map[string]any{"ports": []any{fmt.Sprint(80 + n)}}}}}}}}
	return discovery.Change{Key: policyKey("AuthorizationPolicy " + ns + "/" + name), Record: o}
}

// stepPolicy changes policies, or has a gateway know them.
func (w *world) stepPolicy(pick func(int) int) {
	if pick(4) == 0 {
		i := pick(len(w.replicas))
		w.steps = append(w.steps, fmt.Sprintf("gateway %d knows all policies", i))
		w.know(w.replicas[i])
		return
	}
	if pick(12) == 0 {
		w.restoreBackup(pick)
		return
	}
	c := policyOf(namespacesOfTests[pick(3)], fmt.Sprintf("x%d", pick(3)), []string{"ALLOW", "DENY"}[pick(2)], labelsOfTests[pick(3)], pick(2))
	if pick(4) == 0 {
		c.Record = nil
	}
	w.sayPolicy(c)
}

// know has a gateway know that it has all policies.
func (w *world) know(g *replica) {
	g.knows = true
	if changes, _ := g.apply(w.rootOf(g)...); !changes.Empty() {
		g.index.Revise(g.snap, changes)
	}
}

// policiesOfPods are which policies are for each pod of the node.
func (w *world) policiesOfPods() map[string][]policy.Object {
	out, s := map[string][]policy.Object{}, w.node.snap
	for _, p := range s.OnNode(modelNetwork, modelNode) {
		out[p.UID] = s.Policies().All(workloadOf(p))
	}
	return out
}

// checkPolicies looks whether the first word of another gateway has taken a policy away: what it does not
// list is in doubt, and if it tells no policies all stay for all pods.
func (w *world) checkPolicies(before map[string][]policy.Object) {
	for uid, list := range before {
		p := w.node.snap.Workload(uid)
		for _, o := range list {
			is := w.node.snap.Policies().Get(o.Name())
			if is == nil {
				w.t.Fatalf("%s vanished with a change of the leader\n%s", o.Name(), w.story())
			}
			if p != nil && !w.held.tells && !w.node.snap.Policies().Concerns(is, workloadOf(p)) {
				w.t.Fatalf("%s is not for pod %s any more, and the leader tells no policies\n%s", o.Name(), uid, w.story())
			}
		}
	}
}

// told brings all that a reader has to its node proxy.
func told(t *testing.T, r *Reader, h *Held, v *view, now time.Time) (messages []*pb.Excerpt) {
	t.Helper()
	messages = r.Take()
	for _, m := range messages {
		changes, _, err := h.Take(m, func(string) bool { return false }, now)
		if err != nil {
			t.Fatal(err)
		}
		v.apply(changes...)
	}
	return messages
}

func localPod(uid string, labels map[string]string) discovery.Change {
	p := podOf(0, 1)
	p.UID, p.Node, p.Namespace, p.Labels, p.Services = uid, modelNode, "shop", labels, nil
	p.Addresses = []netip.Addr{netip.AddrFrom4([4]byte{10, 9, 9, byte(len(uid))})}
	return discovery.Change{Key: podKey(uid), Record: p}
}

func closed(s *mesh.Snapshot, uid string) bool {
	p := s.Workload(uid)
	return p != nil && !s.Policies().For(workloadOf(p)).Decide(policy.Connection{Destination: netip.MustParseAddrPort("10.9.9.1:80")}).Allowed()
}

// A gateway that does not tell policies, of an older version or without the right to list them, takes none
// away, nor labels; one that never told any leaves a node proxy with none.
func TestAGatewayThatTellsNoPoliciesTakesNoneAway(t *testing.T) {
	now := time.Unix(1e9, 0)
	gateway, _ := cluster(1)
	gateway.apply(localPod("w", labelsOfTests[1]), policyOf("shop", "x", "DENY", labelsOfTests[1], 0), rootOfTests)
	old, _ := cluster(1)
	old.apply(localPod("w", nil))
	silent := NewIndex(modelNetwork, old.snap)
	silent.AwaitCluster()

	h, node := NewHeld(modelNetwork, modelNode, "cluster.local"), newView()
	h.Lead("old")
	told(t, silent.Add(modelNode, nil, func() {}), h, node, now)
	if closed(node.snap, "w") || h.Status().Policed || node.snap.Policies().HasCluster() {
		t.Errorf("nobody has told policies, and there are some: %+v", h.Status())
	}
	h.Lead("new")
	told(t, NewIndex(modelNetwork, gateway.snap).Add(modelNode, nil, func() {}), h, node, now)
	if !closed(node.snap, "w") || !h.Status().Policed || h.Status().Policies != 1 {
		t.Errorf("a gateway has told one policy: %+v", h.Status())
	}
	h.Lead("old")
	told(t, silent.Add(modelNode, nil, func() {}), h, node, now)
	now = now.Add(time.Hour)
	node.apply(h.Settle(now)...)
	if !closed(node.snap, "w") || h.Status().Policed || h.Status().Policies != 1 {
		t.Errorf("a gateway that tells none leads: %+v", h.Status())
	}
	told(t, silent.Add(modelNode, nil, func() {}), h, node, now) // everything once more, as it is asked for when there is room again
	if !closed(node.snap, "w") || h.Status().Policies != 1 {
		t.Errorf("a gateway that tells none has told everything twice: %+v", h.Status())
	}
	data, err := h.Save(now)
	if err != nil {
		t.Fatal(err)
	}
	next, after := NewHeld(modelNetwork, modelNode, "cluster.local"), newView()
	changes, _, _, err := next.Restore(data)
	if err != nil {
		t.Fatal(err)
	}
	if after.apply(changes...); !closed(after.snap, "w") {
		t.Error("a node proxy that starts from its cache has lost the policy")
	}
}

// What other nodes' pods are under, and their labels, a node proxy is not told.
func TestANodeProxyIsToldThePoliciesOfItsPodsAlone(t *testing.T) {
	v, _ := cluster(1)
	other := localPod("other", map[string]string{"app": "secret"})
	w := other.Record.(discovery.Workload)
	w.Node = "n1"
	other.Record = w
	v.apply(localPod("w", labelsOfTests[1]), other, policyOf("shop", "mine", "DENY", labelsOfTests[1], 0), policyOf("shop", "secret", "DENY", map[string]string{"app": "secret"}, 0),
		policyOf("elsewhere", "secret", "DENY", nil, 0), policyOf("root", "all", "DENY", nil, 5), rootOfTests)
	x := NewIndex(modelNetwork, v.snap)
	woken := 0
	r := x.Add(modelNode, nil, func() { woken++ })
	r.Follow("10.9.9.5") // it may know that pod
	h, node := NewHeld(modelNetwork, modelNode, "cluster.local"), newView()
	h.Lead("gw")
	m := told(t, r, h, node, time.Unix(1e9, 0))
	names := func(list []*pb.Excerpt) (out []string) {
		for _, m := range list {
			for _, p := range m.GetPolicies() {
				out = append(out, p.GetName())
			}
			for _, p := range m.GetGonePolicies() {
				out = append(out, "-"+p)
			}
		}
		return out
	}
	if got := names(m); !slices.Equal(got, []string{"AuthorizationPolicy root/all", "AuthorizationPolicy shop/mine"}) || strings.Contains(fmt.Sprint(m), "secret") {
		t.Errorf("told %v", m)
	}
	step := func(what string, want []string, c ...discovery.Change) {
		t.Helper()
		woken = 0
		changes, _ := v.apply(c...)
		x.Revise(v.snap, changes)
		got := names(told(t, r, h, node, time.Unix(1e9, 0)))
		if !slices.Equal(got, want) || (woken > 0) != (len(want) > 0) {
			t.Errorf("%s: told %v, woken %d times, want %v", what, got, woken, want)
		}
	}
	step("another policy of others", nil, policyOf("shop", "secret", "DENY", map[string]string{"app": "secret"}, 1))
	step("the same once more", nil, policyOf("shop", "mine", "DENY", labelsOfTests[1], 0))
	step("it changes", []string{"AuthorizationPolicy shop/mine"}, policyOf("shop", "mine", "ALLOW", labelsOfTests[1], 0))
	step("it selects others", []string{"-AuthorizationPolicy shop/mine"}, policyOf("shop", "mine", "ALLOW", labelsOfTests[2], 0))
	step("one pod has these labels", []string{"AuthorizationPolicy shop/mine"}, localPod("w", labelsOfTests[2]))
	step("it has not", []string{"-AuthorizationPolicy shop/mine"}, localPod("w", nil))
	step("for all is gone", []string{"-AuthorizationPolicy root/all"}, discovery.Change{Key: policyKey("AuthorizationPolicy root/all")})
	step("it is back", []string{"AuthorizationPolicy root/all"}, policyOf("root", "all", "DENY", nil, 5))
	changes, _ := v.apply(localPod("w2", nil))
	x.Revise(v.snap, changes)
	if got := names(told(t, r, h, node, time.Unix(1e9, 0))); got != nil {
		t.Errorf("told %v once more, for another pod", got)
	}
	step("for all is gone again", []string{"-AuthorizationPolicy root/all"}, discovery.Change{Key: policyKey("AuthorizationPolicy root/all")})
	if n := len(node.snap.Policies().Objects()) + len(r.told) + len(r.duePolicies); n > 0 {
		t.Errorf("%d are left", n)
	}
}

// Whatever a gateway says in place of a policy, it closes what that was for.
func TestAPolicyThatMakesNoSenseCloses(t *testing.T) {
	good := policyOf("shop", "x", "ALLOW", nil, 0).Record.(discovery.Policy)
	for what, object := range map[string]string{"nothing": "", "no object": "[1]", "cut off": `{"kind":`, "another kind": `{"kind":"Sidecar","metadata":{"name":"x","namespace":"shop"}}`, "another name": policy.Write(policyOf("demo", "y", "ALLOW", nil, 0).Record.(discovery.Policy)),
		"for a waypoint": strings.Replace(policy.Write(good), `"selector"`, `"targetRefs":[{"name":"x"}],"selector"`, 1), "good": policy.Write(good)} {
		v, _ := cluster(1)
		v.apply(localPod("w", nil), rootOfTests)
		h, node := NewHeld(modelNetwork, modelNode, "cluster.local"), newView()
		h.Lead("gw")
		told(t, NewIndex(modelNetwork, v.snap).Add(modelNode, nil, func() {}), h, node, time.Unix(1e9, 0))
		changes, _, err := h.Take(&pb.Excerpt{End: true, Policies: []*pb.ExcerptPolicy{{Name: "AuthorizationPolicy shop/x", Object: object}}}, func(string) bool { return false }, time.Unix(1e9, 0))
		if err != nil {
			t.Fatal(err)
		}
		_, news := node.apply(changes...)
		if closed(node.snap, "w") != (what != "good") || (h.Status().Odd != "") != (what != "good") || len(news.Appeared) > 0 {
			t.Errorf("%s: closed %v, odd %q, problems %v", what, closed(node.snap, "w"), h.Status().Odd, news.Appeared)
		}
	}
}

// Policies without end close their namespaces, and take no more memory than there is for all.
func TestPoliciesWithoutEndCloseWhatThereIsNoRoomFor(t *testing.T) {
	v, _ := cluster(1)
	v.apply(localPod("w", nil), rootOfTests)
	h, node := NewHeld(modelNetwork, modelNode, "cluster.local"), newView()
	h.Lead("gw")
	told(t, NewIndex(modelNetwork, v.snap).Add(modelNode, nil, func() {}), h, node, time.Unix(1e9, 0))
	long := strings.Repeat("x", 60_000)
	for i := range 1200 {
		c := policyOf("shop", fmt.Sprint(i), "ALLOW", map[string]string{"app": fmt.Sprint(i, long)}, 0)
		if i >= 400 { // others than those of shop
			c = policyOf("other", fmt.Sprint(i), "ALLOW", map[string]string{"app": fmt.Sprint(i, long)}, 0)
		}
		m := &pb.Excerpt{End: true, Policies: []*pb.ExcerptPolicy{{Name: c.Key.Name, Object: policy.Write(c.Record.(discovery.Policy))}}}
		changes, _, err := h.Take(m, func(string) bool { return false }, time.Unix(1e9, 0))
		if err != nil {
			t.Fatal(err)
		}
		node.apply(changes...)
	}
	if h.bytes > MaxBytes+1200*4096 || h.Status().LeftOut == 0 || h.Status().Policies != 1200 {
		t.Errorf("%d bytes, %+v", h.bytes, h.Status())
	}
	if !closed(node.snap, "w") {
		t.Error("what there is no room for is open")
	}

	// One change of more than may be staged closes too, and is no reason not to follow its gateway.
	h, node = NewHeld(modelNetwork, modelNode, "cluster.local"), newView()
	h.Lead("gw")
	told(t, NewIndex(modelNetwork, v.snap).Add(modelNode, nil, func() {}), h, node, time.Unix(1e9, 0))
	for i := range 600 {
		c := policyOf("shop", fmt.Sprint(i), "ALLOW", map[string]string{"app": fmt.Sprint(i, long)}, 0)
		m := &pb.Excerpt{End: i == 599, Policies: []*pb.ExcerptPolicy{{Name: c.Key.Name, Object: policy.Write(c.Record.(discovery.Policy))}}}
		changes, _, err := h.Take(m, func(string) bool { return false }, time.Unix(1e9, 0))
		if err != nil {
			t.Fatal(err)
		}
		node.apply(changes...)
	}
	if !closed(node.snap, "w") {
		t.Error("what was not staged is open")
	}
}

// One policy that changes costs as much as there are pods of its namespace on the nodes, and is told in one message.
func TestOnePolicyIsOneMessage(t *testing.T) {
	v, _ := cluster(300)
	v.apply(policyOf("shop", "x", "DENY", nil, 0), rootOfTests)
	x := NewIndex(modelNetwork, v.snap)
	r := x.Add(modelNode, nil, func() {})
	r.Take()
	changes, _ := v.apply(policyOf("shop", "x", "DENY", nil, 1))
	x.Revise(v.snap, changes)
	m := r.Take()
	if len(m) != 1 || len(m[0].GetPolicies()) != 1 || proto.Size(m[0]) > 400 || len(m[0].GetWorkloads()) > 0 {
		t.Errorf("told %v", m)
	}
}

// A node proxy that starts again has its policies from the cache, also where the first gateway that tells has not
// heard of them yet, and until it should have.
func TestANodeProxyThatStartsHoldsThePoliciesOfItsCache(t *testing.T) {
	now := time.Unix(1e9, 0)
	v, _ := cluster(1)
	v.apply(localPod("w", labelsOfTests[1]), rootOfTests)
	behind := NewIndex(modelNetwork, v.snap)
	v.apply(policyOf("shop", "x", "DENY", labelsOfTests[1], 0))
	h, node := NewHeld(modelNetwork, modelNode, "cluster.local"), newView()
	h.Lead("gw")
	told(t, NewIndex(modelNetwork, v.snap).Add(modelNode, nil, func() {}), h, node, now)
	data, err := h.Save(now)
	if err != nil {
		t.Fatal(err)
	}
	h, node = NewHeld(modelNetwork, modelNode, "cluster.local"), newView()
	h.RestorePolicies(data[:len(data)-1])
	if len(h.policies) > 0 {
		t.Error("a damaged cache has policies")
	}
	h.RestorePolicies(data)
	h.Lead("gw")
	told(t, behind.Add(modelNode, nil, func() {}), h, node, now)
	if !closed(node.snap, "w") {
		t.Error("a gateway that is behind opens a pod when its node proxy starts")
	}
	node.apply(h.Settle(now.Add(Doubt))...)
	if closed(node.snap, "w") {
		t.Error("a policy that no gateway lists is held for longer than a doubt")
	}
}

// Who owns some namespaces with pods on a node fills what there is room for, and closes his own alone.
func TestPoliciesOfSomeNamespacesCloseNoOther(t *testing.T) {
	for _, c := range []struct {
		what             string
		namespaces, each int
		label            string
	}{{"long", 6, 25, strings.Repeat("x", 60_000)}, {"many", 17, 2000, ""}} {
		v, _ := cluster(1)
		changes := []discovery.Change{localPod("w", nil), rootOfTests, policyOf("shop", "x", "ALLOW", nil, 0)}
		for i := range c.namespaces {
			p := localPod(strings.Repeat("p", i+2), nil)
			w := p.Record.(discovery.Workload)
			w.Namespace = fmt.Sprintf("full-%d", i) // before shop
			p.Record = w
			changes = append(changes, p)
			for n := range c.each {
				x := policyOf(w.Namespace, fmt.Sprint(n), "ALLOW", nil, 0)
				if c.label != "" {
					x.Record.(discovery.Policy)["spec"].(map[string]any)["rules"] = []any{map[string]any{"from": []any{map[string]any{"source": map[string]any{"principals": []any{c.label}}}}}}
				}
				changes = append(changes, x)
			}
			for n := range 400 { // what the long ones leave
				changes = append(changes, policyOf(w.Namespace, fmt.Sprint("short-", n), "ALLOW", nil, 0))
			}
		}
		v.apply(changes...)
		if closed(v.snap, "w") || len(v.snap.Policies().Full()) > 0 {
			t.Fatal("closed at the gateway: this proves nothing")
		}
		h, node := NewHeld(modelNetwork, modelNode, "cluster.local"), newView()
		h.Lead("gw")
		for _, m := range NewIndex(modelNetwork, v.snap).Add(modelNode, nil, func() {}).Take() {
			changes, _, err := h.Take(m, func(string) bool { return false }, time.Unix(1e9, 0))
			if err != nil {
				t.Fatalf("%s: %v", c.what, err)
			}
			node.apply(changes...)
		}
		if node.snap.Workload("w") == nil || closed(node.snap, "w") {
			t.Errorf("%s: policies of other namespaces have closed the pod", c.what)
		}
		for _, w := range node.snap.OnNode(modelNetwork, modelNode) {
			if all := node.snap.Policies().All(workloadOf(w)); len(all) == 0 {
				t.Errorf("%s: pod %s has no policies", c.what, w.UID)
			}
		}
	}
}

// The first gateway that tells after a start is of a version without policies: it tells no labels either.
func TestANodeProxyThatStartsHoldsTheLabelsOfItsCache(t *testing.T) {
	now := time.Unix(1e9, 0)
	v, _ := cluster(1)
	v.apply(localPod("w", labelsOfTests[1]), rootOfTests, policyOf("shop", "x", "DENY", labelsOfTests[1], 0))
	h, node := NewHeld(modelNetwork, modelNode, "cluster.local"), newView()
	h.Lead("gw")
	told(t, NewIndex(modelNetwork, v.snap).Add(modelNode, nil, func() {}), h, node, now)
	data, err := h.Save(now)
	if err != nil {
		t.Fatal(err)
	}
	old, _ := cluster(1)
	old.apply(localPod("w", nil))
	x := NewIndex(modelNetwork, old.snap)
	x.AwaitCluster()
	h, node = NewHeld(modelNetwork, modelNode, "cluster.local"), newView()
	h.RestorePolicies(data)
	h.Lead("gw")
	told(t, x.Add(modelNode, nil, func() {}), h, node, now)
	if !closed(node.snap, "w") {
		t.Error("a gateway that tells no policies opens a pod when its node proxy starts")
	}
}
