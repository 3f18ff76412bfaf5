package nodeproxy_test

import (
	"context"
	"errors"
	"net/netip"
	"syscall"
	"testing"

	"github.com/isthmus-mesh/isthmus/discovery"
	"github.com/isthmus-mesh/isthmus/drill/demoapp"
	"github.com/isthmus-mesh/isthmus/gateway"
	"github.com/isthmus-mesh/isthmus/internal/meshtest"
	"github.com/isthmus-mesh/isthmus/nodeproxy"
)

// nearAndFar is a client on east with hello on the near network west and on
// the far network north.
type nearAndFar struct {
	*meshtest.Mesh
	near []*demoapp.App
	far  *demoapp.App
	at   netip.AddrPort
}

func newNearAndFar(t testing.TB) *nearAndFar {
	m := meshtest.New(t)
	n := &nearAndFar{Mesh: m}
	m.Networks("east", "west", "north")
	m.Service("hello", 80, 8080)
	m.EditService("hello", func(s *discovery.Service) { s.TrafficDistribution = "PreferRegion" })
	for _, network := range []string{"east", "west", "north"} {
		m.Gateway(network, "gw-1")
	}
	m.Config.Gateways[1].Locality.Region = "near"
	m.Config.Gateways[2].Locality.Region = "far"
	shop := m.Pod("east", "east-1", "shop-1")
	shop.Edit(func(w *discovery.Workload) { w.Locality.Region = "near" })
	n.at = shop.Outbound(hello)
	n.near = append(n.near, m.Pod("west", "west-1", "near-1", "hello").App(8080), m.Pod("west", "west-2", "near-2", "hello").App(8080))
	n.far = m.Pod("north", "north-1", "far-1", "hello").App(8080)
	return n
}

func (n *nearAndFar) client() *meshtest.Process { return n.Process("node proxy east-1") }

func (n *nearAndFar) do(t testing.TB, what func(context.Context, uint16) error) {
	t.Helper()
	if err := what(context.Background(), 8080); err != nil {
		t.Fatal(err)
	}
}

func (n *nearAndFar) refuseNear(t testing.TB) {
	t.Helper()
	for _, a := range n.near {
		n.do(t, a.Refuse)
	}
}

func (n *nearAndFar) healNear(t testing.TB) {
	t.Helper()
	for _, a := range n.near {
		n.do(t, a.Heal)
	}
}

func TestSpillsToTheFarNetworkWhileAllOfTheNearOneIsSickAndBack(t *testing.T) {
	n := newNearAndFar(t)
	n.Start()
	for range 10 {
		if got, err := meshtest.Hello(n.at); err != nil || got == "far-1" {
			t.Fatalf("%q, %v; want a near pod while they are well", got, err)
		}
	}
	n.refuseNear(t)
	meshtest.Eventually(t, "east knows that no near pod is healthy", func() bool {
		if got, err := meshtest.Hello(n.at); err != nil || got != "far-1" {
			t.Errorf("%q, %v; want far-1 while the near ones refuse", got, err)
		}
		return len(n.client().Log.Find("known", "network", "west", "healthy", 0, "ready", 2)) > 0
	})
	before := n.client().Metric(t, `isthmus_connect_retries_total{reason="refused"}`)
	for range 20 {
		if got, err := meshtest.Hello(n.at); err != nil || got != "far-1" {
			t.Fatalf("%q, %v; want far-1", got, err)
		}
	}
	if after := n.client().Metric(t, `isthmus_connect_retries_total{reason="refused"}`); after != before {
		t.Errorf("%v connects still went to the sick network first", after-before)
	}
	n.healNear(t)
	meshtest.Eventually(t, "back on the near network", func() bool {
		got, err := meshtest.Hello(n.at)
		if err != nil {
			t.Errorf("after the heal: %v", err)
		}
		return got == "near-1" || got == "near-2"
	})
	if n := n.client().Metric(t, "isthmus_dazed_picks_total"); n != 0 {
		t.Errorf("%v dazed choices, though one network was healthy", n)
	}
}

