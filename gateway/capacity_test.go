package gateway_test

import (
	"testing"

	"github.com/isthmus-mesh/isthmus/internal/meshtest"
)

// What a gateway can deliver, and why not more, are in its metrics.
func TestMetricsShowWhatAGatewayCanDeliver(t *testing.T) {
	s := newSite(t, 2)
	for _, p := range s.pods {
		p.Serve(meshtest.HBONEPort, echo)
	}
	s.Write()
	gw := s.StartGateway("west", "gw-1")
	s.report(t, s.NodeID("west", "west-1"), "west-1", sick(s.pods[0], 8080))
	s.report(t, s.NodeID("west", "west-2"), "west-2")
	gw.AwaitReady(t)
	meshtest.Eventually(t, "the sick pod is out", func() bool { return gw.Metric(t, `isthmus_endpoints_out{cause="witness"}`) == 1 })
	ready, healthy := gw.Metric(t, "isthmus_ready_capacity"), gw.Metric(t, "isthmus_healthy_capacity")
	if ready < 2 || healthy != ready-1 {
		t.Errorf("ready capacity %v, healthy %v; want all but one pod's of at least two", ready, healthy)
	}
	if n := gw.Metric(t, `isthmus_endpoints_out{cause="hop"}`); n != 0 {
		t.Errorf("%v endpoints cannot be reached; want none", n)
	}
	session := s.dial(t)
	defer session.Close(nil)
	stream, _, refused := connect(t, session, hello, nil)
	if refused != nil {
		t.Fatal(refused)
	}
	stream.Reset(8)
	meshtest.Eventually(t, "the tunnel is measured", func() bool { return gw.Metric(t, "isthmus_tunnel_connect_duration_seconds_count") == 1 })
}
