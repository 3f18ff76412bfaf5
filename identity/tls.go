package identity

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"slices"
	"sync/atomic"
	"time"

	"github.com/spiffe/go-spiffe/v2/spiffeid"
	"github.com/spiffe/go-spiffe/v2/svid/x509svid"
)

// PeerError says that the peer is somebody else than expected: it proved
// another identity of TrustDomain, or claims one of a trust domain whose roots
// we do not have. With Expected empty, any identity of TrustDomain would have
// done.
type PeerError struct {
	Got         spiffeid.ID
	Expected    []spiffeid.ID
	TrustDomain spiffeid.TrustDomain
}

func (e *PeerError) Error() string {
	if len(e.Expected) == 0 {
		return fmt.Sprintf("identity: peer is %q, expected any identity of trust domain %q: give it a certificate of this mesh", e.Got, e.TrustDomain)
	}
	const most = 3
	expected := fmt.Sprintf("%q", e.Expected[:min(len(e.Expected), most)])
	if more := len(e.Expected) - most; more > 0 {
		expected += fmt.Sprintf(" or %d more", more)
	}
	return fmt.Sprintf("identity: peer is %q, expected %s: another workload answers at this address, or discovery lists the wrong identity", e.Got, expected)
}

// ChainError says that the peer's certificate cannot be believed: expired,
// signed by an unknown root, not made for this use, no SPIFFE ID. Got is what it
// claims to be; zero if it has no SPIFFE ID.
type ChainError struct {
	Got spiffeid.ID
	Err error
}

func (e *ChainError) Error() string {
	return fmt.Sprintf("identity: certificate of peer %q is not trusted: %v: compare clocks, expiry and bundles of both sides", e.Got, e.Err)
}

func (e *ChainError) Unwrap() error { return e.Err }

// ClientTLS returns the configuration for one dial as id, made from the SVID of
// this moment: do not keep it. The server must prove one of expect, or the
// handshake fails with a *PeerError; a chain that does not hold gives a
// *ChainError. Without a valid SVID of our own there is no configuration but an
// *OwnError. No SNI is sent. If alpn is not empty, the server must choose
// from it.
func (m *Manager) ClientTLS(ctx context.Context, id spiffeid.ID, expect []spiffeid.ID, alpn ...string) (*tls.Config, error) {
	if len(expect) == 0 {
		return nil, fmt.Errorf("identity: tls client %s: no identity is expected of the server: name at least one", id)
	}
	s, err := m.Get(ctx, id)
	if err != nil {
		return nil, &OwnError{ID: id, Err: err}
	}
	cert := s.certificate()
	cfg := baseTLS(alpn)
	// Not Certificates: the server's list of acceptable issuers must not make
	// us stay silent; its refusal says more.
	cfg.GetClientCertificate = func(*tls.CertificateRequestInfo) (*tls.Certificate, error) { return cert, nil }
	cfg.InsecureSkipVerify = true // there is no host name; VerifyConnection does it all
	expect = slices.Clone(expect)
	cfg.VerifyConnection = func(cs tls.ConnectionState) error {
		got, err := verifyPeer(cs, s, m.belief.Load(), x509.ExtKeyUsageServerAuth)
		if wrong := (*PeerError)(nil); errors.As(err, &wrong) && !slices.Contains(expect, wrong.Got) {
			wrong.Expected = expect
		}
		if err != nil {
			return err
		}
		if !slices.Contains(expect, got) {
			return &PeerError{Got: got, Expected: expect, TrustDomain: got.TrustDomain()}
		}
		if len(alpn) > 0 && cs.NegotiatedProtocol == "" {
			return fmt.Errorf("identity: server %q chose none of the protocols %q: it is no HBONE port of this mesh", got, alpn)
		}
		return nil
	}
	return cfg, nil
}

// ServerTLS returns a configuration that serves as id for as long as the
// Manager lives: every handshake uses the SVID and bundle of its moment. The
// client must prove an identity of id's trust domain, or of one that Believe has
// named (else *PeerError or *ChainError), then authorize decides; nil accepts every
// such identity.
// authorize runs during the handshake and must not wait.
func (m *Manager) ServerTLS(id spiffeid.ID, authorize func(peer spiffeid.ID) error, alpn ...string) *tls.Config {
	type made struct {
		svid         *SVID
		cfg, classic *tls.Config
	}
	var last atomic.Pointer[made] // one per SVID, not one per handshake
	cfg := baseTLS(alpn)
	cfg.ClientAuth = tls.RequireAnyClientCert
	cfg.GetConfigForClient = func(hello *tls.ClientHelloInfo) (*tls.Config, error) {
		s, err := m.Get(hello.Context(), id)
		if err != nil {
			return nil, &OwnError{ID: id, Err: err}
		}
		l := last.Load()
		if l == nil || l.svid != s {
			l = &made{svid: s, cfg: m.serverTLS(s, authorize, alpn), classic: m.serverTLS(s, authorize, alpn)}
			l.classic.CurvePreferences = []tls.CurveID{tls.X25519, tls.CurveP256, tls.CurveP384}
			last.Store(l)
		}
		if prefersClassic(hello) {
			return l.classic, nil
		}
		return l.cfg, nil
	}
	return cfg
}

