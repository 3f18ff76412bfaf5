package gateway_test

import (
	"context"
	"crypto/tls"
	"errors"
	"io"
	"net"
	"strings"
	"testing"
	"time"

	"github.com/spiffe/go-spiffe/v2/spiffeid"
	"golang.org/x/net/http2"

	"github.com/isthmus-mesh/isthmus/federation/healthstream"
	"github.com/isthmus-mesh/isthmus/gateway"
	"github.com/isthmus-mesh/isthmus/hbone"
	"github.com/isthmus-mesh/isthmus/hbone/header"
	"github.com/isthmus-mesh/isthmus/hbone/quic"
	"github.com/isthmus-mesh/isthmus/internal/admission"
	"github.com/isthmus-mesh/isthmus/internal/lines"
	"github.com/isthmus-mesh/isthmus/internal/meshtest"
	"github.com/isthmus-mesh/isthmus/nodeproxy"
)

// limited is a site whose gateway bounds its clients, with a pod that echoes.
func limited(t *testing.T, l admission.Config) *site {
	s := newSite(t, 1)
	s.EachGateway = func(c *gateway.Config) {
		plain(c)
		l.Handshakes = 100
		c.Limits.Config = l
		c.Lines.Transport = lines.QUIC // beside TCP
	}
	s.Write()
	s.StartGateway("west", "gw-1").AwaitReady(t)
	s.pods[0].Serve(meshtest.HBONEPort, echo)
	return s
}

func (s *site) dialAs(t *testing.T, account string) *hbone.Session {
	t.Helper()
	session, err := s.Session(s.ID(account), s.GatewayAt("west", "gw-1"), s.ID("isthmus-system/gateway-west"))
	if err != nil {
		t.Fatal(err)
	}
	return session
}

// told checks that a client was refused for a bound, and that no pod was blamed.
func (s *site) told(t *testing.T, scope admission.Scope, limit admission.Limit) {
	t.Helper()
	gw := s.gateway()
	if n := gw.Metric(t, `isthmus_admission_refused_total{limit="`+string(limit)+`",scope="`+string(scope)+`"}`); n < 1 {
		t.Errorf("no refusal is counted for %s of an %s", limit, scope)
	}
	gw.Log.Await(t, "client refused: it has reached a limit", "level", "warn", "scope", string(scope), "limit", string(limit))
	if l := gw.Log.Find("outlier changed"); len(l) > 0 {
		t.Errorf("a client over its limit moved health: %v", l[0])
	}
}

// Connections that say nothing of the health that they have come to report are
// sessions like any other.
func TestHealthStreamsCountAsSessions(t *testing.T) {
	const bound = 2
	s := newSite(t, 0)
	s.EachGateway = func(c *gateway.Config) { c.Limits.Identity.Sessions = bound }
	s.Write()
	gw := s.StartGateway("west", "gw-1")
	gw.AwaitReady(t)
	node := s.NodeID("west", "west-1")
	cfg := s.TLS(node, healthstream.ALPN, s.ID("isthmus-system/gateway-west"))
	dial := func() *tls.Conn {
		conn, err := tls.Dial("tcp4", s.GatewayAt("west", "gw-1").String(), cfg)
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { conn.Close() })
		return conn
	}
	for range bound {
		dial()
	}
	meshtest.Eventually(t, "they are admitted", func() bool { return gw.Metric(t, "isthmus_admitted_sessions") == bound })
	third := dial()
	third.SetReadDeadline(time.Now().Add(meshtest.ExchangeTimeout))
	if _, err := third.Read(make([]byte, 1)); !errors.Is(err, io.EOF) {
		t.Errorf("one more than the bound: %v, want it closed", err)
	}
	s.told(t, admission.ByIdentity, admission.Sessions)
}

