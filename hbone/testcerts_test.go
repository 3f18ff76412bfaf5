package hbone

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"math/big"
	"net/url"
	"sync"
	"testing"
	"time"
)

const testID = "spiffe://cluster.local/ns/default/sa/test"

// testTLS returns matching client and server configurations of one throw-away CA.
// The certificates are valid on synctest's clock, which starts in 2000, as well.
var testTLS = sync.OnceValues(func() (client, server *tls.Config) {
	key := must(ecdsa.GenerateKey(elliptic.P256(), rand.Reader))
	uri := must(url.Parse(testID))
	ca := &x509.Certificate{
		SerialNumber: big.NewInt(1), Subject: pkix.Name{CommonName: "test ca"},
		NotBefore: time.Date(1999, 1, 1, 0, 0, 0, 0, time.UTC), NotAfter: time.Date(2099, 1, 1, 0, 0, 0, 0, time.UTC),
		IsCA: true, BasicConstraintsValid: true, KeyUsage: x509.KeyUsageCertSign,
	}
	root := must(x509.ParseCertificate(must(x509.CreateCertificate(rand.Reader, ca, ca, key.Public(), key))))
	leafKey := must(ecdsa.GenerateKey(elliptic.P256(), rand.Reader))
	leaf := &x509.Certificate{
		SerialNumber: big.NewInt(2), NotBefore: ca.NotBefore, NotAfter: ca.NotAfter,
		URIs: []*url.URL{uri}, KeyUsage: x509.KeyUsageDigitalSignature,
		ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageClientAuth, x509.ExtKeyUsageServerAuth},
	}
	der := must(x509.CreateCertificate(rand.Reader, leaf, root, leafKey.Public(), key))
	cert := tls.Certificate{Certificate: [][]byte{der}, PrivateKey: leafKey}
	roots := x509.NewCertPool()
	roots.AddCert(root)
	base := tls.Config{
		MinVersion: tls.VersionTLS13, Certificates: []tls.Certificate{cert}, NextProtos: []string{"h2"},
		DynamicRecordSizingDisabled: true, SessionTicketsDisabled: true,
	}
	client = base.Clone()
	client.InsecureSkipVerify = true // the name; the chain is verified here
	client.VerifyConnection = func(cs tls.ConnectionState) error {
		_, err := cs.PeerCertificates[0].Verify(x509.VerifyOptions{Roots: roots, KeyUsages: leaf.ExtKeyUsage})
		return err
	}
	server = base.Clone()
	server.ClientAuth, server.ClientCAs = tls.RequireAndVerifyClientCert, roots
	return client, server
})

func must[T any](v T, err error) T {
	if err != nil {
		panic(err)
	}
	return v
}

func check(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}
