package identity

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/spiffe/go-spiffe/v2/spiffeid"
)

// party is somebody with a CA of a trust domain.
type party struct {
	ca *CA
	m  *Manager
}

func newParty(t *testing.T, td string) party {
	ca := memoryCA(t, spiffeid.RequireTrustDomainFromString(td))
	return party{ca, NewManager(CASource{CA: ca, TTL: time.Hour}, quietLog)}
}

func (p party) id(name string) spiffeid.ID {
	return spiffeid.RequireFromSegments(p.ca.td, "ns", "demo", "sa", name)
}

// believes is what a link says: the roots of others, each for a trust domain.
func (p party) believes(others map[string]party) {
	roots := map[spiffeid.TrustDomain][]*x509.Certificate{}
	for td, o := range others {
		d := spiffeid.RequireTrustDomainFromString(td)
		roots[d] = append(roots[d], o.ca.cert)
	}
	p.m.Believe(roots)
}

// forge makes the CA of p sign for any identity, as a thief of its key would.
func (p party) forge(t *testing.T, id spiffeid.ID) *SVID {
	t.Helper()
	return signed(t, p.ca, p.id("thief"), func(c *x509.Certificate) { c.URIs = nil; c.URIs = append(c.URIs, id.URL()) })
}

// dial shakes hands as client with a server of s, which must be expect.
func dial(t *testing.T, client party, who, expect spiffeid.ID, server *tls.Config) (cerr, serr error) {
	t.Helper()
	cfg, err := client.m.ClientTLS(context.Background(), who, []spiffeid.ID{expect}, "h2")
	if err != nil {
		t.Fatal(err)
	}
	_, cerr, serr = shake(cfg, server)
	return cerr, serr
}

func TestRootsOfALinkVouchForItsTrustDomainAlone(t *testing.T) {
	a, b, c := newParty(t, "a.example"), newParty(t, "b.example"), newParty(t, "c.example")
	shop, pay := a.id("shop"), b.id("pay")
	server := b.m.ServerTLS(pay, nil, "h2")
	if cerr, serr := dial(t, a, shop, pay, server); cerr == nil && serr == nil {
		t.Error("strangers believe each other")
	}
	a.believes(map[string]party{"b.example": b})
	if cerr, serr := dial(t, a, shop, pay, server); cerr != nil && serr == nil {
		t.Errorf("the client alone is linked: it says %v", cerr)
	}
	b.believes(map[string]party{"a.example": a})
	if cerr, serr := dial(t, a, shop, pay, server); cerr != nil || serr != nil {
		t.Errorf("linked both ways: %v, %v", cerr, serr)
	}

	// As a server: what b, or a third party, signs in the name of a's or b's people is refused.
	for name, forged := range map[string]*SVID{
		"b's root for an identity of a":     b.forge(t, a.id("pay")),
		"b's root for an identity of c":     b.forge(t, c.id("pay")),
		"c's root for an identity of b":     c.forge(t, pay),
		"c's root for its own":              c.forge(t, c.id("pay")),
		"a's own root for an identity of b": a.forge(t, pay),
	} {
		cfg, err := a.m.ClientTLS(context.Background(), shop, []spiffeid.ID{forged.ID, pay, a.id("pay"), c.id("pay")}, "h2")
		if err != nil {
			t.Fatal(err)
		}
		if _, cerr, _ := shake(cfg, b.m.serverTLS(forged, nil, []string{"h2"})); cerr == nil {
			t.Errorf("a client of a believes %s", name)
		} else if !Untrusted(cerr) {
			t.Errorf("%s: %v; want it not believed at all", name, cerr)
		}
	}
	// And as a client of b's.
	for name, forged := range map[string]*SVID{
		"a's root for an identity of b":     a.forge(t, b.id("shop")),
		"a's root for an identity of c":     a.forge(t, c.id("shop")),
		"c's root for an identity of a":     c.forge(t, shop),
		"b's own root for an identity of a": b.forge(t, shop),
	} {
		cfg := withCertificate(clientConfigFor(t, a, shop, pay), forged)
		if _, _, serr := shake(cfg, server); serr == nil {
			t.Errorf("a server of b believes %s", name)
		}
	}
	if cerr, serr := dial(t, a, shop, pay, b.m.ServerTLS(b.id("stock"), nil, "h2")); cerr == nil || serr == nil && Untrusted(cerr) {
		t.Errorf("somebody else of a linked trust domain: %v; want another identity than expected", cerr)
	}

	// With more than one link, each root is for its own.
	a.believes(map[string]party{"b.example": b, "c.example": c, "a.example": newParty(t, "a.example")})
	for name, forged := range map[string]*SVID{"c's root for an identity of b": c.forge(t, pay), "b's root for an identity of c": b.forge(t, c.id("pay")), "b's root for an identity of a": b.forge(t, a.id("pay"))} {
		cfg := clientConfigFor(t, a, shop, forged.ID)
		if _, cerr, _ := shake(cfg, b.m.serverTLS(forged, nil, []string{"h2"})); !Untrusted(cerr) { // what the server says of the client is another matter
			t.Errorf("linked with both: a client of a believes %s: %v", name, cerr)
		}
	}

	b.believes(nil)
	if _, serr := dial(t, a, shop, pay, server); serr == nil {
		t.Error("an unlinked trust domain is believed still")
	}
}

