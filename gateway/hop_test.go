package gateway_test

import (
	"crypto/tls"
	"io"
	"net"
	"net/netip"
	"testing"
	"time"

	"github.com/isthmus-mesh/isthmus/gateway"
	"github.com/isthmus-mesh/isthmus/hbone"
	"github.com/isthmus-mesh/isthmus/hbone/header"
	"github.com/isthmus-mesh/isthmus/internal/meshtest"
	"github.com/isthmus-mesh/isthmus/nodeproxy"
)

func echo(c *net.TCPConn) { io.Copy(c, c) }

func TestAPodAddressThatDoesNotAnswerIsLeftOutUntilItDoes(t *testing.T) {
	s := newSite(t, 2)
	s.EachGateway = alone
	s.Write()
	gw := s.StartGateway("west", "gw-1")
	gw.AwaitReady(t)
	dead, well := s.pods[0], s.pods[1]
	well.Serve(meshtest.HBONEPort, echo)
	session := s.dial(t)
	meshtest.Eventually(t, "the dead hop is ejected", func() bool {
		if got := chosen(t, session, nil); got != uint64(well.Endpoint()) {
			t.Errorf("answered for %016x, where nobody listens", got)
		}
		return len(gw.Log.Find("outlier changed", "edge", "ejected", "scope", "hop", "endpoint", dead.Endpoint(), "workload", dead.UID, "reason", "unreachable")) > 0
	})
	ended := func() float64 { return gw.Metric(t, `isthmus_tunnels_closed_total{result="ended"}`) }
	idle := func() bool { return ended() == gw.Metric(t, "isthmus_tunnels_opened_total") }
	meshtest.Eventually(t, "access log", idle)
	forwards := len(gw.Log.Find("tunnel", "direction", "forward", "attempts", 2))
	for range 20 {
		chosen(t, session, nil)
	}
	meshtest.Eventually(t, "access log", idle)
	if n := len(gw.Log.Find("tunnel", "direction", "forward", "attempts", 2)); n != forwards {
		t.Errorf("%d more connections tried the ejected hop first", n-forwards)
	}
	if row := gw.Row(t, "pods", "workload", dead.UID); !row.Has("hop", "ejected") {
		t.Errorf("/state says %v of the dead hop", row)
	}
	s.StartNode("west", "west-1", func(c *nodeproxy.Config) { c.Federation.Health = false })
	gw.Log.Await(t, "outlier changed", "edge", "readmitted", "scope", "hop", "endpoint", dead.Endpoint())
	for _, edge := range []string{"ejected", "readmitted"} {
		if n := gw.Metric(t, `isthmus_outlier_edges_total{edge="`+edge+`",scope="hop"}`); n < 1 {
			t.Errorf("%v edges of hops are counted as %s; want one or more", n, edge)
		}
	}
	meshtest.Eventually(t, "the pod is chosen again", func() bool { return chosen(t, session, nil) == uint64(dead.Endpoint()) })
}

func TestNoPodAddressAnswersIsUnreachable(t *testing.T) {
	s := newSite(t, 2)
	s.EachGateway = alone
	s.Write()
	s.StartGateway("west", "gw-1").AwaitReady(t)
	_, _, refused := connect(t, s.dial(t), hello, nil)
	if refused == nil || refused.Status != 503 || refused.Reason() != header.ReasonUnreachable || refused.Endpoint() == 0 {
		t.Errorf("%v; want 503 unreachable that names an endpoint", refused)
	}
	s.gateway().Log.Await(t, "tunnel", "direction", "forward", "result", "unreachable", "attempts", 2)
}

func TestAGatewayThatCannotDialSaysSoAndBlamesNoPod(t *testing.T) {
	s := newSite(t, 2)
	s.EachGateway = func(c *gateway.Config) {
		alone(c)
		c.DialFrom = netip.MustParseAddr("192.0.2.1") // of no interface: EADDRNOTAVAIL
	}
	s.Write()
	s.StartGateway("west", "gw-1").AwaitReady(t)
	session := s.dial(t)
	for range 10 {
		if _, _, refused := connect(t, session, hello, nil); refused == nil || refused.Status != 503 || refused.Reason() != header.ReasonOverload {
			t.Errorf("%v; want 503 overload, for which clients blame neither the pod nor the network service", refused)
		}
	}
	for _, pod := range s.pods {
		if row := s.gateway().Row(t, "pods", "workload", pod.UID); row.Text("hop") != "healthy" {
			t.Errorf("/state says %v of a pod that was never dialed", row)
		}
	}
}

func TestAPodAddressThatTakesBytesAndAnswersNothingIsLeftOut(t *testing.T) {
	s := newSite(t, 2)
	s.EachGateway = func(c *gateway.Config) {
		alone(c)
		c.Timeouts.Silence = 100 * time.Millisecond
	}
	s.Write()
	gw := s.StartGateway("west", "gw-1")
	gw.AwaitReady(t)
	frozen, well := s.pods[0], s.pods[1]
	frozen.Serve(meshtest.HBONEPort, func(c *net.TCPConn) { io.Copy(io.Discard, c) }) // the kernel of a stopped process
	well.Serve(meshtest.HBONEPort, echo)
	session := s.dial(t)
	meshtest.Eventually(t, "the silent hop is ejected", func() bool {
		stream, _, refused := connect(t, session, hello, nil)
		if refused != nil {
			t.Fatal(refused)
		}
		stream.Write(clientHello(t))
		stream.SetReadDeadline(time.Now().Add(200 * time.Millisecond))
		stream.Read(make([]byte, 1))
		stream.Close()
		return len(gw.Log.Find("outlier changed", "edge", "ejected", "scope", "hop", "endpoint", frozen.Endpoint())) > 0
	})
	for range 10 {
		if got := chosen(t, session, nil); got != uint64(well.Endpoint()) {
			t.Fatalf("chosen %016x, the silent pod", got)
		}
	}
}

