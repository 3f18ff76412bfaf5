package meshtest

import (
	"crypto"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"encoding/pem"
	"fmt"
	"math/big"
	"net"
	"net/netip"
	"net/url"
	"os"
	"path/filepath"
	"time"

	"github.com/spiffe/go-spiffe/v2/spiffeid"

	"github.com/isthmus-mesh/isthmus/identity"
)

// Certificate signs a certificate of the mesh's CA for any time, also the past.
func (m *Mesh) Certificate(id spiffeid.ID, from, until time.Time) tls.Certificate {
	m.t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		m.t.Fatal(err)
	}
	template := &x509.Certificate{
		SerialNumber: big.NewInt(from.UnixNano()), NotBefore: from, NotAfter: until, URIs: []*url.URL{id.URL()},
		KeyUsage: x509.KeyUsageDigitalSignature, ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageClientAuth, x509.ExtKeyUsageServerAuth},
	}
	der, err := x509.CreateCertificate(rand.Reader, template, m.CA.Certificate(), key.Public(), m.caKey())
	if err != nil {
		m.t.Fatal(err)
	}
	return tls.Certificate{Certificate: [][]byte{der}, PrivateKey: key}
}

func (m *Mesh) caKey() crypto.Signer {
	m.t.Helper()
	data, err := os.ReadFile(filepath.Join(m.caDir(), "ca-key.pem"))
	if err != nil {
		m.t.Fatal(err)
	}
	block, _ := pem.Decode(data)
	if block == nil {
		m.t.Fatal("ca-key.pem holds no PEM block")
	}
	key, err := x509.ParsePKCS8PrivateKey(block.Bytes)
	if err != nil {
		m.t.Fatal(err)
	}
	return key.(crypto.Signer)
}

// Stranger is a certificate of another CA and trust domain, for any identity.
func (m *Mesh) Stranger(id string) tls.Certificate {
	m.t.Helper()
	sid := spiffeid.RequireFromString(id)
	ca, err := identity.InitCA(m.t.TempDir(), sid.TrustDomain())
	if err != nil {
		m.t.Fatal(err)
	}
	svid, err := ca.Issue(sid, time.Hour)
	if err != nil {
		m.t.Fatal(err)
	}
	c := tls.Certificate{PrivateKey: svid.PrivateKey}
	for _, x := range svid.Certificates {
		c.Certificate = append(c.Certificate, x.Raw)
	}
	return c
}

// Knock does a TLS handshake with addr, showing cert (nil: none) and believing
// whoever answers, and waits for the first byte: in TLS 1.3 a server's refusal
// comes after the client's side of the handshake. An error is that refusal.
func Knock(addr netip.AddrPort, cert *tls.Certificate, alpn string) error {
	raw, err := net.Dial("tcp4", addr.String())
	if err != nil {
		return fmt.Errorf("not even TCP: %w", err)
	}
	defer raw.Close()
	raw.SetDeadline(time.Now().Add(ExchangeTimeout))
	cfg := &tls.Config{InsecureSkipVerify: true, NextProtos: []string{alpn}, MinVersion: tls.VersionTLS13}
	if cert != nil {
		cfg.GetClientCertificate = func(*tls.CertificateRequestInfo) (*tls.Certificate, error) { return cert, nil }
	}
	c := tls.Client(raw, cfg)
	if err := c.Handshake(); err != nil {
		return err
	}
	_, err = c.Read(make([]byte, 1)) // a server of HTTP/2 sends its settings first
	return err
}
