package kubernetes

import (
	"crypto/x509"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/isthmus-mesh/isthmus/federation/linkcard"
	"github.com/isthmus-mesh/isthmus/identity"
)

// authority is what the controller of a cluster mounts, as a kubelet brings it.
func (c *cluster) authority(t *testing.T) *identity.CA {
	t.Helper()
	s, err := c.CoreV1().Secrets("isthmus-system").Get(t.Context(), "isthmus-ca", metav1.GetOptions{})
	if err != nil {
		t.Fatal(err)
	}
	dir := t.TempDir()
	for name, b := range s.Data {
		mode := os.FileMode(0o644)
		if strings.Contains(name, "key") {
			mode = 0o600
		}
		if err := os.WriteFile(filepath.Join(dir, name), b, mode); err != nil {
			t.Fatal(err)
		}
	}
	ca, err := identity.OpenCA(dir)
	if err != nil {
		t.Fatal(err)
	}
	return ca
}

// bundle is what processes of a cluster believe of their own trust domain.
func (c *cluster) bundle(t *testing.T) []*x509.Certificate {
	t.Helper()
	list, err := linkcard.Certificates(c.configMap(t, "isthmus-root")["bundle.pem"])
	if err != nil {
		t.Fatal(err)
	}
	return list
}

// The root of a cluster is replaced by the commands of the page as they are printed: nothing is
// ever signed by a root that somebody does not believe, or forgotten while it signs.
func TestTheRootOfAClusterIsReplacedAsThePageSays(t *testing.T) {
	b, err := os.ReadFile("../../docs/operations.md")
	if err != nil {
		t.Fatal(err)
	}
	_, section, _ := strings.Cut(string(b), "## The root of a CA")
	page := filepath.Join(t.TempDir(), "page.md")
	if err := os.WriteFile(page, []byte(section), 0o600); err != nil {
		t.Fatal(err)
	}
	lines := commands(t, page, "sh")
	if len(lines) != 8 {
		t.Fatalf("the page has %d commands, want 8: %q", len(lines), lines)
	}
	clusters := map[string]*cluster{"east": startCluster(t), "west": startCluster(t)}
	east, west := clusters["east"], clusters["west"]
	o := newOperator(t, clusters)
	for n := range clusters {
		o.does(t, "isthmus init --network "+n+" --trust-domain "+n+".local --apply --context "+n)
	}
	o.does(t, "isthmus link --contexts east,west --apply")
	first := east.authority(t).Certificate()
	var second *x509.Certificate

	believed := func(by string, list []*x509.Certificate, want ...*x509.Certificate) {
		t.Helper()
		if len(list) != len(want) {
			t.Errorf("%s: %d roots are believed; want %d", by, len(list), len(want))
		}
		for _, c := range want {
			if !slices.ContainsFunc(list, c.Equal) {
				t.Errorf("%s: %s is not believed", by, c.Subject)
			}
		}
	}
	of := func() []*x509.Certificate { // east's trust domain on west
		t.Helper()
		list, err := linkcard.Certificates(west.known(t)[0].TrustBundles[0].Roots)
		if err != nil {
			t.Fatal(err)
		}
		return list
	}
	for i, line := range lines {
		o.does(t, line)
		signs := east.authority(t)
		// Whatever step somebody stops after: what is signed is believed everywhere.
		for by, list := range map[string][]*x509.Certificate{"east": east.bundle(t), "west": of()} {
			if !slices.ContainsFunc(list, signs.Certificate().Equal) {
				t.Errorf("after %q: the root that signs on east is not believed by %s", line, by)
			}
		}
		switch i {
		case 2:
			roots := east.bundle(t)
			if j := slices.IndexFunc(roots, func(c *x509.Certificate) bool { return !c.Equal(first) }); j >= 0 {
				second = roots[j]
			} else {
				t.Fatal("there is no other root")
			}
			if !signs.Certificate().Equal(first) {
				t.Error("the new root signs before it was told to")
			}
			believed("east", roots, first, second)
			believed("west", of(), first, second)
		case 4:
			if !signs.Certificate().Equal(second) {
				t.Error("the new root does not sign")
			}
			believed("east", east.bundle(t), first, second)
			believed("west", of(), first, second)
		case 7:
			if !signs.Certificate().Equal(second) {
				t.Error("the new root does not sign")
			}
			believed("east", east.bundle(t), second)
			believed("west", of(), second)
		}
	}
	if out, _ := o.shell(t, "isthmus check --contexts east,west"); !strings.Contains(out, "✓ ISTH-103") || strings.Contains(out, "✗ ISTH-205") || strings.Contains(out, "✗ ISTH-103") {
		t.Errorf("check says:\n%s", out)
	}
}
