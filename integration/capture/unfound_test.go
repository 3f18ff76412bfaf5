//go:build linux

package capture

import (
	"errors"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"
)

// A node proxy that cannot look for pods says so once, and not at each look.
func TestWhatCannotBeLookedForIsSaidOnce(t *testing.T) {
	t.Parallel()
	k := newKubelet(t)
	k.pod(t)
	k.publish(t)
	config, err := os.ReadFile(k.file("node-a.yaml"))
	must(t, err)
	proc := k.file("leaves") // it has to be there at the start
	emptyProc(t, proc)
	k.write(t, "node-a.yaml", strings.Replace(string(config), k.proc, proc, 1))
	k.start(t, "node-a")
	must(t, os.RemoveAll(proc))
	time.Sleep(2 * time.Second) // eight looks
	text, err := os.ReadFile(k.file("node-a.log"))
	must(t, err)
	if n := strings.Count(string(text), "cannot look for the network namespaces"); n != 1 {
		t.Errorf("it is said %d times in two seconds", n)
	}
}

// Whose sockets are the node's own is asked only when policies deny plain text. That it cannot be is said at the start, and not
// when the first probe has been refused.
func TestANodeWhoseSocketsCannotBeAskedIsSaidAtTheStart(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	for name, make := range map[string]func(dir string) error{
		"there is no process 1": func(string) error { return nil },
		"its namespace cannot be opened": func(dir string) error {
			return errors.Join(os.MkdirAll(filepath.Join(dir, "1/ns"), 0o700), os.Symlink("net", filepath.Join(dir, "1/ns/net")))
		},
	} {
		proc := t.TempDir()
		must(t, os.Symlink("/proc/self", filepath.Join(proc, "self")))
		must(t, make(proc))
		for scope, want := range map[string]int{"vips": 0, "all": 1} {
			must(t, w.nodes["node-a"].Stop(syscall.SIGKILL, 5*time.Second))
			must(t, os.Remove(w.file("node-a.log")))
			w.write(t, "node-a.yaml", strings.NewReplacer("proc: "+w.Dir, "proc: "+proc, "scope: vips", "scope: "+scope).Replace(w.node("a", admin, "shop-1")))
			w.start(t, "node-a")
			said, err := os.ReadFile(w.file("node-a.log"))
			must(t, err)
			if n := strings.Count(string(said), "connections of the node's own processes are not recognized: policies apply to them, and may refuse the kubelet's probes"); n != want {
				t.Errorf("%s, scope %s: the log says it %d times, want %d\n%s", name, scope, n, want, said)
			}
			told := w.told(t, admin)
			if len(told) != want || want > 0 && (!strings.HasPrefix(told[0], "connections of the node's own processes") || !strings.Contains(told[0], proc+"/1/ns/net: ") || !strings.HasSuffix(told[0], "SYS_PTRACE and SYS_ADMIN")) {
				t.Errorf("%s, scope %s: problems are %q, want %d", name, scope, told, want)
			}
		}
	}
}
