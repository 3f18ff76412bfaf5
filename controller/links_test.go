package controller

import (
	"crypto/rand"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/rs/zerolog"
	"github.com/spiffe/go-spiffe/v2/spiffeid"

	"github.com/isthmus-mesh/isthmus/controller/imports"
	"github.com/isthmus-mesh/isthmus/controller/vip"
	"github.com/isthmus-mesh/isthmus/federation/links"
	"github.com/isthmus-mesh/isthmus/federation/networkkey"
	"github.com/isthmus-mesh/isthmus/identity"
)

// linkTo returns the text of a file of links that lists network.
func linkTo(t *testing.T, network string) string {
	t.Helper()
	key, err := networkkey.Generate(rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	return "networks:\n- name: " + network + "\n  keys: [" + key.Public().String() + "]\n"
}

// A controller starts while the file of links is missing. Imports stay until the file is
// read; then those of networks that it does not list are deleted.
func TestMissingFileOfLinksKeepsImports(t *testing.T) {
	path := filepath.Join(t.TempDir(), "networks.yaml")
	l, err := links.OpenOrWait(path, "east")
	if err != nil {
		t.Fatal(err)
	}
	e := newExports(l, "cluster.local", said{})
	now := time.Now()
	ledger := vip.New(vip.DefaultRanges())
	have := map[vip.Name]imports.Import{}
	for name, clusters := range map[string][]string{"web": {"west"}, "shop": {"north"}, "old": nil} { // old: of a version that recorded no cluster
		n := vip.Name{Namespace: "demo", Name: name}
		ledger.Assign(n, []string{"west"}, now)
		have[n] = imports.Import{Name: n, Ours: true, Ready: true, Clusters: clusters, IPs: ledger.Addresses(n), Ports: []imports.Port{{Name: "http", Protocol: "TCP", Port: 80}}}
	}
	for _, step := range []struct {
		what    string
		file    string // written before
		later   time.Duration
		deleted string
	}{
		{"no file", "", 0, ""},
		{"no file for an hour", "", time.Hour, ""},
		{"a file that lists west", linkTo(t, "west"), 0, "shop"},
		{"west has exported all that it exports", "", freshFor, "old shop web"},
	} {
		if step.file != "" {
			if err := os.WriteFile(path, []byte(step.file), 0o600); err != nil {
				t.Fatal(err)
			}
		}
		now = now.Add(step.later)
		if changed, _ := l.Reread(); changed != (step.file != "") {
			t.Errorf("%s: changed %t", step.what, changed)
		} else if changed {
			e.relinked(now)
		}
		e.settle(now)
		r := imports.Plan(imports.View{Exports: e.all(), Vague: e.vague, Unheard: e.incomplete(), Lacks: func(string) bool { return false }}, have, ledger, now)
		var deleted []string
		for _, w := range r.Writes {
			if w.Do == imports.Delete {
				deleted = append(deleted, w.Import.Name.Name)
			}
		}
		if got := strings.Join(deleted, " "); got != step.deleted {
			t.Errorf("%s: deleted %q, want %q", step.what, got, step.deleted)
		}
	}
}

// A file without networks is read as well: none is linked.
func TestEmptyFileOfLinksLinksNone(t *testing.T) {
	path := filepath.Join(t.TempDir(), "networks.yaml")
	l, err := links.OpenOrWait(path, "east")
	if err != nil || !l.Unread() {
		t.Fatalf("unread %t, error %v", l.Unread(), err)
	}
	if err := os.WriteFile(path, []byte("networks: []\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	if changed, err := l.Reread(); !changed || err != nil || l.Unread() {
		t.Errorf("changed %t, error %v, unread %t; want the first reading to be a change", changed, err, l.Unread())
	}
}

// --check fails for certificates from files that a running controller would wait for.
func TestCheckReadsIdentityFiles(t *testing.T) {
	files := t.TempDir()
	c := &Controller{cfg: DefaultConfig()}
	var err error
	if c.ids, err = (identity.Config{Source: "files", Dir: files}).Open(zerolog.Nop()); err != nil {
		t.Fatal(err)
	}
	if err := c.Check(); err == nil || !strings.Contains(err.Error(), files) {
		t.Errorf("without files: %v; want an error that names %s", err, files)
	}
	ca, err := identity.InitCA(t.TempDir(), spiffeid.RequireTrustDomainFromString("cluster.local"))
	if err != nil {
		t.Fatal(err)
	}
	svid, err := ca.Issue(spiffeid.RequireFromString("spiffe://cluster.local/ns/isthmus-system/sa/controller"), time.Hour)
	if err != nil {
		t.Fatal(err)
	}
	if err := identity.WriteSVID(files, svid); err != nil {
		t.Fatal(err)
	}
	if err := c.Check(); err != nil {
		t.Errorf("with files: %v", err)
	}
}

// A missing file of links is a warning of --check and a problem of the status. Both name what
// holds meanwhile.
func TestMissingFileOfLinksIsReported(t *testing.T) {
	dir := t.TempDir()
	if _, err := identity.InitCA(filepath.Join(dir, "ca"), spiffeid.RequireTrustDomainFromString("cluster.local")); err != nil {
		t.Fatal(err)
	}
	kubeconfig := filepath.Join(dir, "kubeconfig")
	if err := os.WriteFile(kubeconfig, []byte("{apiVersion: v1, kind: Config, current-context: x, clusters: [{name: x, cluster: {server: 'http://127.0.0.1:1'}}], contexts: [{name: x, context: {cluster: x, user: x}}], users: [{name: x, user: {}}]}"), 0o600); err != nil {
		t.Fatal(err)
	}
	cfg := DefaultConfig()
	cfg.Network, cfg.Name = "east", "controller-1"
	cfg.Identity.Source, cfg.Identity.Dir = "ca", filepath.Join(dir, "ca")
	cfg.Discovery.Kube.Kubeconfig = kubeconfig
	cfg.Federation.Networks = filepath.Join(dir, "networks.yaml")
	c, err := Open(cfg, zerolog.Nop())
	if err != nil {
		t.Fatal(err)
	}
	const stays = "what is imported stays as it is until the file is read"
	if w := strings.Join(c.CheckWarnings(), "\n"); !strings.Contains(w, stays) || !strings.Contains(w, cfg.Federation.Networks) {
		t.Errorf("warnings of --check: %q; want the file and %q", w, stays)
	}
	if got := strings.Join(c.findings(), "\n"); !strings.Contains(got, "federation.networks not read, which networks are linked is not known, and "+stays) {
		t.Errorf("status: %q; want %q", got, stays)
	}
	if err := os.WriteFile(cfg.Federation.Networks, []byte(linkTo(t, "west")), 0o600); err != nil {
		t.Fatal(err)
	}
	if c, err = Open(cfg, zerolog.Nop()); err != nil || len(c.CheckWarnings()) > 0 {
		t.Errorf("with the file: %v", err)
	}
	if err := os.Remove(cfg.Federation.Networks); err != nil {
		t.Fatal(err)
	}
	c.links.Reread()
	if got := strings.Join(c.findings(), "\n"); !strings.Contains(got, "federation.networks not read, what was read before is used") {
		t.Errorf("status after the file was deleted: %q", got)
	}
	cfg.Federation.Networks = ""
	if c, err = Open(cfg, zerolog.Nop()); err != nil || len(c.CheckWarnings()) > 0 {
		t.Errorf("without federation.networks: %v", err)
	}
}
