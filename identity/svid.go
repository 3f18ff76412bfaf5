package identity

import (
	"context"
	"crypto"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/spiffe/go-spiffe/v2/bundle/x509bundle"
	"github.com/spiffe/go-spiffe/v2/spiffeid"
	"github.com/spiffe/go-spiffe/v2/svid/x509svid"
)

// SVID is who we are together with whom we believe: a certificate chain, its
// key, and the roots of the trust domain. It is never changed once built and
// so is safe for concurrent use; a renewal makes a new one.
type SVID struct {
	ID           spiffeid.ID
	Certificates []*x509.Certificate // leaf first, then intermediates; never the root
	PrivateKey   crypto.Signer
	Bundle       *x509bundle.Bundle // roots of ID's trust domain
}

// Source hands out SVIDs. Fetch is called from several goroutines, at most
// once at a time for one id, and must honour ctx. What it returns is checked
// by the Manager before anybody uses it.
type Source interface {
	Fetch(ctx context.Context, id spiffeid.ID) (*SVID, error)
}

// NotAfter is the instant at which the leaf expires; the zero time if there is
// no certificate.
func (s *SVID) NotAfter() time.Time {
	if len(s.Certificates) == 0 {
		return time.Time{}
	}
	return s.Certificates[0].NotAfter
}

// Check reports whether s can serve as id at now: its URI SAN is id, its key
// belongs to its leaf, and its chain ends in its own bundle. It is what keeps a
// bad renewal from replacing a good certificate.
func (s *SVID) Check(id spiffeid.ID, now time.Time) error {
	if s == nil || len(s.Certificates) == 0 || s.PrivateKey == nil || s.Bundle == nil {
		return fmt.Errorf("svid of %s is incomplete: certificate, key and bundle must come together", id)
	}
	leaf := s.Certificates[0]
	got, err := x509svid.IDFromCert(leaf)
	if err != nil {
		return fmt.Errorf("certificate for %s: URI SAN %s: %w: issue it with exactly one URI SAN, the SPIFFE ID", id, sans(leaf), err)
	}
	if got != id || s.ID != id {
		return fmt.Errorf("certificate: URI SAN is %q, asked for %q: issue a certificate for %[2]q or ask for the other identity", got, id)
	}
	if err := matchKey(leaf, s.PrivateKey); err != nil {
		return fmt.Errorf("certificate of %s: %w", id, err)
	}
	if err := checkValidity(leaf, now); err != nil {
		return fmt.Errorf("certificate of %s: %w", id, err)
	}
	if _, _, err := x509svid.Verify(s.Certificates, s.Bundle, x509svid.WithTime(now)); err != nil {
		return fmt.Errorf("certificate of %s (issuer %q): %w: the bundle must hold the root that issued it", id, leaf.Issuer, err)
	}
	return nil
}

// certificate is s as crypto/tls wants it.
func (s *SVID) certificate() *tls.Certificate {
	c := &tls.Certificate{PrivateKey: s.PrivateKey, Leaf: s.Certificates[0]}
	for _, x := range s.Certificates {
		c.Certificate = append(c.Certificate, x.Raw)
	}
	return c
}

// same reports whether both are the same certificate under the same roots.
func (s *SVID) same(o *SVID) bool {
	return s != nil && o != nil && s.Certificates[0].Equal(o.Certificates[0]) && s.Bundle.Equal(o.Bundle)
}

// WorkloadID is spiffe://<td>/ns/<namespace>/sa/<serviceAccount>, the one form
// of identity that a mesh of ours and Istio's know.
func WorkloadID(td spiffeid.TrustDomain, namespace, serviceAccount string) (spiffeid.ID, error) {
	id, err := spiffeid.FromSegments(td, "ns", namespace, "sa", serviceAccount)
	if err != nil {
		return spiffeid.ID{}, fmt.Errorf("identity of service account %q in namespace %q: %w: use letters, digits, '-', '_' and '.' only", serviceAccount, namespace, err)
	}
	return id, nil
}

// ParseID reads a workload identity from its text form.
func ParseID(s string) (spiffeid.ID, error) {
	id, err := spiffeid.FromString(s)
	if err != nil {
		return spiffeid.ID{}, fmt.Errorf("identity %q: %w: want spiffe://<trust domain>/ns/<namespace>/sa/<service account>", s, err)
	}
	if _, _, err := Names(id); err != nil {
		return spiffeid.ID{}, err
	}
	return id, nil
}

// Names takes a workload identity apart. Both names are single path segments:
// never empty, "." or "..", and without a separator.
func Names(id spiffeid.ID) (namespace, serviceAccount string, err error) {
	p := strings.Split(id.Path(), "/")
	if len(p) != 5 || p[0] != "" || p[1] != "ns" || p[3] != "sa" {
		return "", "", fmt.Errorf("identity %q: path is %q: want spiffe://<trust domain>/ns/<namespace>/sa/<service account>", id, id.Path())
	}
	return p[2], p[4], nil
}

func matchKey(leaf *x509.Certificate, key crypto.Signer) error {
	pub, ok := leaf.PublicKey.(interface{ Equal(crypto.PublicKey) bool })
	if !ok {
		return fmt.Errorf("public key algorithm %s is not supported: use ECDSA P-256", leaf.PublicKeyAlgorithm)
	}
	if !pub.Equal(key.Public()) {
		return errKeyMismatch
	}
	return nil
}

// errKeyMismatch is also what a reader sees that came between the two renames
// of a rotation; FileSource reads again then.
var errKeyMismatch = errors.New("private key does not belong to the certificate: issue both again, together")

func checkValidity(leaf *x509.Certificate, now time.Time) error {
	if now.Before(leaf.NotBefore) {
		return fmt.Errorf("not valid before %s, now is %s: check the clocks", stamp(leaf.NotBefore), stamp(now))
	}
	if !now.Before(leaf.NotAfter) {
		return fmt.Errorf("expired at %s, now is %s: renew it", stamp(leaf.NotAfter), stamp(now))
	}
	return nil
}

func stamp(t time.Time) string { return t.UTC().Format(time.RFC3339) }

func sans(c *x509.Certificate) string {
	var s []string
	for _, u := range c.URIs {
		s = append(s, u.String())
	}
	return fmt.Sprintf("%q", s)
}
