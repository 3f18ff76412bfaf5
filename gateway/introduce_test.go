package gateway_test

import (
	"testing"

	"github.com/isthmus-mesh/isthmus/federation/healthstream"
	"github.com/isthmus-mesh/isthmus/internal/meshtest"
)

// voice waits until the node proxy's stream c has the word of gw-1 about hello, and it
// says whether gw-1 drains as want does.
func voice(t *testing.T, c *healthstream.Client, want bool) {
	t.Helper()
	c.Use(t.Context(), "hello.default.svc.cluster.local", 0)
	meshtest.Eventually(t, "gw-1's own word", func() bool {
		k, _ := c.Known("west", "hello.default.svc.cluster.local")
		return len(k.Deliveries) == 1 && k.Deliveries[0].Draining == want
	})
}

// What a gateway says of itself follows discovery, and that it drains reaches both the
// gateways of other networks and the node proxies of its own.
func TestWhatAGatewaySaysOfItselfFollowsTheState(t *testing.T) {
	s := newSite(t, 1)
	s.Gateway("east", "gw-e")
	s.Start()
	node := s.report(t, s.NodeID("west", "west-9"), "west-9")
	heard := func(draining bool) func() bool {
		return func() bool {
			for _, i := range s.Process("gateway east/gw-e").Rows(t, "instances") {
				if i.Has("gateway", "gw-1", "phase", "live", "draining", draining) {
					return true
				}
			}
			return false
		}
	}
	voice(t, node, false)
	meshtest.Eventually(t, "the word at the start", heard(false))
	for _, drained := range []bool{true, false} {
		for i := range s.Config.Gateways {
			if s.Config.Gateways[i].Network == "west" {
				s.Config.Gateways[i].Drained = drained
			}
		}
		s.Write()
		meshtest.Eventually(t, "the word after discovery has changed", heard(drained))
		voice(t, node, drained)
	}
	stream, _, refused := connect(t, s.dial(t), hello, nil)
	if refused != nil {
		t.Fatal(refused)
	}
	s.gateway().Cancel()
	voice(t, node, true)
	meshtest.Eventually(t, "that it drains", heard(true))
	stream.Close()
}
