//go:build linux

package capture

import (
	"context"
	"encoding/json"
	"net"
	"net/http"
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
	fenced  = regexp.MustCompile("(?s)\n```(sh)?\n(.*?)```")
	changes = regexp.MustCompile(`(?:version \S+|\b[0-9]+m?s\b|after [0-9]+ ms| )+`) // from one run to the next
)

// The commands of docs/capture.md are run as a reader would, and print what it says; in network,
// mount and process namespaces of their own, so that they meet nobody's names and leave nothing.
func TestThePagesCommandsCallFromOneNamespaceToAnother(t *testing.T) {
	if os.Geteuid() != 0 {
		if os.Getenv("CI") != "" {
			t.Fatal("network namespaces need root")
		}
		t.Skip("network namespaces need root: this test does not run")
	}
	page, err := os.ReadFile(filepath.Join(root, "docs", "capture.md"))
	must(t, err)
	tree := t.TempDir()
	must(t, os.Mkdir(filepath.Join(tree, "examples"), 0o755))
	must(t, os.Symlink(bin, filepath.Join(tree, "bin")))
	example := filepath.Join(tree, "examples", "capture")
	must(t, os.Mkdir(example, 0o755))
	files, err := filepath.Glob(filepath.Join(root, "examples", "capture", "*.yaml"))
	must(t, err)
	for _, f := range files {
		text, err := os.ReadFile(f)
		must(t, err)
		must(t, os.WriteFile(filepath.Join(example, filepath.Base(f)), text, 0o644))
	}

	script := "set -e; mkdir -p /run/netns /etc/netns; mount -t tmpfs none /run/netns; mount -t tmpfs none /etc/netns; ip link set lo up\n"
	var want string
	for _, b := range fenced.FindAllSubmatch(page, -1) {
		if string(b[1]) == "sh" {
			script += string(b[2])
		} else {
			want += string(b[2])
		}
	}
	script = strings.Replace(script, "make build", "test -x bin/gateway", 1) // TestMain built them
	script = strings.Replace(script, "rm -r ", "cp log ../../log; rm -r ", 1)
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	cmd := exec.CommandContext(ctx, "unshare", "--mount", "--net", "--pid", "--fork", "--kill-child", "--mount-proc", "bash", "-c", script)
	cmd.Dir, cmd.WaitDelay = tree, time.Second
	var said strings.Builder
	cmd.Stderr = &said
	printed, err := cmd.Output()
	alike := func(s string) string { return changes.ReplaceAllString(s, " ") }
	if got := string(printed); err != nil || alike(got) != alike(want) || want == "" {
		log, _ := os.ReadFile(filepath.Join(tree, "log"))
		if len(log) == 0 {
			log, _ = os.ReadFile(filepath.Join(example, "log"))
		}
		t.Errorf("commands ended with %v and printed\n%s\nthe page says\n%s\n%s\n%s", err, got, want, &said, log)
	}
	if left, err := os.ReadDir(example); err != nil || len(left) != len(files) {
		t.Errorf("the page leaves %v (%v), want what was there", left, err)
	}
}

// Status names what is wrong with an entry of capture.namespaces, and what to do about it.
func TestWhatNamespacesLackIsAProblem(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	must(t, w.nodes["node-a"].Stop(syscall.SIGKILL, 5*time.Second))
	w.write(t, "node-a.yaml", w.node("a", admin, "shop-1")+
		"    - {workload: shop-9, path: /run/netns/nobody}\n    - {workload: shop-2, path: "+w.Path("shop-2")+", resolvConf: nobody.conf}\n")
	w.start(t, "node-a")
	client := http.Client{Timeout: 5 * time.Second, Transport: &http.Transport{DisableKeepAlives: true, DialContext: func(context.Context, string, string) (net.Conn, error) {
		return w.Dial("node-a", admin)
	}}}
	answer, err := client.Get("http://node-a/status")
	must(t, err)
	defer answer.Body.Close()
	var status struct{ Problems []string }
	must(t, json.NewDecoder(answer.Body).Decode(&status))
	want := []string{
		`capture.namespaces[1].workload: discovery has no workload "shop-9" on node node-a of network net-a: name one by its uid there, or remove the entry`,
		`pod shop-2 is not captured: capture.namespaces[2].resolvConf: open nobody.conf: no such file or directory: name the file by which the pod resolves, or leave it out, and names are not answered in it`,
	}
	if !slices.Equal(status.Problems, want) {
		t.Errorf("problems are %q, want %q", status.Problems, want)
	}
}
