//go:build linux

package integration

import (
	"encoding/json"
	"os"
	"os/exec"
	"path/filepath"
	"testing"
)

// TestBenchPathMovesBytesInEveryCell runs make bench-path's program once and
// short, with a load of every kind: what it measures in so little time is
// nothing to go by.
func TestBenchPathMovesBytesInEveryCell(t *testing.T) {
	program, out := filepath.Join(t.TempDir(), "benchpath"), t.TempDir()
	build := exec.Command("go", "build", "-o", program, "./integration/benchpath")
	build.Dir = root
	if text, err := build.CombinedOutput(); err != nil {
		t.Fatalf("build: %v\n%s", err, text)
	}
	cmd := exec.Command(program, "--bin", bin, "--out", out, "--topology", "loopback",
		"--runs", "1", "--seconds", "0.1", "--loads", "up16|down1|conn|cold|echo64|rate|beside|idle", "--idle", "100", "--rest", "100ms")
	if text, err := cmd.CombinedOutput(); err != nil {
		t.Fatalf("%v\n%s", err, text)
	}
	type sample struct {
		Load, Variant string
		Reply         struct{ Bytes, Ops int64 }
		CPU           map[string]int64
		RSS           map[string]int64
	}
	var r struct{ Samples []sample }
	text, err := os.ReadFile(filepath.Join(out, "result.json"))
	if err == nil {
		err = json.Unmarshal(text, &r)
	}
	if err != nil {
		t.Fatal(err)
	}
	const loads, variants = 8, 4
	if want := loads*variants - 1; len(r.Samples) != want { // direct has no memory to measure
		t.Errorf("%d cells, want %d", len(r.Samples), want)
	}
	roles := map[string][]string{"relay": {"relay"}, "single": {"client", "server"}, "double": {"client", "gateway", "server"}}
	for _, s := range r.Samples {
		if s.Reply.Bytes+s.Reply.Ops == 0 {
			t.Errorf("%s on %s moved nothing", s.Load, s.Variant)
		}
		for _, role := range roles[s.Variant] {
			if s.CPU[role] <= 0 && s.RSS[role] <= 0 {
				t.Errorf("%s on %s says nothing of the %s", s.Load, s.Variant, role)
			}
		}
	}
	if page, err := os.Stat(filepath.Join(out, "report.html")); err != nil || page.Size() == 0 {
		t.Errorf("no page: %v", err)
	}
}
