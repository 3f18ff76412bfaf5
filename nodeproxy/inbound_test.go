package nodeproxy_test

import (
	"context"
	"crypto/tls"
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/isthmus-mesh/isthmus/hbone"
	"github.com/isthmus-mesh/isthmus/hbone/header"
	"github.com/isthmus-mesh/isthmus/internal/meshtest"
)

// refusal opens a tunnel that must be refused and returns the answer.
func refusal(t *testing.T, s *hbone.Session, authority string) *hbone.StatusError {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), meshtest.ExchangeTimeout)
	defer cancel()
	st, _, err := s.Open(ctx, &hbone.Request{Authority: authority})
	var se *hbone.StatusError
	if !errors.As(err, &se) {
		if st != nil {
			st.Close()
		}
		t.Fatalf("CONNECT %s: %v; want a refusal with a status", authority, err)
	}
	return se
}

func TestInboundTunnelsReachTheLocalPodAndNothingElse(t *testing.T) {
	p := newPair(t, 2)
	p.Service("other", 90, 8080)
	p.pods[0].App(8080)
	p.Start()
	pod := p.pods[0]
	s, err := p.Session(p.shop.Identity(), pod.At(meshtest.HBONEPort), pod.Identity())
	if err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct {
		name, authority string
		status          int
		reason          header.Reason
	}{
		{"another pod's address", p.pods[1].At(8080).String(), 400, header.ReasonNotLocal},
		{"loopback", "127.0.0.1:8080", 400, header.ReasonNotLocal},
		{"no port", "hello.default.svc.cluster.local", 400, header.ReasonBadAuthority},
		{"port 0", pod.At(0).String(), 400, header.ReasonBadAuthority},
		{"the tunnel port itself", pod.At(15008).String(), 503, header.ReasonNotLocal},
		{"the capture port", pod.At(15001).String(), 503, header.ReasonNotLocal},
		{"the SOCKS port", pod.At(15080).String(), 503, header.ReasonNotLocal},
		{"a service that the pod does not serve", "other.default.svc.cluster.local:90", 503, header.ReasonUnknownService},
		{"an unknown service", "nobody.default.svc.cluster.local:80", 503, header.ReasonUnknownService},
		{"a port that the service does not have", "hello.default.svc.cluster.local:99", 503, header.ReasonUnknownService},
		{"a port where nobody listens", pod.At(8099).String(), 503, header.ReasonRefused},
	} {
		t.Run(c.name, func(t *testing.T) {
			got := refusal(t, s, c.authority)
			if got.Status != c.status || got.Reason() != c.reason {
				t.Errorf("CONNECT %s: %d %q; want %d %q", c.authority, got.Status, got.Reason(), c.status, c.reason)
			}
			if c.reason != header.ReasonBadAuthority && got.Endpoint() != uint64(pod.Endpoint()) {
				t.Errorf("CONNECT %s: the answer names endpoint %016x; want %s", c.authority, got.Endpoint(), pod.Endpoint())
			}
		})
	}
	for _, authority := range []string{pod.At(8080).String(), hello, "hello.default.mesh.internal:80"} {
		st, answer, err := s.Open(t.Context(), &hbone.Request{Authority: authority, Header: hbone.Header{"x-unknown": "is ignored"}})
		if err != nil {
			t.Fatalf("CONNECT %s: %v", authority, err)
		}
		if got, err := meshtest.Ask(st, "7"); err != nil || got != "hello-1" {
			t.Errorf("through %s: %q, %v; want hello-1", authority, got, err)
		}
		if b := answer.Header.Get(header.NameBaggage); !strings.Contains(b, "k8s.pod.name=hello-1") {
			t.Errorf("baggage of the answer %q does not name the pod", b)
		}
		st.Close()
	}
}

func TestInboundHandshakeLetsOnlyTheMeshIn(t *testing.T) {
	p := newPair(t, 1)
	p.Start()
	at := p.pods[0].At(meshtest.HBONEPort)
	now := time.Now()
	expired := p.Certificate(p.shop.Identity(), now.Add(-2*time.Hour), now.Add(-time.Hour))
	stranger := p.Stranger("spiffe://elsewhere.example/ns/default/sa/shop")
	impostor := p.Stranger(p.shop.Identity().String()) // right name, wrong root
	valid := p.Certificate(p.shop.Identity(), now.Add(-time.Hour), now.Add(time.Hour))
	for _, c := range []struct {
		name string
		cert *tls.Certificate
		line string // message in the log
		log  string
	}{
		{"no certificate", nil, "handshake failed", "certificate"},
		{"expired", &expired, "handshake refused", "expired"},
		{"another trust domain", &stranger, "handshake refused", "elsewhere.example"},
		{"another root", &impostor, "handshake refused", "not trusted"},
	} {
		t.Run(c.name, func(t *testing.T) {
			before := len(p.node(1).Log.Find(c.line))
			if err := meshtest.Knock(at, c.cert, "h2"); err == nil {
				t.Fatal("let in")
			}
			meshtest.Eventually(t, "a line in the log", func() bool { return len(p.node(1).Log.Find(c.line)) > before })
			lines := p.node(1).Log.Find(c.line)
			if got := lines[len(lines)-1].Text("error"); !strings.Contains(got, c.log) {
				t.Errorf("the log says %q; want it to speak of %q", got, c.log)
			}
		})
	}
	for reason, want := range map[string]float64{"handshake": 1, "identity": 3} {
		if n := p.node(1).Metric(t, `isthmus_peers_refused_total{reason="`+reason+`"}`); n != want {
			t.Errorf("isthmus_peers_refused_total of %s = %v; want %v", reason, n, want)
		}
	}
	if err := meshtest.Knock(at, &valid, "h2"); err != nil {
		t.Errorf("a valid certificate is refused: %v", err)
	}
}
