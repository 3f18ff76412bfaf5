package nodeproxy_test

import (
	"net/netip"
	"os"
	"path/filepath"
	"regexp"
	"testing"
	"time"

	"github.com/isthmus-mesh/isthmus/gateway"
	"github.com/isthmus-mesh/isthmus/internal/meshtest"
	"github.com/isthmus-mesh/isthmus/nodeproxy"
)

// One of a network's two gateways loses the way to every pod behind it, the other
// one does not: nothing fails, all connections go through the other within a
// second, and the network keeps its full weight beside another one.
func TestAGatewayThatCannotReachItsPodsHidesNothing(t *testing.T) {
	p := newPair(t, 2)
	p.Networks("north")
	p.Gateway("west", "gw-2")
	p.Gateway("east", "gw-1")
	p.Gateway("north", "gw-1")
	pods := append(p.pods, p.Pod("north", "north-1", "hello-3", "hello"), p.Pod("north", "north-1", "hello-4", "hello"))
	for _, pod := range pods {
		pod.App(8080)
	}
	// A connection that has sent early into a session that breaks cannot be repeated.
	p.EachNode = func(c *nodeproxy.Config) { c.Retry.Early = false }
	p.Write()
	// gw-1 sees west's pods at addresses from which wires lead to them.
	file, err := os.ReadFile(p.File())
	if err != nil {
		t.Fatal(err)
	}
	var wires []*meshtest.Wire
	for _, pod := range p.pods {
		at := p.Addr()
		wires = append(wires, p.Wire(netip.AddrPortFrom(at, meshtest.HBONEPort), pod.At(meshtest.HBONEPort)))
		file = regexp.MustCompile(regexp.QuoteMeta(pod.Addr.String())+`\b`).ReplaceAll(file, []byte(at.String()))
	}
	far := filepath.Join(p.Dir(), "far.yaml")
	if err := os.WriteFile(far, file, 0o600); err != nil {
		t.Fatal(err)
	}
	broken := p.StartGateway("west", "gw-1", func(c *gateway.Config) { c.Discovery.File = far })
	p.Start()
	broken.AwaitReady(t)
	via := func(network, name string, since time.Time) (n int) {
		for _, l := range p.client().Log.Find("connection", "direction", "outbound", "network", network, "gateway", name) {
			if l.Time().After(since) {
				n++
			}
		}
		return n
	}
	flow := meshtest.Flow(t, p.listen.hello, 4)
	meshtest.Eventually(t, "both gateways of west, and north, carry connections", func() bool {
		return via("west", "gw-1", time.Time{}) > 20 && via("west", "gw-2", time.Time{}) > 20 && via("north", "gw-1", time.Time{}) > 20
	})
	cut := time.Now()
	for _, w := range wires {
		w.Cut()
	}
	client := p.client()
	client.Log.Await(t, "known", "network", "west", "service", "hello.default.svc.cluster.local", "port", 80)
	time.Sleep(time.Second) // the bound
	settled := time.Now()
	meshtest.Eventually(t, "300 connections after the bound", func() bool { return via("west", "gw-2", settled)+via("north", "gw-1", settled) > 300 })
	answered, failed := flow.Stop()
	for _, f := range failed {
		if f.Begun.After(cut) {
			t.Errorf("%v after the cut: %v", f.Begun.Sub(cut), f)
		}
	}
	if n := via("west", "gw-1", settled); n > 0 {
		t.Errorf("%d connections through the gateway that reaches nobody, more than a second after the cut", n)
	}
	west, north := via("west", "gw-2", settled), via("north", "gw-1", settled)
	if share := float64(west) / float64(west+north); share < 0.4 || share > 0.6 {
		t.Errorf("west has %d of %d connections; want about half, as before", west, west+north)
	}
	t.Logf("answered %v, %d failed that had begun before the cut; after it west %d, north %d", answered, len(failed), west, north)
	for _, pod := range []string{"hello-1", "hello-2"} { // how evenly is held by package picker: a session that breaks under way counts against its pod for a while
		if answered[pod] == 0 {
			t.Errorf("%s got nothing, though it is well by way of gw-2", pod)
		}
	}
	for _, pod := range p.Process("gateway west/gw-2").Rows(t, "pods") {
		if pod.Text("hop") != "healthy" {
			t.Errorf("gw-2 believes %v", pod)
		}
	}
	for _, w := range wires {
		w.Mend()
	}
	mended := time.Now()
	flow = meshtest.Flow(t, p.listen.hello, 2)
	meshtest.Eventually(t, "the gateway carries connections again", func() bool { return via("west", "gw-1", mended) > 20 })
	if _, failed := flow.Stop(); len(failed) > 0 {
		t.Errorf("after the repair: %v", failed)
	}
}
