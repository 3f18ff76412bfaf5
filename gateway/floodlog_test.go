package gateway_test

import (
	"crypto/tls"
	"net/netip"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/isthmus-mesh/isthmus/discovery"
	"github.com/isthmus-mesh/isthmus/federation/gossip"
	"github.com/isthmus-mesh/isthmus/federation/healthstream"
	"github.com/isthmus-mesh/isthmus/gateway"
	"github.com/isthmus-mesh/isthmus/hbone"
	"github.com/isthmus-mesh/isthmus/hbone/header"
	"github.com/isthmus-mesh/isthmus/internal/admission"
	"github.com/isthmus-mesh/isthmus/internal/meshtest"
	"github.com/isthmus-mesh/isthmus/mesh"
)

// One peer repeats each failure that it can cause. The process logs few lines, and
// reports the number of the others.
func TestPeerCannotFloodLog(t *testing.T) {
	const times, burst = 80, 20
	s := newSite(t, 1)
	s.Service("private", 80, 8080)
	s.EditService("private", func(x *discovery.Service) { x.Global = false })
	s.Pod("west", "west-1", "private-1", "private")
	s.EachGateway = func(g *gateway.Config) {
		g.Limits.Identity = admission.IdentityLimits{Sessions: 3}
	}
	s.Start()
	gwAt, podAt := s.GatewayAt("west", "gw-1"), s.pods[0].At(mesh.HBONEPort)
	gw, node := s.gateway(), s.Process("node proxy west-1")
	stranger := s.Stranger("spiffe://elsewhere.test/ns/demo/sa/thief")
	outer, inner := s.dialAs(t, "default/hostile"), func() *hbone.Session {
		session, err := s.Session(s.ID("default/hostile"), podAt, s.pods[0].Identity())
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { session.Close(nil) })
		return session
	}()
	open := func(session *hbone.Session, authority string, want header.Reason) func(int) {
		return func(i int) {
			if _, _, refused := connect(t, session, strings.ReplaceAll(authority, "#", strconv.Itoa(i)), nil); refused == nil || refused.Reason() != want {
				t.Fatalf("CONNECT to %s: %v, want %s", authority, refused, want)
			}
		}
	}
	knock := func(at netip.AddrPort, cert *tls.Certificate, alpn string) func(int) {
		return func(int) { meshtest.Knock(at, cert, alpn) }
	}
	hostile := s.Certificate(s.ID("default/hostile"), time.Now().Add(-time.Minute), time.Now().Add(time.Hour))
	holds := func(id string) { // as many sessions as one identity may have
		for range 3 {
			s.dialAs(t, id)
		}
	}
	holds("default/greedy")
	greedy := s.Certificate(s.ID("default/greedy"), time.Now().Add(-time.Minute), time.Now().Add(time.Hour))
	var checks []func() (name string, done bool)
	for _, c := range []struct {
		name, message string
		process       *meshtest.Process
		cause         func(i int)
		about         string // of the report of suppressed lines; empty: it takes a minute
	}{
		{"unknown service at gateway", "tunnel", gw, open(outer, "nobody-#.default.svc.cluster.local:80", header.ReasonUnknownService), "unknown_service"},
		{"private service at gateway", "tunnel", gw, open(outer, "private.default.svc.cluster.local:80", header.ReasonNotExported), "not_exported"},
		{"unknown service at pod", "connection", node, open(inner, "nobody-#.default.svc.cluster.local:80", header.ReasonUnknownService), "unknown_service"},
		{"closed port of pod", "connection", node, open(inner, "hello.default.svc.cluster.local:81", header.ReasonRefused), "refused hello.default.svc.cluster.local"},
		{"federation without being a gateway", "refused federation with an identity that is no gateway in discovery", gw, knock(gwAt, &hostile, gossip.ALPN), "not_gateway"},
		{"health stream without being a node", "health stream refused", gw, knock(gwAt, &hostile, healthstream.ALPN), ""},
		{"too many sessions", "client refused: it has reached a limit", gw, knock(gwAt, &greedy, "h2"), ""},
		{"foreign certificate at gateway", "handshake refused", gw, knock(gwAt, &stranger, "h2"), ""},
		{"foreign certificate at pod", "handshake refused", node, knock(podAt, &stranger, "h2"), ""},
	} {
		t.Run(c.name, func(t *testing.T) {
			result, _, _ := strings.Cut(c.about, " ")
			find := func() []meshtest.Line {
				if c.message == "tunnel" || c.message == "connection" {
					return c.process.Log.Find(c.message, "result", result)
				}
				return c.process.Log.Find(c.message)
			}
			before, began := len(find()), time.Now()
			for i := range times {
				c.cause(i)
			}
			most := burst + int(time.Since(began)/time.Second) + 1
			lines := func() int { return len(find()) - before }
			meshtest.Eventually(t, "a line", func() bool { return lines() > 0 })
			if n := lines(); n > most {
				t.Errorf("%d lines about %d failures; want at most %d", n, times, most)
			}
			if c.about == "" {
				return
			}
			checks = append(checks, func() (name string, done bool) {
				return c.name, lines()+suppressed(c.process, find(), c.about) == times
			})
		})
	}
	for _, check := range checks {
		name, _ := check()
		meshtest.Eventually(t, name+": each failure is in a line or reported as suppressed", func() bool { _, done := check(); return done })
	}
}

// suppressed is the sum of suppressed lines that the lines report, and the log of p about
// a key.
func suppressed(p *meshtest.Process, lines []meshtest.Line, about string) (sum int) {
	for _, l := range append(lines, p.Log.Find("log lines suppressed", "about", about)...) {
		n, _ := strconv.Atoi(l.Text("suppressed"))
		sum += n
	}
	return sum
}
