//go:build linux

package capture

import (
	"bytes"
	"os"
	"syscall"
	"testing"
	"time"
)

// Two node proxies of different scopes that overlap for longer do not set each other's rules aside: when the older one
// stops nothing is led to a listener that it has closed.
func TestTheOlderScopeGoesWithItsNodeProxy(t *testing.T) {
	needsNft(t)
	w := newWorldAll(t)
	app, next := addresses["shop-1"]+":8080", "127.0.0.1:16010"
	w.write(t, "node-a-next.yaml", w.config("node-a", next, "vips"))
	p := w.process("node-a", "node-a-next")
	must(t, w.Start(p, w.Ready("node-a", next)))
	for end := time.Now().Add(1500 * time.Millisecond); time.Now().Before(end); time.Sleep(time.Millisecond) { // both look at the rules several times
		if text, err := os.ReadFile(w.file("node-a.log")); err != nil || bytes.Contains(text, []byte("changed the rules")) {
			break // the older one has set its own again: it stops just then
		}
	}
	w.nodes["node-a"].Signal(syscall.SIGTERM)
	for end := time.Now().Add(2 * time.Second); time.Now().Before(end); time.Sleep(5 * time.Millisecond) {
		if _, err := w.call("gateway", app); err != nil {
			t.Fatalf("while the older one stops: %v", err)
		}
	}
	if out, err := w.ruleset("shop-1"); err != nil || w.plain(t, "node-a-next") > 0 {
		t.Errorf("the younger one passes plain connections on: %v\n%s", err, out)
	}
}
