package gateway_test

import (
	"crypto/tls"
	"errors"
	"io"
	"net"
	"strings"
	"testing"
	"time"

	"github.com/isthmus-mesh/isthmus/discovery"
	"github.com/isthmus-mesh/isthmus/federation/gossip"
	"github.com/isthmus-mesh/isthmus/federation/healthstream"
	"github.com/isthmus-mesh/isthmus/gateway"
	"github.com/isthmus-mesh/isthmus/hbone"
	"github.com/isthmus-mesh/isthmus/hbone/header"
	"github.com/isthmus-mesh/isthmus/internal/meshtest"
)

// alone keeps a gateway from waiting for nodes that a test does not run.
func alone(c *gateway.Config) { c.Federation.Health = false }

// plain is alone, and has streams whose pods and clients speak no TLS go on for as long as
// a busy machine takes: a handshake that is not over would be cut after 3.5 s.
func plain(c *gateway.Config) {
	alone(c)
	c.Timeouts.Silence = time.Hour
}

func TestForwardsToExportedServicesOfItsOwnNetworkOnly(t *testing.T) {
	s := newSite(t, 1)
	s.EachGateway = alone
	s.Service("private", 80, 8080)
	s.EditService("private", func(x *discovery.Service) { x.Global = false })
	s.Pod("west", "west-1", "private-1", "private")
	s.Service("eastern", 80, 8080)
	s.Pod("east", "", "eastern-1", "eastern")
	s.Service("resting", 80, 8080)
	s.Pod("west", "west-1", "resting-1", "resting").Edit(func(w *discovery.Workload) { w.State = "notReady" })
	s.Write()
	s.StartGateway("west", "gw-1").AwaitReady(t)
	s.pods[0].Serve(meshtest.HBONEPort, echo)
	session := s.dial(t)
	for _, c := range []struct {
		name, authority string
		status          int
		reason          header.Reason
	}{
		{"a pod's address", s.pods[0].At(8080).String(), 400, header.ReasonBadAuthority},
		{"an outside address", "198.51.100.7:443", 400, header.ReasonBadAuthority},
		{"an IPv6 address", "[2001:db8::1]:80", 400, header.ReasonBadAuthority},
		{"no port", "hello.default.svc.cluster.local", 400, header.ReasonBadAuthority},
		{"not a name", "he/llo:80", 400, header.ReasonBadAuthority},
		{"an unknown service", "nobody.default.svc.cluster.local:80", 404, header.ReasonUnknownService},
		{"an unknown port", "hello.default.svc.cluster.local:99", 404, header.ReasonUnknownService},
		{"a service that is not global", "private.default.svc.cluster.local:80", 403, header.ReasonNotExported},
		{"a service of another network", "eastern.default.svc.cluster.local:80", 403, header.ReasonNotExported},
		{"a service without a ready pod", "resting.default.svc.cluster.local:80", 503, header.ReasonNoEndpoint},
	} {
		t.Run(c.name, func(t *testing.T) {
			_, _, refused := connect(t, session, c.authority, nil)
			if refused == nil || refused.Status != c.status || refused.Reason() != c.reason {
				t.Errorf("CONNECT %s: %v; want %d %s", c.authority, refused, c.status, c.reason)
			}
		})
	}
	if _, _, refused := connect(t, session, "hello.default.mesh.internal:81", nil); refused != nil {
		t.Errorf("by its alias, on the same session: %v", refused)
	}
	if l := s.gateway().Log.Find("outlier changed"); len(l) > 0 {
		t.Errorf("policy moved somebody's health: %v", l[0])
	}
	for _, r := range []string{"unknown_service", "not_exported", "no_endpoint"} {
		if n := s.gateway().Metric(t, `isthmus_tunnels_closed_total{result="`+r+`"}`); n < 1 {
			t.Errorf("connections closed with result %s: %v; want some", r, n)
		}
	}
}

