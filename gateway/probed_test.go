package gateway_test

import (
	"errors"
	"io"
	"net"
	"os"
	"testing"
	"time"

	"github.com/isthmus-mesh/isthmus/gateway"
	"github.com/isthmus-mesh/isthmus/internal/meshtest"
)

// What a load balancer sends to see whether a gateway is there is neither a line of the
// log nor a handshake that failed, and it leaves nothing behind. A peer that says nothing
// until its time is up may be one whose packets are lost: it counts as before.
func TestProbesOfALoadBalancerAreNoHandshakes(t *testing.T) {
	s := newSite(t, 1)
	s.EachGateway = alone
	s.Write()
	gw := s.StartGateway("west", "gw-1")
	gw.AwaitReady(t)
	at := s.GatewayAt("west", "gw-1").String()
	const hello = "\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03" // the begin of one of 512 bytes
	counted := func(kind string) float64 {
		return gw.Metric(t, `isthmus_connections_without_hello_total{kind="`+kind+`"}`)
	}
	logged := len(gw.Log.Find("handshake failed")) + len(gw.Log.Find("handshake refused"))
	for _, c := range []struct {
		name, says, kind string
		reset            bool
	}{
		{"connect and close", "", "left", false},
		{"connect and reset", "", "left", true},
		{"half of a hello", hello, "left", false},
		{"half of a hello and a reset", hello, "left", true},
		{"a page", "GET /healthz HTTP/1.1\r\nHost: 10.0.0.1\r\n\r\n", "not_tls", false},
		{"a PROXY header", "PROXY TCP4 10.0.0.1 10.0.0.2 1 2\r\n", "not_tls", false},
	} {
		t.Run(c.name, func(t *testing.T) {
			before := counted(c.kind)
			conn, err := net.Dial("tcp", at)
			if err != nil {
				t.Fatal(err)
			}
			defer conn.Close()
			if _, err := io.WriteString(conn, c.says); err != nil {
				t.Fatal(err)
			}
			if c.kind == "not_tls" { // it is answered, or ended, by the gateway
				conn.SetDeadline(time.Now().Add(5 * time.Second))
				if _, err := io.ReadAll(conn); errors.Is(err, os.ErrDeadlineExceeded) {
					t.Fatal("the gateway keeps a connection that is no TLS")
				}
			}
			if c.reset {
				conn.(*net.TCPConn).SetLinger(0)
			}
			conn.Close()
			meshtest.Eventually(t, "a count of kind "+c.kind, func() bool { return counted(c.kind) == before+1 })
		})
	}
	if n := gw.Metric(t, `isthmus_peers_refused_total{reason="handshake"}`); n != 0 {
		t.Errorf("isthmus_peers_refused_total of handshake = %v; want none", n)
	}
	if n := len(gw.Log.Find("handshake failed")) + len(gw.Log.Find("handshake refused")); n != logged {
		t.Errorf("%d lines about handshakes; want none", n-logged)
	}
}

// A peer that owes its hello until the time is up is counted.
func TestAHelloThatNeverComesIsAFailedHandshake(t *testing.T) {
	s := newSite(t, 1)
	s.EachGateway = func(c *gateway.Config) { alone(c); c.Timeouts.Handshake = 50 * time.Millisecond }
	s.Write()
	gw := s.StartGateway("west", "gw-1")
	gw.AwaitReady(t)
	conn, err := net.Dial("tcp", s.GatewayAt("west", "gw-1").String())
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	meshtest.Eventually(t, "a failed handshake", func() bool {
		return gw.Metric(t, `isthmus_peers_refused_total{reason="handshake"}`) == 1
	})
}
