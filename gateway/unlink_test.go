package gateway_test

import (
	"io"
	"net"
	"testing"
	"time"

	"github.com/rs/zerolog"
	"github.com/spiffe/go-spiffe/v2/spiffeid"

	"crypto/x509"

	"github.com/isthmus-mesh/isthmus/federation/networkkey/keyfile"
	"github.com/isthmus-mesh/isthmus/gateway"
	"github.com/isthmus-mesh/isthmus/hbone"
	"github.com/isthmus-mesh/isthmus/identity"
	"github.com/isthmus-mesh/isthmus/internal/meshtest"
	"github.com/isthmus-mesh/isthmus/nodeproxy"
)

// A network with a trust domain of its own is unlinked: its sessions with the gateway, and with
// pods' node proxies, get GOAWAY, and what is open on them is reset after timeouts.drain.
// Sessions of the own trust domain go on.
func TestUnlinkEndsSessionsOfItsTrustDomain(t *testing.T) {
	const drain = 2 * time.Second
	s := newSite(t, 1)
	s.pods[0].Serve(8080, func(c *net.TCPConn) { io.Copy(c, c) })
	s.Write()
	foreign := newAnyRoot(t, "b")
	list, link := s.linked(t)
	link(keyfile.TrustBundle{TrustDomain: "b.example", Roots: string(identity.EncodeCertificates(foreign.cert))})
	s.StartGateway("west", "gw-1", func(c *gateway.Config) { c.Federation.Networks, c.Timeouts.Drain = list, drain }).AwaitReady(t)
	s.StartNode("west", "west-1", func(c *nodeproxy.Config) { c.Federation.Networks, c.Timeouts.Drain = list, drain }).AwaitReady(t)

	theirs := identity.NewManager(svid{t, foreign}, zerolog.Nop())
	theirs.Believe(map[spiffeid.TrustDomain][]*x509.Certificate{s.CA.TrustDomain(): {s.CA.Certificate()}})
	shop := spiffeid.RequireFromString("spiffe://b.example/ns/default/sa/shop")
	session := func(m *identity.Manager, as spiffeid.ID, conn net.Conn, to spiffeid.ID) *hbone.Session {
		t.Helper()
		cfg, err := m.ClientTLS(t.Context(), as, []spiffeid.ID{to}, "h2")
		if err != nil {
			t.Fatal(err)
		}
		transport, err := hbone.ClientTLS(t.Context(), conn, cfg)
		if err != nil {
			t.Fatal(err)
		}
		out, err := hbone.NewClient(t.Context(), transport, hbone.DefaultConfig())
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { out.Close(nil) })
		return out
	}
	dial := func(m *identity.Manager, as spiffeid.ID, to spiffeid.ID, at string) *hbone.Session {
		t.Helper()
		conn, err := net.Dial("tcp4", at)
		if err != nil {
			t.Fatal(err)
		}
		return session(m, as, conn, to)
	}
	gw, pod := s.ID("isthmus-system/gateway-west"), s.pods[0].Identity()
	var outers, inners []*hbone.Session
	var streams []*hbone.Stream
	for _, x := range []struct {
		m  *identity.Manager
		as spiffeid.ID
	}{{theirs, shop}, {s.Manager(), s.shop.Identity()}} {
		outer := dial(x.m, x.as, gw, s.GatewayAt("west", "gw-1").String())
		tunnel, _, refused := connect(t, outer, hello, nil)
		if refused != nil {
			t.Fatal(refused)
		}
		through := session(x.m, x.as, tunnel, pod)
		direct := dial(x.m, x.as, pod, s.pods[0].At(meshtest.HBONEPort).String())
		outers, inners = append(outers, outer), append(inners, direct)
		for _, inner := range []*hbone.Session{through, direct} {
			stream, _, refused := connect(t, inner, hello, nil)
			if refused != nil {
				t.Fatal(refused)
			}
			streams = append(streams, stream)
		}
	}
	echo := func(st *hbone.Stream) error {
		if _, err := st.Write([]byte("x")); err != nil {
			return err
		}
		_, err := io.ReadFull(st, make([]byte, 1))
		return err
	}
	for i, st := range streams {
		if err := echo(st); err != nil {
			t.Fatalf("stream %d: %v", i, err)
		}
	}

	link()
	type stage struct{ draining, closed time.Time }
	sides := map[string][]*hbone.Session{"the gateway": outers, "the node proxy": inners}
	seen := map[string]*stage{"the gateway": {}, "the node proxy": {}}
	meshtest.Eventually(t, "both send GOAWAY and close the session", func() bool { // each rereads the file at its own time
		all := true
		for what, x := range seen {
			if x.draining.IsZero() && !sides[what][0].CanOpen() {
				x.draining = time.Now()
				if err := sides[what][0].Err(); err != nil {
					t.Errorf("%s: the session closes without GOAWAY before: %v", what, err)
				}
			}
			if x.closed.IsZero() && sides[what][0].Err() != nil {
				x.closed = time.Now()
			}
			all = all && !x.closed.IsZero()
		}
		return all
	})
	for what, x := range seen {
		if took := x.closed.Sub(x.draining); took < drain/2 {
			t.Errorf("%s: open streams had %v, want timeouts.drain (%v)", what, took, drain)
		}
		if s := sides[what][1]; !s.CanOpen() {
			t.Errorf("%s: a session of the local trust domain takes no stream: %v", what, s.Err())
		}
	}
	for i, st := range streams {
		if err := echo(st); (err == nil) != (i >= 2) {
			t.Errorf("stream %d after the drain: %v", i, err)
		}
	}
	for _, p := range []*meshtest.Process{s.gateway(), s.Process("node proxy west-1")} {
		meshtest.Eventually(t, p.Name+" counts it", func() bool { return p.Metric(t, `isthmus_sessions_ended_total{outcome="untrusted"}`) > 0 })
		p.Log.Await(t, "sessions of unlinked networks draining", "drain", drain.String())
	}
}