func TestLetsOnlyTheMeshIn(t *testing.T) {
	s := newSite(t, 1)
	s.EachGateway = alone
	s.Write()
	s.StartGateway("west", "gw-1").AwaitReady(t)
	at, now := s.GatewayAt("west", "gw-1"), time.Now()
	expired := s.Certificate(s.shop.Identity(), now.Add(-2*time.Hour), now.Add(-time.Hour))
	early := s.Certificate(s.shop.Identity(), now.Add(time.Hour), now.Add(2*time.Hour))
	stranger := s.Stranger("spiffe://elsewhere.example/ns/default/sa/shop")
	impostor := s.Stranger(s.shop.Identity().String())
	for _, c := range []struct {
		name string
		cert *tls.Certificate
		line string // message in the log
		log  string
	}{
		{"no certificate", nil, "handshake failed", "certificate"},
		{"expired", &expired, "handshake refused", "expired"},
		{"not yet valid", &early, "handshake refused", "not valid before"},
		{"another trust domain", &stranger, "handshake refused", "elsewhere.example"},
		{"another root", &impostor, "handshake refused", "not trusted"},
	} {
		t.Run(c.name, func(t *testing.T) {
			before := len(s.gateway().Log.Find(c.line))
			if err := meshtest.Knock(at, c.cert, "h2"); err == nil {
				t.Fatal("let in")
			}
			meshtest.Eventually(t, "a line in the log", func() bool { return len(s.gateway().Log.Find(c.line)) > before })
			lines := s.gateway().Log.Find(c.line)
			if got := lines[len(lines)-1].Text("error"); !strings.Contains(got, c.log) {
				t.Errorf("the log says %q; want it to speak of %q", got, c.log)
			}
		})
	}
	for reason, want := range map[string]float64{"handshake": 1, "identity": 4} {
		if n := s.gateway().Metric(t, `isthmus_peers_refused_total{reason="`+reason+`"}`); n != want {
			t.Errorf("isthmus_peers_refused_total of %s = %v; want %v", reason, n, want)
		}
	}
	valid := s.Certificate(s.shop.Identity(), now.Add(-time.Hour), now.Add(time.Hour))
	if err := meshtest.Knock(at, &valid, "h2"); err != nil {
		t.Errorf("a valid certificate is refused: %v", err)
	}
}

func TestOnlyGatewaysFederateAndOnlyNodeProxiesReport(t *testing.T) {
	s := newSite(t, 1)
	s.Start()
	at, gw := s.GatewayAt("west", "gw-1"), s.ID("isthmus-system/gateway-west")
	for _, who := range []string{"default/shop", "isthmus-system/nodeproxy"} {
		conn, err := tls.Dial("tcp4", at.String(), s.TLS(s.ID(who), gossip.ALPN, gw))
		if err != nil {
			t.Fatal(err)
		}
		conn.SetReadDeadline(time.Now().Add(meshtest.ExchangeTimeout))
		if _, err := conn.Read(make([]byte, 1)); err == nil {
			t.Errorf("%s may speak as a gateway", who)
		}
		conn.Close()
		s.gateway().Log.Await(t, "refused federation with an identity that is no gateway in discovery", "peer", s.ID(who), "level", "warn")
	}
	if n := s.gateway().Metric(t, `isthmus_peers_refused_total{reason="not_gateway"}`); n != 2 {
		t.Errorf("isthmus_peers_refused_total = %v; want 2", n)
	}
	conn, err := tls.Dial("tcp4", at.String(), s.TLS(s.shop.Identity(), healthstream.ALPN, gw))
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	conn.SetReadDeadline(time.Now().Add(meshtest.ExchangeTimeout)) // it says no Hello
	if _, err := conn.Read(make([]byte, 1)); !errors.Is(err, io.EOF) {
		t.Errorf("a client's identity that speaks as a node proxy: %v; want the connection closed before it has said anything", err)
	}
	if n := s.gateway().Metric(t, `isthmus_peers_refused_total{reason="not_node"}`); n != 1 {
		t.Errorf("isthmus_peers_refused_total of not_node = %v; want 1", n)
	}
}

func TestPinMeansThisEndpointOrNone(t *testing.T) {
	s := newSite(t, 2)
	s.Start()
	session := s.dial(t)
	for range 5 {
		for _, pod := range s.pods {
			if got := chosen(t, session, hbone.Header{header.NamePin: pod.Endpoint().String()}); got != uint64(pod.Endpoint()) {
				t.Fatalf("pinned to %s, chosen %016x", pod.Endpoint(), got)
			}
		}
	}
	_, _, refused := connect(t, session, hello, hbone.Header{header.NamePin: s.shop.Endpoint().String()})
	if refused == nil || refused.Status != 503 || refused.Reason() != header.ReasonPinnedGone {
		t.Errorf("pinned to a stranger: %v; want 503 pinned_gone", refused)
	}
}

