package gateway_test

import (
	"context"
	"fmt"
	"io"
	"net"
	"testing"
	"time"

	"golang.org/x/net/http2"

	"github.com/isthmus-mesh/isthmus/gateway"
	"github.com/isthmus-mesh/isthmus/hbone"
	"github.com/isthmus-mesh/isthmus/internal/meshtest"
	"github.com/isthmus-mesh/isthmus/nodeproxy"
)

// narrow opens an outer session whose streams let window bytes through before they are
// read.
func (s *site) narrow(t *testing.T, account string, window int) *hbone.Session {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), meshtest.ExchangeTimeout)
	defer cancel()
	conn, err := net.Dial("tcp4", s.GatewayAt("west", "gw-1").String())
	if err != nil {
		t.Fatal(err)
	}
	tt, err := hbone.ClientTLS(ctx, conn, s.TLS(s.ID(account), "h2", s.ID("isthmus-system/gateway-west")))
	if err != nil {
		t.Fatal(err)
	}
	cfg := hbone.DefaultConfig()
	cfg.FirstWindow, cfg.StreamWindow = window, window
	session, err := hbone.NewClient(ctx, tt, cfg)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { session.Close(nil) })
	return session
}

// A client that lets the pod's flight through in pieces, and says something in between,
// has not ended its handshake.
func TestAWindowDoesNotEndAHandshake(t *testing.T) {
	const bound, window = 2, 1024
	s := newSite(t, 1)
	s.EachGateway = func(g *gateway.Config) {
		alone(g)
		g.Timeouts.Silence = time.Hour // so that none is cut meanwhile
		g.Limits.Inner = gateway.InnerLimits{HandshakesPerIdentity: bound, Wait: 100 * time.Millisecond}
	}
	s.EachNode = func(n *nodeproxy.Config) {
		n.Federation.Health = false
		n.Timeouts.Handshake = time.Hour
	}
	s.Start()
	session := s.narrow(t, "default/hostile", window)
	proof := append([]byte{23, 3, 3, 1, 0}, make([]byte, 256)...)
	for _, said := range [][]byte{{23}, proof[:len(proof)-1]} { // it ends no record: the pod says nothing to that
		st, _, refused := connect(t, session, hello, nil)
		if refused != nil {
			t.Fatal(refused)
		}
		defer st.Reset(http2.ErrCodeCancel)
		st.Write(clientHello(t))
		meshtest.Eventually(t, "half of the pod's flight", func() bool { return st.Buffered() == window })
		st.Write(said)
		time.Sleep(20 * time.Millisecond)
		io.ReadFull(st, make([]byte, window))
		meshtest.Eventually(t, "the other half", func() bool { return st.Buffered() > 0 })
	}
	if _, _, refused := connect(t, session, hello, nil); refused == nil {
		t.Errorf("one identity has more than %d handshakes with the pod that are not over", bound)
	}
}

// Places are given back when the pod ends its connections, or when it must have, whatever
// clients do: so that the turn of another one comes within the time that it waits.
func TestAPlaceIsGivenBackWhenThePodHasEnded(t *testing.T) {
	const hostile, each = 4, 2
	for name, reads := range map[string]bool{"of a client that reads to the end and leaves the stream open": true, "of a client without a window": false} {
		t.Run(name, func(t *testing.T) {
			s := newSite(t, 1)
			s.EachGateway = func(g *gateway.Config) {
				alone(g)
				g.Timeouts.HalfClosed = 2 * meshtest.Patience
				g.Limits.Inner = gateway.InnerLimits{HandshakesPerIdentity: each, HandshakesPerPod: hostile * each, Wait: meshtest.Patience}
			}
			s.EachNode = func(n *nodeproxy.Config) {
				n.Federation.Health = false
				n.Timeouts.Handshake = 300 * time.Millisecond
			}
			s.Start()
			gw := s.gateway()
			for i := range hostile {
				session := s.narrow(t, fmt.Sprintf("default/hostile-%d", i), 1024)
				for range each {
					st, _, refused := connect(t, session, hello, nil)
					if refused != nil {
						t.Fatal(refused)
					}
					st.Write(clientHello(t))
					if reads {
						go io.Copy(io.Discard, st)
					}
				}
			}
			if _, _, refused := connect(t, s.dialAs(t, "default/honest"), hello, nil); refused != nil {
				t.Errorf("an honest client: %v", refused)
			}
			if !reads {
				if line := gw.Log.Await(t, "tunnel", "result", "no_handshake"); line.Text("error") == "" {
					t.Error("no_handshake without an error")
				}
			} else {
				for _, l := range gw.Log.Find("tunnel") {
					if l.Text("result") != "server_reset" { // by a pod that was too busy to read the hello in its time
						t.Errorf("a tunnel has ended: %v", l)
					}
				}
			}
		})
	}
}
