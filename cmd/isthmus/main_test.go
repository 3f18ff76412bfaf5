package main

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"
)

// isthmus runs one command line in this process.
func isthmus(t *testing.T, args ...string) (code int, stdout, stderr string) {
	t.Helper()
	var out, errs bytes.Buffer
	code = run(t.Context(), args, &out, &errs)
	return code, out.String(), errs.String()
}

// succeed is isthmus that must exit with 0 and an empty stderr.
func succeed(t *testing.T, args ...string) string {
	t.Helper()
	code, out, errs := isthmus(t, args...)
	if code != exitOK || errs != "" {
		t.Fatalf("isthmus %s: exit %d, stderr %q", strings.Join(args, " "), code, errs)
	}
	return out
}

func wantIn(t *testing.T, text string, parts ...string) {
	t.Helper()
	for _, p := range parts {
		if !strings.Contains(text, p) {
			t.Errorf("%q is not in:\n%s", p, text)
		}
	}
}

const cart = "spiffe://cluster.local/ns/shop/sa/cart"

// madeCA is a temporary folder with a ca in ca/ and an SVID in svids/.
func madeCA(t *testing.T) (ca, svids string) {
	t.Helper()
	dir := t.TempDir()
	ca, svids = filepath.Join(dir, "ca"), filepath.Join(dir, "svids")
	wantIn(t, succeed(t, "ca", "init", "--dir", ca, "--trust-domain", "cluster.local"), "cluster.local", ca)
	wantIn(t, succeed(t, "ca", "issue", "--dir", ca, "--out", svids, "--id", cart, "--ttl", "1h"), cart, svids)
	return ca, svids
}

func TestUsageErrorsExitTwo(t *testing.T) {
	ca, _ := madeCA(t)
	for _, c := range []struct {
		args string
		want string
	}{
		{"bogus", `unknown command "bogus"`},
		{"ca bogus", `unknown command "bogus"`},
		{"--bogus", "unknown flag"},
		{"version extra", `"extra"`},
		{"version -o yaml", `--output: "yaml"`},
		{"ca show -o yaml", `--output: "yaml"`},
		{"ca issue", `"id", "out"`},
		{"ca issue --dir " + ca + " --out x --id cart", `--id: identity "cart"`},
		{"ca issue --dir " + ca + " --out x --id spiffe://cluster.local/cart", "/ns/<namespace>/sa/<service account>"},
		{"ca issue --dir " + ca + " --out x --ttl 0s --id " + cart, "--ttl 0s"},
		{"ca issue --dir " + ca + " --out x --ttl soon --id " + cart, `"soon"`},
		{"ca init --trust-domain UPPER", `--trust-domain "UPPER"`},
		{"ca init --lifetime 1ms", "--lifetime 1ms"},
		{"ca show --dir x y", "only one of them"},
	} {
		code, out, errs := isthmus(t, strings.Fields(c.args)...)
		if code != exitUsage || out != "" {
			t.Errorf("isthmus %s: exit %d, stdout %q, want %d and none", c.args, code, out, exitUsage)
		}
		wantIn(t, errs, "isthmus: ", c.want)
	}
}

func TestFailuresExitThree(t *testing.T) {
	ca, _ := madeCA(t)
	none := filepath.Join(t.TempDir(), "none")
	for _, c := range []struct {
		args string
		want []string
	}{
		{"ca init --dir " + ca, []string{"ca-key.pem", "already exists", "another directory"}},
		{"ca issue --dir " + none + " --out x --id " + cart, []string{none, "isthmus ca init"}},
		{"ca issue --dir " + ca + " --out x --id spiffe://other.example/ns/a/sa/b", []string{"other.example", "cluster.local"}},
		{"ca show " + none, []string{none}},
		{"ca show --dir " + t.TempDir(), []string{"no .pem file"}},
		{"ca show " + filepath.Join(ca, "ca-key.pem"), []string{"ca-key.pem", "PRIVATE KEY"}},
	} {
		code, out, errs := isthmus(t, strings.Fields(c.args)...)
		if code != exitStart || out != "" {
			t.Errorf("isthmus %s: exit %d, stdout %q, want %d and none", c.args, code, out, exitStart)
		}
		wantIn(t, errs, c.want...)
	}
}

func TestHelpAndCompletionExitZero(t *testing.T) {
	wantIn(t, succeed(t), "Join Kubernetes clusters:\n  check ", "docs/kubernetes.md", "Exit codes")
	wantIn(t, succeed(t, "ca"), "init", "issue", "show")
	wantIn(t, succeed(t, "ca", "issue", "--help"), "--id", "Examples")
	for _, shell := range []string{"bash", "zsh", "fish", "powershell"} {
		wantIn(t, succeed(t, "completion", shell), "isthmus")
	}
}

