package nodeproxy_test

import (
	"context"
	"crypto/tls"
	"fmt"
	"io"
	"net"
	"sync/atomic"
	"testing"
	"time"

	"github.com/spiffe/go-spiffe/v2/spiffeid"
	"golang.org/x/net/http2"

	"github.com/isthmus-mesh/isthmus/hbone"
	"github.com/isthmus-mesh/isthmus/internal/h2conform"
	"github.com/isthmus-mesh/isthmus/internal/meshtest"
)

// conformance is a mesh for the table of RFC 9113: a client's node proxy in the
// west, a gateway and a pod's node proxy in the east, and on either network pods
// whose sessions the test serves by hand.
type conformance struct {
	*meshtest.Mesh
	shop, app          *meshtest.Pod
	appHost, relayHost string
	gateway            spiffeid.ID
	near, far          byHand
}

// byHand are pods for one row each: what a row leaves behind, in pools and in
// what is thought of a pod, concerns no other.
type byHand struct {
	pods []podByHand
	used int
}

type podByHand struct {
	listener addr // of the shop, for this pod's service
	sessions chan net.Conn
}

func newConformance(t *testing.T) *conformance {
	m := meshtest.New(t)
	c := &conformance{Mesh: m}
	m.Networks("west", "east")
	m.Gateway("east", "gw-1")
	c.gateway = m.ID("isthmus-system/gateway-east")
	c.appHost, c.relayHost = m.Service("app", 80, 8080), m.Service("relay", 80, 8080)
	c.shop = m.Pod("west", "west-1", "shop-1")
	c.app = m.Pod("east", "east-1", "app-1", "app")
	relay := m.Pod("east", "", "relay-1", "relay")

	done := make(chan struct{})
	echo := func(conn *net.TCPConn) { h2conform.Echo(conn, done) }
	c.app.Serve(8080, echo)
	relay.Serve(meshtest.HBONEPort, echo) // what the gateway takes for a node proxy
	c.near, c.far = c.byHand("west", "near", done), c.byHand("east", "far", done)
	t.Cleanup(func() { close(done) })
	m.Start()
	return c
}

func (c *conformance) byHand(network, name string, done <-chan struct{}) (b byHand) {
	for i, r := range h2conform.Rows {
		if r.Side == h2conform.Servers {
			continue
		}
		service := fmt.Sprintf("%s-%d", name, i)
		host := c.Service(service, 80, 8080)
		p := podByHand{listener: c.shop.Outbound(host + ":80"), sessions: make(chan net.Conn, 64)}
		c.serveByHand(c.Pod(network, "", service, service), p.sessions, done)
		b.pods = append(b.pods, p)
	}
	return b
}

// serveByHand passes on the first session with a pod: the first connection on
// which a preface comes, because on a slow machine a gateway gives up one whose
// handshake takes long. Another one, which a node proxy opens when answers are
// late, ends at once: what it was for comes on the first one then.
func (c *conformance) serveByHand(p *meshtest.Pod, sessions chan<- net.Conn, done <-chan struct{}) {
	cfg := c.Manager().ServerTLS(p.Identity(), nil, "h2")
	var served atomic.Bool
	p.Serve(meshtest.HBONEPort, func(raw *net.TCPConn) {
		conn := tls.Server(raw, cfg)
		preface := make([]byte, len(http2.ClientPreface))
		if _, err := io.ReadFull(conn, preface); err != nil || !served.CompareAndSwap(false, true) {
			return
		}
		ended := &endingConn{Conn: conn, ahead: preface, ended: make(chan struct{})}
		sessions <- ended
		select {
		case <-ended.ended:
		case <-done:
		}
	})
}

// endingConn tells when it is closed.
type endingConn struct {
	*tls.Conn
	ahead []byte // read already
	ended chan struct{}
}

func (c *endingConn) Read(p []byte) (int, error) {
	if len(c.ahead) > 0 {
		n := copy(p, c.ahead)
		c.ahead = c.ahead[n:]
		return n, nil
	}
	return c.Conn.Read(p)
}