func clientConfigFor(t *testing.T, p party, who, expect spiffeid.ID) *tls.Config {
	t.Helper()
	cfg, err := p.m.ClientTLS(context.Background(), who, []spiffeid.ID{expect}, "h2")
	if err != nil {
		t.Fatal(err)
	}
	return cfg
}

// One trust domain with two CAs: each side believes the other's root only once the link
// says so, and then for all identities of that trust domain.
func TestATrustDomainIsSharedOnlyWhereTheLinkSaysSo(t *testing.T) {
	a, b := newParty(t, "cluster.local"), newParty(t, "cluster.local")
	server := b.m.ServerTLS(b.id("pay"), nil, "h2")
	if cerr, serr := dial(t, a, a.id("shop"), b.id("pay"), server); cerr == nil || serr == nil && cerr == nil {
		t.Error("two CAs of one trust domain believe each other without a link")
	}
	a.believes(map[string]party{"cluster.local": b})
	b.believes(map[string]party{"cluster.local": a})
	if cerr, serr := dial(t, a, a.id("shop"), b.id("pay"), server); cerr != nil || serr != nil {
		t.Errorf("shared by links: %v, %v", cerr, serr)
	}
	a.believes(map[string]party{"other.example": b}) // its root, for another trust domain
	if cerr, _ := dial(t, a, a.id("shop"), b.id("pay"), server); cerr == nil {
		t.Error("a root that is linked for another trust domain vouches for the own one")
	}
}

func TestTheBundleFileIsBelievedAndReadAgain(t *testing.T) {
	old, next := memoryCA(t, meshTD), memoryCA(t, meshTD)
	path := filepath.Join(t.TempDir(), "bundle.pem")
	write := func(data []byte) {
		if err := replaceFile(path, data, publicMode); err != nil {
			t.Fatal(err)
		}
	}
	write(EncodeCertificates(old.cert))
	m := NewManager(CASource{CA: old, TTL: time.Hour}, quietLog, withBundleFile(path))
	peer := issueSVID(t, next, stockID, time.Hour)
	try := func() error {
		_, cerr, _ := shake(clientConfig(t, m, stockID), m.serverTLS(peer, nil, []string{"h2"}))
		return cerr
	}
	if try() == nil {
		t.Error("a root that nobody has named is believed")
	}
	write(EncodeCertificates(old.cert, next.cert))
	m.readBundleFile()
	if err := try(); err != nil {
		t.Errorf("the new root is in the file: %v", err)
	}
	for name, data := range map[string][]byte{"empty": {}, "a leaf": EncodeCertificates(peer.Certificates...), "garbage": []byte("x"),
		"another trust domain's": EncodeCertificates(old.cert, memoryCA(t, spiffeid.RequireTrustDomainFromString("other.example")).cert)} {
		write(data)
		m.readBundleFile()
		if err := try(); err != nil {
			t.Errorf("%s: what was read before is not in force any more: %v", name, err)
		}
	}
	os.Remove(path)
	m.readBundleFile()
	if err := try(); err != nil {
		t.Errorf("the file is gone: %v", err)
	}
	write(EncodeCertificates(old.cert))
	m.readBundleFile()
	if try() == nil {
		t.Error("the root is out of the file, and believed still")
	}
}

func TestRotationOfTheRootOneStepAfterTheOther(t *testing.T) {
	dir := t.TempDir()
	if _, err := InitCA(dir, meshTD); err != nil {
		t.Fatal(err)
	}
	if _, err := SwitchRotation(dir); err == nil || !strings.Contains(err.Error(), "no next root") {
		t.Errorf("switched without a next root: %v", err)
	}
	first, err := BeginRotation(dir, time.Hour)
	if err != nil {
		t.Fatal(err)
	}
	again, err := BeginRotation(dir, time.Hour)
	if err != nil || !again.Next.Equal(first.Next) {
		t.Errorf("begun twice: %v", err)
	}
	ca, err := OpenCA(dir)
	if err != nil || len(ca.Roots()) != 2 || !ca.cert.Equal(first.CA.cert) {
		t.Fatalf("begun: %v; want the old root to sign, and both believed", err)
	}
	if _, err := FinishRotation(dir); err == nil {
		t.Error("finished before the next root signs")
	}
	switched, err := SwitchRotation(dir)
	if err != nil || !switched.CA.cert.Equal(first.Next) || len(switched.Old) != 1 || switched.Next != nil {
		t.Fatalf("switched: %+v, %v", switched, err)
	}
	if _, err := BeginRotation(dir, time.Hour); err == nil {
		t.Error("another one is begun before this one is finished")
	}
	finished, err := FinishRotation(dir)
	if err != nil || len(finished.Old) != 0 || len(finished.CA.Roots()) != 1 || !finished.CA.cert.Equal(first.Next) {
		t.Fatalf("finished: %+v, %v", finished, err)
	}
}