func TestVersion(t *testing.T) {
	wantIn(t, succeed(t, "version"), "isthmus ", "go1.")
	if a, b := succeed(t, "version"), succeed(t, "--version"); a != b {
		t.Errorf("version says %q, --version %q", a, b)
	}
	var v version
	if err := json.Unmarshal([]byte(succeed(t, "version", "-o", "json")), &v); err != nil || v.Version == "" || v.Go == "" {
		t.Errorf("%+v, %v", v, err)
	}
}

func TestShowAlignsItsColumns(t *testing.T) {
	ca, svids := madeCA(t)
	wantIn(t, succeed(t, "ca", "show", "--dir", ca), "ca.pem", "spiffe://cluster.local", "root", "valid")
	lines := strings.Split(strings.TrimSpace(succeed(t, "ca", "show", "--dir", svids)), "\n")
	if len(lines) != 3 {
		t.Fatalf("%d lines, want a heading, an svid and a root", len(lines))
	}
	column := strings.Index(lines[0], "KIND")
	for _, l := range lines[1:] {
		if kind := l[column:]; l[column-1] != ' ' || !strings.HasPrefix(kind, "svid ") && !strings.HasPrefix(kind, "root ") {
			t.Errorf("not aligned at column %d:\n%s\n%s", column, lines[0], l)
		}
	}
}

// A directory that is mounted or versioned is often reached through a symbolic link.
func TestShowFollowsALinkToADirectory(t *testing.T) {
	ca, _ := madeCA(t)
	link := filepath.Join(t.TempDir(), "link")
	if err := os.Symlink(ca, link); err != nil {
		t.Fatal(err)
	}
	wantIn(t, succeed(t, "ca", "show", "--dir", link), filepath.Join(link, "ca.pem"), "root", "valid")
}

func TestShowJSON(t *testing.T) {
	_, svids := madeCA(t)
	file := filepath.Join(svids, "shop", "cart", "cert.pem")
	var list []shown
	if err := json.Unmarshal([]byte(succeed(t, "ca", "show", file, "-o", "json")), &list); err != nil {
		t.Fatal(err)
	}
	if len(list) != 1 {
		t.Fatalf("%d certificates, want 1", len(list))
	}
	s := list[0]
	if s.File != file || s.ID != cart || s.CA || s.State != "valid" || s.Key != "ECDSA" || len(s.Fingerprint) != 64 {
		t.Errorf("%+v", s)
	}
	if left := time.Until(s.NotAfter); left > time.Hour+time.Second || left <= 0 {
		t.Errorf("valid for %s, want about an hour", left)
	}
}

// An expired certificate is a finding, and the table is printed all the same.
func TestShowFindsWhatIsNotValid(t *testing.T) {
	ca, _ := madeCA(t)
	list, err := showPath(filepath.Join(ca, "ca.pem"), time.Now().AddDate(3, 0, 0))
	if err != nil {
		t.Fatal(err)
	}
	if list[0].State != "expired" {
		t.Errorf("state in three years is %q, want expired", list[0].State)
	}
	wantIn(t, notValid(list).Error(), "ca.pem", "expired", "issue it again")
	if list, err = showPath(ca, time.Now().AddDate(-1, 0, 0)); err != nil || list[0].State != "not yet valid" {
		t.Errorf("state a year ago: %+v, %v", list, err)
	}
}

func TestIssueTakesSeveralIdentities(t *testing.T) {
	ca, svids := madeCA(t)
	succeed(t, "ca", "issue", "--dir", ca, "--out", svids, "--id", cart, "--id", "spiffe://cluster.local/ns/shop/sa/stock")
	for _, sa := range []string{"cart", "stock"} {
		info, err := os.Stat(filepath.Join(svids, "shop", sa, "key.pem"))
		if err != nil || info.Mode().Perm() != 0o600 {
			t.Errorf("%s: %v, %v", sa, info, err)
		}
	}
}

func TestExitErrorCarriesCodeAndCause(t *testing.T) {
	if exit(exitFinding, nil) != nil {
		t.Error("no error became one")
	}
	err := exit(exitFinding, context.Canceled)
	if e := (*exitError)(nil); !errors.As(err, &e) || e.code != exitFinding || !errors.Is(err, context.Canceled) {
		t.Errorf("%v", err)
	}
	if (&exitError{code: exitInconclusive}).Error() == "" {
		t.Error("a silent exit has no text for its caller")
	}
}
