package main

import (
	"bytes"
	"context"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

func TestDrillSaysWhatIsWrongWithTheScenario(t *testing.T) {
	dir := t.TempDir()
	bad := filepath.Join(dir, "bad.yaml")
	if err := os.WriteFile(bad, []byte("name: x\ndurration: 10s\n"), 0o644); err != nil {
		t.Fatal(err)
	}
	good, err := filepath.Abs("../../examples/drills/pod-kill.yaml")
	if err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct {
		args []string
		code int
		want string
	}{
		{[]string{"drill"}, exitUsage, "name one scenario file"},
		{[]string{"drill", filepath.Join(dir, "none.yaml")}, exitUsage, "no such file"},
		{[]string{"drill", bad}, exitUsage, bad + ":2: unknown key \"durration\": did you mean \"duration\""},
		{[]string{"drill", good, "--seed", "many"}, exitUsage, "many"},
		// The programs are not beside the test binary.
		{[]string{"drill", good, "--out", dir}, exitStart, "make build"},
		{[]string{"app", "--name", "x", "--listen", "nowhere"}, exitUsage, "write address:port"},
		{[]string{"app", "--name", "x", "--listen", "192.0.2.1:80"}, exitStart, "192.0.2.1:80"},
	} {
		var out, errs bytes.Buffer
		if code := run(context.Background(), c.args, &out, &errs); code != c.code || !strings.Contains(errs.String(), c.want) {
			t.Errorf("%q: exit %d, %q; want %d, %q", c.args, code, errs.String(), c.code, c.want)
		}
	}
}