func TestNobodyHealthyAnywhereIsDazedAndRecoversAlone(t *testing.T) {
	n := newNearAndFar(t)
	n.Start()
	n.refuseNear(t)
	n.do(t, n.far.Refuse)
	meshtest.Eventually(t, "dazed", func() bool {
		if _, err := meshtest.Hello(n.at); !errors.Is(err, syscall.ECONNRESET) {
			t.Errorf("%v; want ECONNRESET while all refuse", err)
		}
		return len(n.client().Log.Find("dazed: no endpoint is healthy, all are used alike", "level", "warn", "service", hello)) == 1
	})
	if n.client().Metric(t, "isthmus_dazed_picks_total") == 0 {
		t.Error("dazed choices are not counted")
	}
	n.do(t, n.far.Heal)
	meshtest.Eventually(t, "answers, and no longer dazed", func() bool {
		got, err := meshtest.Hello(n.at)
		return err == nil && got == "far-1" && len(n.client().Log.Find("no longer dazed", "service", hello)) > 0
	})
}

// farSighted are the settings of a client that ejects whole network services
// by what it sees itself.
func farSighted(n *nearAndFar) {
	n.EachNode = func(c *nodeproxy.Config) {
		c.OutlierDetection.Scope = nodeproxy.ScopeNetworkService
		c.Retry.Attempts = 0
		c.Federation.Health = false
	}
	n.EachGateway = func(c *gateway.Config) {
		c.OutlierDetection.Scope = gateway.ScopeNone
		c.Federation.Health = false
	}
}

func TestScopeNetworkServiceLeavesOutAWholeNetworkHealthyPodsIncluded(t *testing.T) {
	n := newNearAndFar(t)
	farSighted(n)
	settings := n.EachNode
	n.EachNode = func(c *nodeproxy.Config) {
		settings(c)
		c.OutlierDetection.FailureThreshold = 1 // pods take turns: of two, one sick, none fails twice in a row
	}
	n.Start()
	n.do(t, n.near[0].Refuse) // one of two
	failed := 0
	meshtest.Eventually(t, "west left out", func() bool {
		if _, err := meshtest.Hello(n.at); err != nil {
			failed++
		}
		return len(n.client().Log.Find("outlier changed", "edge", "ejected", "scope", "network_service", "network", "west",
			"service", "hello.default.svc.cluster.local", "port", 80)) > 0
	})
	if failed < 1 {
		t.Error("ejected without a failure")
	}
	for range 10 {
		if got, err := meshtest.Hello(n.at); err != nil || got != "far-1" {
			t.Fatalf("%q, %v; want far-1: the share of west is out for the base backoff", got, err)
		}
	}
	for _, node := range []string{"node proxy west-1", "node proxy west-2"} {
		if l := n.Process(node).Log.Find("outlier changed"); len(l) > 0 {
			t.Errorf("%s: a witness spoke in scope networkService: %v", node, l[0])
		}
	}
}

func TestScopeNoneNeverLeavesAnythingOut(t *testing.T) {
	n := newNearAndFar(t)
	farSighted(n)
	n.EachNode = func(c *nodeproxy.Config) {
		blindNode(c)
		c.Retry.Attempts = 0
	}
	n.Start()
	n.do(t, n.near[0].Refuse)
	failed, ok := 0, 0
	for range 40 {
		if got, err := meshtest.Hello(n.at); err == nil && got == "near-2" {
			ok++
		} else if errors.Is(err, syscall.ECONNRESET) {
			failed++
		} else {
			t.Fatalf("%q, %v; want near-2 or a reset", got, err)
		}
	}
	if failed < 10 || ok < 10 {
		t.Errorf("%d of 40 failed and %d succeeded; want about half each for ever", failed, ok)
	}
	for _, name := range []string{"node proxy east-1", "node proxy west-1", "gateway west/gw-1"} {
		if l := n.Process(name).Log.Find("outlier changed"); len(l) > 0 {
			t.Errorf("%s: %v", name, l[0])
		}
	}
}
