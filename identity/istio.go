package identity

import (
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/asn1"
	"encoding/pem"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/spiffe/go-spiffe/v2/spiffeid"

	"github.com/isthmus-mesh/isthmus/identity/istioclient"
)

// istioSource asks a CA by Istio's protocol: as the account of its token, or as the proxy
// of somebody else. Keys are in memory alone.
type istioSource struct {
	client *istioclient.Client
	ttl    time.Duration
}

// Fetch makes a key for id and has it certified.
func (s istioSource) Fetch(ctx context.Context, id spiffeid.ID) (*SVID, error) {
	token, err := s.client.Token()
	if err != nil {
		return nil, err
	}
	namespace, name, err := Names(id)
	if err != nil {
		return nil, fmt.Errorf("%w: by Istio's protocol nobody has a certificate that names a node: set federation.token", err)
	}
	impersonate := id.String()
	if ns, sa, ok := istioclient.Account(token); !ok || ns == namespace && sa == name {
		impersonate = "" // it asks for itself
	}
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return nil, fmt.Errorf("make key: %w", err)
	}
	csr, err := requestFor(id, key)
	if err != nil {
		return nil, err
	}
	parts, err := s.client.Create(ctx, token, csr, impersonate, s.ttl)
	if err != nil {
		return nil, err
	}
	svid := &SVID{ID: id, PrivateKey: key}
	if err := svid.assemble(parts); err != nil {
		return nil, fmt.Errorf("answer of the CA: %w", err)
	}
	return svid, nil
}

// Close ends the connection to the CA.
func (s istioSource) Close() error { return s.client.Close() }

// subjectAltName is id-ce-subjectAltName (RFC 5280 §4.2.1.6).
var subjectAltName = asn1.ObjectIdentifier{2, 5, 29, 17}

// requestFor makes a PKCS#10 request in PEM as ztunnel's is: without a subject, and with
// id as its only name, in an extension that is critical (X509-SVID §2).
func requestFor(id spiffeid.ID, key *ecdsa.PrivateKey) (string, error) {
	const uri = 6 // uniformResourceIdentifier of GeneralName
	names, err := asn1.Marshal([]asn1.RawValue{{Class: asn1.ClassContextSpecific, Tag: uri, Bytes: []byte(id.String())}})
	if err != nil {
		return "", fmt.Errorf("make request: %w", err)
	}
	der, err := x509.CreateCertificateRequest(rand.Reader, &x509.CertificateRequest{SignatureAlgorithm: x509.ECDSAWithSHA256,
		ExtraExtensions: []pkix.Extension{{Id: subjectAltName, Critical: true, Value: names}}}, key)
	if err != nil {
		return "", fmt.Errorf("make request: %w", err)
	}
	return string(pem.EncodeToMemory(&pem.Block{Type: requestType, Bytes: der})), nil
}

// assemble takes in an answer: the leaf, intermediates, and the roots in its last part.
// What it is worth, Check says.
func (s *SVID) assemble(parts []string) error {
	const most = 16
	if len(parts) < 2 || len(parts) > most {
		return fmt.Errorf("%d parts: want a certificate first, and the roots last", len(parts))
	}
	last := len(parts) - 1
	for i, p := range parts[:last] {
		certs, err := ParseCertificates([]byte(p))
		if err != nil {
			return fmt.Errorf("part %d: %w", i+1, err)
		}
		s.Certificates = append(s.Certificates, certs...)
	}
	bundle, err := ParseBundle(s.ID.TrustDomain(), []byte(strings.TrimSpace(parts[last])))
	if err != nil {
		return fmt.Errorf("roots: %w", err)
	}
	s.Bundle = bundle
	if len(s.Certificates) == 0 {
		return errors.New("no certificate")
	}
	return nil
}
