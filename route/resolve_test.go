package route

import (
	"errors"
	"math/rand/v2"
	"net/netip"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/isthmus-mesh/isthmus/mesh"
)

func TestResolveService(t *testing.T) {
	s := standard().snapshot()
	web := "e-1 capacity=1 rank=1 web\n" +
		"north capacity=2 rank=0 gw-1 web\n" +
		"west capacity=4 rank=0 gw-1 gw-2 gw-3 web web2\n"
	cases := []struct {
		name string
		flow Flow
		want string
	}{
		{"hostname", flow(s, "web.shop.svc.cluster.local", 80), web},
		{"alias", flow(s, "web.shop.mesh.internal", 80), web},
		{"other case and a final dot", flow(s, "Web.Shop.Mesh.Internal.", 80), web},
		{"virtual address", Flow{Source: s.Workload("client"), Addr: netip.MustParseAddrPort("240.0.0.1:80")}, web},
		{"virtual address, mapped into IPv6", Flow{Source: s.Workload("client"), Addr: netip.MustParseAddrPort("[::ffff:240.0.0.1]:80")}, web},
		{"virtual address written as a host", flow(s, "240.0.0.1", 80), web},
		{"no preference", flow(s, "any.shop.mesh.internal", 80),
			"e-1 capacity=1 rank=0 web\nnorth capacity=2 rank=0 gw-1 web\nwest capacity=1 rank=0 gw-1 gw-2 gw-3 web2\n"},
		{"not global: the own network alone", flow(s, "private.shop.svc.cluster.local", 80), "e-1 capacity=1 rank=0 web\n"},
		{"rank of the nearest gateway that is not drained", flow(s, "remote.shop.mesh.internal", 80),
			"north capacity=2 rank=0 gw-1 web\nwest capacity=4 rank=1 gw-1 gw-2 gw-3 web web2\n"},
	}
	for _, c := range cases {
		p, err := Resolve(s, c.flow)
		if err != nil {
			t.Errorf("%s: %v", c.name, err)
			continue
		}
		if got := describe(p.Candidates); got != c.want {
			t.Errorf("%s: got\n%swant\n%s", c.name, got, c.want)
		}
		if want := p.Service.Hostname + ":80"; p.Authority != want || p.Port.Target != 8080 || p.Direct != nil {
			t.Errorf("%s: authority %q, port %+v, direct %v; want %q and target 8080", c.name, p.Authority, p.Port, p.Direct, want)
		}
	}
}

func TestResolveDirect(t *testing.T) {
	s := standard().snapshot()
	for addr, uid := range map[string]string{
		"10.0.0.2:8080":          "e-1", // not w-1, n-1 or i-1, which have the same address elsewhere
		"[::ffff:10.0.0.2]:8080": "e-1",
		"10.0.0.3:8080":          "e-2", // readiness is for services; who dials a pod means this pod
		"10.0.0.4:1":             "e-3",
	} {
		p, err := Resolve(s, Flow{Source: s.Workload("client"), Addr: netip.MustParseAddrPort(addr)})
		if err != nil {
			t.Errorf("%s: %v", addr, err)
			continue
		}
		want := netip.MustParseAddrPort(addr)
		want = netip.AddrPortFrom(want.Addr().Unmap(), want.Port())
		if p.Direct == nil || p.Direct.UID != uid || p.Authority != want.String() || p.Port.Target != want.Port() || len(p.Candidates) > 0 || p.Service != nil {
			t.Errorf("%s: plan %+v, want direct to %s", addr, p, uid)
		}
	}
}

