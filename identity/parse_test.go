package identity

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"encoding/pem"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/spiffe/go-spiffe/v2/spiffeid"
)

func expired(c *x509.Certificate) { c.NotAfter = time.Now().Add(-time.Second) }

func TestNamesRoundTrip(t *testing.T) {
	id, err := WorkloadID(meshTD, "isthmus-system", "gateway")
	if err != nil || id.String() != "spiffe://cluster.local/ns/isthmus-system/sa/gateway" {
		t.Fatalf("%q, %v", id, err)
	}
	ns, sa, err := Names(id)
	if ns != "isthmus-system" || sa != "gateway" || err != nil {
		t.Errorf("%q %q %v", ns, sa, err)
	}
}

func TestParseIDRejects(t *testing.T) {
	for _, s := range []string{
		"", "cluster.local/ns/a/sa/b", "https://cluster.local/ns/a/sa/b", "spiffe://", "spiffe:///ns/a/sa/b",
		"spiffe://cluster.local", "spiffe://cluster.local/ns/a", "spiffe://cluster.local/ns//sa/b", "spiffe://cluster.local/sa/a/ns/b",
		"spiffe://cluster.local/ns/../sa/b", "spiffe://cluster.local/ns/a/sa/.", "spiffe://cluster.local/ns/a/sa/b/", "spiffe://cluster.local/ns/a/sa/b?x=1",
		"spiffe://user@cluster.local/ns/a/sa/b", "spiffe://cluster.local:80/ns/a/sa/b", "spiffe://cluster.local/ns/a%2fb/sa/c",
	} {
		if id, err := ParseID(s); err == nil {
			t.Errorf("%q was read as %q", s, id)
		} else if s != "" && !strings.Contains(err.Error(), "/ns/<namespace>/sa/<service account>") {
			t.Errorf("%q: error %q does not say what to write", s, err)
		}
	}
	for _, name := range []string{"", "..", "a/b", "a b"} {
		if id, err := WorkloadID(meshTD, name, "sa"); err == nil {
			t.Errorf("namespace %q gave %q", name, id)
		}
	}
}

func TestPEMIsReadStrictly(t *testing.T) {
	root := EncodeCertificates(memoryCA(t, meshTD).cert)
	for name, data := range map[string]string{
		"nothing":        "",
		"white space":    " \n\t",
		"text before":    "hello\n" + string(root),
		"text after":     string(root) + "hello",
		"text between":   string(root) + "hello\n" + string(root),
		"cut off":        string(root[:len(root)-30]),
		"cut, then good": string(root[:len(root)-30]) + "\n" + string(root),
		"not base64":     "-----BEGIN CERTIFICATE-----\n****\n-----END CERTIFICATE-----\n",
	} {
		if _, err := ParseCertificates([]byte(data)); err == nil {
			t.Errorf("%s was accepted", name)
		}
	}
	if certs, err := ParseCertificates([]byte("\n" + string(root) + "\n\n" + string(root) + "\n")); err != nil || len(certs) != 2 {
		t.Errorf("two blocks with blank lines: %d, %v", len(certs), err)
	}
}

func TestSEC1KeyIsAccepted(t *testing.T) {
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	der, err := x509.MarshalECPrivateKey(key)
	if err != nil {
		t.Fatal(err)
	}
	got, err := ParsePrivateKey(pem.EncodeToMemory(&pem.Block{Type: "EC PRIVATE KEY", Bytes: der}))
	if err != nil || !key.Equal(got) {
		t.Errorf("%v", err)
	}
}

func FuzzParsePEM(f *testing.F) {
	ca := memoryCA(f, meshTD)
	s := issueSVID(f, ca, cartID, time.Hour)
	key, err := encodeKey(s.PrivateKey)
	if err != nil {
		f.Fatal(err)
	}
	root := EncodeCertificates(ca.cert)
	for _, seed := range [][]byte{nil, root, append(root[:len(root):len(root)], root...), EncodeCertificates(s.Certificates...), key, root[:100], []byte("-----BEGIN CERTIFICATE-----\n-----END CERTIFICATE-----")} {
		f.Add(seed)
	}
	f.Fuzz(func(t *testing.T, data []byte) {
		certs, err := ParseCertificates(data)
		if (err == nil) != (len(certs) > 0) {
			t.Fatalf("%d certificates with error %v", len(certs), err)
		}
		if again, err2 := ParseCertificates(EncodeCertificates(certs...)); err == nil && (err2 != nil || len(again) != len(certs)) {
			t.Fatalf("written and read again: %d of %d, %v", len(again), len(certs), err2)
		}
		if b, err := ParseBundle(meshTD, data); err == nil && (b.Empty() || b.TrustDomain() != meshTD) {
			t.Fatal("a bundle without a root or for another trust domain")
		}
		if k, err := ParsePrivateKey(data); (err == nil) != (k != nil) {
			t.Fatalf("key %v with error %v", k, err)
		}
	})
}

func FuzzParseID(f *testing.F) {
	for _, s := range []string{cartID.String(), "spiffe://cluster.local", "spiffe://a/ns/../sa/b", "spiffe://a/ns/x/sa/y/z", "spiffe://a/ns//sa/", "x"} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, s string) {
		id, err := ParseID(s)
		if err != nil {
			return
		}
		ns, sa, err := Names(id)
		if err != nil {
			t.Fatalf("%q: %v", s, err)
		}
		if back, err := WorkloadID(id.TrustDomain(), ns, sa); err != nil || back != id {
			t.Fatalf("%q came back as %q, %v", id, back, err)
		}
		bundle, cert, key, err := FileSource{Dir: "root"}.paths(id)
		if err != nil {
			t.Fatal(err)
		}
		for _, p := range []string{bundle, cert, key} {
			if rel, err := filepath.Rel("root", p); err != nil || !filepath.IsLocal(rel) {
				t.Fatalf("%q leads out of its directory: %s", s, p)
			}
		}
		if _, err := spiffeid.FromString(id.String()); err != nil {
			t.Fatal(err)
		}
	})
}
