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

	"github.com/isthmus-mesh/isthmus/internal/answer"
	"github.com/isthmus-mesh/isthmus/internal/netspace"
)

var (
	fenced  = regexp.MustCompile("(?s)\n```(sh)?\n(.*?)```")
	changes = regexp.MustCompile(`(?:version \S+|[0-9]+ connections? \([^)]*\), round trip \S+, \S+ % lost, up to \S+ Mbit/s|\b[0-9]+m?s\b|after [0-9]+ ms| )+`) // from one run to the next
)

// The commands of docs/capture.md are run as a reader would, and print what it says; in network,
// mount and process namespaces of their own, so that they meet nobody's names and leave nothing.
func TestThePagesCommandsCallFromOneNamespaceToAnother(t *testing.T) {
	netspace.NeedRoot(t)
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
	w.write(t, "none.conf", "search demo.svc.cluster.local\nnameserver 127.0.0.53\n")
	if got, want := w.problems(t, "    - {workload: shop-9, path: /run/netns/nobody}\n    - {workload: shop-2, path: "+w.Path("shop-2")+", resolvConf: nobody.conf}\n"), []string{
		`capture.namespaces[1].workload: discovery has no workload "shop-9" on node node-a of network net-a: name one by its uid there, or remove the entry`,
		`pod shop-2 is not captured: capture.namespaces[2].resolvConf: open nobody.conf: no such file or directory: name the file by which the pod resolves, or leave it out, and names are not answered in it`,
	}; !slices.Equal(got, want) {
		t.Errorf("problems are %q, want %q", got, want)
	}
	if got, want := w.problems(t, "    - {workload: shop-2, path: "+w.Path("shop-2")+", resolvConf: none.conf}\n"), []string{
		`capture.namespaces[1].resolvConf: none.conf has no nameserver that is an address outside of the pod, so that names are not answered in pod shop-2: list one there, and restart this process`,
	}; !slices.Equal(got, want) {
		t.Errorf("problems are %q, want %q", got, want)
	}
	if got, want := w.problems(t, "    - {workload: shop-2, path: /run/netns/nobody}\n"), []string{
		`pod shop-2 is not captured: capture.namespaces[1].path: open network namespace: open /run/netns/nobody: no such file or directory: name the file of its network namespace, such as /run/netns/shop`,
	}; !slices.Equal(got, want) {
		t.Errorf("problems are %q, want %q", got, want)
	}
	if n := w.timesSaid(t, `"workload":"shop-2","error":"capture.namespaces[1].path: open network namespace: open /run/netns/nobody: no such file or directory: name `); n != 1 {
		t.Errorf("the log says it %d times, want once", n)
	}
	if got, want := w.problems(t, "    - {workload: shop-2, path: /proc/self/ns/net}\n"), []string{
		`pod shop-2 is not captured: capture.namespaces[1].path: /proc/self/ns/net is the network namespace of this node proxy itself: name that of the pod, such as /run/netns/shop`,
	}; !slices.Equal(got, want) {
		t.Errorf("problems are %q, want %q", got, want)
	}
	must(t, os.Symlink(w.Path("shop-1"), w.file("alias")))
	if got, want := w.problems(t, "    - {workload: shop-2, path: "+w.file("alias")+"}\n"), []string{
		`pod shop-2 is not captured: capture.namespaces[1].path: ` + w.file("alias") + ` is the network namespace of workload shop-1 as well: name that of this one, or remove the entry`,
	}; !slices.Equal(got, want) {
		t.Errorf("problems are %q, want %q", got, want)
	}
}

// timesSaid is how often the log of node-a, started last by problems, has this.
func (w *world) timesSaid(t *testing.T, part string) int {
	t.Helper()
	text, err := os.ReadFile(w.file("node-a.log"))
	must(t, err)
	return strings.Count(string(text), part)
}

// problems are those of the node proxy of node-a, started anew to capture shop-1 and what more says.
func (w *world) problems(t *testing.T, more string) []string {
	t.Helper()
	must(t, w.nodes["node-a"].Stop(syscall.SIGKILL, 5*time.Second))
	must(t, os.Remove(w.file("node-a.log")))
	w.write(t, "node-a.yaml", w.node("a", admin, "shop-1")+more)
	w.start(t, "node-a")
	return w.told(t, admin)
}

// told are the problems that the node proxy of node-a at that address has.
func (w *world) told(t *testing.T, admin string) []string { return w.status(t, admin).Problems }

// status is that of the node proxy of node-a at that address.
func (w *world) status(t *testing.T, admin string) (status answer.Status) {
	t.Helper()
	client := http.Client{Timeout: 5 * time.Second, Transport: &http.Transport{DisableKeepAlives: true, DialContext: func(context.Context, string, string) (net.Conn, error) {
		return w.Dial("node-a", admin)
	}}}
	got, err := client.Get("http://node-a/status")
	must(t, err)
	defer got.Body.Close()
	must(t, json.NewDecoder(got.Body).Decode(&status))
	return status
}