func TestResolveErrors(t *testing.T) {
	s := standard().snapshot()
	client := s.Workload("client")
	cases := []struct {
		name    string
		flow    Flow
		kind    Kind
		subject string
		detail  string
	}{
		{"unknown name", flow(s, "nope.shop.mesh.internal", 80), UnknownService, "nope.shop.mesh.internal:80", "no service has this hostname"},
		{"alias of a service that is not global", flow(s, "private.shop.mesh.internal", 80), UnknownService, "private.shop.mesh.internal:80", ""},
		{"unknown port", flow(s, "web.shop.mesh.internal", 8080), UnknownPort, "web.shop.mesh.internal:8080", "has ports 80, 81"},
		{"unknown port of a virtual address", Flow{Source: client, Addr: netip.MustParseAddrPort("240.0.0.1:1")}, UnknownPort, "240.0.0.1:1", ""},
		{"another network's service that is not global", flow(s, "elsewhere.shop.svc.cluster.local", 80), NotExported, "elsewhere.shop.svc.cluster.local:80", "set global: true"},
		{"a network without a gateway", flow(s, "marooned.shop.mesh.internal", 80), NoRoute, "marooned.shop.mesh.internal:80", "without a gateway"},
		{"nobody ready", flow(s, "gone.shop.mesh.internal", 80), NoEndpoint, "gone.shop.mesh.internal:80", "no ready workload"},
		{"no members", flow(s, "empty.shop.mesh.internal", 80), NoEndpoint, "empty.shop.mesh.internal:80", "no ready workload"},
		{"an address of another network", Flow{Source: client, Addr: netip.MustParseAddrPort("10.0.0.5:80")}, NoRoute, "10.0.0.5:80", `network "east"`},
		{"an unknown address", flow(s, "192.0.2.1", 80), NoRoute, "192.0.2.1:80", "reached by a service's name"},
		{"a pod's port 0", Flow{Source: client, Addr: netip.MustParseAddrPort("10.0.0.2:0")}, UnknownPort, "10.0.0.2:0", ""},
		{"nothing", Flow{Source: client}, NoRoute, "invalid AddrPort", ""},
		{"no source", Flow{Host: "web.shop.mesh.internal", Port: 80}, NoRoute, "web.shop.mesh.internal:80", "no source"},
	}
	for _, c := range cases {
		p, err := Resolve(s, c.flow)
		wantKind(t, c.name, err, c.kind, c.subject)
		var e *Error
		if errors.As(err, &e) && !strings.Contains(e.Detail, c.detail) {
			t.Errorf("%s: detail %q, want %q in it", c.name, e.Detail, c.detail)
		}
		if p.Service != nil || p.Direct != nil || len(p.Candidates) > 0 {
			t.Errorf("%s: a plan beside the error: %+v", c.name, p)
		}
	}
}

// Who chooses among gateways knows which of them serve: those that are drained stay in the
// plan, and rank a network only if all of its are.
func TestDrainedGatewaysStayInThePlan(t *testing.T) {
	w := standard()
	for _, g := range w.gateways {
		g.Drained = true
	}
	s := w.snapshot()
	p, err := Resolve(s, flow(s, "remote.shop.mesh.internal", 80))
	want := "north capacity=2 rank=0 gw-1 web\nwest capacity=4 rank=1 gw-1 gw-2 gw-3 web web2\n"
	if got := describe(p.Candidates); err != nil || got != want {
		t.Errorf("got %v and\n%swant\n%s", err, got, want)
	}
}

func TestStrictNodeStaysOnTheNode(t *testing.T) {
	w := standard()
	s := w.snapshot()
	if p, err := Resolve(s, flow(s, "strict.shop.mesh.internal", 80)); err != nil || describe(p.Candidates) != "e-1 capacity=1 rank=3 web\n" {
		t.Errorf("got %v and %s, want e-1 alone", err, describe(p.Candidates))
	}
	node("east-n2")(w.workloads[1])
	_, err := Resolve(s, flow(s, "strict.shop.mesh.internal", 80))
	wantKind(t, "on another node", err, NoEndpoint, "strict.shop.mesh.internal:80")
}

func TestCapacitySumDoesNotOverflow(t *testing.T) {
	w := (&world{}).pod("client", "east", "10.0.0.1").
		pod("a", "west", "10.0.0.1", capacity(1<<31)).pod("b", "west", "10.0.0.2", capacity(1<<31)).
		gateway("gw", "west", "", false).service("web", true, mesh.Any, "a", "b")
	s := w.snapshot()
	p, err := Resolve(s, flow(s, "web.shop.mesh.internal", 80))
	if err != nil || p.Candidates[0].Capacity != mesh.RoundCapacity(1<<32) {
		t.Errorf("got %v, %+v; want the largest capacity", err, p.Candidates)
	}
}

// A snapshot is shared: nothing that Resolve returns may let an append by its
// reader reach it, and nothing may change it.
func TestResolveDoesNotTouchTheSnapshot(t *testing.T) {
	s := standard().snapshot()
	before := len(s.Gateways("west"))
	p, _ := Resolve(s, flow(s, "web.shop.mesh.internal", 80))
	for _, c := range p.Candidates {
		if c.Workload != nil {
			_ = append(c.Expect, identity("intruder"))
		}
	}
	svc := s.Service("web.shop.mesh.internal")
	if len(s.Gateways("west")) != before || !slices.Equal(s.Identities(svc, ""), standard().snapshot().Identities(svc, "")) {
		t.Error("resolving changed the snapshot")
	}
	if !slices.ContainsFunc(s.Gateways("west"), func(g *mesh.Gateway) bool { return g.Drained }) {
		t.Error("filtering drained gateways removed them from the snapshot")
	}
}

