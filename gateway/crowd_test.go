package gateway_test

import (
	"io"
	"net"
	"testing"
	"time"

	"github.com/isthmus-mesh/isthmus/gateway"
	"github.com/isthmus-mesh/isthmus/hbone"
	"github.com/isthmus-mesh/isthmus/hbone/header"
	"github.com/isthmus-mesh/isthmus/internal/meshtest"
)

// Nobody waits at a pod whose room is full while another one has room.
func TestNobodyWaitsBesideAPodWithRoom(t *testing.T) {
	const room = 4
	s := newSite(t, 2)
	s.EachGateway = func(c *gateway.Config) {
		alone(c)
		c.Limits.Inner = gateway.InnerLimits{HandshakesPerPod: room, Wait: 200 * time.Millisecond}
		c.Timeouts.Hello = time.Hour
	}
	s.Write()
	gw := s.StartGateway("west", "gw-1")
	gw.AwaitReady(t)
	for _, p := range s.pods {
		p.Serve(meshtest.HBONEPort, func(c *net.TCPConn) { io.Copy(io.Discard, c) })
	}
	pin := hbone.Header{header.NamePin: s.pods[0].Endpoint().String()}
	hostile := s.dialAs(t, "default/hostile")
	for range room {
		if _, _, refused := connect(t, hostile, "hello.default.svc.cluster.local:81", pin); refused != nil {
			t.Fatal(refused)
		}
	}
	for range room {
		_, answer, refused := connect(t, s.dialAs(t, "default/honest"), hello, nil)
		if refused != nil {
			t.Fatal(refused)
		}
		if answer.Endpoint() == uint64(s.pods[0].Endpoint()) {
			t.Error("the pod without room was chosen")
		}
	}
	if _, _, refused := connect(t, s.dialAs(t, "default/honest"), hello, nil); refused == nil || refused.Reason() != header.ReasonOverload {
		t.Errorf("%v where both are full; want overload", refused)
	}
}
