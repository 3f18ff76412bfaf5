package integration

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync/atomic"
	"syscall"
	"testing"
	"time"
)

// The invariant: with --check, a program exits with the code and the error with which it would
// exit at start, with 3 where it would start and wait, and with 0 otherwise. The inputs are every file that a program
// reads, times every way to break a file, and wrong values of the configuration.
func TestCheckFailsWhereAStartFails(t *testing.T) {
	for _, kind := range []string{"gateway", "nodeproxy", "controller"} {
		t.Run(kind, func(t *testing.T) {
			started, failed := 0, 0
			for _, b := range breaks(t, kind) {
				t.Run(b.name, func(t *testing.T) {
					w := newCheckWorld(t, kind)
					b.do(t, w)
					checkCode, checkError := w.check(t)
					startCode, startError := w.start(t)
					if strings.HasPrefix(checkError, w.kind+": starts, but waits until this is fixed: ") {
						if startCode != 0 || checkCode != 3 {
							t.Errorf("--check exits %d: %s\na start exits %d: %s; want 3 and a process that waits", checkCode, checkError, startCode, startError)
						}
						return
					}
					if checkCode != startCode || checkError != startError {
						t.Errorf("--check exits %d: %s\na start exits %d:   %s", checkCode, checkError, startCode, startError)
					}
					if startCode == 0 {
						started++
					} else if failed++; startError == "" || b.name == "nothing" {
						t.Errorf("a start exits %d: %q", startCode, startError)
					}
				})
			}
			if started < 1 || failed < 10 {
				t.Errorf("%d inputs started and %d failed; want both kinds", started, failed)
			}
		})
	}
}

// checkWorld is a folder with all that one program reads.
type checkWorld struct {
	kind, dir, admin string
	config           map[string]any
}

type breaking struct {
	name string
	do   func(*testing.T, *checkWorld)
}

func newCheckWorld(t *testing.T, kind string) *checkWorld {
	t.Helper()
	dir := t.TempDir()
	w := &checkWorld{kind: kind, dir: dir, admin: freeAddress()}
	for _, args := range [][]string{
		{"ca", "init", "--dir", "ca", "--trust-domain", "cluster.local"},
		{"network", "init", "--dir", "east", "--network", "east"},
		{"network", "init", "--dir", "west", "--network", "west"},
	} {
		c := exec.Command(filepath.Join(bin, "isthmus"), args...)
		c.Dir = dir
		if out, err := c.CombinedOutput(); err != nil {
			t.Fatalf("isthmus %v: %v: %s", args, err, out)
		}
	}
	mesh := `networks: [{name: east, nodes: [east-2]}, {name: west}]
gateways: [{name: gw-1, network: east, address: "%s", serviceAccount: isthmus-system/gateway}]
workloads: [{uid: east/demo/shop, name: shop, namespace: demo, serviceAccount: shop, network: east, node: east-1, addresses: [127.0.0.1]}]
`
	w.write(t, "mesh.yaml", fmt.Sprintf(mesh, freeAddress()))
	w.write(t, "kubeconfig", `apiVersion: v1
kind: Config
clusters: [{name: c, cluster: {server: "https://127.0.0.1:1"}}]
users: [{name: u, user: {token: t}}]
contexts: [{name: c, context: {cluster: c, user: u}}]
current-context: c
`)
	identity := map[string]any{"source": "ca", "dir": w.path("ca")}
	w.config = map[string]any{"name": "gw-1", "network": "east", "identity": identity, "admin": map[string]any{"address": w.admin}, "log": map[string]any{"format": "json"}}
	switch kind {
	case "gateway":
		w.config["discovery"] = map[string]any{"file": w.path("mesh.yaml")}
		w.config["federation"] = map[string]any{"keys": w.path("east"), "networks": w.path("west/network.yaml")}
	case "nodeproxy":
		delete(w.config, "name")
		w.config["node"] = "east-2" // a node without pods: no address of a pod is bound
		w.config["discovery"] = map[string]any{"file": w.path("mesh.yaml")}
		w.config["federation"] = map[string]any{"networks": w.path("west/network.yaml")}
	case "controller":
		w.config["discovery"] = map[string]any{"kube": map[string]any{"kubeconfig": w.path("kubeconfig")}}
		w.config["federation"] = map[string]any{"networks": w.path("west/network.yaml")}
		w.config["gateways"] = []string{"127.0.0.1:1"}
		w.config["ca"] = map[string]any{"address": freeAddress()}
	}
	return w
}

func (w *checkWorld) path(name string) string { return filepath.Join(w.dir, name) }

