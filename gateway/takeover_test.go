package gateway_test

import (
	"crypto/tls"
	"testing"
	"time"

	"github.com/spiffe/go-spiffe/v2/spiffeid"

	"github.com/isthmus-mesh/isthmus/gateway"
	"github.com/isthmus-mesh/isthmus/internal/meshtest"
)

// In a hand-over by reusePort the process that takes over is not ready before it has
// heard the node proxies, which keep one stream to a gateway, and the old one takes them
// back if the new one goes.
func TestTheProcessThatTakesOverKnowsWhoIsSick(t *testing.T) {
	s := newSite(t, 2)
	for _, p := range s.pods {
		p.Serve(meshtest.HBONEPort, echo)
	}
	reuse := func(c *gateway.Config) { c.ReusePort, c.Timeouts.Drain = true, 20*time.Second }
	s.Write()
	old := s.StartGateway("west", "gw-1", reuse)
	s.report(t, s.NodeID("west", "west-1"), "west-1", sick(s.pods[0], 8080))
	s.report(t, s.NodeID("west", "west-2"), "west-2")
	old.AwaitReady(t)
	told := func(p *meshtest.Process, attached bool) (n int) {
		for _, r := range p.Rows(t, "reports") {
			if f := r["fact"].(map[string]any); r["believed"] == true && f["state"] != "healthy" && (!attached || r["attached"] == true) {
				n++
			}
		}
		return n
	}
	if n := told(old, true); n != 1 {
		t.Fatalf("the old process is ready and knows %d sick pods; want 1", n)
	}
	session := s.dial(t) // holds up the drain, as any connection of a client does
	defer session.Close(nil)
	if stream, _, _ := connect(t, session, hello, nil); stream != nil {
		defer stream.Reset(8)
	}
	next := s.StartGateway("west", "gw-1", reuse)
	next.AwaitReady(t)
	if n := told(next, true); n != 1 {
		t.Errorf("the process that takes over is ready, serves, and knows %d sick pods; the old one knows %d", n, told(old, false))
	}
	if l := next.Log.Find("starting before all nodes and gateways connected"); len(l) > 0 {
		t.Errorf("the process that takes over has not waited for the node proxies: %v", l[0])
	}
	if n := told(old, false); n != 1 {
		t.Errorf("the old process serves still, and has forgotten who is sick: it knows %d", n)
	}
	next.Stop(t)
	meshtest.Eventually(t, "the old process has its node proxies again", func() bool { return told(old, true) == 1 })
}

// A process that drains keeps no node proxy from the one that takes over.
func TestAProcessThatDrainsLetsNodeProxiesGo(t *testing.T) {
	s := newSite(t, 1)
	s.pods[0].Serve(meshtest.HBONEPort, echo)
	s.Write()
	old := s.StartGateway("west", "gw-1", func(c *gateway.Config) { c.ReusePort, c.Timeouts.Drain = true, time.Hour })
	client := s.report(t, s.NodeID("west", "west-1"), "west-1", sick(s.pods[0], 8080))
	old.AwaitReady(t)
	session := s.dial(t)
	stream, _, refused := connect(t, session, hello, nil)
	if refused != nil {
		t.Fatal(refused)
	}
	old.Cancel()
	meshtest.Eventually(t, "the node proxy is free", func() bool { return client.Attached() == 0 })
	if l := old.Log.Find("stopped"); len(l) > 0 {
		t.Error("the process has stopped; want it to drain for as long as a stream is open")
	}
	stream.Reset(8)
	session.Close(nil)
}

// Nobody but a process of this gateway has its health streams.
func TestHealthStreamsAreHandedOverToThisGatewayAlone(t *testing.T) {
	s := newSite(t, 1)
	s.Write()
	gw := s.StartGateway("west", "gw-1", func(c *gateway.Config) { c.ReusePort = true })
	client := s.report(t, s.NodeID("west", "west-1"), "west-1")
	gw.AwaitReady(t)
	for _, id := range []spiffeid.ID{s.shop.Identity(), s.NodeID("west", "west-1")} {
		cfg, err := s.Manager().ClientTLS(t.Context(), id, []spiffeid.ID{s.ID("isthmus-system/gateway-west")}, "isthmus-handover/1")
		if err != nil {
			t.Fatal(err)
		}
		conn, err := tls.Dial("tcp", s.GatewayAt("west", "gw-1").String(), cfg)
		if err != nil {
			t.Fatal(err)
		}
		defer conn.Close()
		conn.Write(make([]byte, 16))
		if n, err := conn.Read(make([]byte, 1)); n > 0 || err == nil {
			t.Errorf("%s is answered", id)
		}
		gw.Log.Await(t, "refused to hand over health streams", "peer", id)
	}
	if l := gw.Log.Find("node detached"); len(l) > 0 || client.Attached() != 1 {
		t.Errorf("the node proxy was sent away: %v", l)
	}
}
