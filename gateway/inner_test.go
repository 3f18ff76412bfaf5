package gateway_test

import (
	"context"
	"fmt"
	"io"
	"net"
	"sync"
	"testing"
	"time"

	"golang.org/x/net/http2"

	"github.com/isthmus-mesh/isthmus/gateway"
	"github.com/isthmus-mesh/isthmus/hbone"
	"github.com/isthmus-mesh/isthmus/hbone/header"
	"github.com/isthmus-mesh/isthmus/internal/meshtest"
	"github.com/isthmus-mesh/isthmus/nodeproxy"
)

// handshake does what a client does with a pod behind the gateway, to the SETTINGS.
func (s *site) handshake(t *testing.T, outer *hbone.Session, account string) error {
	t.Helper()
	stream, _, refused := connect(t, outer, hello, nil)
	for tries := 1; refused != nil && refused.Reason() == header.ReasonOverload && tries < 20; tries++ {
		stream, _, refused = connect(t, outer, hello, nil) // this process has too little processor time
	}
	if refused != nil {
		return refused
	}
	ctx, cancel := context.WithTimeout(t.Context(), meshtest.ExchangeTimeout)
	defer cancel()
	tt, err := hbone.ClientTLS(ctx, stream, s.TLS(s.ID(account), "h2", s.pods[0].Identity()))
	if err != nil {
		return err
	}
	inner, err := hbone.NewClient(ctx, tt, hbone.DefaultConfig())
	if err != nil {
		return err
	}
	inner.Close(nil)
	return nil
}

// A pod's node proxy knows all clients of a gateway by one address: those that leave
// their handshakes unfinished, as many as they can, keep nobody else's from being served,
// and no pod is blamed for it.
func TestUnfinishedHandshakesKeepNobodyElseOut(t *testing.T) {
	const room = 32 // of the pod
	for name, c := range map[string]struct {
		hostile int // identities
		limits  gateway.InnerLimits
		stays   time.Duration // of a hostile handshake
		honest  int           // handshakes
	}{
		"of one identity":    {1, gateway.InnerLimits{HandshakesPerIdentity: room / 4, Wait: time.Hour}, time.Hour, 20},
		"of many identities": {4, gateway.InnerLimits{HandshakesPerPod: room / 2, Wait: time.Hour}, 200 * time.Millisecond, 5},
	} {
		t.Run(name, func(t *testing.T) {
			s := newSite(t, 1)
			s.EachGateway = func(g *gateway.Config) {
				alone(g)
				g.Limits.Inner = c.limits
			}
			s.EachNode = func(n *nodeproxy.Config) {
				n.Federation.Health = false
				n.Limits.Handshakes, n.Timeouts.Handshake = room, time.Hour
			}
			s.Start()
			gw := s.gateway()
			stop := s.leaveUnfinished(t, c.hostile, 4*room, c.stays)
			waiting := func() bool { return gw.Metric(t, "isthmus_inner_handshakes_waiting") > room }
			meshtest.Eventually(t, "hostile handshakes wait", waiting)
			honest := s.dialAs(t, "default/honest")
			for i := range c.honest {
				if err := s.handshake(t, honest, "default/honest"); err != nil {
					t.Errorf("handshake %d beside hostile ones: %v", i, err)
				}
			}
			if !waiting() {
				t.Error("hostile handshakes do not wait at the end: the test shows nothing")
			}
			stop()
			meshtest.Eventually(t, "nothing is held", func() bool {
				return gw.Metric(t, "isthmus_inner_handshakes") == 0 && gw.Metric(t, "isthmus_inner_handshakes_waiting") == 0
			})
			if l := gw.Log.Find("outlier changed"); len(l) > 0 {
				t.Errorf("hostile clients ejected a pod: %v", l[0])
			}
		})
	}
}

// leaveUnfinished keeps n handshakes with the pod under way that send a hello and no
// more, of as many identities, and begins each anew when it was ended or has lasted for
// as long as it stays, until stop.
func (s *site) leaveUnfinished(t *testing.T, identities, n int, stays time.Duration) (stop func()) {
	hi := clientHello(t)
	ctx, cancel := context.WithCancel(t.Context())
	var wg sync.WaitGroup
	sessions := make([]*hbone.Session, max(4, identities))
	for i := range sessions {
		sessions[i] = s.dialAs(t, fmt.Sprintf("default/hostile-%d", i%identities))
	}
	for i := range n {
		wg.Go(func() {
			for ctx.Err() == nil {
				st, err := sessions[i%len(sessions)].Start(&hbone.Request{Authority: hello})
				if err != nil {
					return
				}
				end := context.AfterFunc(ctx, func() { st.Reset(http2.ErrCodeCancel) })
				st.Write(hi)
				if _, err := st.AwaitResponse(ctx); err == nil {
					st.SetReadDeadline(time.Now().Add(stays))
					io.Copy(io.Discard, st)
				}
				end()
				st.Reset(http2.ErrCodeCancel)
			}
		})
	}
	return func() { cancel(); wg.Wait() }
}

