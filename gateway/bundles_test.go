package gateway_test

import (
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"math/big"
	"net"
	"net/netip"
	"net/url"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/rs/zerolog"
	"github.com/spiffe/go-spiffe/v2/bundle/x509bundle"
	"github.com/spiffe/go-spiffe/v2/spiffeid"

	"github.com/isthmus-mesh/isthmus/federation/networkkey/keyfile"
	"github.com/isthmus-mesh/isthmus/gateway"
	"github.com/isthmus-mesh/isthmus/hbone"
	"github.com/isthmus-mesh/isthmus/identity"
	"github.com/isthmus-mesh/isthmus/internal/meshtest"
	"github.com/isthmus-mesh/isthmus/nodeproxy"
)

// anyRoot is a root that names no trust domain, as those of companies are: it can sign
// for anybody.
type anyRoot struct {
	cert *x509.Certificate
	key  *ecdsa.PrivateKey
}

func newAnyRoot(t *testing.T, name string) anyRoot {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	template := &x509.Certificate{SerialNumber: big.NewInt(time.Now().UnixNano()), Subject: pkix.Name{CommonName: name}, NotBefore: time.Now().Add(-time.Hour), NotAfter: time.Now().Add(time.Hour),
		IsCA: true, BasicConstraintsValid: true, KeyUsage: x509.KeyUsageCertSign}
	return anyRoot{signWith(t, template, template, key.Public(), key), key}
}

func signWith(t *testing.T, template, parent *x509.Certificate, pub any, key *ecdsa.PrivateKey) *x509.Certificate {
	t.Helper()
	der, err := x509.CreateCertificate(rand.Reader, template, parent, pub, key)
	if err != nil {
		t.Fatal(err)
	}
	c, err := x509.ParseCertificate(der)
	if err != nil {
		t.Fatal(err)
	}
	return c
}

// svid is what the root signs for id.
type svid struct {
	t    *testing.T
	root anyRoot
}

func (s svid) Fetch(_ context.Context, id spiffeid.ID) (*identity.SVID, error) {
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return nil, err
	}
	leaf := signWith(s.t, &x509.Certificate{SerialNumber: big.NewInt(time.Now().UnixNano()), URIs: []*url.URL{id.URL()}, NotBefore: time.Now().Add(-time.Minute), NotAfter: time.Now().Add(time.Hour),
		KeyUsage: x509.KeyUsageDigitalSignature, ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth, x509.ExtKeyUsageClientAuth}, BasicConstraintsValid: true}, s.root.cert, key.Public(), s.root.key)
	return &identity.SVID{ID: id, Certificates: []*x509.Certificate{leaf}, PrivateKey: key, Bundle: x509bundle.FromX509Authorities(id.TrustDomain(), []*x509.Certificate{s.root.cert})}, nil
}

// linked returns a federation.networks of west, and what links it with east's trust domains
// by bundles.
func (s *site) linked(t *testing.T) (list string, link func(bundles ...keyfile.TrustBundle)) {
	t.Helper()
	list = filepath.Join(t.TempDir(), "networks.yaml")
	link = func(bundles ...keyfile.TrustBundle) {
		b, err := os.ReadFile(s.Keys("west").List)
		if err != nil {
			t.Fatal(err)
		}
		f, err := keyfile.ParseFile(list, b)
		if err != nil {
			t.Fatal(err)
		}
		for i := range f.Networks {
			if f.Networks[i].Name == "east" {
				f.Networks[i].TrustBundles = bundles
			}
		}
		if err := os.WriteFile(list+".new", f.Format(), 0o600); err != nil {
			t.Fatal(err)
		}
		if err := os.Rename(list+".new", list); err != nil {
			t.Fatal(err)
		}
	}
	return list, link
}

