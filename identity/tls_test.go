package identity

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"net/url"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/spiffe/go-spiffe/v2/spiffeid"
)

func clientConfig(t testing.TB, m *Manager, expect ...spiffeid.ID) *tls.Config {
	t.Helper()
	cfg, err := m.ClientTLS(context.Background(), cartID, expect, "h2")
	if err != nil {
		t.Fatal(err)
	}
	return cfg
}

func TestMutualHandshakeProvesBothSides(t *testing.T) {
	m := NewManager(CASource{CA: memoryCA(t, meshTD)}, quietLog)
	var peer spiffeid.ID
	server := m.ServerTLS(stockID, func(id spiffeid.ID) error { peer = id; return nil }, "isthmus-health/1", "h2")
	cs, cerr, serr := shake(clientConfig(t, m, strayID, stockID), server)
	if cerr != nil || serr != nil {
		t.Fatalf("client %v, server %v", cerr, serr)
	}
	if peer != cartID {
		t.Errorf("server saw %q, want %q", peer, cartID)
	}
	if got, err := PeerID(cs); err != nil || got != stockID {
		t.Errorf("client saw %q, %v, want %q", got, err, stockID)
	}
	if cs.Version != tls.VersionTLS13 || cs.NegotiatedProtocol != "h2" {
		t.Errorf("version %x, protocol %q: want TLS 1.3 and h2", cs.Version, cs.NegotiatedProtocol)
	}
}

func TestClientSendsNoServerName(t *testing.T) {
	m := NewManager(CASource{CA: memoryCA(t, meshTD)}, quietLog)
	server := m.ServerTLS(stockID, nil, "h2")
	choose := server.GetConfigForClient
	name := "unset"
	server.GetConfigForClient = func(h *tls.ClientHelloInfo) (*tls.Config, error) {
		name = h.ServerName
		return choose(h)
	}
	if _, cerr, serr := shake(clientConfig(t, m, stockID), server); cerr != nil || serr != nil {
		t.Fatalf("client %v, server %v", cerr, serr)
	}
	if name != "" {
		t.Errorf("server name is %q, want none", name)
	}
}

func TestNoResumption(t *testing.T) {
	m := NewManager(CASource{CA: memoryCA(t, meshTD)}, quietLog)
	server := m.ServerTLS(stockID, nil, "h2")
	client := clientConfig(t, m, stockID)
	client.ClientSessionCache = tls.NewLRUClientSessionCache(4) // a client that would like to
	client.SessionTicketsDisabled = false
	for i := range 3 {
		cs, cerr, serr := shake(client, server)
		if cerr != nil || serr != nil {
			t.Fatalf("handshake %d: client %v, server %v", i, cerr, serr)
		}
		if cs.DidResume {
			t.Fatalf("handshake %d was resumed: a revoked peer would stay", i)
		}
	}
}

func TestClientRejectsUnexpectedIdentity(t *testing.T) {
	m := NewManager(CASource{CA: memoryCA(t, meshTD)}, quietLog)
	_, cerr, _ := shake(clientConfig(t, m, stockID), m.ServerTLS(strayID, nil, "h2"))
	e := wantAs[*PeerError](t, cerr)
	if e.Got != strayID || !slices.Equal(e.Expected, []spiffeid.ID{stockID}) {
		t.Errorf("got %q expected %q, want %q and %q", e.Got, e.Expected, strayID, stockID)
	}
	for _, part := range []string{strayID.String(), stockID.String()} {
		if !strings.Contains(e.Error(), part) {
			t.Errorf("error %q does not name %q", e, part)
		}
	}
}

func TestClientNeedsAnExpectation(t *testing.T) {
	m := NewManager(CASource{CA: memoryCA(t, meshTD)}, quietLog)
	if _, err := m.ClientTLS(t.Context(), cartID, nil, "h2"); err == nil {
		t.Fatal("a client that would trust anybody was given a configuration")
	}
}

func TestWrongTrustDomainIsRejectedByBothSides(t *testing.T) {
	ours := NewManager(CASource{CA: memoryCA(t, meshTD)}, quietLog)
	theirs := NewManager(CASource{CA: memoryCA(t, otherTD)}, quietLog)

	_, cerr, _ := shake(clientConfig(t, ours, stockID), theirs.ServerTLS(otherID, nil, "h2"))
	if e := wantAs[*PeerError](t, cerr); e.Got != otherID || !slices.Contains(e.Expected, stockID) {
		t.Errorf("client: got %q, expected %q", e.Got, e.Expected)
	}

	client := clientConfig(t, ours, stockID)
	cert := issueSVID(t, theirs.src.(CASource).CA, otherID, time.Hour).certificate()
	client.GetClientCertificate = func(*tls.CertificateRequestInfo) (*tls.Certificate, error) { return cert, nil }
	_, cerr, serr := shake(client, ours.ServerTLS(stockID, nil, "h2"))
	if e := wantAs[*PeerError](t, serr); e.Got != otherID || e.TrustDomain != meshTD {
		t.Errorf("server: got %q, trust domain %q", e.Got, e.TrustDomain)
	}
	if cerr == nil {
		t.Error("the rejected client noticed nothing")
	}
}

