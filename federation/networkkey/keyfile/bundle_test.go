package keyfile

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"math/big"
	"net/url"
	"reflect"
	"strings"
	"testing"
	"time"

	"github.com/spiffe/go-spiffe/v2/spiffeid"
)

// root is a root certificate in PEM, which names a trust domain unless that is empty.
func root(t testing.TB, domain string, ca bool) string {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	c := &x509.Certificate{SerialNumber: big.NewInt(time.Now().UnixNano()), Subject: pkix.Name{CommonName: "root"}, NotAfter: time.Now().Add(time.Hour), IsCA: ca, BasicConstraintsValid: true}
	if domain != "" {
		c.URIs = []*url.URL{{Scheme: "spiffe", Host: domain}}
	}
	der, err := x509.CreateCertificate(rand.Reader, c, c, key.Public(), key)
	if err != nil {
		t.Fatal(err)
	}
	return string(pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der}))
}

func TestTrustBundlesSayWhoseRootsVouchForWhom(t *testing.T) {
	b1, b2, c := root(t, "b.example", true), root(t, "", true), root(t, "c.example", true)
	links := map[string]Link{
		"north": {TrustBundles: []TrustBundle{{"b.example", b1 + b2}, {"c.example", c}}},
		"south": {TrustDomains: []string{"d.example"}, TrustBundles: []TrustBundle{{"b.example", b1}}},
		"west":  {},
	}
	got := Roots(links)
	for domain, want := range map[string]int{"b.example": 2, "c.example": 1, "d.example": 0, "cluster.local": 0} {
		if n := len(got[spiffeid.RequireTrustDomainFromString(domain)]); n != want {
			t.Errorf("%d roots of %s; want %d", n, domain, want)
		}
	}
	for name, want := range map[string][]string{"north": {"b.example", "c.example"}, "south": {"d.example"}, "west": nil} {
		if got := links[name].Domains(); !reflect.DeepEqual(got, want) {
			t.Errorf("who may answer at %s: %v; want %v", name, got, want)
		}
	}
	if n, w := links["north"].GatewayDomain(), links["west"].GatewayDomain(); n != "b.example" || w != "" {
		t.Errorf("gateways are of %q and %q", n, w)
	}

	for field, b := range map[string]TrustBundle{
		"trustDomain":            {"B", b1},
		"is a root of":           {"x.example", b1},
		"is no CA certificate":   {"b.example", root(t, "", false)},
		"roots: is empty":        {"b.example", " \n"},
		"follows 1 certificates": {"b.example", b1 + "x"},
		"follows 0 certificates": {"b.example", "-----BEGIN PRIVATE KEY-----\nAAAA\n-----END PRIVATE KEY-----\n"},
		"want at most":           {"b.example", strings.Repeat(b1, maxRoots+1)},
	} {
		if _, _, err := b.parse(); err == nil || !strings.Contains(err.Error(), field) {
			t.Errorf("%v; want it to say %q", err, field)
		}
	}
}

// Whatever stands in a file: roots that are taken are CA certificates that name no other
// trust domain, and what is written is read as it was.
func FuzzTrustBundle(f *testing.F) {
	for _, s := range []string{root(f, "b.example", true), root(f, "", true), root(f, "c.example", true), root(f, "", false), "", "-----BEGIN CERTIFICATE-----\n-----END CERTIFICATE-----\n"} {
		f.Add("b.example", s)
		f.Add("B", s+s)
	}
	f.Fuzz(func(t *testing.T, domain, text string) {
		td, roots, err := TrustBundle{domain, text}.parse()
		if err != nil {
			return
		}
		if td.Name() != domain || len(roots) == 0 || len(roots) > maxRoots {
			t.Fatalf("%d roots of %q", len(roots), td)
		}
		for _, c := range roots {
			if !c.IsCA {
				t.Fatal("a leaf is a root")
			}
			for _, u := range c.URIs {
				if u.Host != domain {
					t.Fatalf("a root of %s vouches for %s", u, domain)
				}
			}
		}
	})
}
