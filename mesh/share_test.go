package mesh

import (
	"fmt"
	"slices"
	"testing"

	"github.com/spiffe/go-spiffe/v2/spiffeid"
	"pgregory.net/rapid"
)

func answering(name string) spiffeid.ID { return spiffeid.RequireFromString("spiffe://" + name) }

func TestExportNamesNoWorkload(t *testing.T) {
	svc := &Service{Name: "web", Namespace: "shop", Hostname: "web.shop", Scope: ScopeGlobal, Distribution: Any, Headless: true, Affinity: ClientIP, Created: 7, Ports: []Port{{Name: "http", Service: 80, TargetName: "web"}}}
	pod := func(uid, account string, s State, capacity uint32) *Workload {
		return &Workload{UID: uid, Network: "west", State: s, Capacity: capacity, Identity: answering("x/ns/shop/sa/" + account), Ports: []NamedPort{{"web", 8080}}}
	}
	pods := []*Workload{pod("a", "web", Ready, 3), pod("b", "web", Ready, 4), pod("c", "canary", NotReady, 8), pod("d", "old", Terminating, 8), pod("e", "old", Serving, 8)}
	want := "{web shop web.shop [] [{http 80}] global Any [spiffe://x/ns/shop/sa/canary spiffe://x/ns/shop/sa/old spiffe://x/ns/shop/sa/web] 7 true ClientIP 7}"
	if e, ok := ExportOf(svc, pods); !ok || fmt.Sprint(e) != want {
		t.Errorf("got %v, %t; want %s", e, ok, want)
	}
	if e, _ := ExportOf(svc, pods[2:]); e.Capacity != 8 {
		t.Errorf("capacity %d while nobody is ready and one still serves, want 8", e.Capacity)
	}
	if e, _ := ExportOf(svc, []*Workload{{UID: "f"}}); len(e.Ports) > 0 {
		t.Errorf("a port that nobody has is offered: %v", e.Ports)
	}
	svc.PublishNotReady = true
	if e, _ := ExportOf(svc, pods); e.Capacity != 15 {
		t.Errorf("capacity %d with those that are not ready, want 15", e.Capacity)
	}
	if _, ok := ExportOf(svc, nil); ok {
		t.Error("a network without members exports the service")
	}
	svc.Home = true
	want = "{web shop web.shop [] [{http 80}] global Any [] 0 true ClientIP 7}"
	for _, members := range [][]*Workload{nil, {{UID: "f", Plain: true, Capacity: 1}}} {
		if e, ok := ExportOf(svc, members); !ok || fmt.Sprint(e) != want {
			t.Errorf("of this cluster's own Service with members %v: got %v, %t; want %s", members, e, ok, want)
		}
	}
	svc.Scope = ScopeCluster
	if _, ok := ExportOf(svc, pods); ok {
		t.Error("a service of one cluster is exported")
	}
}

func TestCapacityIsRoundedALittle(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		n := rapid.Uint32().Draw(t, "n")
		got := RoundCapacity(uint64(n))
		if n <= 16 && got != n {
			t.Fatalf("%d became %d", n, got)
		}
		if off := max(got, n) - min(got, n); float64(off) > float64(n)/16 {
			t.Fatalf("%d became %d: more than a sixteenth off", n, got)
		}
		if RoundCapacity(uint64(got)) != got || RoundCapacity(uint64(n)+1) < got {
			t.Fatalf("%d became %d, which is not the end of it, or more became less", n, got)
		}
	})
	if RoundCapacity(1<<40) != 0xf000_0000 {
		t.Errorf("2^40 became %d", RoundCapacity(1<<40))
	}
}

func TestALinkBoundsWhatAnExportMayClaim(t *testing.T) {
	ids := []spiffeid.ID{answering("x/ns/shop/sa/web"), answering("x/ns/bank/sa/web"), answering("y/ns/shop/sa/web"), answering("x/web"), answering("x/ns/shop/sa/a/b")}
	e := Export{Namespace: "shop", Identities: ids, Capacity: 1000}
	for _, c := range []struct {
		link     Link
		admitted []spiffeid.ID
		capacity uint32
		empty    bool // whether it is admitted without identities
	}{
		{Link{}, nil, 0, false},
		{Link{TrustDomains: []string{"x"}}, ids[:1], 1000, true},
		{Link{TrustDomains: []string{"x", "y"}, MaxCapacity: 10}, []spiffeid.ID{ids[0], ids[2]}, 10, true},
		{Link{TrustDomains: []string{"x"}, Namespaces: []string{"shop"}}, ids[:1], 1000, true},
		{Link{TrustDomains: []string{"x"}, Namespaces: []string{"bank"}}, ids[1:2], 1000, false},
	} {
		if got, _, ok := c.link.Admit(Export{Namespace: "shop", Capacity: 5}); ok != c.empty || got.Capacity != 0 {
			t.Errorf("%+v admits an export without identities: %t with capacity %d; want %t with 0", c.link, ok, got.Capacity, c.empty)
		}
		got, refused, ok := c.link.Admit(e)
		if ok != (len(c.admitted) > 0) {
			t.Errorf("%+v admits an export with identities: %t", c.link, ok)
		}
		if !slices.Equal(got.Identities, c.admitted) || got.Capacity != c.capacity || len(refused)+len(c.admitted) != len(ids) {
			t.Errorf("%+v admits %v with %d and refuses %v; want %v with %d", c.link, got.Identities, got.Capacity, refused, c.admitted, c.capacity)
		}
	}
	if len(e.Identities) != len(ids) {
		t.Error("the export itself has changed")
	}
}

func TestOffer(t *testing.T) {
	pods := map[string]*Workload{}
	for name, s := range map[string]State{"ready": Ready, "not ready": NotReady, "serving": Serving, "terminating": Terminating} {
		pods[name] = &Workload{UID: name, State: s, Capacity: 1, Addresses: pair().Workload("w1").Addresses, Ports: []NamedPort{{"web", 8080}}}
	}
	pods["portless"] = &Workload{UID: "portless", Capacity: 1, Addresses: pods["ready"].Addresses}
	for _, c := range []struct {
		publish bool
		port    Port
		members []string
		want    string
	}{
		{false, Port{Target: 80}, []string{"ready", "not ready", "serving", "terminating", "portless"}, "[ready portless]"},
		{false, Port{TargetName: "web"}, []string{"ready", "not ready", "serving", "terminating", "portless"}, "[ready]"},
		{true, Port{TargetName: "web"}, []string{"ready", "not ready", "serving", "terminating"}, "[ready not ready]"},
		{false, Port{TargetName: "web"}, []string{"portless", "not ready", "serving", "terminating"}, "[serving]"},
		{false, Port{TargetName: "smtp"}, []string{"ready", "serving"}, "[]"},
		{false, Port{Target: 80}, []string{"terminating", "not ready"}, "[]"},
	} {
		var members []*Workload
		for _, m := range c.members {
			members = append(members, pods[m])
		}
		offer := (&Service{PublishNotReady: c.publish}).Offer(c.port, members)
		members = slices.DeleteFunc(members, func(w *Workload) bool { return !offer.Has(w) })
		if got := fmt.Sprint(uids(members)); got != c.want {
			t.Errorf("port %+v among %q, publishing %t: %s, want %s", c.port, c.members, c.publish, got, c.want)
		}
	}
}