func TestForeignRootForOurTrustDomainIsRejected(t *testing.T) {
	ours := NewManager(CASource{CA: memoryCA(t, meshTD)}, quietLog)
	forger := NewManager(CASource{CA: memoryCA(t, meshTD)}, quietLog)
	_, cerr, _ := shake(clientConfig(t, ours, stockID), forger.ServerTLS(stockID, nil, "h2"))
	if e := wantAs[*ChainError](t, cerr); e.Got != stockID {
		t.Errorf("got %q, want the claimed %q", e.Got, stockID)
	}
	_, _, serr := shake(withCertificate(clientConfig(t, ours, stockID), issueSVID(t, forger.src.(CASource).CA, cartID, time.Hour)), ours.ServerTLS(stockID, nil, "h2"))
	wantAs[*ChainError](t, serr)
}

func withCertificate(cfg *tls.Config, s *SVID) *tls.Config {
	cert := s.certificate()
	cfg.GetClientCertificate = func(*tls.CertificateRequestInfo) (*tls.Certificate, error) { return cert, nil }
	return cfg
}

func TestClientCertificateIsMandatory(t *testing.T) {
	m := NewManager(CASource{CA: memoryCA(t, meshTD)}, quietLog)
	client := clientConfig(t, m, stockID)
	client.GetClientCertificate = nil
	asked := false
	_, cerr, serr := shake(client, m.ServerTLS(stockID, func(spiffeid.ID) error { asked = true; return nil }, "h2"))
	if serr == nil || cerr == nil {
		t.Fatalf("client %v, server %v: want both to fail", cerr, serr)
	}
	if asked {
		t.Error("authorize was asked about nobody")
	}
}

func TestOldTLSVersionIsRejected(t *testing.T) {
	m := NewManager(CASource{CA: memoryCA(t, meshTD)}, quietLog)
	client := clientConfig(t, m, stockID)
	client.MinVersion, client.MaxVersion = tls.VersionTLS12, tls.VersionTLS12
	if _, cerr, serr := shake(client, m.ServerTLS(stockID, nil, "h2")); cerr == nil || serr == nil {
		t.Fatalf("client %v, server %v: TLS 1.2 was accepted", cerr, serr)
	}
}

func TestAuthorizeDecides(t *testing.T) {
	m := NewManager(CASource{CA: memoryCA(t, meshTD)}, quietLog)
	no := errors.New("policy says no")
	_, _, serr := shake(clientConfig(t, m, stockID), m.ServerTLS(stockID, func(spiffeid.ID) error { return no }, "h2"))
	if !errors.Is(serr, no) || !strings.Contains(serr.Error(), cartID.String()) {
		t.Errorf("server error %v: want the policy's error and the peer's name", serr)
	}
}

func TestProtocolMustBeAgreed(t *testing.T) {
	m := NewManager(CASource{CA: memoryCA(t, meshTD)}, quietLog)
	if _, cerr, serr := shake(clientConfig(t, m, stockID), m.ServerTLS(stockID, nil, "isthmus-health/1")); cerr == nil || serr == nil {
		t.Errorf("client %v, server %v: disjoint protocols were accepted", cerr, serr)
	}
	if _, cerr, _ := shake(clientConfig(t, m, stockID), m.ServerTLS(stockID, nil)); cerr == nil || !strings.Contains(cerr.Error(), "h2") {
		t.Errorf("client %v: a server that ignores protocols was accepted", cerr)
	}
	client, err := m.ClientTLS(t.Context(), cartID, []spiffeid.ID{stockID}) // ztunnel's library lets such a client in
	if err != nil {
		t.Fatal(err)
	}
	if _, _, serr := shake(client, m.ServerTLS(stockID, nil, "h2")); serr != nil {
		t.Errorf("server: a client without protocols was refused: %v", serr)
	}
}

func TestExpiredCertificateIsRejectedByBothSides(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ca := memoryCA(t, meshTD)
		m := NewManager(CASource{CA: ca, TTL: time.Hour}, quietLog)
		old := issueSVID(t, ca, cartID, time.Minute)
		oldServer := issueSVID(t, ca, stockID, time.Minute)
		time.Sleep(2 * time.Minute)

		_, _, serr := shake(withCertificate(clientConfig(t, m, stockID), old), m.ServerTLS(stockID, nil, "h2"))
		if e := wantAs[*ChainError](t, serr); !strings.Contains(e.Error(), "expired") || e.Got != cartID {
			t.Errorf("server: %v", e)
		}
		_, cerr, _ := shake(clientConfig(t, m, stockID), m.serverTLS(oldServer, nil, []string{"h2"}))
		if e := wantAs[*ChainError](t, cerr); !strings.Contains(e.Error(), "expired") {
			t.Errorf("client: %v", e)
		}
	})
}

