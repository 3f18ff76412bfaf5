package gateway_test

import (
	"net"
	"net/netip"
	"testing"
	"time"

	"github.com/spiffe/go-spiffe/v2/spiffeid"

	"github.com/isthmus-mesh/isthmus/gateway"
	"github.com/isthmus-mesh/isthmus/internal/meshtest"
	"github.com/isthmus-mesh/isthmus/mesh"
	"github.com/isthmus-mesh/isthmus/nodeproxy"
)

// Four addresses send complete hellos and hold the handshakes open. Sessions from one of
// these addresses succeed all the same, at a gateway and at the node proxy of a pod, and
// no more handshakes are held than limits.handshakes.
func TestHeldHandshakesRefuseNoSession(t *testing.T) {
	const limit, rounds, perRound = 16, 12, 8
	s := newSite(t, 1)
	s.EachGateway = func(g *gateway.Config) {
		alone(g)
		g.Limits.Handshakes, g.Timeouts.Handshake = limit, time.Hour
	}
	s.EachNode = func(n *nodeproxy.Config) {
		n.Federation.Health = false
		n.Limits.Handshakes, n.Timeouts.Handshake = limit, time.Hour
	}
	s.Start()
	hi := clientHello(t)
	for name, hop := range map[string]struct {
		address netip.AddrPort
		server  spiffeid.ID
		process *meshtest.Process
	}{
		"gateway":    {s.GatewayAt("west", "gw-1"), s.ID("isthmus-system/gateway-west"), s.gateway()},
		"node proxy": {s.pods[0].At(mesh.HBONEPort), s.pods[0].Identity(), s.Process("node proxy west-1")},
	} {
		t.Run(name, func(t *testing.T) {
			for round := range rounds {
				var held []net.Conn
				for i := range perRound {
					d := net.Dialer{LocalAddr: &net.TCPAddr{IP: net.IPv4(127, 0, 0, byte(1+i%4))}, Timeout: meshtest.Patience}
					c, err := d.Dial("tcp4", hop.address.String())
					if err != nil {
						t.Fatal(err)
					}
					defer c.Close()
					c.Write(hi)
					held = append(held, c)
				}
				for _, c := range held { // answered, or evicted: from here on they wait for their peer
					c.SetReadDeadline(time.Now().Add(meshtest.Patience))
					c.Read(make([]byte, 1))
				}
				session, err := s.Session(s.shop.Identity(), hop.address, hop.server)
				if err != nil {
					t.Fatalf("session %d beside held handshakes: %v", round, err)
				}
				session.Close(nil)
			}
			meshtest.Eventually(t, "held handshakes are evicted", func() bool {
				return hop.process.Metric(t, `isthmus_peers_refused_total{reason="overload"}`) >= rounds*perRound-limit
			})
		})
	}
}
