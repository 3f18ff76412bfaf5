package main

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// Files are checked by the programs that read them, with what these say of mistakes.
func TestCheckOfFiles(t *testing.T) {
	dir := t.TempDir()
	t.Setenv("PATH", dir)
	write := func(name, text string) string {
		path := filepath.Join(dir, name)
		if err := os.WriteFile(path, []byte(text), 0o700); err != nil {
			t.Fatal(err)
		}
		return path
	}
	// The programs are not in this test: internal/process tests their --check.
	write("gateway", "#!/bin/sh\n[ \"$1 $3\" = '--config --check-config' ] || exit 9\ncase \"$2\" in *odd*) echo 'gateway: odd.yaml:2: netwrok: no such key: network?' >&2; exit 2;; *warns*) echo careful >&2;; esac\n")
	write("nodeproxy", "#!/bin/sh\necho 'nodeproxy: odd.yaml:2: odd'; exit 2\n")
	t.Chdir(dir)
	if err := os.Mkdir("c", 0o700); err != nil {
		t.Fatal(err)
	}
	well, odd, warns := write("well.yaml", ""), write("odd.yaml", ""), write("warns.yaml", "")
	// helm is not in this test: what it says of values comes through.
	helm := write("helm", "#!/bin/sh\ncase \"$5\" in *bad*) echo 'values don'\"'\"'t meet the specifications of the schema: at /gateway/replicas: minimum: got 0, want 1' >&2; exit 1;; esac\n")
	good, bad := write("good-values.yaml", ""), write("bad-values.yaml", "")
	for line, x := range map[string]struct {
		code int
		says string
	}{
		"--config gateway=" + well:                       {exitOK, "✓ ISTH-001"},
		"--config gateway=" + odd:                        {exitFinding, "netwrok"},
		"--config nodeproxy=" + odd:                      {exitFinding, "nodeproxy --check, on the machine"},
		"--config gateway=" + odd + "-none":              {exitFinding, "→ give the path of a file that can be read: --config gateway=FILE"},
		"--config gateway=" + warns:                      {exitOK, "! ISTH-001"},
		"--strict --config gateway=" + warns:             {exitFinding, "! ISTH-001"},
		"--strict --config gateway=" + well:              {exitOK, "✓ ISTH-001"},
		"--config ztunnel=" + odd:                        {exitUsage, "gateway, nodeproxy, controller"},
		"--config controller=" + odd:                     {exitStart, "PATH"},
		"--helm " + helm + " --chart c --values " + good: {exitOK, "✓ ISTH-002"},
		"--helm " + helm + " --chart c --values " + bad:  {exitFinding, "/gateway/replicas"},
		// Outside the repository the default is nowhere, and so is a file of values that is mistyped.
		"--helm " + helm + " --values " + good:               {exitUsage, "--chart DIRECTORY/helm/isthmus"},
		"--helm " + helm + " --chart c --values none.yaml":   {exitUsage, "none.yaml"},
		"--chart c --helm " + dir + "/none --values " + good: {exitStart, "--helm"},
	} {
		code, out, errs := isthmus(t, append([]string{"check"}, strings.Fields(line)...)...)
		if code != x.code || !strings.Contains(out+errs, x.says) {
			t.Errorf("check %s: exit %d, want %d and %q\n%s%s", line, code, x.code, x.says, out, errs)
		}
	}
}

// With --strict check --wait waits for what is not wrong yet, too.
func TestStrictWaitsForWarnings(t *testing.T) {
	c := &checkup{all: []checked{{Code: "ISTH-001", Level: checkWarning, Where: "gateway x"}, {Code: "ISTH-002", Level: checkWell, Where: "x"}}}
	if !c.well() || c.wrong() != "" {
		t.Errorf("without: well %v, wrong is %q", c.well(), c.wrong())
	}
	c.strict = true
	if want := "ISTH-001 (gateway x)"; c.well() || c.wrong() != want {
		t.Errorf("with: well %v, wrong is %q, want %q", c.well(), c.wrong(), want)
	}
}
