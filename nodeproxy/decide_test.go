package nodeproxy

import (
	"fmt"
	"net/netip"
	"testing"
	"testing/synctest"
	"time"

	"github.com/rs/zerolog"

	"github.com/isthmus-mesh/isthmus/discovery"
	"github.com/isthmus-mesh/isthmus/discovery/excerpt"
	"github.com/isthmus-mesh/isthmus/federation/healthstream"
	"github.com/isthmus-mesh/isthmus/nodeproxy/capture"
	"github.com/isthmus-mesh/isthmus/nodeproxy/pods"
)

func decisionsConfig() discovery.Config {
	addr := netip.MustParseAddr
	return discovery.Config{
		Networks: []discovery.Network{{Name: "east"}, {Name: "west"}},
		Services: []discovery.Service{
			{Name: "vip", Namespace: "demo", Global: true, Takeover: true, VIPs: []netip.Addr{addr("240.240.0.1")}, Ports: []discovery.ServicePort{{Port: 80, TargetPort: 8080}}},
			{Name: "idle", Namespace: "demo", Global: true, Takeover: true, VIPs: []netip.Addr{addr("240.240.0.2")}, Ports: []discovery.ServicePort{{Port: 80, TargetPort: 8080}}},
			{Name: "own", Namespace: "demo", VIPs: []netip.Addr{addr("10.96.0.1")}, Ports: []discovery.ServicePort{{Port: 80, TargetPort: 8080}}},
			{Name: "outer", Namespace: "demo", VIPs: []netip.Addr{addr("10.96.0.2")}, Ports: []discovery.ServicePort{{Port: 80, TargetPort: 8080}}},
		},
		Workloads: []discovery.Workload{
			{UID: "shop", Namespace: "demo", Network: "east", Node: "n", Addresses: []netip.Addr{addr("10.0.0.1")}, ServiceAccount: "shop"},
			{UID: "pod", Namespace: "demo", Network: "east", Node: "m", Addresses: []netip.Addr{addr("10.0.0.2"), addr("fd00::2")}, ServiceAccount: "pod", Services: []string{"vip.demo.svc.cluster.local", "own.demo.svc.cluster.local"}},
			{UID: "old", Namespace: "demo", Network: "east", Node: "m", Addresses: []netip.Addr{addr("10.0.0.3")}, ServiceAccount: "old", Protocol: "TCP", Services: []string{"outer.demo.svc.cluster.local"}},
		},
	}
}

// Each kind of destination has its verdict, and an address that leads to the mesh is never left to the kernel.
func TestVerdictsFollowDiscovery(t *testing.T) {
	snap, problems := discovery.Build(1, decisionsConfig())
	if len(problems) > 0 {
		t.Fatal(problems)
	}
	p := newTestProxy(t, snap)
	p.cfg.Network, p.cfg.Node, p.cfg.Capture = "east", "n", pods.DefaultConfig()
	p.cfg.Capture.Scope = pods.ScopeAll
	p.pods = pods.Fake(p.podOptions(), p.podParent(), map[string]pods.FakePod{"shop": {Addresses: []netip.Addr{netip.MustParseAddr("10.96.0.7")}}})
	d := destinations{p, &captured{p: p, uid: "shop", pod: p.pods.Get("shop")}}
	want := map[string]capture.Verdict{
		"240.240.0.1:80": capture.Mesh, "240.240.0.1:81": capture.Refused, "240.240.0.2:80": capture.Refused, "240.240.9.9:80": capture.Refused,
		"[2001:2::9]:80": capture.Refused, "10.96.0.7:80": capture.Refused, // captured, and no service that is known
		"10.96.0.1:80": capture.Mesh, "10.96.0.1:81": capture.Direct, "10.96.0.2:80": capture.Direct,
		"10.0.0.2:1": capture.Mesh, "[fd00::2]:65535": capture.Mesh, "10.0.0.3:8080": capture.Direct,
		"192.0.2.1:443": capture.Direct, "[2001:db8::1]:443": capture.Direct,
	}
	for to, v := range want {
		if got, lasts, _ := d.Judge(netip.MustParseAddrPort(to)); got != v || lasts < time.Second {
			t.Errorf("the verdict on %s is %v for %v, want %v", to, got, lasts, v)
		}
	}
	// A pod that discovery no longer lists sends no plain text to pods of the mesh.
	d.h.uid = "gone"
	for to, v := range map[string]capture.Verdict{"10.0.0.2:8080": capture.Mesh, "240.240.0.1:80": capture.Refused, "192.0.2.1:443": capture.Direct} {
		if got, _, _ := d.Judge(netip.MustParseAddrPort(to)); got != v {
			t.Errorf("for a pod that is not listed the verdict on %s is %v, want %v", to, got, v)
		}
	}
}