func TestResolveIntoReusesMemory(t *testing.T) {
	s := crowd(1000).snapshot()
	f := flow(s, "web.shop.mesh.internal", 80)
	var p Plan
	if err := ResolveInto(&p, s, f); err != nil || len(p.Candidates) != 1001 {
		t.Fatalf("got %d candidates, %v; want 1001", len(p.Candidates), err)
	}
	// One allocation today: the authority.
	if n := testing.AllocsPerRun(20, func() { _ = ResolveInto(&p, s, f) }); n > 2 {
		t.Errorf("%v allocations per plan of 1 000 endpoints, want at most 2", n)
	}
	if err := ResolveInto(&p, s, flow(s, "nope", 80)); err == nil || len(p.Candidates) != 0 || p.Service != nil {
		t.Errorf("after an error the plan is %+v, want empty", p)
	}
}

// Over random meshes, what Resolve offers is exactly what the rules allow.
func TestResolveProperties(t *testing.T) {
	for seed := range uint64(500) {
		rng := rand.New(rand.NewPCG(seed, 6))
		w := (&world{}).pod("client", "east", "10.1.0.1", notReady)
		var uids []string
		for i := range rng.IntN(12) {
			network := []string{"east", "west", "north"}[rng.IntN(3)]
			uid := network + strconv.Itoa(i)
			w.pod(uid, network, "10.0.0."+strconv.Itoa(i+1), capacity(uint32(rng.IntN(4))), func(p *mesh.Workload) { p.State = mesh.State(rng.IntN(3)) })
			uids = append(uids, uid)
		}
		for i := range rng.IntN(4) {
			w.gateway("gw"+strconv.Itoa(i), []string{"west", "north"}[rng.IntN(2)], "", rng.IntN(3) == 0)
		}
		global := rng.IntN(3) > 0
		s := w.service("web", global, mesh.PreferNetwork, uids...).snapshot()
		want := map[string]uint32{}
		for _, p := range w.workloads[1:] {
			open := slices.ContainsFunc(w.gateways, func(g *mesh.Gateway) bool { return g.Network == p.Network })
			if p.State == mesh.Ready && p.Capacity > 0 && (p.Network == "east" || global && open) {
				key := p.Network
				if p.Network == "east" {
					key = p.UID
				}
				want[key] += p.Capacity
			}
		}
		p, err := Resolve(s, flow(s, "web.shop.svc.cluster.local", 80))
		if (err == nil) != (len(want) > 0) || len(p.Candidates) != len(want) {
			t.Fatalf("seed %d: got %v and\n%swant %v", seed, err, describe(p.Candidates), want)
		}
		for _, c := range p.Candidates {
			key := c.Network
			if c.Workload != nil {
				key = c.Workload.UID
			}
			if want[key] != c.Capacity {
				t.Errorf("seed %d: %s has capacity %d, want %d", seed, key, c.Capacity, want[key])
			}
		}
	}
}

func crowd(n int) *world {
	w := (&world{}).pod("client", "east", "10.0.0.1")
	uids := []string{"w"}
	for i := range n {
		uid := "e-" + strconv.Itoa(i)
		w.pod(uid, "east", netip.AddrFrom4([4]byte{10, 1, byte(i >> 8), byte(i)}).String())
		uids = append(uids, uid)
	}
	return w.pod("w", "west", "10.0.0.1").gateway("gw", "west", "", false).service("web", true, mesh.PreferNetwork, uids...)
}

func BenchmarkResolveThousand(b *testing.B) {
	s := crowd(1000).snapshot()
	f := flow(s, "web.shop.mesh.internal", 80)
	b.Run("new", func(b *testing.B) {
		b.ReportAllocs()
		for b.Loop() {
			if _, err := Resolve(s, f); err != nil {
				b.Fatal(err)
			}
		}
	})
	b.Run("into", func(b *testing.B) {
		var p Plan
		b.ReportAllocs()
		for b.Loop() {
			if err := ResolveInto(&p, s, f); err != nil {
				b.Fatal(err)
			}
		}
	})
}
