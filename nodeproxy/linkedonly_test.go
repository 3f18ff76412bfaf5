package nodeproxy_test

import (
	"fmt"
	"testing"
	"time"

	"github.com/isthmus-mesh/isthmus/gateway"
	"github.com/isthmus-mesh/isthmus/internal/meshtest"
	"github.com/isthmus-mesh/isthmus/internal/testlb"
	"github.com/isthmus-mesh/isthmus/nodeproxy"
)

// Two networks that know nothing of each other but key and address of the link: gateways
// find each other by it, node proxies hear of services and of every replica. Then a replica is
// killed, and another one comes.
func TestNetworksThatKnowEachOtherByTheirLinkAlone(t *testing.T) {
	m := meshtest.New(t)
	m.Networks("east", "west")
	for _, network := range []string{"east", "west"} {
		for i := range 3 {
			m.Gateway(network, fmt.Sprint("gw-", i+1))
		}
	}
	balancer, _ := m.Behind("west", testlb.RoundRobin)
	m.Behind("east", testlb.RoundRobin)
	host := m.Service("hello", 80, 8080)
	client := m.Pod("east", "east-1", "client-1")
	for i := range 2 {
		m.Pod("west", fmt.Sprint("west-", i+1), fmt.Sprint("hello-", i+1), "hello").App(8080)
	}
	at := client.Outbound(host + ":80")
	files := map[string]string{"east": m.WriteOwn("east"), "west": m.WriteOwn("west")}
	m.EachGateway = func(c *gateway.Config) {
		c.Discovery.File, c.Federation.Networks = files[c.Network], m.LinkFile(c.Network)
		c.Timeouts.Drain = time.Second
	}
	m.EachNode = func(c *nodeproxy.Config) {
		c.Discovery.File, c.Federation.Networks = files[c.Network], m.LinkFile(c.Network)
	}
	m.Start()
	meshtest.Eventually(t, "the service answers", func() bool { _, err := meshtest.Hello(at); return err == nil })
	node := m.Process("node proxy east-1")
	gateways := func() (n int) {
		for _, g := range node.Rows(t, "gateways") {
			if g.Text("network") == "west" {
				n++
			}
		}
		return n
	}
	meshtest.Eventually(t, "all replicas of west are known", func() bool { return gateways() == 3 })
	flow := meshtest.Flow(t, at, 2)
	flow.AwaitMore(t, 200)

	m.GatewayBehind("west", "gw-4", "gw-1")
	files["west"] = m.WriteOwn("west")
	m.StartGateway("west", "gw-4").AwaitReady(t)
	balancer.Set(m.OwnAddress("west", "gw-2").String(), m.OwnAddress("west", "gw-3").String(), m.OwnAddress("west", "gw-4").String())
	m.Process("gateway west/gw-1").Stop(t)
	flow.AwaitMore(t, 200)
	meshtest.Eventually(t, "the new replica is known", func() bool { return node.Row(t, "gateways", "network", "west", "name", "gw-4") != nil })
	flow.AwaitMore(t, 200)
	if answered, failed := flow.Stop(); len(failed) > 0 {
		t.Errorf("%d of %v exchanges failed, the first: %v", len(failed), answered, failed[0])
	}
}
