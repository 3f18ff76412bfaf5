package integration

import (
	"context"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"
)

var (
	// byHand finds the README's section, fenced its blocks: commands are marked sh,
	// what they print is not.
	byHand = regexp.MustCompile("(?s)\n## By hand\n(.*?)\n## ")
	// An age is never the same, nor is the width of the table's column that has it.
	ages    = regexp.MustCompile(`\b(?:[0-9]+(?:h|m|s| s| min))+\b`)
	columns = regexp.MustCompile(`(\S) {2,}`)
	trailed = regexp.MustCompile(`(?m) +$`)

	versions = regexp.MustCompile(`version \S+`)
	measured = regexp.MustCompile(`[0-9]+ connections? \([^)]*\), round trip \S+, \S+ % lost, up to \S+ Mbit/s`)
	// Keys and instances are drawn anew each time, and either pod may answer.
	drawn    = regexp.MustCompile(`ed25519:\S+|fingerprint [0-9a-f]{16}|instance [0-9a-f]{32}`)
	answered = regexp.MustCompile(`(?m)^hello-[12] 8080$`)
	fenced   = regexp.MustCompile("(?s)\n```(sh)?\n(.*?)```")
)

// TestTheReadmesCommandsCallAcrossTwoNetworks runs the section's commands as a
// reader would and compares what they print with what it says.
func TestTheReadmesCommandsCallAcrossTwoNetworks(t *testing.T) {
	commands, printed := section(t)
	if n := strings.Count(commands[0], "\n"); n > 6 {
		t.Errorf("%d commands before the first answer, want at most six:\n%s", n, commands[0])
	}
	tree := copyOfExamples(t)
	script := "set -e\n" + strings.Replace(strings.Join(commands, "\necho --\n"), "make build", "test -x bin/gateway", 1) // TestMain built them
	script = strings.ReplaceAll(script, "curl ", "curl --max-time 10 ")

	ctx, cancel := context.WithTimeout(t.Context(), 2*time.Minute)
	defer cancel()
	// What they print goes to a file: what runs in the background keeps a pipe.
	out, err := os.Create(filepath.Join(tree, "printed"))
	if err != nil {
		t.Fatal(err)
	}
	defer out.Close()
	said, err := os.Create(filepath.Join(tree, "said")) // by the shell and by curl about failures
	if err != nil {
		t.Fatal(err)
	}
	defer said.Close()
	cmd := exec.CommandContext(ctx, "bash", "-c", script)
	cmd.Dir, cmd.Stdout, cmd.Stderr = tree, out, said
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	defer syscall.Kill(-cmd.Process.Pid, syscall.SIGKILL)
	err = cmd.Wait()
	text, _ := os.ReadFile(out.Name())
	got := strings.Split(string(text), "--\n")
	if err != nil || len(got) != len(printed) {
		log, _ := os.ReadFile(filepath.Join(tree, "examples", "two-networks", "log"))
		errs, _ := os.ReadFile(said.Name())
		t.Fatalf("commands ended with %v and printed %q\n%s\n%s", err, text, errs, log)
	}
	lines := strings.SplitAfter(strings.TrimSpace(got[0]), "\n") // first what isthmus ca says
	first := lines[len(lines)-1] + "\n"
	if pods := []string{"hello-1 8080\n", "hello-2 8080\n"}; !slices.Contains(pods, first) || !slices.Contains(pods, printed[0]) {
		t.Errorf("the first call printed %q, the README says %q; want either pod", first, printed[0])
	}
	if want := strings.Repeat("hello-2 8080\n", 10); got[1] != want || printed[1] != want {
		t.Errorf("with one pod killed ten calls printed\n%s\nthe README says\n%s\nwant ten answers of the other pod", got[1], printed[1])
	}
	for i := 2; i < len(printed); i++ { // status, explain and what comes of other files
		if a, b := ageless(got[i]), ageless(printed[i]); a != b {
			t.Errorf("%sprinted\n%s\nthe README says\n%s", commands[i], got[i], printed[i])
		}
	}
}

// ageless returns text with every age and version alike, and all else that differs from
// one run to the next.
func ageless(text string) string {
	text = answered.ReplaceAllString(drawn.ReplaceAllString(text, "DRAWN"), "hello-1 8080")
	text = measured.ReplaceAllString(trailed.ReplaceAllString(text, ""), "MEASURED")
	return versions.ReplaceAllString(columns.ReplaceAllString(ages.ReplaceAllString(text, "0s"), "$1  "), "version 0")
}

func TestAgelessFindsAgesOfEveryLength(t *testing.T) {
	if a, b := ageless("gw-1, version (devel)\n"), ageless("gw-1, version 2db229e\n"); a != b {
		t.Errorf("%q is not %q", a, b)
	}
	if a, b := ageless("line to west: 1 connection (bbr), round trip 600µs, 0 % lost, up to 58000 Mbit/s\n"), ageless("line to west: 2 connections (cubic), round trip 1.2ms, 0.1 % lost, up to 0.5 Mbit/s\n"); a != b {
		t.Errorf("%q is not %q", a, b)
	}
	const want = "80  2  0s  pod (refused, 0s)"
	for _, text := range []string{"80  2  1s  pod (refused, 2s)", "80  2     1m1s  pod (refused, 1h2m3s)", "80  2  0 s  pod (refused, 1 min)"} {
		if got := ageless(text); got != want {
			t.Errorf("ageless(%q) = %q, want %q", text, got, want)
		}
	}
}

// section returns the README's commands and what they print.
func section(t *testing.T) (commands, printed []string) {
	t.Helper()
	readme, err := os.ReadFile(filepath.Join(root, "README.md"))
	if err != nil {
		t.Fatal(err)
	}
	m := byHand.FindSubmatch(readme)
	if m == nil {
		t.Fatal("README.md has no section \"By hand\"")
	}
	for _, b := range fenced.FindAllSubmatch(m[1], -1) {
		if string(b[1]) == "sh" {
			commands = append(commands, string(b[2]))
		} else {
			printed = append(printed, string(b[2]))
		}
	}
	if len(commands) != 7 || len(printed) != 7 {
		t.Fatalf("found %d blocks of commands and %d of output, want seven of each", len(commands), len(printed))
	}
	return commands, printed
}

// copyOfExamples returns a folder with the examples, without a CA, and the
// programs.
func copyOfExamples(t *testing.T) string {
	t.Helper()
	tree := t.TempDir()
	if err := os.CopyFS(filepath.Join(tree, "examples"), os.DirFS(filepath.Join(root, "examples"))); err != nil {
		t.Fatal(err)
	}
	for _, left := range []string{"ca", "log", "networks", "my-east.yaml", "my-gateway-east.yaml", "my-links.yaml"} {
		if err := os.RemoveAll(filepath.Join(tree, "examples", "two-networks", left)); err != nil {
			t.Fatal(err)
		}
	}
	if err := os.Symlink(bin, filepath.Join(tree, "bin")); err != nil {
		t.Fatal(err)
	}
	return tree
}