// A question about an address waits a second for a gateway, and needs no place among names while there is room to follow the
// address. Without a place it is not asked.
func TestAddressWaitsForGatewayAndPlace(t *testing.T) {
	snap, problems := discovery.Build(1, decisionsConfig())
	if len(problems) > 0 {
		t.Fatal(problems)
	}
	synctest.Test(t, func(t *testing.T) {
		p := newTestProxy(t, snap)
		p.cfg.Network, p.cfg.Node, p.cfg.Capture = "east", "n", pods.DefaultConfig()
		p.cfg.Capture.Scope = pods.ScopeAll
		p.pods = pods.Fake(p.podOptions(), p.podParent(), map[string]pods.FakePod{"shop": {}})
		p.own = &ownNetwork{keeper: excerpt.NewKeeper(excerpt.NewHeld("east", "n", "cluster.local"), func(...discovery.Change) {}, func(string) bool { return true }, time.Now)}
		p.stream = healthstream.NewClient(healthstream.ClientConfig{Network: "east", Excerpts: p.own.keeper, Log: zerolog.Nop()})
		d := destinations{p, &captured{p: p, uid: "shop", pod: p.pods.Get("shop")}}
		for i := range maxAsked {
			p.asking.begin(fmt.Sprint("none-", i), snap.Workload("shop").Identity, time.Now())
		}
		check := func(to string, asked bool, took time.Duration) {
			t.Helper()
			at, began := netip.MustParseAddrPort(to), time.Now()
			if v, _, ask := d.Judge(at); v != capture.Direct || !ask {
				t.Errorf("the verdict on %s is %v, and gateways are asked: %t", to, v, ask)
			}
			if got := d.Ask(t.Context(), at); got != asked || time.Since(began) != took {
				t.Errorf("%s is asked for: %t, in %v; want %t in %v", to, got, time.Since(began), asked, took)
			}
		}
		check("192.0.2.1:443", true, firstTold)
		check("192.0.2.1:80", true, 0) // it was waited for
		for i := range maxDirect {
			p.direct.reserve(netip.AddrFrom4([4]byte{198, 18, byte(i >> 8), byte(i)}), time.Now())
		}
		check("192.0.2.2:443", false, 0)
		time.Sleep(askedFor)
		check("192.0.2.2:443", true, firstTold)
		d.h.uid = "gone" // discovery no longer lists it
		check("192.0.2.3:443", true, firstTold)
	})
}

// Whatever joins the mesh, by whichever change, its addresses are among those whose decisions are reviewed.
func TestChangedAddressesNameWhatJoins(t *testing.T) {
	full := decisionsConfig()
	after, problems := discovery.Build(2, full)
	if len(problems) > 0 {
		t.Fatal(problems)
	}
	changes := discovery.Changes{Workloads: map[string]struct{}{"pod": {}, "gone": {}}, Services: map[string]struct{}{"own.demo.svc.cluster.local": {}, "gone.demo.svc.cluster.local": {}}}
	concerns := changedAddresses(after, changes)
	for a, want := range map[string]bool{"10.0.0.2": true, "fd00::2": true, "10.96.0.1": true, "10.0.0.3": false, "10.96.0.2": false, "192.0.2.1": false} {
		if got := concerns(netip.MustParseAddr(a)); got != want {
			t.Errorf("a change concerns %s: %t, want %t", a, got, want)
		}
	}
	if !changedAddresses(after, discovery.Everything())(netip.MustParseAddr("192.0.2.1")) {
		t.Error("a change of everything does not concern an address")
	}
}

func TestDirectAddressesAreBounded(t *testing.T) {
	var d directAddresses
	now := time.Now()
	at := func(i int) netip.Addr { return netip.AddrFrom4([4]byte{192, 0, byte(i >> 8), byte(i)}) }
	for i := range 2 * maxDirect {
		if got := d.reserve(at(i), now); got != (i < maxDirect) {
			t.Fatalf("address %d is kept: %t", i, got)
		}
	}
	later := now.Add(decidedFor)
	if !d.reserve(at(0), later) || !d.has(fmt.Sprint(at(0))) || d.has(fmt.Sprint(at(maxDirect))) {
		t.Error("an address that is kept is not kept on")
	}
	over, rest := d.sweep(later)
	if len(over) != 0 || len(rest) != maxDirect {
		t.Errorf("while decisions may be in force %d of %d addresses are dropped", len(over), len(over)+len(rest))
	}
	if over, rest = d.sweep(now.Add(decidedFor + reviewEvery)); len(over) != maxDirect-1 || len(rest) != 1 {
		t.Errorf("later %d are dropped and %d kept, want %d and 1", len(over), len(rest), maxDirect-1)
	}
}