// signed issues from a template that Issue itself would never make.
func signed(t *testing.T, ca *CA, id spiffeid.ID, change func(*x509.Certificate)) *SVID {
	t.Helper()
	s := issueSVID(t, ca, id, time.Hour)
	template := *s.Certificates[0]
	template.ExtraExtensions, template.Extensions = nil, nil
	change(&template)
	leaf, err := sign(&template, ca.cert, s.PrivateKey.Public(), ca.key)
	if err != nil {
		t.Fatal(err)
	}
	s.Certificates = []*x509.Certificate{leaf}
	return s
}

func TestCertificateMadeForSomethingElseIsRejected(t *testing.T) {
	ca := memoryCA(t, meshTD)
	m := NewManager(CASource{CA: ca}, quietLog)
	server := m.ServerTLS(stockID, nil, "h2")
	for name, change := range map[string]func(*x509.Certificate){
		"server use only": func(c *x509.Certificate) { c.ExtKeyUsage = []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth} },
		"a ca":            func(c *x509.Certificate) { c.IsCA = true },
		"signs others":    func(c *x509.Certificate) { c.KeyUsage |= x509.KeyUsageCertSign },
		"no URI":          func(c *x509.Certificate) { c.URIs = nil },
		"two URIs":        func(c *x509.Certificate) { c.URIs = append(c.URIs, stockID.URL()) },
		"other scheme":    func(c *x509.Certificate) { c.URIs = []*url.URL{{Scheme: "https", Host: "cluster.local"}} },
		"not yet valid":   func(c *x509.Certificate) { c.NotBefore = time.Now().Add(time.Hour) },
	} {
		t.Run(name, func(t *testing.T) {
			_, _, serr := shake(withCertificate(clientConfig(t, m, stockID), signed(t, ca, cartID, change)), server)
			wantAs[*ChainError](t, serr)
		})
	}
	t.Run("no extension at all", func(t *testing.T) {
		s := signed(t, ca, cartID, func(c *x509.Certificate) { c.ExtKeyUsage = nil })
		if _, _, serr := shake(withCertificate(clientConfig(t, m, stockID), s), server); serr != nil {
			t.Errorf("refused: %v", serr)
		}
	})
}

func TestPeerIDWithoutCertificate(t *testing.T) {
	_, err := PeerID(tls.ConnectionState{})
	wantAs[*ChainError](t, err)
}

// Renewal under constant handshakes of several clients: the certificates live
// two to three seconds of fake time, so that hundreds of handshakes cross some
// twenty renewals of each side.
func TestRenewalUnderTrafficFailsNoConnection(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		src := &fakeSource{answer: CASource{CA: memoryCA(t, meshTD), TTL: 2 * time.Second}.Fetch}
		m := NewManager(src, quietLog)
		startManager(t, m)
		server := m.ServerTLS(stockID, nil, "h2")
		end := time.Now().Add(30 * time.Second)
		var mu sync.Mutex
		seen := map[string]int{} // handshakes per server certificate
		var clients sync.WaitGroup
		for i := range 4 {
			clients.Go(func() {
				for n := 0; time.Now().Before(end); n++ {
					cfg, err := m.ClientTLS(context.Background(), cartID, []spiffeid.ID{stockID}, "h2")
					if err != nil {
						t.Errorf("client %d, handshake %d: %v", i, n, err)
						return
					}
					cs, cerr, serr := shake(cfg, server)
					if cerr != nil || serr != nil {
						t.Errorf("client %d, handshake %d at %s: client %v, server %v", i, n, time.Now(), cerr, serr)
						return
					}
					mu.Lock()
					seen[cs.PeerCertificates[0].SerialNumber.String()]++
					mu.Unlock()
					time.Sleep(time.Duration(137+i) * time.Millisecond)
				}
			})
		}
		clients.Wait()
		if len(seen) < 15 {
			t.Errorf("the server showed %d certificates, want at least 15: it was not renewed", len(seen))
		}
	})
}

func BenchmarkMutualHandshake(b *testing.B) {
	m := NewManager(CASource{CA: memoryCA(b, meshTD)}, quietLog)
	server := m.ServerTLS(stockID, nil, "h2")
	b.ReportAllocs()
	for b.Loop() {
		if _, cerr, serr := shake(clientConfig(b, m, stockID), server); cerr != nil || serr != nil {
			b.Fatalf("client %v, server %v", cerr, serr)
		}
	}
}
