package identity

import (
	"bytes"
	"crypto"
	"crypto/ecdsa"
	"crypto/ed25519"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"encoding/pem"
	"net"
	"net/url"
	"testing"
	"time"
)

// request is a CSR in PEM, signed by key.
func request(t testing.TB, key crypto.Signer, template x509.CertificateRequest) []byte {
	t.Helper()
	der, err := x509.CreateCertificateRequest(rand.Reader, &template, key)
	if err != nil {
		t.Fatal(err)
	}
	return pem.EncodeToMemory(&pem.Block{Type: requestType, Bytes: der})
}

func newKey(t testing.TB) *ecdsa.PrivateKey {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	return key
}

func TestSignedRequestBecomesAnSVIDOfThatKey(t *testing.T) {
	ca, key := memoryCA(t, meshTD), newKey(t)
	r, err := ParseRequest(request(t, key, x509.CertificateRequest{URIs: []*url.URL{cartID.URL()}}))
	if err != nil {
		t.Fatal(err)
	}
	if r.ID != cartID {
		t.Errorf("request is for %s, want %s", r.ID, cartID)
	}
	leaf, err := ca.Sign(r.ID, r.Key, time.Hour)
	if err != nil {
		t.Fatal(err)
	}
	s := SVID{ID: cartID, Certificates: []*x509.Certificate{leaf}, PrivateKey: key, Bundle: ca.bundle}
	if err := s.Check(cartID, time.Now()); err != nil {
		t.Error(err)
	}
}

func TestBadRequestsSayWhatIsWrong(t *testing.T) {
	key := newKey(t)
	_, edKey, err := ed25519.GenerateKey(rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	uris := []*url.URL{cartID.URL()}
	good := request(t, key, x509.CertificateRequest{URIs: uris})
	block, _ := pem.Decode(good)
	forged := bytes.Clone(block.Bytes)
	forged[len(forged)-1] ^= 1
	for name, c := range map[string]struct {
		data []byte
		want string
	}{
		"empty":         {nil, "no PEM block"},
		"no PEM":        {[]byte("hello"), "no PEM block found"},
		"text before":   {append([]byte("hello\n"), good...), "text outside of PEM blocks, behind block 0"},
		"certificate":   {EncodeCertificates(memoryCA(t, meshTD).cert), `the first a "CERTIFICATE"`},
		"two requests":  {bytes.Repeat(good, 2), "2 PEM blocks"},
		"too large":     {bytes.Repeat([]byte("\n"), maxFileBytes+1), "at most"},
		"no DER":        {pem.EncodeToMemory(&pem.Block{Type: requestType, Bytes: []byte("x")}), "request:"},
		"signature":     {pem.EncodeToMemory(&pem.Block{Type: requestType, Bytes: forged}), "signature"},
		"key":           {request(t, edKey, x509.CertificateRequest{URIs: uris}), "Ed25519: use ECDSA P-256"},
		"no name":       {request(t, key, x509.CertificateRequest{}), "0 URI SANs"},
		"two names":     {request(t, key, x509.CertificateRequest{URIs: []*url.URL{cartID.URL(), stockID.URL()}}), "2 URI SANs"},
		"DNS name":      {request(t, key, x509.CertificateRequest{URIs: uris, DNSNames: []string{"istiod"}}), "other than a SPIFFE ID"},
		"address":       {request(t, key, x509.CertificateRequest{URIs: uris, IPAddresses: []net.IP{{127, 0, 0, 1}}}), "other than a SPIFFE ID"},
		"no SPIFFE ID":  {request(t, key, x509.CertificateRequest{URIs: []*url.URL{{Scheme: "https", Host: "a"}}}), `identity "https://a"`},
		"not of a mesh": {request(t, key, x509.CertificateRequest{URIs: []*url.URL{meshTD.ID().URL()}}), "/ns/<namespace>/sa/<service account>"},
	} {
		t.Run(name, func(t *testing.T) {
			_, err := ParseRequest(c.data)
			wantError(t, err, c.want)
		})
	}
}

func TestServerCertificateProvesItsNamesAndNoIdentity(t *testing.T) {
	ca := memoryCA(t, meshTD)
	cert, err := ca.ServerCertificate([]string{"localhost", "127.0.0.1", "::1"}, time.Hour)
	if err != nil {
		t.Fatal(err)
	}
	roots := x509.NewCertPool()
	roots.AddCert(ca.Certificate())
	for _, name := range []string{"localhost", "127.0.0.1", "::1"} {
		_, clientErr, serverErr := shake(&tls.Config{RootCAs: roots, ServerName: name}, &tls.Config{Certificates: []tls.Certificate{*cert}})
		if clientErr != nil || serverErr != nil {
			t.Errorf("%s: client %v, server %v", name, clientErr, serverErr)
		}
	}
	if len(cert.Leaf.URIs) > 0 {
		t.Errorf("it is also %s", cert.Leaf.URIs)
	}
	for _, name := range []string{"", "https://localhost", "localhost:15012"} {
		_, err := ca.ServerCertificate([]string{name}, time.Hour)
		wantError(t, err, "neither a host name nor an IP address")
	}
}

func FuzzParseRequest(f *testing.F) {
	key := newKey(f)
	good := request(f, key, x509.CertificateRequest{URIs: []*url.URL{cartID.URL()}})
	for _, seed := range [][]byte{nil, good, good[:100], bytes.Repeat(good, 2), request(f, key, x509.CertificateRequest{})} {
		f.Add(seed)
	}
	ca := memoryCA(f, meshTD)
	f.Fuzz(func(t *testing.T, data []byte) {
		r, err := ParseRequest(data)
		if err != nil {
			return
		}
		leaf, err := ca.Sign(r.ID, r.Key, time.Hour)
		if !r.ID.MemberOf(meshTD) {
			if err == nil {
				t.Fatalf("signed for %s", r.ID)
			}
			return
		}
		if err != nil || len(leaf.URIs) != 1 || leaf.URIs[0].String() != r.ID.String() || leaf.IsCA {
			t.Fatalf("certificate %v of %s: %v", leaf, r.ID, err)
		}
	})
}

// ztunnel renews half-way between the two instants in a certificate.
func TestHalfOfLifeIsNeverOverAtTheStart(t *testing.T) {
	root, key := memoryCA(t, meshTD), newKey(t)
	dying, err := newCA(meshTD, 10*time.Second)
	if err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct {
		ca  *CA
		ttl time.Duration
	}{{root, 2 * time.Second}, {root, 20 * time.Second}, {root, time.Minute}, {root, time.Hour}, {dying, time.Hour}} {
		now := time.Now()
		leaf, err := c.ca.Sign(cartID, key.Public(), c.ttl)
		if err != nil {
			t.Fatal(err)
		}
		half := leaf.NotBefore.Add(leaf.NotAfter.Sub(leaf.NotBefore) / 2)
		if half.Before(now) {
			t.Errorf("ttl %s: half of %s to %s was over %s before it was issued", c.ttl, leaf.NotBefore, leaf.NotAfter, now.Sub(half))
		}
	}
}
