package identity

import (
	"context"
	"crypto"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"fmt"
	"math/big"
	"net"
	"net/url"
	"strings"
	"time"

	"github.com/spiffe/go-spiffe/v2/spiffeid"
)

const (
	// DefaultTTL is how long an SVID lives if nobody says otherwise.
	DefaultTTL = time.Hour
	// MinTTL is the shortest lifetime that Issue accepts: X.509 knows only
	// whole seconds.
	MinTTL = time.Second
	// backdate is how far a verifier's clock may be behind ours; less for lives
	// shorter than two of it.
	backdate = time.Minute
)

// Issue makes a key and a certificate for id that is valid from one minute ago
// (half of ttl if that is less) until at least ttl from now, but never beyond
// the root.
func (c *CA) Issue(id spiffeid.ID, ttl time.Duration) (*SVID, error) {
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return nil, fmt.Errorf("issue: make key: %w", err)
	}
	leaf, err := c.Sign(id, key.Public(), ttl)
	if err != nil {
		return nil, err
	}
	return &SVID{ID: id, Certificates: []*x509.Certificate{leaf}, PrivateKey: key, Bundle: c.bundle}, nil
}

// Sign makes a certificate as Issue does, for a key that somebody else holds.
// That whoever holds it may be id is for the caller to know.
func (c *CA) Sign(id spiffeid.ID, pub crypto.PublicKey, ttl time.Duration) (*x509.Certificate, error) {
	if _, err := segments(id); err != nil {
		return nil, fmt.Errorf("issue: %w", err)
	}
	if !id.MemberOf(c.td) {
		return nil, fmt.Errorf("issue: identity %q is in trust domain %q, this ca signs for %q: use the ca of that mesh", id, id.TrustDomain(), c.td)
	}
	return c.leaf(id.String(), &x509.Certificate{
		URIs:        []*url.URL{id.URL()},
		ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth, x509.ExtKeyUsageClientAuth},
	}, pub, ttl)
}

// ServerCertificate makes a key and a certificate with which a server proves
// names (host names and IP addresses) to clients that know no SPIFFE. It has no
// SPIFFE ID: in the mesh it is nobody. It lives as long as one from Issue.
func (c *CA) ServerCertificate(names []string, ttl time.Duration) (*tls.Certificate, error) {
	template := &x509.Certificate{ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth}}
	for _, n := range names {
		if ip := net.ParseIP(n); ip != nil {
			template.IPAddresses = append(template.IPAddresses, ip)
		} else if n == "" || strings.ContainsAny(n, " /:@") {
			return nil, fmt.Errorf("issue: %q is neither a host name nor an IP address: write one without port and scheme", n)
		} else {
			template.DNSNames = append(template.DNSNames, n)
		}
	}
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return nil, fmt.Errorf("issue: make key: %w", err)
	}
	leaf, err := c.leaf(strings.Join(names, ", "), template, key.Public(), ttl)
	if err != nil {
		return nil, err
	}
	return &tls.Certificate{Certificate: [][]byte{leaf.Raw}, PrivateKey: key, Leaf: leaf}, nil
}

// leaf fills in what all leaves share and signs template; who is for errors.
func (c *CA) leaf(who string, template *x509.Certificate, pub crypto.PublicKey, ttl time.Duration) (*x509.Certificate, error) {
	if ttl < MinTTL {
		return nil, fmt.Errorf("issue: ttl %s for %s is too short: want at least %s", ttl, who, MinTTL)
	}
	now := time.Now()
	if err := checkValidity(c.cert, now); err != nil {
		return nil, fmt.Errorf("issue: root of %s: %w: make a new ca in an empty directory", c.td, err)
	}
	serial, err := newSerial()
	if err != nil {
		return nil, fmt.Errorf("issue: %w", err)
	}
	template.SerialNumber = serial
	template.NotAfter = ceilSecond(now.Add(ttl))
	if template.NotAfter.After(c.cert.NotAfter) {
		template.NotAfter = c.cert.NotAfter
	}
	// ztunnel renews half-way from NotBefore to NotAfter. If that were over
	// already, it would ask again at once, for ever (seen: 23 times a second).
	template.NotBefore = now.Add(-min(backdate, template.NotAfter.Sub(now)/2))
	template.KeyUsage = x509.KeyUsageDigitalSignature
	template.BasicConstraintsValid = true
	cert, err := sign(template, c.cert, pub, c.key)
	if err != nil {
		return nil, fmt.Errorf("issue for %s: %w", who, err)
	}
	return cert, nil
}

// sign signs template under parent, or under itself if parent is nil.
func sign(template, parent *x509.Certificate, pub crypto.PublicKey, key crypto.Signer) (*x509.Certificate, error) {
	if parent == nil {
		parent = template
	}
	der, err := x509.CreateCertificate(rand.Reader, template, parent, pub, key)
	if err != nil {
		return nil, fmt.Errorf("sign certificate: %w", err)
	}
	return x509.ParseCertificate(der)
}

// newSerial draws 127 random bits (RFC 5280 §4.1.2.2: positive, ≤ 20 octets).
func newSerial() (*big.Int, error) {
	n, err := rand.Int(rand.Reader, new(big.Int).Lsh(big.NewInt(1), 127))
	if err != nil {
		return nil, fmt.Errorf("draw serial number: %w", err)
	}
	return n.Add(n, big.NewInt(1)), nil
}

// ceilSecond rounds up, because X.509 would round down and cut the lifetime.
func ceilSecond(t time.Time) time.Time {
	if r := t.Truncate(time.Second); !r.Equal(t) {
		return r.Add(time.Second)
	}
	return t
}

// CASource issues from a CA in this process. TTL zero means DefaultTTL.
type CASource struct {
	CA  *CA
	TTL time.Duration
}

// Fetch issues a fresh SVID for id.
func (s CASource) Fetch(_ context.Context, id spiffeid.ID) (*SVID, error) {
	ttl := s.TTL
	if ttl == 0 {
		ttl = DefaultTTL
	}
	return s.CA.Issue(id, ttl)
}