// A link to a network of another trust domain lets people of that trust domain in, proven
// by the roots of the link, at the gateway and at pods' node proxies, and nobody whom these
// roots have signed for another trust domain, the own one before all.
func TestForgedIdentitiesOfALinkedTrustDomainAreRefused(t *testing.T) {
	s := newSite(t, 1)
	foreign, stranger := newAnyRoot(t, "b"), newAnyRoot(t, "c")
	s.Write()
	list, link := s.linked(t)
	link(keyfile.TrustBundle{TrustDomain: "b.example", Roots: string(identity.EncodeCertificates(foreign.cert))})
	s.StartGateway("west", "gw-1", func(c *gateway.Config) { c.Federation.Networks = list }).AwaitReady(t)
	s.StartNode("west", "west-1", func(c *nodeproxy.Config) { c.Federation.Networks = list }).AwaitReady(t)

	id := func(domain, account string) spiffeid.ID {
		return spiffeid.RequireFromSegments(spiffeid.RequireTrustDomainFromString(domain), "ns", "isthmus-system", "sa", account)
	}
	places := map[string]struct {
		at   netip.AddrPort
		self spiffeid.ID
	}{
		"gateway":    {s.GatewayAt("west", "gw-1"), s.ID("isthmus-system/gateway-west")},
		"node proxy": {s.pods[0].At(15008), s.pods[0].Identity()},
	}
	// try reports whether who is signed by root as id gets in.
	try := func(root anyRoot, id spiffeid.ID, at netip.AddrPort, self spiffeid.ID) error {
		m := identity.NewManager(svid{t, root}, zerolog.Nop())
		m.Believe(map[spiffeid.TrustDomain][]*x509.Certificate{s.CA.TrustDomain(): {s.CA.Certificate()}})
		cfg, err := m.ClientTLS(t.Context(), id, []spiffeid.ID{self}, "h2")
		if err != nil {
			t.Fatal(err)
		}
		conn, err := tls.Dial("tcp", at.String(), cfg)
		if err != nil {
			t.Fatalf("dial as %s: %v", id, err)
		}
		defer conn.Close()
		conn.SetDeadline(time.Now().Add(10 * time.Second))
		_, err = conn.Read(make([]byte, 1)) // the settings of HTTP/2, or an alert
		return err
	}
	for place, x := range places {
		if err := try(foreign, id("b.example", "shop"), x.at, x.self); err != nil {
			t.Errorf("%s: somebody of the linked trust domain: %v", place, err)
		}
		for name, forged := range map[string]struct {
			root anyRoot
			id   spiffeid.ID
		}{
			"the link's root for the own trust domain":        {foreign, id("cluster.local", "shop")},
			"the link's root for a node proxy of this domain": {foreign, id("cluster.local", "nodeproxy")},
			"the link's root for a third trust domain":        {foreign, id("c.example", "shop")},
			"another root for the linked trust domain":        {stranger, id("b.example", "shop")},
			"another root for its own trust domain":           {stranger, id("c.example", "shop")},
		} {
			if try(forged.root, forged.id, x.at, x.self) == nil {
				t.Errorf("%s: it lets in %s, %s", place, forged.id, name)
			}
		}
	}

	// At a pod's node proxy others than those of the own trust domain ask for exported ports
	// alone, wherever they come from.
	pod := places["node proxy"]
	m := identity.NewManager(svid{t, foreign}, zerolog.Nop())
	m.Believe(map[spiffeid.TrustDomain][]*x509.Certificate{s.CA.TrustDomain(): {s.CA.Certificate()}})
	for name, x := range map[string]struct {
		m      *identity.Manager
		id     spiffeid.ID
		denied bool
	}{
		"the linked trust domain": {m, id("b.example", "shop"), true},
		"the own one":             {s.Manager(), s.shop.Identity(), false},
	} {
		cfg, err := x.m.ClientTLS(t.Context(), x.id, []spiffeid.ID{pod.self}, "h2")
		if err != nil {
			t.Fatal(err)
		}
		conn, err := net.Dial("tcp4", pod.at.String())
		if err != nil {
			t.Fatal(err)
		}
		transport, err := hbone.ClientTLS(t.Context(), conn, cfg)
		if err != nil {
			t.Fatal(err)
		}
		session, err := hbone.NewClient(t.Context(), transport, hbone.DefaultConfig())
		if err != nil {
			t.Fatal(err)
		}
		_, _, refused := connect(t, session, s.pods[0].At(9999).String(), nil)
		session.Close(nil)
		if refused == nil || (refused.Reason() == "not_exported") != x.denied {
			t.Errorf("somebody of %s asks for a port that is not exported: %v", name, refused)
		}
	}

	// Whatever changes in the file is in force within 10 s; a bundle that is none leaves what was.
	link(keyfile.TrustBundle{TrustDomain: "c.example", Roots: string(identity.EncodeCertificates(stranger.cert))})
	for place, x := range places {
		meshtest.Eventually(t, place+" believes the other trust domain in place of the first", func() bool {
			return try(stranger, id("c.example", "shop"), x.at, x.self) == nil && try(foreign, id("b.example", "shop"), x.at, x.self) != nil
		})
	}
}

// The file of known networks refuses roots that cannot vouch for the trust domain that
// they are under, by field.
func TestTrustBundlesThatCannotBeAreRefusedByField(t *testing.T) {
	s := newSite(t, 1)
	foreign := newAnyRoot(t, "b")
	root := string(identity.EncodeCertificates(foreign.cert))
	for want, b := range map[string]keyfile.TrustBundle{
		"trustBundles: [0].trustDomain":       {TrustDomain: "B!", Roots: root},
		"trustBundles: [0].roots":             {TrustDomain: "b.example", Roots: "x"},
		"is a root of spiffe://cluster.local": {TrustDomain: "b.example", Roots: string(identity.EncodeCertificates(s.CA.Certificate()))},
	} {
		l, err := os.ReadFile(s.Keys("west").List)
		if err != nil {
			t.Fatal(err)
		}
		f, err := keyfile.ParseFile("list", l)
		if err != nil {
			t.Fatal(err)
		}
		f.Networks[0].TrustBundles = []keyfile.TrustBundle{b}
		if _, err := keyfile.ParseFile("list", f.Format()); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%v; want %q", err, want)
		}
	}
}
