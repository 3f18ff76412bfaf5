package gateway_test

import (
	"crypto/x509"
	"encoding/binary"
	"net"
	"strings"
	"testing"
	"time"

	"github.com/rs/zerolog"
	"github.com/spiffe/go-spiffe/v2/spiffeid"

	"github.com/isthmus-mesh/isthmus/federation/networkkey/keyfile"
	"github.com/isthmus-mesh/isthmus/gateway"
	"github.com/isthmus-mesh/isthmus/hbone"
	"github.com/isthmus-mesh/isthmus/identity"
	"github.com/isthmus-mesh/isthmus/internal/meshtest"
	"github.com/isthmus-mesh/isthmus/nodeproxy"
)

// lateFinished holds back the last record of a client's handshake (Finished) until let is closed. held is closed when
// the records before it, with the certificate, are sent.
type lateFinished struct {
	net.Conn
	held, let chan struct{}
}

func (c *lateFinished) Write(p []byte) (int, error) {
	records, last := 0, 0
	for at := 0; at+5 <= len(p); at += 5 + int(binary.BigEndian.Uint16(p[at+3:])) {
		records, last = records+1, at
	}
	if records < 3 { // not certificate, verify and finished
		return c.Conn.Write(p)
	}
	if _, err := c.Conn.Write(p[:last]); err != nil {
		return 0, err
	}
	close(c.held)
	<-c.let
	_, err := c.Conn.Write(p[last:])
	return len(p), err
}

// A peer whose certificate is verified before its network is unlinked, and whose handshake finishes afterwards, is
// declined at once.
func TestUnlinkedPeerIsDeclinedAfterHandshake(t *testing.T) {
	const drain = time.Minute
	s := newSite(t, 1)
	s.Write()
	foreign := newAnyRoot(t, "b")
	list, link := s.linked(t)
	link(keyfile.TrustBundle{TrustDomain: "b.example", Roots: string(identity.EncodeCertificates(foreign.cert))})
	s.StartGateway("west", "gw-1", func(c *gateway.Config) {
		c.Federation.Networks, c.Timeouts.Drain, c.Timeouts.Handshake = list, drain, 20*time.Second
	}).AwaitReady(t)
	s.StartNode("west", "west-1", func(c *nodeproxy.Config) {
		c.Federation.Networks, c.Timeouts.Drain, c.Timeouts.Handshake = list, drain, 20*time.Second
	}).AwaitReady(t)
	theirs := identity.NewManager(svid{t, foreign}, zerolog.Nop())
	theirs.Believe(map[spiffeid.TrustDomain][]*x509.Certificate{s.CA.TrustDomain(): {s.CA.Certificate()}})
	shop := spiffeid.RequireFromString("spiffe://b.example/ns/default/sa/shop")
	open := func(to spiffeid.ID, at string, wrap func(net.Conn) net.Conn) (*hbone.Session, error) {
		cfg, err := theirs.ClientTLS(t.Context(), shop, []spiffeid.ID{to}, "h2")
		if err != nil {
			return nil, err
		}
		conn, err := net.Dial("tcp4", at)
		if err != nil {
			return nil, err
		}
		transport, err := hbone.ClientTLS(t.Context(), wrap(conn), cfg)
		if err != nil {
			return nil, err
		}
		return hbone.NewClient(t.Context(), transport, hbone.DefaultConfig())
	}
	at := map[string]spiffeid.ID{
		s.GatewayAt("west", "gw-1").String():      s.ID("isthmus-system/gateway-west"),
		s.pods[0].At(meshtest.HBONEPort).String(): s.pods[0].Identity(),
	}
	let, late := make(chan struct{}), make(chan error, len(at))
	var early []*hbone.Session
	for address, to := range at {
		session, err := open(to, address, func(c net.Conn) net.Conn { return c })
		if err != nil {
			t.Fatal(err)
		}
		defer session.Close(nil)
		early = append(early, session)
		held := make(chan struct{})
		go func() {
			session, err := open(to, address, func(c net.Conn) net.Conn { return &lateFinished{c, held, let} })
			if err == nil {
				select {
				case <-time.After(10 * time.Second):
				case <-session.Done():
					err = session.Err()
				}
				session.Close(nil)
			}
			late <- err
		}()
		<-held
	}
	time.Sleep(200 * time.Millisecond) // the certificates are verified
	link()
	for _, session := range early {
		meshtest.Eventually(t, "an open session gets GOAWAY", func() bool { return !session.CanOpen() })
	}
	close(let)
	for range at {
		if err := <-late; err == nil || !strings.Contains(err.Error(), "was removed") {
			t.Errorf("the late session: %v; want that it is declined for its root", err)
		}
	}
	for _, p := range []*meshtest.Process{s.gateway(), s.Process("node proxy west-1")} {
		meshtest.Eventually(t, p.Name+" counts it", func() bool { return p.Metric(t, `isthmus_sessions_ended_total{outcome="untrusted"}`) > 0 })
	}
}