// A node proxy whose identity has too many sessions says so, and its gateway names
// the key.
func TestANodeProxyWithTooManySessionsIsTold(t *testing.T) {
	s := newSite(t, 2)
	s.EachGateway = func(c *gateway.Config) { c.Limits.Identity.Sessions = 1 }
	s.Write()
	gw := s.StartGateway("west", "gw-1")
	gw.AwaitReady(t)
	conn, err := tls.Dial("tcp4", s.GatewayAt("west", "gw-1").String(), s.TLS(s.NodeID("west", "west-2"), healthstream.ALPN, s.ID("isthmus-system/gateway-west")))
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	meshtest.Eventually(t, "it is admitted", func() bool { return gw.Metric(t, "isthmus_admitted_sessions") == 1 })
	s.StartNode("west", "west-1").Log.Await(t, "health stream attached") // another node has sessions of its own
	line := s.StartNode("west", "west-2").Log.Await(t, "health stream refused", "level", "warn", "gateway", "gw-1")
	if !strings.Contains(line.Text("error"), "limits.identity.sessions") {
		t.Errorf("the node proxy says %q", line.Text("error"))
	}
	line = gw.Log.Await(t, "client refused: it has reached a limit", "peer", s.NodeID("west", "west-2"))
	if !strings.Contains(line.Text("error"), "limits.identity.sessions, which is 1") {
		t.Errorf("the gateway says %q", line.Text("error"))
	}
}

func TestOneSessionTooManyIsSentAway(t *testing.T) {
	for name, c := range map[string]struct {
		limits admission.Config
		scope  admission.Scope
		second string
	}{
		"by identity": {admission.Config{Identity: admission.IdentityLimits{Sessions: 2}}, admission.ByIdentity, "default/shop"},
		"by address":  {admission.Config{Address: admission.AddressLimits{Sessions: 2}}, admission.ByAddress, "default/other"},
	} {
		for transport, dial := range map[string]func(s *site, id spiffeid.ID) (*hbone.Session, error){
			lines.TCP: func(s *site, id spiffeid.ID) (*hbone.Session, error) {
				return s.Session(id, s.GatewayAt("west", "gw-1"), s.ID("isthmus-system/gateway-west"))
			},
			lines.QUIC: func(s *site, id spiffeid.ID) (*hbone.Session, error) { return s.quicSession(t, id) },
		} {
			t.Run(name+" over "+transport, func(t *testing.T) {
				s := limited(t, c.limits)
				one, err := dial(s, s.shop.Identity())
				if err != nil {
					t.Fatal(err)
				}
				if _, err := dial(s, s.ID(c.second)); err != nil {
					t.Fatal(err)
				}
				chosen(t, one, nil)
				third, err := dial(s, s.shop.Identity())
				if err == nil { // the SETTINGS came before the GOAWAY
					<-third.Done()
					err = third.Err()
				}
				var away *hbone.GoAwayError
				if !errors.As(err, &away) || away.Code != http2.ErrCodeEnhanceYourCalm {
					t.Errorf("the third session: %v, want GOAWAY(ENHANCE_YOUR_CALM)", err)
				}
				s.told(t, c.scope, admission.Sessions)
				chosen(t, one, nil) // open sessions go on
				one.Close(nil)
				meshtest.Eventually(t, "a session is admitted in place of the one that closed", func() bool {
					session, err := dial(s, s.shop.Identity())
					if err != nil {
						return false
					}
					defer session.Close(nil)
					st, _, err := session.Open(t.Context(), &hbone.Request{Authority: hello})
					if err == nil {
						st.Close()
					}
					return err == nil
				})
			})
		}
	}
}

// quicSession is Session over QUIC.
func (s *site) quicSession(t *testing.T, id spiffeid.ID) (*hbone.Session, error) {
	ctx, cancel := context.WithTimeout(t.Context(), meshtest.ExchangeTimeout)
	defer cancel()
	socket, err := net.ListenUDP("udp4", nil)
	if err != nil {
		return nil, err
	}
	p, err := quic.Dial(ctx, socket, net.UDPAddrFromAddrPort(s.GatewayAt("west", "gw-1")), s.TLS(id, "h3", s.ID("isthmus-system/gateway-west")), quic.DialConfig{})
	if err != nil {
		return nil, err
	}
	session, err := hbone.NewClient(ctx, p, hbone.DefaultConfig())
	if err == nil {
		t.Cleanup(func() { session.Close(nil) })
	}
	return session, err
}

