//go:build linux

package capture

import (
	"strings"
	"syscall"
	"testing"
	"time"
)

// A pod that is taken out of the mesh while no node proxy runs is not cut off for good: the next one takes out the rules that
// the one before has left there, and of no pod that is in the mesh.
func TestAPodThatLeavesTheMeshWithoutANodeProxyIsNotCutOff(t *testing.T) {
	needsNft(t)
	t.Parallel()
	w := newWorldAll(t)
	w.police(t)
	app := addresses["shop-2"] + ":8080"
	must(t, w.nodes["node-a"].Stop(syscall.SIGKILL, 5*time.Second))
	for _, pod := range []string{"shop-1", "shop-2"} {
		if _, err := w.call("gateway", addresses[pod]+":8080"); !refused("", err) {
			t.Fatalf("without a node proxy a call to %s: %v, want that it is refused", pod, err)
		}
	}
	w.write(t, "mesh.yaml", strings.Replace(mesh, "{uid: shop-2, ", "{uid: shop-2, protocol: TCP, ", 1))
	w.start(t, "node-a")
	w.until(t, 10*time.Second, "gateway", app, answered)
	w.until(t, time.Second, "shop-2", addresses["hello-1"]+":8080", answered)
	if n := w.plain(t, "node-a"); n > 0 {
		t.Errorf("%d connections of a pod that is not in the mesh have come to the node proxy", n)
	}
	w.until(t, 5*time.Second, "shop-1", hello+":80", answered)
}

// Release takes out how answers are routed too, where somebody has flushed the table by which a node proxy's rules are known.
func TestReleaseTakesOutWhatFlushedTablesDoNotHold(t *testing.T) {
	t.Parallel()
	w := newWorldAll(t)
	if rules := w.routing(t, "shop-1"); !strings.Contains(rules, "lookup 1337") {
		t.Fatalf("a captured pod has\n%s", rules)
	}
	must(t, w.nodes["node-a"].Stop(syscall.SIGKILL, 5*time.Second))
	_, err := w.Nft("shop-1", "flush ruleset")
	must(t, err)
	w.write(t, "release.yaml", w.config("node-a", admin, "release"))
	p := w.process("node-a", "release")
	must(t, w.Start(p, w.Ready("node-a", admin)))
	must(t, p.Stop(syscall.SIGTERM, 10*time.Second))
	for _, pod := range ours {
		if rules := w.routing(t, pod); strings.Contains(rules, "1337") {
			t.Errorf("released, and left in %s:\n%s", pod, rules)
		}
	}
}
