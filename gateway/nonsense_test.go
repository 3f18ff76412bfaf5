package gateway_test

import (
	"bytes"
	"crypto/tls"
	"io"
	"net"
	"testing"
	"time"

	"github.com/isthmus-mesh/isthmus/gateway"
	"github.com/isthmus-mesh/isthmus/hbone"
	"github.com/isthmus-mesh/isthmus/hbone/header"
	"github.com/isthmus-mesh/isthmus/internal/meshtest"
	"github.com/isthmus-mesh/isthmus/nodeproxy"
)

// say sends b to a pod and waits until the gateway or the pod has ended the stream.
func say(t *testing.T, s *hbone.Session, b []byte, h hbone.Header) {
	t.Helper()
	st, _, refused := connect(t, s, hello, h)
	if refused != nil {
		t.Fatalf("a pod that is well is refused: %v", refused)
	}
	defer st.Close()
	st.Write(b)
	st.SetReadDeadline(time.Now().Add(meshtest.ExchangeTimeout))
	io.Copy(io.Discard, st)
}

// unharmed checks that the pods are chosen as before.
func (s *site) unharmed(t *testing.T) {
	t.Helper()
	gw := s.gateway()
	for _, l := range gw.Log.Find("outlier changed") {
		t.Errorf("a client moved the health of a pod that is well: %v", l)
	}
	for _, pod := range s.pods {
		if row := gw.Row(t, "pods", "workload", pod.UID); !row.Has("hop", "healthy", "hopHealth", 1) {
			t.Errorf("/state says %v of the pod; want full health", row)
		}
	}
}

// A record of a version that does not exist makes the pod's node proxy end the
// connection without an alert.
func TestARecordOfNoVersionEjectsNoPod(t *testing.T) {
	s := newSite(t, 2)
	s.EachGateway = alone
	s.Write()
	gw := s.StartGateway("west", "gw-1")
	for _, p := range s.pods {
		s.StartNode("west", p.Node, func(c *nodeproxy.Config) { c.Federation.Health = false })
	}
	gw.AwaitReady(t)
	session, bad := s.dial(t), clientHello(t)
	bad[1], bad[2] = 0x99, 0x99
	for range 6 {
		say(t, session, bad, hbone.Header{header.NamePin: s.pods[0].Endpoint().String()})
		say(t, session, bad, nil)
	}
	s.unharmed(t)
	if n := gw.Metric(t, `isthmus_moved_connections_total{reason="reset"}`); n != 0 {
		t.Errorf("%v connections were moved for it", n)
	}
}

// Whatever hello a client finds that pods do not survive: as long as they answer
// the gateway itself they are not ejected, and the client uses up a bounded part
// of what its service may repeat.
func TestAHelloThatPodsDoNotAnswerEjectsNone(t *testing.T) {
	s := newSite(t, 3)
	s.EachGateway = func(c *gateway.Config) {
		alone(c)
		c.Retry.BudgetBurst, c.Retry.BudgetRatio = 20, 0
	}
	s.Write()
	gw := s.StartGateway("west", "gw-1")
	gw.AwaitReady(t)
	bad := clientHello(t)
	for _, p := range s.pods {
		cert := s.Certificate(p.Identity(), time.Now().Add(-time.Hour), time.Now().Add(time.Hour))
		p.Serve(meshtest.HBONEPort, func(c *net.TCPConn) {
			first := make([]byte, len(bad))
			if n, err := io.ReadAtLeast(c, first, 1); err != nil || bytes.Equal(first[:n], bad) {
				return
			} else {
				tls.Server(&seen{c, first[:n]}, &tls.Config{Certificates: []tls.Certificate{cert}, NextProtos: []string{"h2"}}).Handshake()
			}
		})
	}
	session := s.dial(t)
	for range 20 {
		say(t, session, bad, nil)
	}
	s.unharmed(t)
	if n := gw.Metric(t, `isthmus_moved_connections_total{reason="reset"}`); n < 1 || n > 5 {
		t.Errorf("%v connections of one client were moved, want at most a quarter of the budget of its service, which is 20", n)
	}
}

// seen is a connection of which the first bytes have been read already.
type seen struct {
	*net.TCPConn
	first []byte
}

func (c *seen) Read(b []byte) (int, error) {
	if len(c.first) > 0 {
		n := copy(b, c.first)
		c.first = c.first[n:]
		return n, nil
	}
	return c.TCPConn.Read(b)
}