func TestOneStreamTooManyIsRefusedAndNobodyElses(t *testing.T) {
	s := limited(t, admission.Config{Identity: admission.IdentityLimits{Streams: 3}})
	one, two := s.dial(t), s.dial(t)
	var open []*hbone.Stream
	for i := range 3 {
		st, _, refused := connect(t, []*hbone.Session{one, two}[i%2], hello, nil)
		if refused != nil {
			t.Fatal(refused)
		}
		open = append(open, st)
	}
	if _, _, refused := connect(t, two, hello, nil); refused == nil || refused.Status != 503 || refused.Reason() != header.ReasonOverload || refused.Endpoint() != 0 {
		t.Errorf("the fourth stream: %v, want 503 overload of no pod", refused)
	}
	s.told(t, admission.ByIdentity, admission.Streams)
	chosen(t, s.dialAs(t, "default/other"), nil)
	open[0].Close()
	meshtest.Eventually(t, "room for one more", func() bool {
		st, _, refused := connect(t, two, hello, nil)
		if refused == nil {
			st.Close()
		}
		return refused == nil
	})
}

func TestTooManyStreamsPerSecondAreRefused(t *testing.T) {
	s := limited(t, admission.Config{Identity: admission.IdentityLimits{StreamsPerSecond: 5}})
	session, served, asked, over, begun := s.dial(t), 0, 0, 0, time.Now()
	for ; asked < 50 || over == 0 && asked < 1000; asked++ { // more on a machine that asks for no more than five a second
		st, _, refused := connect(t, session, hello, nil)
		if refused != nil {
			over++
		}
		switch {
		case refused == nil:
			served++
			st.Close()
		case refused.Status != 429 || refused.Reason() != header.ReasonOverload:
			t.Fatalf("%v, want 429 overload", refused)
		}
	}
	if most := 5 + int(5*time.Since(begun).Seconds()) + 1; served < 5 || served > most {
		t.Errorf("%d of %d streams were served within %v, want 5 to %d", served, asked, time.Since(begun), most)
	}
	s.told(t, admission.ByIdentity, admission.StreamsPerSecond)
}

// A client whose streams hold more unread bytes than it may loses those with most;
// the others go on.
func TestUnreadBytesOfAClientAreBounded(t *testing.T) {
	s := newSite(t, 1)
	s.EachGateway = func(c *gateway.Config) {
		plain(c)
		c.Limits.Config = admission.Config{Handshakes: 100, Identity: admission.IdentityLimits{UnreadBytes: 2 << 20}}
	}
	s.Write()
	s.StartGateway("west", "gw-1").AwaitReady(t)
	stalled := make(chan struct{})
	defer close(stalled)
	s.pods[0].Serve(meshtest.HBONEPort, func(c *net.TCPConn) {
		c.SetReadBuffer(16 << 10)
		first := make([]byte, 1)
		io.ReadFull(c, first)
		if c.Write(first); first[0] == 's' {
			<-stalled
		}
		io.Copy(c, c)
	})
	session := s.dial(t)
	start := func(first string) *hbone.Stream {
		st, _, refused := connect(t, session, hello, nil)
		if refused != nil {
			t.Fatal(refused)
		}
		st.Write([]byte(first))
		if _, err := io.ReadFull(st, make([]byte, 1)); err != nil {
			t.Fatal(err)
		}
		return st
	}
	well := start("w")
	ended := make(chan error, 3)
	for _, st := range []*hbone.Stream{start("s"), start("s"), start("s")} { // all before one of them is full, after which none more is let in
		go func() {
			for {
				if _, err := st.Write(make([]byte, 64<<10)); err != nil {
					ended <- err
					return
				}
			}
		}()
	}
	var reset *hbone.ResetError
	if err := <-ended; !errors.As(err, &reset) || reset.Code != http2.ErrCodeEnhanceYourCalm {
		t.Errorf("a stream with too many unread bytes ended with %v, want ENHANCE_YOUR_CALM", err)
	}
	meshtest.Eventually(t, "it is counted", func() bool { return s.gateway().Metric(t, `isthmus_admission_shed_total{scope="identity"}`) >= 1 })
	s.gateway().Log.Await(t, "tunnel", "result", "shed")
	well.Write([]byte("still here"))
	if _, err := io.ReadFull(well, make([]byte, 10)); err != nil {
		t.Errorf("a stream whose bytes are read: %v", err)
	}
	if l := s.gateway().Log.Find("outlier changed"); len(l) > 0 {
		t.Errorf("stalled streams moved health: %v", l[0])
	}
	session.Close(nil)
	meshtest.Eventually(t, "nothing is held for nobody", func() bool {
		return s.gateway().Metric(t, "isthmus_admitted_streams") == 0 && s.gateway().Metric(t, "isthmus_admitted_sessions") == 0 && s.gateway().Metric(t, "isthmus_admission_accounts") == 0
	})
}

