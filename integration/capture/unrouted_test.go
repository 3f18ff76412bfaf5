//go:build linux

package capture

import (
	"strings"
	"syscall"
	"testing"
	"time"
)

// A pod without a route for virtual addresses reaches none of them, and its own kernel says so to it alone: the node proxy
// looks, and says when there is one again.
func TestAPodWithoutARouteIsWarnedOf(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	if got := w.status(t, admin).Unrouted; len(got) > 0 {
		t.Errorf("with routes it warns %q", got)
	}
	must(t, w.nodes["node-a"].Stop(syscall.SIGKILL, 5*time.Second))
	must(t, w.IP("shop-2", "route del default"))
	w.start(t, "node-a")
	if _, err := w.call("shop-2", hello+":80"); err == nil || !strings.Contains(err.Error(), "unreachable") {
		t.Errorf("without a route a call ends with %v, want that the network is unreachable", err)
	}
	w.unrouted(t, "pod shop-2 has no route for virtual addresses, such as "+hello+":")
	must(t, w.IP("shop-2", "route add default dev eth0"))
	w.unrouted(t)
}

// unrouted waits until node-a warns of that, and of nothing else.
func (w *world) unrouted(t *testing.T, want ...string) {
	t.Helper()
	var got []string
	for end := time.Now().Add(30 * time.Second); time.Now().Before(end); time.Sleep(50 * time.Millisecond) {
		got = w.status(t, admin).Unrouted
		if len(got) == len(want) && (len(got) == 0 || strings.HasPrefix(got[0], want[0])) {
			return
		}
	}
	t.Fatalf("it warns %q, want %q", got, want)
}
