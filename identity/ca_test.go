package identity

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/x509"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/spiffe/go-spiffe/v2/spiffeid"
)

// wantError fails unless err holds every part.
func wantError(t *testing.T, err error, parts ...string) {
	t.Helper()
	if err == nil {
		t.Fatalf("no error, want one with %q", parts)
	}
	for _, p := range parts {
		if !strings.Contains(err.Error(), p) {
			t.Errorf("error %q does not say %q", err, p)
		}
	}
}

func wantMode(t *testing.T, path string, want fs.FileMode) {
	t.Helper()
	info, err := os.Stat(path)
	if err != nil {
		t.Fatal(err)
	}
	if got := info.Mode().Perm(); got != want {
		t.Errorf("%s has mode %04o, want %04o", path, got, want)
	}
}

func initCA(t testing.TB, td spiffeid.TrustDomain, opts ...CAOption) (*CA, string) {
	t.Helper()
	dir := filepath.Join(t.TempDir(), "ca")
	ca, err := InitCA(dir, td, opts...)
	if err != nil {
		t.Fatal(err)
	}
	return ca, dir
}

func TestCAFilesAreSecret(t *testing.T) {
	_, dir := initCA(t, meshTD)
	wantMode(t, dir, 0o700)
	wantMode(t, filepath.Join(dir, "ca-key.pem"), 0o600)
	left, err := os.ReadDir(dir)
	if err != nil || len(left) != 2 {
		t.Errorf("%d files (%v), want two: no temporary file may stay", len(left), err)
	}
}

func TestCARestartKeepsItsKey(t *testing.T) {
	first, dir := initCA(t, meshTD)
	before := issueSVID(t, first, cartID, time.Hour)
	second, err := OpenCA(dir)
	if err != nil {
		t.Fatal(err)
	}
	if !first.cert.Equal(second.cert) || second.TrustDomain() != meshTD {
		t.Fatalf("another root after the restart, for %q", second.TrustDomain())
	}
	after := issueSVID(t, second, cartID, time.Hour)
	before.Bundle = after.Bundle
	for name, s := range map[string]*SVID{"issued before": before, "issued after": after} {
		if err := s.Check(cartID, time.Now()); err != nil {
			t.Errorf("%s: %v", name, err)
		}
	}
}

func TestInitRefusesToOverwrite(t *testing.T) {
	for _, name := range []string{"ca.pem", "ca-key.pem"} {
		dir := t.TempDir()
		path := filepath.Join(dir, name)
		if err := os.WriteFile(path, []byte("precious"), 0o600); err != nil {
			t.Fatal(err)
		}
		_, err := InitCA(dir, meshTD)
		wantError(t, err, path, "another directory")
		if !errors.Is(err, fs.ErrExist) {
			t.Errorf("%v is not fs.ErrExist", err)
		}
		if got, _ := os.ReadFile(path); string(got) != "precious" {
			t.Errorf("%s was overwritten", path)
		}
	}
}

func TestOnlyOneOfManyInitsWins(t *testing.T) {
	dir := t.TempDir()
	cas := make([]*CA, 8)
	var wg sync.WaitGroup
	for i := range cas {
		wg.Go(func() { cas[i], _ = InitCA(dir, meshTD) })
	}
	wg.Wait()
	cas = slices.DeleteFunc(cas, func(c *CA) bool { return c == nil })
	if len(cas) != 1 {
		t.Fatalf("%d inits succeeded, want 1", len(cas))
	}
	ca, err := OpenCA(dir)
	if err != nil || !ca.cert.Equal(cas[0].cert) {
		t.Errorf("the directory does not hold the winner's root: %v", err)
	}
}

