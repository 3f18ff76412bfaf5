package identity

import (
	"context"
	"crypto"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"crypto/x509/pkix"
	"errors"
	"fmt"
	"io/fs"
	"math/big"
	"net/url"
	"os"
	"path/filepath"
	"time"

	"github.com/spiffe/go-spiffe/v2/bundle/x509bundle"
	"github.com/spiffe/go-spiffe/v2/spiffeid"
)

const (
	caCertFile = "ca.pem"
	caKeyFile  = "ca-key.pem"

	// DefaultTTL is how long an SVID lives if nobody says otherwise.
	DefaultTTL = time.Hour
	// MinTTL is the shortest lifetime that Issue accepts: X.509 knows only
	// whole seconds.
	MinTTL = time.Second

	defaultCALifetime = 365 * 24 * time.Hour
	// backdate is how far a verifier's clock may be behind ours.
	backdate = time.Minute
)

// CA is a self-signed root for development, tests and demonstrations: one key
// in a file, no intermediates, no revocation. Safe for concurrent use.
type CA struct {
	td     spiffeid.TrustDomain
	cert   *x509.Certificate
	key    crypto.Signer
	bundle *x509bundle.Bundle // shared by all SVIDs; never changed
}

// CAOption changes what InitCA makes.
type CAOption func(*caOptions)

type caOptions struct{ lifetime time.Duration }

// WithCALifetime sets how long the root is valid. Default one year.
func WithCALifetime(d time.Duration) CAOption {
	return func(o *caOptions) { o.lifetime = d }
}

// InitCA makes a new root for td in dir (created with mode 0700): ca.pem and
// ca-key.pem (mode 0600). It refuses a dir that already holds either with an
// error that matches fs.ErrExist: every certificate issued by the old key
// would stop working.
func InitCA(dir string, td spiffeid.TrustDomain, opts ...CAOption) (*CA, error) {
	o := caOptions{lifetime: defaultCALifetime}
	for _, f := range opts {
		f(&o)
	}
	if td.IsZero() {
		return nil, errors.New("init ca: trust domain is empty: name one, for example cluster.local")
	}
	if o.lifetime < MinTTL {
		return nil, fmt.Errorf("init ca: lifetime %s is too short: want at least %s", o.lifetime, MinTTL)
	}
	if err := os.MkdirAll(dir, dirMode); err != nil {
		return nil, fmt.Errorf("init ca: %w", err)
	}
	for _, name := range []string{caKeyFile, caCertFile} {
		if _, err := os.Lstat(filepath.Join(dir, name)); err == nil {
			return nil, existsError(filepath.Join(dir, name))
		}
	}
	ca, err := newCA(td, o.lifetime)
	if err != nil {
		return nil, fmt.Errorf("init ca: %w", err)
	}
	if err := ca.save(dir); err != nil {
		return nil, fmt.Errorf("init ca: %w", err)
	}
	return ca, nil
}

func existsError(path string) error {
	return fmt.Errorf("init ca: %s: %w: it signs the certificates in use; choose another directory, or remove %s and %s and issue everything again", path, fs.ErrExist, caCertFile, caKeyFile)
}

// save writes the key first: only one of two racing writers gets it.
func (c *CA) save(dir string) error {
	key, err := encodeKey(c.key)
	if err != nil {
		return err
	}
	path := filepath.Join(dir, caKeyFile)
	if err := createFile(path, key, secretMode); errors.Is(err, fs.ErrExist) {
		return existsError(path)
	} else if err != nil {
		return err
	}
	return replaceFile(filepath.Join(dir, caCertFile), encodeCertificates(c.cert), publicMode)
}

func newCA(td spiffeid.TrustDomain, lifetime time.Duration) (*CA, error) {
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return nil, fmt.Errorf("make key: %w", err)
	}
	serial, err := newSerial()
	if err != nil {
		return nil, err
	}
	now := time.Now()
	cert, err := sign(&x509.Certificate{
		SerialNumber: serial,
		// Not empty: an issuer must have a name (RFC 5280 §4.1.2.4), and two
		// roots of one trust domain must have two.
		Subject:               pkix.Name{CommonName: "Isthmus development CA", SerialNumber: fmt.Sprintf("%x", serial)},
		NotBefore:             now.Add(-backdate),
		NotAfter:              ceilSecond(now.Add(lifetime)),
		URIs:                  []*url.URL{td.ID().URL()},
		KeyUsage:              x509.KeyUsageCertSign | x509.KeyUsageCRLSign,
		BasicConstraintsValid: true,
		IsCA:                  true,
		MaxPathLenZero:        true,
	}, nil, key.Public(), key)
	if err != nil {
		return nil, err
	}
	return &CA{td: td, cert: cert, key: key, bundle: x509bundle.FromX509Authorities(td, []*x509.Certificate{cert})}, nil
}