// A node proxy bounds its clients too; the gateways of its network, which carry those
// of all others, have no bound of their address.
func TestANodeProxyBoundsClientsAndNotGateways(t *testing.T) {
	s := newSite(t, 1)
	s.EachNode = func(c *nodeproxy.Config) {
		c.Limits.Address.Sessions, c.Limits.Identity.Streams = 1, 4
	}
	s.pods[0].App(8080)
	s.Start()
	pod := s.pods[0]
	outer := s.dial(t)
	inner := func(conn net.Conn, id spiffeid.ID) (*hbone.Session, error) {
		tt, err := hbone.ClientTLS(t.Context(), conn, s.TLS(id, "h2", pod.Identity()))
		if err != nil {
			return nil, err
		}
		session, err := hbone.NewClient(t.Context(), tt, hbone.DefaultConfig())
		if err == nil {
			t.Cleanup(func() { session.Close(nil) })
		}
		return session, err
	}
	for i := range 5 { // all from the gateway's address
		st, _, refused := connect(t, outer, hello, nil)
		if refused != nil {
			t.Fatal(refused)
		}
		session, err := inner(st, s.shop.Identity())
		if err != nil {
			t.Fatalf("session %d through the gateway: %v", i, err)
		}
		_, _, err = session.Open(t.Context(), &hbone.Request{Authority: hello})
		var se *hbone.StatusError
		if i < 4 && err != nil {
			t.Errorf("stream %d through the gateway: %v", i, err)
		} else if i == 4 && (!errors.As(err, &se) || se.Status != 503 || se.Reason() != header.ReasonOverload) {
			t.Errorf("the fifth stream of one identity: %v, want 503 overload", err)
		}
	}
	direct := func() (err error) {
		c, err := net.Dial("tcp4", pod.At(meshtest.HBONEPort).String())
		if err != nil {
			t.Fatal(err)
		}
		session, err := inner(c, s.ID("default/other"))
		if err == nil {
			ctx, cancel := context.WithTimeout(t.Context(), meshtest.ExchangeTimeout)
			defer cancel()
			_, _, err = session.Open(ctx, &hbone.Request{Authority: hello})
		}
		return err
	}
	var away *hbone.GoAwayError
	if err := direct(); err != nil {
		t.Errorf("the first session of an address: %v", err)
	}
	if err := direct(); !errors.As(err, &away) || away.Code != http2.ErrCodeEnhanceYourCalm {
		t.Errorf("the second session of an address: %v, want GOAWAY(ENHANCE_YOUR_CALM)", err)
	}
	if l := s.gateway().Log.Find("outlier changed"); len(l) > 0 {
		t.Errorf("clients over their limits moved health: %v", l[0])
	}
}