func TestTheAnswerSaysWhatThePodWeighs(t *testing.T) {
	s := newSite(t, 2)
	heavy := uint32(7)
	s.pods[1].Edit(func(w *discovery.Workload) { w.Capacity = &heavy })
	s.Start()
	session := s.dial(t)
	for i, want := range []uint32{1, heavy} {
		stream, answer, refused := connect(t, session, hello, hbone.Header{header.NamePin: s.pods[i].Endpoint().String()})
		if refused != nil {
			t.Fatal(refused)
		}
		stream.Close()
		if got := answer.Weight(); got != want {
			t.Errorf("pod %d weighs %d, want %d", i, got, want)
		}
	}
}

func TestAvoidIsAdvice(t *testing.T) {
	s := newSite(t, 2)
	s.Start()
	session := s.dial(t)
	one, two := uint64(s.pods[0].Endpoint()), uint64(s.pods[1].Endpoint())
	for range 10 {
		if got := chosen(t, session, hbone.Header{header.NameAvoid: header.FormatAvoid([]uint64{one})}); got != two {
			t.Fatalf("chosen %016x, which was to be avoided", got)
		}
	}
	for _, h := range []string{header.FormatAvoid([]uint64{one, two}), "rubbish,,zz", strings.Repeat("f", 5000)} {
		if got := chosen(t, session, hbone.Header{header.NameAvoid: h}); got != one && got != two {
			t.Errorf("avoid %.40q: chosen %016x; want some pod", h, got)
		}
	}
}

func TestOneOuterStreamIsOneConnectionToOnePod(t *testing.T) {
	s := newSite(t, 1)
	s.EachGateway = plain
	s.Write()
	s.StartGateway("west", "gw-1").AwaitReady(t)
	raw := s.pods[0].Serve(meshtest.HBONEPort, echo)
	session := s.dial(t)
	for i := range 5 {
		stream, _, refused := connect(t, session, hello, nil)
		if refused != nil {
			t.Fatal(refused)
		}
		if _, err := stream.Write([]byte("cannot be read by a gateway")); err != nil {
			t.Fatal(err)
		}
		stream.CloseWrite()
		if got, err := io.ReadAll(stream); err != nil || string(got) != "cannot be read by a gateway" {
			t.Errorf("stream %d: %q, %v", i, got, err)
		}
		if n := raw.Accepted.Load(); n != int64(i+1) {
			t.Errorf("%d connections for %d streams", n, i+1)
		}
	}
}

// A session takes nothing new when the client's certificate has expired, and what
// is open on it ends with the grace.
func TestASessionEndsWithTheClientsCertificate(t *testing.T) {
	s := newSite(t, 1)
	s.EachGateway = func(c *gateway.Config) {
		alone(c)
		c.Timeouts.CertificateGrace = 100 * time.Millisecond
	}
	s.Write()
	s.StartGateway("west", "gw-1").AwaitReady(t)
	s.pods[0].Serve(meshtest.HBONEPort, echo)
	now := time.Now()
	expires := now.Truncate(time.Second).Add(3 * time.Second) // certificates know whole seconds
	cert := s.Certificate(s.shop.Identity(), now.Add(-time.Hour), expires)
	conn, err := net.Dial("tcp4", s.GatewayAt("west", "gw-1").String())
	if err != nil {
		t.Fatal(err)
	}
	tt, err := hbone.ClientTLS(t.Context(), conn, &tls.Config{Certificates: []tls.Certificate{cert}, InsecureSkipVerify: true, NextProtos: []string{"h2"}})
	if err != nil {
		t.Fatal(err)
	}
	session, err := hbone.NewClient(t.Context(), tt, hbone.DefaultConfig())
	if err != nil {
		t.Fatal(err)
	}
	defer session.Close(nil)
	stream, _, refused := connect(t, session, hello, nil)
	if refused != nil {
		t.Fatal(refused)
	}
	stream.Write([]byte("something"))
	if _, err := io.ReadFull(stream, make([]byte, 9)); err != nil {
		t.Fatal(err)
	}
	meshtest.Eventually(t, "the gateway takes nothing new on the session", func() bool { return !session.CanOpen() })
	if _, err := stream.Read(make([]byte, 1)); err == nil || err == io.EOF {
		t.Errorf("the open stream ended with %v, want an error", err)
	}
	if early := time.Until(expires.Add(100 * time.Millisecond)); early > 0 {
		t.Errorf("the open stream ended %v before the grace was over", early)
	}
}
