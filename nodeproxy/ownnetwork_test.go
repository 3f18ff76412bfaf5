package nodeproxy_test

import (
	"net/netip"
	"path/filepath"
	"strings"
	"testing"

	"github.com/isthmus-mesh/isthmus/discovery"
	"github.com/isthmus-mesh/isthmus/internal/meshtest"
	"github.com/isthmus-mesh/isthmus/nodeproxy"
)

// withoutFile makes every node proxy of m ask the gateways of its network instead of a
// file; networks with one gateway, gw-1.
func withoutFile(t testing.TB, m *meshtest.Mesh, gateways ...string) {
	m.EachNode = func(c *nodeproxy.Config) {
		c.Discovery.File, c.Discovery.GatewayServiceAccount = "", "isthmus-system/gateway-"+c.Network
		for _, g := range gateways {
			c.Discovery.Gateways = append(c.Discovery.Gateways, m.GatewayAt(c.Network, g).String())
		}
	}
}

func TestANodeProxyNeedsNoFile(t *testing.T) {
	m := meshtest.New(t)
	m.Networks("east")
	m.Service("hello", 80, 8080)
	m.Service("other", 80, 8080)
	vip := netip.MustParseAddr("240.240.0.7")
	m.EditService("other", func(s *discovery.Service) { s.VIPs = append(s.VIPs, vip) })
	m.Gateway("east", "gw-1")
	withoutFile(t, m, "gw-1")
	shop := m.Pod("east", "east-1", "shop-1")
	pod := m.Pod("east", "east-2", "hello-1", "hello")
	other := m.Pod("east", "east-3", "other-1", "other")
	at := shop.Outbound(hello)
	pod.App(8080)
	other.App(8080)
	m.Start()

	if got, err := meshtest.Hello(at); err != nil || got != "hello-1" {
		t.Fatalf("answered by %q, %v; want hello-1", got, err)
	}
	m.Process("node proxy east-2").Log.Await(t, "connection", "direction", "inbound", "peer", shop.Identity(), "target", 8080, "result", "ok")
	for _, to := range []string{"other.default.svc.cluster.local:80", "other.default.mesh.internal:80", vip.String() + ":80", other.At(8080).String()} {
		c, err := shop.Connect(to)
		if err != nil {
			t.Errorf("connect to %s: %v", to, err)
			continue
		}
		if got, err := meshtest.Ask(c, "1"); err != nil || got != "other-1" {
			t.Errorf("%s was answered by %q, %v", to, got, err)
		}
		c.Close()
	}
}

// Both ends of a connection between networks have no file: the own network comes from the
// own gateways, and what the other one has with proof.
func TestNoNodeProxyOfTwoNetworksNeedsAFile(t *testing.T) {
	p := newPair(t, 2)
	p.Gateway("east", "gw-1")
	withoutFile(t, p.Mesh, "gw-1")
	each := p.EachNode
	p.EachNode = func(c *nodeproxy.Config) {
		each(c)
		c.Federation.Networks = p.LinkFile(c.Network)
	}
	for _, pod := range p.pods {
		pod.App(8080)
	}
	p.Start()
	meshtest.Eventually(t, "west's export has come", func() bool {
		got, err := meshtest.Hello(p.listen.hello)
		return err == nil && (got == "hello-1" || got == "hello-2")
	})
	line := p.client().Log.Await(t, "connection", "direction", "outbound", "result", "ok")
	if !line.Has("network", "west") {
		t.Errorf("access log %v", line)
	}
}

// A virtual address that nobody has asked for by name leads to what other networks export too, also as the
// first thing that is asked of the service.
func TestAVirtualAddressLeadsToOtherNetworks(t *testing.T) {
	p := newPair(t, 1)
	p.Gateway("east", "gw-1")
	withoutFile(t, p.Mesh, "gw-1")
	each := p.EachNode
	p.EachNode = func(c *nodeproxy.Config) {
		each(c)
		c.Federation.Networks = p.LinkFile(c.Network)
	}
	p.Service("other", 80, 8080)
	p.EditService("other", func(s *discovery.Service) { s.VIPs = append(s.VIPs, netip.MustParseAddr("240.240.0.7")) })
	other := p.Pod("west", "west-9", "other-1", "other")
	other.App(8080)
	p.pods[0].App(8080)
	p.Start()
	meshtest.Eventually(t, "west's export of another service has come", func() bool {
		got, err := meshtest.Hello(p.listen.hello)
		return err == nil && got == "hello-1"
	})
	meshtest.Eventually(t, "other answers by its address", func() bool {
		c, err := p.shop.Connect("240.240.0.7:80")
		if err != nil {
			return false
		}
		defer c.Close()
		got, err := meshtest.Ask(c, "1")
		return err == nil && got == "other-1"
	})
}

