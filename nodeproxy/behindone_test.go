package nodeproxy_test

import (
	"fmt"
	"testing"
	"time"

	"github.com/isthmus-mesh/isthmus/gateway"
	"github.com/isthmus-mesh/isthmus/internal/meshtest"
	"github.com/isthmus-mesh/isthmus/internal/testlb"
)

// Three gateways of one network behind one address that takes turns: one is killed, then
// each is replaced in turn with a drain. Nothing fails, by real sockets.
func TestReplicasBehindABalancerAreKilledAndReplaced(t *testing.T) {
	m := meshtest.New(t)
	m.Networks("east", "west")
	m.Gateway("east", "gw-1")
	for i := range 3 {
		m.Gateway("west", fmt.Sprint("gw-", i+1))
	}
	m.EachGateway = func(c *gateway.Config) { c.Timeouts.Drain = time.Second }
	balancer, _ := m.Behind("west", testlb.RoundRobin)
	host := m.Service("hello", 80, 8080)
	client := m.Pod("east", "east-1", "client-1")
	for i := range 2 {
		m.Pod("west", fmt.Sprint("west-", i+1), fmt.Sprint("hello-", i+1), "hello").App(8080)
	}
	at := client.Outbound(host + ":80")
	m.Start()
	flow := meshtest.Flow(t, at, 2)
	flow.AwaitMore(t, 200)

	behind := []string{"gw-1", "gw-2", "gw-3"}
	set := func() {
		var to []string
		for _, n := range behind {
			to = append(to, m.OwnAddress("west", n).String())
		}
		balancer.Set(to...)
	}
	for _, old := range []string{"gw-1", "gw-2", "gw-3"} {
		fresh := "new-" + old
		m.GatewayBehind("west", fresh, "gw-3")
		m.Write()
		m.StartGateway("west", fresh).AwaitReady(t)
		behind = append(behind[1:], fresh)
		set()
		flow.AwaitMore(t, 50)
		m.Process("gateway west/" + old).Stop(t)
		flow.AwaitMore(t, 100)
		m.RemoveGateway("west", old)
		m.Write()
		flow.AwaitMore(t, 50)
	}
	answered, failed := flow.Stop()
	if len(failed) > 0 {
		t.Errorf("%d exchanges failed, the first: %v", len(failed), failed[0])
	}
	for _, what := range []string{"asked", "other", "unknown", "taken"} {
		t.Logf("%s: %v", what, m.Process("node proxy east-1").Metric(t, `isthmus_replica_answers_total{answer="`+what+`"}`))
	}
	t.Logf("answered %v, slowest %v", answered, flow.Slowest())
}