func (c *endingConn) Close() error {
	select {
	case <-c.ended:
	default:
		close(c.ended)
	}
	return c.Conn.Close()
}

// dial connects to a server as the shop.
func (c *conformance) dial(t testing.TB, to addr, expect spiffeid.ID) net.Conn {
	t.Helper()
	raw, err := meshtest.Dial(to)
	if err != nil {
		t.Fatal(err)
	}
	conn := tls.Client(raw, c.TLS(c.shop.Identity(), "h2", expect))
	if err := conn.Handshake(); err != nil {
		t.Fatal(err)
	}
	return conn
}

// dialThrough connects to the app's node proxy by a tunnel through the gateway.
func (c *conformance) dialThrough(t testing.TB, outer *hbone.Session) net.Conn {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), meshtest.ExchangeTimeout)
	defer cancel()
	st, _, err := outer.Open(ctx, &hbone.Request{Authority: c.appHost + ":80"})
	if err != nil {
		t.Fatal(err)
	}
	conn := tls.Client(st, c.TLS(c.shop.Identity(), "h2", c.app.Identity()))
	if err := conn.Handshake(); err != nil {
		t.Fatal(err)
	}
	return conn
}

// start has the shop's node proxy open a session with the next of the pods.
func (b *byHand) start(t testing.TB) (net.Conn, func() net.Conn) {
	t.Helper()
	pod := b.pods[b.used]
	b.used++
	connect := func() net.Conn {
		app, err := meshtest.Dial(pod.listener)
		if err != nil {
			t.Fatal(err)
		}
		return app
	}
	first := connect()
	select {
	case conn := <-pod.sessions:
		return conn, func() net.Conn {
			if first == nil {
				return connect()
			}
			defer func() { first = nil }()
			return first
		}
	case <-time.After(meshtest.ExchangeTimeout):
		t.Fatal("the node proxy opened no session")
		return nil, nil
	}
}

// What RFC 9113 demands, of gateway and node proxy as they run, on connections
// and inside tunnels. A gateway is no client: it relays tunnels, and opens none.
func TestConformance(t *testing.T) {
	t.Parallel()
	c := newConformance(t)
	gateway := c.GatewayAt("east", "gw-1")
	outer, err := c.Session(c.shop.Identity(), gateway, c.gateway)
	if err != nil {
		t.Fatal(err)
	}
	app := c.app.At(8080).String()
	for _, target := range []h2conform.Target{
		{Name: "gateway", Server: &h2conform.Server{Authority: c.relayHost + ":80",
			Dial: func(t testing.TB) net.Conn { return c.dial(t, gateway, c.gateway) }}},
		{Name: "node proxy", Server: &h2conform.Server{Authority: app,
			Dial: func(t testing.TB) net.Conn { return c.dial(t, c.app.At(meshtest.HBONEPort), c.app.Identity()) }}},
		{Name: "node proxy inside a tunnel", Server: &h2conform.Server{Authority: c.appHost + ":80",
			Dial: func(t testing.TB) net.Conn { return c.dialThrough(t, outer) }}},
		{Name: "node proxy as a client", Client: &h2conform.Client{Start: c.near.start}},
		{Name: "node proxy as a client inside a tunnel", Client: &h2conform.Client{Start: c.far.start, Elsewhere: true}},
	} {
		t.Run(target.Name, func(t *testing.T) { h2conform.Run(t, target) })
	}
	for _, process := range []string{"gateway east/gw-1", "node proxy east-1"} {
		for _, outcome := range []string{"protocol_error", "abuse"} {
			sample := fmt.Sprintf("isthmus_sessions_ended_total{outcome=%q}", outcome)
			if n := c.Process(process).Metric(t, sample); n == 0 {
				t.Errorf("%s: %s is %v after all that", process, sample, n)
			}
		}
	}
}