// prefersClassic reports that the client names the post-quantum key exchange
// behind a classic one. It has then sent no share for it (stock ztunnel 62d82653
// is such a client), and crypto/tls, which goes by its own order, would ask for
// one by a HelloRetryRequest: one more round trip in every handshake.
func prefersClassic(hello *tls.ClientHelloInfo) bool {
	return len(hello.SupportedCurves) > 0 && hello.SupportedCurves[0] != tls.X25519MLKEM768 &&
		slices.Contains([]tls.CurveID{tls.X25519, tls.CurveP256, tls.CurveP384}, hello.SupportedCurves[0])
}

func (m *Manager) serverTLS(s *SVID, authorize func(spiffeid.ID) error, alpn []string) *tls.Config {
	cfg := baseTLS(alpn)
	cfg.Certificates = []tls.Certificate{*s.certificate()}
	cfg.ClientAuth = tls.RequireAnyClientCert
	cfg.VerifyConnection = func(cs tls.ConnectionState) error {
		peer, err := verifyPeer(cs, s, m.belief.Load(), x509.ExtKeyUsageClientAuth)
		if err != nil || authorize == nil {
			return err
		}
		if err := authorize(peer); err != nil {
			return fmt.Errorf("identity: peer %q is not allowed in: %w", peer, err)
		}
		return nil
	}
	return cfg
}

func baseTLS(alpn []string) *tls.Config {
	return &tls.Config{
		MinVersion:             tls.VersionTLS13,
		MaxVersion:             tls.VersionTLS13,
		NextProtos:             slices.Clone(alpn),
		SessionTicketsDisabled: true,
		// Small records until 1 MB has gone out serve browsers; a tunnel pays
		// for each of them.
		DynamicRecordSizingDisabled: true,
	}
}

// verifyPeer returns the identity that the peer has proved to s: one URI SAN of
// s's trust domain or of one that b has roots of, a chain to a root of that trust
// domain, made for use.
func verifyPeer(cs tls.ConnectionState, s *SVID, b *belief, use x509.ExtKeyUsage) (spiffeid.ID, error) {
	got, err := PeerID(cs)
	if err != nil {
		return spiffeid.ID{}, err
	}
	bundle := b.bundle(s, got.TrustDomain())
	if bundle == nil {
		return spiffeid.ID{}, &PeerError{Got: got, TrustDomain: s.ID.TrustDomain()}
	}
	leaf := cs.PeerCertificates[0]
	if err := checkValidity(leaf, time.Now()); err != nil {
		return spiffeid.ID{}, &ChainError{Got: got, Err: err}
	}
	if _, _, err := x509svid.Verify(cs.PeerCertificates, bundle); err != nil {
		return spiffeid.ID{}, &ChainError{Got: got, Err: err}
	}
	// go-spiffe leaves this to us (X.509-SVID §4.4: if the extension is there,
	// both uses must be in it).
	if len(leaf.ExtKeyUsage)+len(leaf.UnknownExtKeyUsage) > 0 && !slices.Contains(leaf.ExtKeyUsage, use) && !slices.Contains(leaf.ExtKeyUsage, x509.ExtKeyUsageAny) {
		return spiffeid.ID{}, &ChainError{Got: got, Err: errors.New("its extended key usage does not allow this side of a TLS connection")}
	}
	return got, nil
}

// PeerID is the SPIFFE ID in the peer's leaf. It is proved only after a
// handshake under one of our configurations.
func PeerID(cs tls.ConnectionState) (spiffeid.ID, error) {
	if len(cs.PeerCertificates) == 0 {
		return spiffeid.ID{}, &ChainError{Err: errors.New("it sent no certificate")}
	}
	id, err := x509svid.IDFromCert(cs.PeerCertificates[0])
	if err != nil {
		return spiffeid.ID{}, &ChainError{Err: fmt.Errorf("URI SAN %s: %w", sans(cs.PeerCertificates[0]), err)}
	}
	return id, nil
}