func TestAStreamThatTheClientGivesUpMovesNoHealth(t *testing.T) {
	s := newSite(t, 1)
	s.EachGateway = alone
	s.Write()
	gw := s.StartGateway("west", "gw-1")
	gw.AwaitReady(t)
	s.pods[0].Serve(meshtest.HBONEPort, echo)
	session := s.dial(t)
	for range 10 {
		stream, _, refused := connect(t, session, hello, nil)
		if refused != nil {
			t.Fatal(refused)
		}
		stream.Write([]byte("client hello"))
		stream.Close() // RST_STREAM(CANCEL)
	}
	meshtest.Eventually(t, "10 streams ended", func() bool { return len(gw.Log.Find("tunnel", "direction", "forward")) == 10 })
	if row := gw.Row(t, "pods", "workload", s.pods[0].UID); !row.Has("hop", "healthy", "hopHealth", 1) {
		t.Errorf("/state says %v of the hop; want full health", row)
	}
}

// A stock client cannot try again: a pod that takes its TLS hello and does not
// answer costs it time, and no connection.
func TestAHelloGoesToAnotherPodWhenTheFirstDoesNotAnswer(t *testing.T) {
	for name, broken := range map[string]func(*net.TCPConn){
		"silent": func(c *net.TCPConn) { io.Copy(io.Discard, c) },
		"resets": func(c *net.TCPConn) { c.Read(make([]byte, 1)); c.SetLinger(0) },
		"ends":   func(c *net.TCPConn) {},
	} {
		t.Run(name, func(t *testing.T) {
			s := newSite(t, 2)
			s.EachGateway = func(c *gateway.Config) {
				alone(c)
				c.Timeouts.Answer = 500 * time.Millisecond // more than a healthy node proxy takes on a busy machine
			}
			s.Write()
			gw := s.StartGateway("west", "gw-1")
			gw.AwaitReady(t)
			s.pods[0].Serve(meshtest.HBONEPort, broken)
			s.StartNode("west", "west-2", func(c *nodeproxy.Config) { c.Federation.Health = false })
			session := s.dial(t)
			for range 20 {
				stream, _, refused := connect(t, session, hello, nil)
				if refused != nil {
					t.Fatal(refused)
				}
				inner := tls.Client(stream, s.TLS(s.shop.Identity(), "h2", s.pods[1].Identity()))
				if err := inner.Handshake(); err != nil {
					t.Fatalf("handshake with a pod: %v", err)
				}
				inner.Close()
			}
			if n := gw.Metric(t, `isthmus_moved_connections_total{reason="`+map[string]string{"silent": "silence", "resets": "reset", "ends": "reset"}[name]+`"}`); n < 1 || n > 10 {
				t.Errorf("%v of 20 connections were moved; want the first, and few after that", n)
			}
		})
	}
}

func TestAPinnedHelloStaysWhereItIs(t *testing.T) {
	s := newSite(t, 2)
	s.EachGateway = func(c *gateway.Config) {
		alone(c)
		c.Timeouts.Answer = 20 * time.Millisecond
	}
	s.Write()
	s.StartGateway("west", "gw-1").AwaitReady(t)
	slow := func(c *net.TCPConn) {
		io.ReadFull(c, make([]byte, 100))
		time.Sleep(100 * time.Millisecond)
		io.WriteString(c, "an answer")
	}
	s.pods[0].Serve(meshtest.HBONEPort, slow)
	other := s.pods[1].Serve(meshtest.HBONEPort, echo)
	stream, _, refused := connect(t, s.dial(t), hello, hbone.Header{header.NamePin: s.pods[0].Endpoint().String()})
	if refused != nil {
		t.Fatal(refused)
	}
	go tls.Client(stream, s.TLS(s.shop.Identity(), "h2", s.pods[0].Identity())).Handshake()
	meshtest.Eventually(t, "the slow pod has answered", func() bool {
		return s.gateway().Metric(t, "isthmus_tunnel_sent_bytes_total") > 0 || stream.Buffered() > 0
	})
	if n := other.Accepted.Load(); n != 0 {
		t.Errorf("another pod got %d connections", n)
	}
}

// A gateway that stops waits for what clients that have left sent, and for the pod
// that is slow to take it.
func TestStoppingDeliversWhatClientsThatLeftSent(t *testing.T) {
	s := newSite(t, 1)
	s.EachGateway = plain
	s.Write()
	s.StartGateway("west", "gw-1").AwaitReady(t)
	type got struct {
		n   int
		err error
	}
	took := make(chan got, 1)
	s.pods[0].Serve(meshtest.HBONEPort, func(c *net.TCPConn) {
		c.SetReadBuffer(16 << 10)
		c.Write([]byte("here"))
		var g got
		for buf := make([]byte, 64<<10); g.err == nil; time.Sleep(5 * time.Millisecond) {
			var n int
			n, g.err = c.Read(buf)
			g.n += n
		}
		took <- g
	})
	stream, _, refused := connect(t, s.dial(t), hello, nil)
	if refused != nil {
		t.Fatal(refused)
	}
	const size = 3 << 20
	stream.Write(make([]byte, size))
	if _, err := io.ReadFull(stream, make([]byte, 4)); err != nil {
		t.Fatal(err)
	}
	stream.Close() // END_STREAM, RST_STREAM(CANCEL)
	s.gateway().Stop(t)
	if g := <-took; g.n != size || g.err != io.EOF {
		t.Errorf("the pod got %d bytes and %v, want %d and a FIN", g.n, g.err, size)
	}
}
