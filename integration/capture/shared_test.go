//go:build linux

package capture

import (
	"os"
	"strings"
	"syscall"
	"testing"
	"time"
)

// A namespace is one workload's: nobody's connections are ever carried as another's, whoever says that both are there.
func TestANamespaceIsOneWorkloads(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	must(t, w.IP("shop-1", "addr add "+addresses["shop-2"]+"/32 dev lo"))
	must(t, os.Symlink(w.Path("shop-1"), w.file("alias")))
	w.write(t, "node-a.yaml", strings.Replace(w.node("a", admin, "shop-1", "shop-2"), w.Path("shop-2"), w.file("alias"), 1))
	must(t, w.nodes["node-a"].Stop(syscall.SIGTERM, 5*time.Second))
	for range 3 {
		os.Remove(w.file("node-a.log"))
		w.start(t, "node-a")
		text, err := os.ReadFile(w.file("node-a.log"))
		must(t, err)
		if n := strings.Count(string(text), `"message":"captured"`); n != 1 {
			t.Errorf("%d workloads are captured in one namespace", n)
		}
		must(t, w.nodes["node-a"].Stop(syscall.SIGTERM, 5*time.Second))
	}
}