// A crash between any two files of a switch leaves what the next step completes.
func TestASwitchThatWasCutOffIsCompleted(t *testing.T) {
	for cut := range 3 {
		dir := t.TempDir()
		if _, err := InitCA(dir, meshTD); err != nil {
			t.Fatal(err)
		}
		r, err := BeginRotation(dir, time.Hour)
		if err != nil {
			t.Fatal(err)
		}
		steps := []func() error{
			func() error { return copyWithin(dir, nextKeyFile, caKeyFile) },
			func() error { return copyWithin(dir, nextCertFile, caCertFile) },
			func() error { return os.Remove(filepath.Join(dir, nextCertFile)) },
		}
		for _, step := range steps[:cut+1] {
			if err := step(); err != nil {
				t.Fatal(err)
			}
		}
		if _, err := FinishRotation(dir); err != nil {
			t.Errorf("cut off after %d files: %v", cut+1, err)
		}
		if ca, err := OpenCA(dir); err != nil || !ca.cert.Equal(r.Next) {
			t.Errorf("cut off after %d files: %v; want the next root to sign", cut+1, err)
		}
	}
}

func copyWithin(dir, from, to string) error {
	b, err := os.ReadFile(filepath.Join(dir, from))
	if err != nil {
		return err
	}
	return os.WriteFile(filepath.Join(dir, to), b, 0o600)
}

// A session's peer is revoked when the root that it proved itself by leaves the links, and as
// long as no other one vouches for it. Rotation of the own roots and expiry revoke nothing.
func TestRevokedByRemovedRoots(t *testing.T) {
	a, b, c := newParty(t, "a.example"), newParty(t, "b.example"), newParty(t, "a.example")
	shop := a.id("shop")
	if _, err := a.m.Get(t.Context(), shop); err != nil {
		t.Fatal(err)
	}
	state := func(p party, name string, age time.Duration) tls.ConnectionState {
		edit := func(x *x509.Certificate) {
			x.NotBefore, x.NotAfter = x.NotBefore.Add(-age), x.NotAfter.Add(-age)
		}
		return tls.ConnectionState{PeerCertificates: signed(t, p.ca, p.id(name), edit).Certificates}
	}
	mine, foreign, second := state(a, "pay", 0), state(b, "pay", 0), state(c, "pay", 0) // c is another CA of a's trust domain
	expired := state(b, "old", time.Hour+time.Second)
	linkB, linkC := map[string]party{"b.example": b}, map[string]party{"a.example": c}
	both := map[string]party{"b.example": b, "a.example": c}
	for i, x := range []struct {
		links           map[string]party
		foreign, second bool
	}{{nil, false, false}, {both, false, false}, {linkC, true, false}, {linkB, false, true}, {nil, true, true}, {both, false, false}} {
		a.believes(x.links)
		for what, c := range map[string]struct {
			of   tls.ConnectionState
			want bool
		}{"of the own root": {mine, false}, "of a linked trust domain": {foreign, x.foreign}, "of one that has expired": {expired, x.foreign}, "of a linked root of the own trust domain": {second, x.second}} {
			if got := a.m.Revoked(shop, c.of); got != c.want {
				t.Errorf("step %d: a peer %s is revoked: %t", i, what, got)
			}
		}
	}
	next := newParty(t, "b.example")
	domain, roots := b.ca.td, func(of ...party) (out []*x509.Certificate) {
		for _, p := range of {
			out = append(out, p.ca.cert)
		}
		return out
	}
	for _, step := range [][]party{{b}, {b, next}, {next}} {
		a.m.Believe(map[spiffeid.TrustDomain][]*x509.Certificate{domain: roots(step...)})
	}
	if !a.m.Revoked(shop, foreign) || a.m.Revoked(shop, expired) || a.m.Revoked(shop, state(next, "pay", 0)) {
		t.Error("b has replaced its root: its certificates of the old one that have not expired are revoked, and no others")
	}
	if a.m.Believe(nil); !a.m.Believe(nil) {
		t.Error("roots were removed just now, and nobody is to look")
	}
}
