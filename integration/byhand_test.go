package integration

import (
	"context"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"syscall"
	"testing"
	"time"
)

// byHand finds the commands of the README's section.
var byHand = regexp.MustCompile("(?s)\n## By hand\n.*?\n```sh\n(.*?)```")

func TestTheReadmesCommandsCallAcrossTwoNetworks(t *testing.T) {
	readme, err := os.ReadFile(filepath.Join(root, "README.md"))
	if err != nil {
		t.Fatal(err)
	}
	m := byHand.FindSubmatch(readme)
	if m == nil {
		t.Fatal("README.md has no section \"By hand\" with a sh block")
	}
	commands := strings.TrimSpace(string(m[1]))
	if n := len(strings.Split(commands, "\n")); n > 5 {
		t.Errorf("%d commands, want at most five:\n%s", n, commands)
	}
	tree := t.TempDir()
	if err := os.CopyFS(filepath.Join(tree, "examples"), os.DirFS(filepath.Join(root, "examples"))); err != nil {
		t.Fatal(err)
	}
	if err := os.RemoveAll(filepath.Join(tree, "examples", "two-networks", "ca")); err != nil {
		t.Fatal(err)
	}
	if err := os.Symlink(bin, filepath.Join(tree, "bin")); err != nil {
		t.Fatal(err)
	}
	commands = strings.Replace(commands, "make build", "test -x bin/gateway", 1) // TestMain built them

	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	// The answer goes to a file: what runs in the background keeps the pipe.
	answer := filepath.Join(tree, "answer")
	log, err := os.Create(filepath.Join(tree, "log"))
	if err != nil {
		t.Fatal(err)
	}
	defer log.Close()
	script := "set -e\n" + strings.Replace(commands, "curl ", "curl -sS --max-time 10 -o "+answer+" ", 1)
	cmd := exec.CommandContext(ctx, "bash", "-c", script)
	cmd.Dir, cmd.Stdout, cmd.Stderr = tree, log, log
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	defer syscall.Kill(-cmd.Process.Pid, syscall.SIGKILL)
	err = cmd.Wait()
	got, _ := os.ReadFile(answer)
	if err != nil || !strings.Contains(string(got), "hello-1") {
		text, _ := os.ReadFile(log.Name())
		t.Errorf("commands ended with %v and curl got %q; want an answer of hello-1\n%s", err, got, text)
	}
}