// Whoever takes part in a handshake to its end holds nothing any more, and whoever does
// not holds it to the end.
func TestAHandshakeCountsUntilItIsOver(t *testing.T) {
	s := newSite(t, 1)
	s.EachGateway = func(g *gateway.Config) {
		alone(g)
		g.Timeouts.Silence = time.Hour // so that none is cut meanwhile
	}
	s.EachNode = func(c *nodeproxy.Config) { c.Federation.Health = false }
	s.Start()
	gw, outer := s.gateway(), s.dial(t)
	held := func() float64 { return gw.Metric(t, "isthmus_inner_handshakes") }
	open := func() *hbone.Stream {
		st, _, refused := connect(t, outer, hello, nil)
		if refused != nil {
			t.Fatal(refused)
		}
		return st
	}
	st := open()
	if n := held(); n != 1 {
		t.Errorf("%v handshakes are under way, want 1", n)
	}
	tt, err := hbone.ClientTLS(t.Context(), st, s.TLS(s.shop.Identity(), "h2", s.pods[0].Identity()))
	if err != nil {
		t.Fatal(err)
	}
	inner, err := hbone.NewClient(t.Context(), tt, hbone.DefaultConfig())
	if err != nil {
		t.Fatal(err)
	}
	defer inner.Close(nil)
	meshtest.Eventually(t, "it is over", func() bool { return held() == 0 })
	st = open()
	st.Write(clientHello(t))
	st.Read(make([]byte, 1))
	st.Write([]byte{23, 3, 3, 64, 0, 1, 2, 3}) // of a record that is never complete
	if n := held(); n != 1 {
		t.Errorf("%v handshakes are under way while one is not finished, want 1", n)
	}
	st.Reset(http2.ErrCodeCancel)
	meshtest.Eventually(t, "it ends with its stream", func() bool { return held() == 0 })
}

// A CONNECT whose turn does not come is refused, and one that nobody waits for leaves
// the queue.
func TestAConnectThatWaitsTooLongIsRefused(t *testing.T) {
	s := newSite(t, 1)
	s.EachGateway = func(c *gateway.Config) {
		alone(c)
		c.Limits.Inner = gateway.InnerLimits{HandshakesPerIdentity: 1, Wait: 200 * time.Millisecond}
		c.Timeouts.Hello = time.Hour
	}
	s.Write()
	gw := s.StartGateway("west", "gw-1")
	gw.AwaitReady(t)
	s.pods[0].Serve(meshtest.HBONEPort, func(c *net.TCPConn) { io.Copy(io.Discard, c) })
	session := s.dial(t)
	waits := func(result string) float64 {
		return gw.Metric(t, fmt.Sprintf(`isthmus_inner_handshake_waits_total{bound="identity",result=%q}`, result))
	}
	first, _, refused := connect(t, session, hello, nil)
	if refused != nil {
		t.Fatal(refused)
	}
	if _, _, refused := connect(t, session, hello, nil); refused == nil || refused.Status != 503 || refused.Reason() != header.ReasonOverload {
		t.Errorf("%v; want 503 overload", refused)
	}
	if n := waits("timeout"); n != 1 {
		t.Errorf("%v waits ended by their time, want 1", n)
	}
	chosen(t, s.dialAs(t, "default/other"), nil) // has a bound of its own
	st, err := session.Start(&hbone.Request{Authority: hello})
	if err != nil {
		t.Fatal(err)
	}
	meshtest.Eventually(t, "it waits", func() bool { return gw.Metric(t, "isthmus_inner_handshakes_waiting") == 1 || waits("timeout") > 1 })
	st.Reset(http2.ErrCodeCancel)
	meshtest.Eventually(t, "it waits no more", func() bool { return gw.Metric(t, "isthmus_inner_handshakes_waiting") == 0 })
	first.Close()
	meshtest.Eventually(t, "there is room", func() bool {
		st, _, refused := connect(t, session, hello, nil)
		if refused == nil {
			st.Close()
		}
		return refused == nil
	})
	if row := gw.Row(t, "pods", "workload", s.pods[0].UID); !row.Has("hop", "healthy", "hopHealth", 1) {
		t.Errorf("/state says %v of the pod; want full health", row)
	}
}
