package identity

import (
	"crypto"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"crypto/x509/pkix"
	"errors"
	"fmt"
	"io/fs"
	"net/url"
	"os"
	"path/filepath"
	"time"

	"github.com/spiffe/go-spiffe/v2/bundle/x509bundle"
	"github.com/spiffe/go-spiffe/v2/spiffeid"

	"github.com/isthmus-mesh/isthmus/internal/secretfile"
)

const (
	caCertFile = "ca.pem"
	caKeyFile  = "ca-key.pem"

	defaultCALifetime = 365 * 24 * time.Hour
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
	return replaceFile(filepath.Join(dir, caCertFile), EncodeCertificates(c.cert), publicMode)
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
		Subject:               pkix.Name{CommonName: commonName(td), SerialNumber: fmt.Sprintf("%x", serial)},
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

// maxCommonName is the longest that a name may be (RFC 5280 appendix A.1, ub-common-name).
const maxCommonName = 64

// commonName is what people see of a root. Nothing depends on it.
func commonName(td spiffeid.TrustDomain) string {
	const name = "Isthmus CA"
	if full := name + " of " + td.Name(); len(full) <= maxCommonName {
		return full
	}
	return name
}

// OpenCA reads what InitCA wrote. The key is read as [secretfile.Read] does.
func OpenCA(dir string) (*CA, error) {
	keyPath, certPath := filepath.Join(dir, caKeyFile), filepath.Join(dir, caCertFile)
	data, err := secretfile.Read(keyPath)
	if err != nil {
		return nil, fmt.Errorf("open ca: %w", caRemedy(dir, err))
	}
	key, err := ParsePrivateKey(data)
	if err != nil {
		return nil, fmt.Errorf("open ca: %s: %w", keyPath, err)
	}
	certs, err := ReadCertificates(certPath)
	if err != nil {
		return nil, fmt.Errorf("open ca: %w", caRemedy(dir, err))
	}
	ca, err := assembleCA(certs, key)
	if err != nil {
		return nil, fmt.Errorf("open ca: %s: %w", certPath, err)
	}
	if err := ca.readBundle(filepath.Join(dir, bundleFile)); err != nil {
		return nil, fmt.Errorf("open ca: %w", err)
	}
	return ca, nil
}

// readBundle takes the roots that are believed beside c's own from the file at path, as
// they are while a root is replaced. Without the file there are none.
func (c *CA) readBundle(path string) error {
	data, err := readFile(path)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	} else if err != nil {
		return err
	}
	b, err := ParseBundle(c.td, data)
	if err != nil {
		return fmt.Errorf("bundle %s: %w", path, err)
	}
	if !b.HasX509Authority(c.cert) {
		return fmt.Errorf("bundle %s: it does not hold the root of %s, so that nobody would believe what it signs: write both with `isthmus ca rotate`, or remove the bundle", path, caCertFile)
	}
	c.bundle = b
	return nil
}

// caRemedy says what to do about err, met while a file of the CA in dir was read. A
// new root is the remedy only where no part of an old one is left: whatever trusts
// the old root would refuse what the new one signs.
func caRemedy(dir string, err error) error {
	if errors.Is(err, fs.ErrPermission) {
		return unreadable(err)
	}
	if !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	for _, name := range []string{caCertFile, caKeyFile} {
		part := filepath.Join(dir, name)
		if _, there := os.Lstat(part); there == nil {
			return fmt.Errorf("%w, though %s is there: put the missing file back; a new ca would be trusted by nobody who trusts this one", err, part)
		}
	}
	return fmt.Errorf("%w: correct the path; or, if this mesh has no ca yet, make one with `isthmus ca init --dir %s`", err, dir)
}

// unreadable adds to a lack of permission whom it must be given to.
func unreadable(err error) error {
	return fmt.Errorf("%w: this process runs as uid %d, which must be able to read it and to enter its directory", err, os.Geteuid())
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

// Certificate is the root that signs. The caller must not change it.
func (c *CA) Certificate() *x509.Certificate { return c.cert }

// Roots are those that are to be believed, the one that signs among them: more than one
// while it is replaced.
func (c *CA) Roots() []*x509.Certificate { return c.bundle.X509Authorities() }

// Current returns c: it is the CA of this moment of whoever has just one.
func (c *CA) Current() *CA { return c }