func (w *checkWorld) write(t *testing.T, name, text string) {
	t.Helper()
	if err := os.WriteFile(w.path(name), []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
}

// breaks are the inputs of one kind.
func breaks(t *testing.T, kind string) []breaking {
	out := []breaking{{"nothing", func(*testing.T, *checkWorld) {}}}
	files := []string{"ca", "ca/ca.pem", "ca/ca-key.pem", "west/network.yaml"}
	switch kind {
	case "gateway":
		files = append(files, "mesh.yaml", "east", "east/key.pem", "east/network.yaml")
	case "nodeproxy":
		files = append(files, "mesh.yaml")
	case "controller":
		files = append(files, "kubeconfig")
	}
	ways := map[string]func(path string) error{
		"removed":           os.RemoveAll,
		"empty":             emptied,
		"garbage":           func(path string) error { return os.WriteFile(path, []byte("!\x00\n"), 0o600) },
		"cut off":           cut,
		"a directory":       func(path string) error { return errors.Join(os.RemoveAll(path), os.Mkdir(path, 0o700)) },
		"a dangling link":   func(path string) error { return errors.Join(os.RemoveAll(path), os.Symlink("none", path)) },
		"readable by all":   func(path string) error { return os.Chmod(path, 0o644) },
		"writable by all":   func(path string) error { return os.Chmod(path, 0o666) },
		"readable by group": func(path string) error { return os.Chmod(path, 0o640) },
	}
	for _, f := range files {
		for _, way := range slices.Sorted(maps.Keys(ways)) {
			if !strings.Contains(f, ".") && way != "removed" && way != "empty" { // a directory
				continue
			}
			out = append(out, breaking{f + " " + way, func(t *testing.T, w *checkWorld) {
				if err := ways[way](w.path(f)); err != nil {
					t.Fatal(err)
				}
			}})
		}
	}
	for key, value := range map[string]any{"trustDomain": "other.example", "network": "north", "unknown": "x", "log": map[string]any{"level": "loud"}, "identity": map[string]any{"source": "files", "dir": "/no/such"}, "admin": map[string]any{"address": "x"}, "discovery": map[string]any{}, "federation": map[string]any{"networks": "/no/such"}} {
		out = append(out, breaking{"config " + key, func(_ *testing.T, w *checkWorld) { w.config[key] = value }})
	}
	slices.SortFunc(out, func(a, b breaking) int { return strings.Compare(a.name, b.name) })
	return out
}

func emptied(path string) error {
	if info, err := os.Stat(path); err == nil && info.IsDir() {
		return errors.Join(os.RemoveAll(path), os.Mkdir(path, 0o700))
	}
	return os.Truncate(path, 0)
}

func cut(path string) error {
	info, err := os.Stat(path)
	if err != nil {
		return err
	}
	return os.Truncate(path, info.Size()/2)
}

// command is the program with the configuration of w.
func (w *checkWorld) command(t *testing.T, args ...string) (*exec.Cmd, *bytes.Buffer) {
	t.Helper()
	b, err := json.Marshal(w.config) // JSON is YAML
	if err != nil {
		t.Fatal(err)
	}
	w.write(t, "config.yaml", string(b))
	var errs bytes.Buffer
	c := exec.Command(filepath.Join(bin, w.kind), append([]string{"--config", w.path("config.yaml")}, args...)...)
	c.Dir, c.Stderr = w.dir, &errs
	return c, &errs
}

// check returns the exit code of --check and its error.
func (w *checkWorld) check(t *testing.T) (int, string) {
	t.Helper()
	c, errs := w.command(t, "--check")
	err := c.Run()
	text := errs.String()
	if _, behind, found := strings.Cut(text, w.kind+": cannot start: "); found {
		text = behind
	}
	if err == nil {
		text = "" // warnings
	}
	return c.ProcessState.ExitCode(), strings.TrimSpace(text)
}

// start returns the exit code of a start and its error, or 0 if the admin port answers.
func (w *checkWorld) start(t *testing.T) (int, string) {
	t.Helper()
	c, errs := w.command(t)
	if err := c.Start(); err != nil {
		t.Fatal(err)
	}
	ended := make(chan struct{})
	go func() { defer close(ended); c.Wait() }()
	tick := time.NewTicker(20 * time.Millisecond)
	defer tick.Stop()
	for runs := false; ; {
		select {
		case <-ended:
			if runs {
				return 0, ""
			}
			return c.ProcessState.ExitCode(), startError(errs.String())
		case <-tick.C:
			if conn, err := net.Dial("tcp", w.admin); err == nil {
				conn.Close()
				runs = true
				c.Process.Signal(syscall.SIGKILL)
			}
		}
	}
}

// startError is the error of a start: that of its log line, or what was printed before there
// was a log.
func startError(text string) string {
	for line := range strings.Lines(text) {
		var m struct{ Message, Error string }
		if json.Unmarshal([]byte(line), &m) == nil && m.Message == "cannot start" {
			return m.Error
		}
	}
	return strings.TrimSpace(text)
}

// addresses counts what freeAddress returned.
var addresses atomic.Uint32

// freeAddress returns a loopback address that nothing else uses, with a port that the kernel gives to no client.
func freeAddress() string {
	n := addresses.Add(1)
	return fmt.Sprintf("127.77.%d.%d:15000", n/250, 1+n%250)
}