// OpenCA reads what InitCA wrote. It refuses a key file that others than its
// owner may read.
func OpenCA(dir string) (*CA, error) {
	keyPath, certPath := filepath.Join(dir, caKeyFile), filepath.Join(dir, caCertFile)
	info, err := os.Stat(keyPath)
	if err != nil {
		return nil, fmt.Errorf("open ca in %s: %w: make one with `isthmus ca init --dir %[1]s`", dir, err)
	}
	if m := info.Mode().Perm(); m&0o077 != 0 {
		return nil, fmt.Errorf("open ca: %s has mode %04o, others may read it: chmod 600 %[1]s, and make a new ca if somebody has", keyPath, m)
	}
	data, err := readFile(keyPath)
	if err != nil {
		return nil, fmt.Errorf("open ca: %w", err)
	}
	key, err := ParsePrivateKey(data)
	if err != nil {
		return nil, fmt.Errorf("open ca: %s: %w", keyPath, err)
	}
	certs, err := ReadCertificates(certPath)
	if err != nil {
		return nil, fmt.Errorf("open ca: %w", err)
	}
	ca, err := assembleCA(certs, key)
	if err != nil {
		return nil, fmt.Errorf("open ca: %s: %w", certPath, err)
	}
	return ca, nil
}

func assembleCA(certs []*x509.Certificate, key crypto.Signer) (*CA, error) {
	c := certs[0]
	if len(certs) != 1 || !c.IsCA || len(c.URIs) != 1 {
		return nil, fmt.Errorf("%d certificates, the first with ca=%t and URI SAN %s: want one root with the URI of its trust domain, as `isthmus ca init` makes it", len(certs), c.IsCA, sans(c))
	}
	td, err := spiffeid.TrustDomainFromURI(c.URIs[0])
	if err != nil {
		return nil, fmt.Errorf("URI SAN %s: %w", sans(c), err)
	}
	if err := matchKey(c, key); err != nil {
		return nil, err
	}
	if err := checkValidity(c, time.Now()); err != nil {
		return nil, fmt.Errorf("root of %s: %w: make a new ca in an empty directory", td, err)
	}
	return &CA{td: td, cert: c, key: key, bundle: x509bundle.FromX509Authorities(td, certs)}, nil
}

// TrustDomain is the one that c signs for.
func (c *CA) TrustDomain() spiffeid.TrustDomain { return c.td }

// Certificate is the root. The caller must not change it.
func (c *CA) Certificate() *x509.Certificate { return c.cert }

// Issue makes a key and a certificate for id that is valid from one minute ago
// until at least ttl from now, but never beyond the root.
func (c *CA) Issue(id spiffeid.ID, ttl time.Duration) (*SVID, error) {
	if _, _, err := Names(id); err != nil {
		return nil, fmt.Errorf("issue: %w", err)
	}
	if !id.MemberOf(c.td) {
		return nil, fmt.Errorf("issue: identity %q is in trust domain %q, this ca signs for %q: use the ca of that mesh", id, id.TrustDomain(), c.td)
	}
	if ttl < MinTTL {
		return nil, fmt.Errorf("issue: ttl %s for %s is too short: want at least %s", ttl, id, MinTTL)
	}
	now := time.Now()
	if err := checkValidity(c.cert, now); err != nil {
		return nil, fmt.Errorf("issue: root of %s: %w: make a new ca in an empty directory", c.td, err)
	}
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return nil, fmt.Errorf("issue: make key: %w", err)
	}
	serial, err := newSerial()
	if err != nil {
		return nil, fmt.Errorf("issue: %w", err)
	}
	notAfter := ceilSecond(now.Add(ttl))
	if notAfter.After(c.cert.NotAfter) {
		notAfter = c.cert.NotAfter
	}
	leaf, err := sign(&x509.Certificate{
		SerialNumber:          serial,
		NotBefore:             now.Add(-backdate),
		NotAfter:              notAfter,
		URIs:                  []*url.URL{id.URL()},
		KeyUsage:              x509.KeyUsageDigitalSignature,
		ExtKeyUsage:           []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth, x509.ExtKeyUsageClientAuth},
		BasicConstraintsValid: true,
	}, c.cert, key.Public(), c.key)
	if err != nil {
		return nil, fmt.Errorf("issue for %s: %w", id, err)
	}
	return &SVID{ID: id, Certificates: []*x509.Certificate{leaf}, PrivateKey: key, Bundle: c.bundle}, nil
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