func TestInitRejectsNonsense(t *testing.T) {
	_, err := InitCA(t.TempDir(), spiffeid.TrustDomain{})
	wantError(t, err, "trust domain")
	_, err = InitCA(t.TempDir(), meshTD, WithCALifetime(-time.Hour))
	wantError(t, err, "lifetime", "-1h")
	file := filepath.Join(t.TempDir(), "file")
	if err := os.WriteFile(file, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	_, err = InitCA(filepath.Join(file, "ca"), meshTD)
	wantError(t, err, file)
}

func TestOpenCARejectsBadFiles(t *testing.T) {
	_, otherDir := initCA(t, meshTD)
	otherKey, err := os.ReadFile(filepath.Join(otherDir, "ca-key.pem"))
	if err != nil {
		t.Fatal(err)
	}
	leaf := issueSVID(t, memoryCA(t, meshTD), cartID, time.Hour)
	for name, c := range map[string]struct {
		break_ func(cert, key string) error
		want   []string
	}{
		"no key":          {func(_, key string) error { return os.Remove(key) }, []string{"ca-key.pem", "ca.pem is there", "put the missing file back"}},
		"no certificate":  {func(cert, _ string) error { return os.Remove(cert) }, []string{"ca.pem", "ca-key.pem is there", "put the missing file back"}},
		"nothing":         {func(cert, key string) error { return errors.Join(os.Remove(cert), os.Remove(key)) }, []string{"ca-key.pem", "isthmus ca init --dir "}},
		"readable key":    {func(_, key string) error { return os.Chmod(key, 0o644) }, []string{"ca-key.pem", "0644", "chmod 600"}},
		"empty key":       {func(_, key string) error { return os.WriteFile(key, nil, 0o600) }, []string{"ca-key.pem", "empty"}},
		"another's key":   {func(_, key string) error { return os.WriteFile(key, otherKey, 0o600) }, []string{"ca.pem", "does not belong"}},
		"broken cert":     {func(cert, _ string) error { return os.WriteFile(cert, []byte("-----BEGIN CERT"), 0o600) }, []string{"ca.pem", "broken"}},
		"leaf as ca":      {func(cert, _ string) error { return os.WriteFile(cert, EncodeCertificates(leaf.Certificates...), 0o600) }, []string{"ca.pem", "ca=false"}},
		"directory as ca": {func(cert, _ string) error { return errors.Join(os.Remove(cert), os.Mkdir(cert, 0o700)) }, []string{"ca.pem"}},
	} {
		t.Run(name, func(t *testing.T) {
			_, dir := initCA(t, meshTD)
			if err := c.break_(filepath.Join(dir, "ca.pem"), filepath.Join(dir, "ca-key.pem")); err != nil {
				t.Fatal(err)
			}
			_, err := OpenCA(dir)
			wantError(t, err, c.want...)
		})
	}
}

// A CA that cannot be read exists: whoever replaced it would split the mesh.
func TestUnreadableCAIsNotReplaced(t *testing.T) {
	err := caRemedy("ca", &fs.PathError{Op: "stat", Path: "ca/ca-key.pem", Err: fs.ErrPermission})
	wantError(t, err, "ca/ca-key.pem", fmt.Sprintf("uid %d", os.Geteuid()))
	if strings.Contains(err.Error(), "ca init") {
		t.Errorf("%q advises a new root", err)
	}
	_, dir := initCA(t, meshTD)
	if err := os.Remove(filepath.Join(dir, caKeyFile)); err != nil {
		t.Fatal(err)
	}
	if _, err := OpenCA(dir); err == nil || strings.Contains(err.Error(), "ca init") {
		t.Errorf("%v: advises a new root beside the certificate of the old one", err)
	}
}

func TestIssuedCertificateIsAnSVID(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		time.Sleep(400 * time.Millisecond) // not on a full second, which X.509 would cut to
		s := issueSVID(t, memoryCA(t, meshTD), cartID, time.Hour)
		c, now := s.Certificates[0], time.Now()
		if len(c.URIs) != 1 || c.URIs[0].String() != cartID.String() {
			t.Errorf("URI SAN %s, want only %q", sans(c), cartID)
		}
		if got := c.Subject.String(); got != "" {
			t.Errorf("subject is %q, want none", got)
		}
		if k, ok := c.PublicKey.(*ecdsa.PublicKey); !ok || k.Curve != elliptic.P256() {
			t.Errorf("key is %T, want ECDSA P-256", c.PublicKey)
		}
		if c.IsCA || c.KeyUsage != x509.KeyUsageDigitalSignature {
			t.Errorf("ca=%t key usage %b: want a leaf that signs only handshakes", c.IsCA, c.KeyUsage)
		}
		if ahead := now.Sub(c.NotBefore); ahead < time.Minute || ahead > time.Minute+time.Second {
			t.Errorf("valid since %s ago, want one minute for a peer whose clock is behind", ahead)
		}
		if left := s.NotAfter().Sub(now); left < time.Hour || left >= time.Hour+time.Second {
			t.Errorf("valid for %s, want 1h and under a second more", left)
		}
		if err := s.Check(cartID, now.Add(-55*time.Second)); err != nil {
			t.Errorf("a peer 55 s behind refuses it: %v", err)
		}
		wantError(t, s.Check(cartID, now.Add(2*time.Hour)), "expired", "renew")
		wantError(t, s.Check(cartID, now.Add(-2*time.Minute)), "not valid before", "clocks")
	})
}

func TestIssueRejectsNonsense(t *testing.T) {
	ca := memoryCA(t, meshTD)
	_, err := ca.Issue(otherID, time.Hour)
	wantError(t, err, otherID.String(), `"cluster.local"`)
	_, err = ca.Issue(cartID, 0)
	wantError(t, err, "ttl 0s", "1s")
	_, err = ca.Issue(meshTD.ID(), time.Hour)
	wantError(t, err, "/ns/<namespace>/sa/<service account>")
	_, err = ca.Issue(spiffeid.RequireFromString("spiffe://cluster.local/ns/a/sa/b/c"), time.Hour)
	wantError(t, err, `path is "/ns/a/sa/b/c"`)
}

func TestSVIDNeverOutlivesTheRoot(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ca, err := newCA(meshTD, time.Hour)
		if err != nil {
			t.Fatal(err)
		}
		if s := issueSVID(t, ca, cartID, 24*time.Hour); s.NotAfter().After(ca.cert.NotAfter) {
			t.Errorf("valid until %s, the root until %s", s.NotAfter(), ca.cert.NotAfter)
		}
		time.Sleep(2 * time.Hour)
		_, err = ca.Issue(cartID, time.Hour)
		wantError(t, err, "expired", "new ca")
	})
}

func BenchmarkIssue(b *testing.B) {
	ca := memoryCA(b, meshTD)
	for b.Loop() {
		issueSVID(b, ca, cartID, time.Hour)
	}
}