// Two gateways restart one after the other, with node proxies that have no file: nobody
// fails, and a pod that goes is gone at once.
func TestOwnGatewaysMayRestartOneByOne(t *testing.T) {
	m := meshtest.New(t)
	m.Networks("east")
	m.Service("hello", 80, 8080)
	m.Gateway("east", "gw-1")
	m.Gateway("east", "gw-2")
	withoutFile(t, m, "gw-1", "gw-2")
	shop := m.Pod("east", "east-1", "shop-1")
	var pods []*meshtest.Pod
	for _, n := range []string{"2", "3"} {
		pod := m.Pod("east", "east-"+n, "hello-"+n, "hello")
		pod.App(8080)
		pods = append(pods, pod)
	}
	at := shop.Outbound(hello)
	m.Start()
	client := m.Process("node proxy east-1")
	flow := meshtest.Flow(t, at, 2)
	for _, g := range []string{"gw-1", "gw-2"} {
		m.Process("gateway east/" + g).Stop(t)
		meshtest.Eventually(t, "another gateway tells", func() bool {
			gateway, _ := told(t, client)["gateway"].(string)
			return gateway != "" && gateway != g
		})
		m.StartGateway("east", g).AwaitReady(t)
		meshtest.Eventually(t, "both are attached", func() bool { return client.State(t)["attachedGateways"] == 2.0 })
	}
	pods[0].Remove()
	m.Write()
	meshtest.Eventually(t, "the pod is gone here too", func() bool { return told(t, client)["workloads"] == 2.0 })
	before := flow.Answered("hello-3")
	meshtest.Eventually(t, "the other answers on", func() bool { return flow.Answered("hello-3") > before+10 })
	if _, failed := flow.Stop(); len(failed) > 0 {
		t.Errorf("%d connections failed, the first: %v", len(failed), failed[0])
	}
}

// told is what gateways tell a node proxy, by its state.
func told(t testing.TB, p *meshtest.Process) map[string]any {
	t.Helper()
	x, ok := p.State(t)["told"].(map[string]any)
	if !ok {
		t.Fatalf("%s: no told in its state", p.Name)
	}
	return x
}

// With all gateways away what was told holds, and a node proxy that starts then has it from
// its cache; one of another node is refused.
func TestANodeProxyStartsFromItsCache(t *testing.T) {
	t.Parallel()
	m := meshtest.New(t)
	m.Networks("east")
	m.Service("hello", 80, 8080)
	m.Gateway("east", "gw-1")
	withoutFile(t, m, "gw-1")
	each, cache := m.EachNode, filepath.Join(t.TempDir(), "discovery.cache")
	m.EachNode = func(c *nodeproxy.Config) {
		each(c)
		if c.Node == "east-1" {
			c.Discovery.Cache = cache
		}
	}
	shop := m.Pod("east", "east-1", "shop-1")
	m.Pod("east", "east-2", "hello-1", "hello").App(8080)
	at := shop.Outbound(hello)
	m.Start()
	if got, err := meshtest.Hello(at); err != nil || got != "hello-1" {
		t.Fatalf("answered by %q, %v", got, err)
	}
	m.Process("gateway east/gw-1").Stop(t)
	client := m.Process("node proxy east-1")
	meshtest.Eventually(t, "nobody tells", func() bool { return told(t, client)["gateway"] == "" })
	if got, err := meshtest.Hello(at); err != nil || got != "hello-1" {
		t.Errorf("without a gateway: answered by %q, %v", got, err)
	}
	client.Stop(t)
	client = m.StartNode("east", "east-1")
	client.AwaitReady(t)
	if got, err := meshtest.Hello(at); err != nil || got != "hello-1" {
		t.Errorf("from the cache: answered by %q, %v", got, err)
	}
	if s := told(t, client); s["cached"] == nil || s["told"] != true || s["gateway"] != "" {
		t.Errorf("told %v, want it to say that it is cached", s)
	}
	m.StartGateway("east", "gw-1").AwaitReady(t)
	meshtest.Eventually(t, "a gateway tells again", func() bool { s := told(t, client); return s["gateway"] == "gw-1" && s["cached"] == nil })
	if got, err := meshtest.Hello(at); err != nil || got != "hello-1" {
		t.Errorf("with the gateway back: answered by %q, %v", got, err)
	}
	m.Process("gateway east/gw-1").Stop(t)
	other := m.StartNode("east", "east-3", func(c *nodeproxy.Config) { c.Discovery.Cache = cache })
	line := other.Log.Await(t, "cache of discovery is not used")
	if !strings.Contains(line.Text("error"), `it is of node "east-1"`) {
		t.Errorf("log %v", line)
	}
}

// A node proxy that was given one gateway attaches to those that it lists too: when the one
// that it was given goes another one tells, and nobody fails.
func TestANodeProxyWithOneGatewayFindsTheOthers(t *testing.T) {
	m := meshtest.New(t)
	m.Networks("east")
	m.Service("hello", 80, 8080)
	m.Gateway("east", "gw-1")
	m.Gateway("east", "gw-2")
	m.EachNode = func(c *nodeproxy.Config) {
		c.Discovery.File, c.Discovery.GatewayServiceAccount = "", "isthmus-system/gateway-"+c.Network
		c.Discovery.Gateways = []string{m.GatewayAt("east", "gw-1").String()}
	}
	shop := m.Pod("east", "east-1", "shop-1")
	m.Pod("east", "east-2", "hello-1", "hello").App(8080)
	at := shop.Outbound(hello)
	m.Start()
	client := m.Process("node proxy east-1")
	meshtest.Eventually(t, "both are attached", func() bool { return client.State(t)["attachedGateways"] == 2.0 })
	flow := meshtest.Flow(t, at, 2)
	m.Process("gateway east/gw-1").Stop(t)
	meshtest.Eventually(t, "the other one tells", func() bool { return told(t, client)["gateway"] == "gw-2" })
	pod := m.Pod("east", "east-2", "hello-2", "hello")
	pod.App(8080)
	m.Write()
	meshtest.Eventually(t, "a pod that came since is found", func() bool { return flow.Answered("hello-2") > 0 })
	if _, failed := flow.Stop(); len(failed) > 0 {
		t.Errorf("%d connections failed, the first: %v", len(failed), failed[0])
	}
}
