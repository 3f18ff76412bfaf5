//go:build linux

package capture

import (
	"errors"
	"net"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/isthmus-mesh/isthmus/nodeproxy/capture"
	"github.com/isthmus-mesh/isthmus/nodeproxy/podns"
)

// yields is what the status of node-a and its log say of pods that are left to another node proxy.
func (w *world) yields(t *testing.T) (status, log []string) {
	t.Helper()
	const words = "run one node proxy on a node; if this one is alone there, a process of that pod pretends to be one"
	of := func(text []byte) (list []string) {
		for line := range strings.Lines(string(text)) {
			if strings.Contains(line, words) {
				list = append(list, line)
			}
		}
		return list
	}
	out, _ := exec.Command("nsenter", "--net="+w.Path("node-a"), filepath.Join(w.bin, "isthmus"), "status", "--admin", admin).CombinedOutput() // a problem is its exit code, too
	text, err := os.ReadFile(w.file("node-a.log"))
	must(t, err)
	return of(out), of(text)
}

// saidWithin waits until status and log have so many lines each.
func (w *world) saidWithin(t *testing.T, within time.Duration, statuses, logs int) {
	t.Helper()
	for end := time.Now().Add(within); ; time.Sleep(100 * time.Millisecond) {
		status, log := w.yields(t)
		if len(status) == statuses && len(log) == logs {
			return
		}
		if time.Now().After(end) {
			t.Fatalf("isthmus status says %d times that a pod is left to another node proxy, and the log %d times; want %d and %d:\n%s\n%s", len(status), len(log), statuses, logs, status, log)
		}
	}
}

// Two node proxies that run on one node for longer than an upgrade takes are told of, by the older one; when it is alone again
// it has the pods, and no problem.
func TestTwoNodeProxiesOfOneNodeAreToldOf(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.write(t, "node-a-2.yaml", w.node("a", secondary, "shop-1", "shop-2"))
	next := w.process("node-a", "node-a-2")
	must(t, w.Start(next, w.Ready("node-a", secondary)))
	w.flush(t, "shop-1") // whoever sees it first, the rules are the younger one's
	w.flush(t, "shop-2")
	w.write(t, "mesh.yaml", strings.Replace(mesh, taken, "10.96.0.10", 1))
	w.saidWithin(t, 20*time.Second, 2, 2)
	must(t, next.Stop(syscall.SIGTERM, 10*time.Second))
	w.saidWithin(t, 20*time.Second, 0, 2)
	if _, err := w.call("shop-1", hello+":80"); err != nil {
		t.Error(err)
	}
}

// A process of a pod that says it is a node proxy which began later, and listens where that would, is found out at once if it
// says that it has not begun yet, and told of otherwise.
func TestAProcessThatPretendsToBeANodeProxyIsToldOf(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	ns, err := podns.Open(w.Path("shop-1"))
	must(t, err)
	defer ns.Close()
	lc := net.ListenConfig{Control: func(n, a string, c syscall.RawConn) error {
		return errors.Join(ns.Control(n, a, c), capture.Share(n, a, c))
	}}
	l, err := lc.Listen(t.Context(), "tcp", addresses["shop-1"]+":15008")
	must(t, err)
	defer l.Close()
	cookie, err := capture.Cookie(l.(*net.TCPListener))
	must(t, err)
	pretends := func(began uint64) {
		must(t, capture.Set(ns, capture.Rules{Owner: "cluster.local/net-a", Ranges: []netip.Prefix{netip.MustParsePrefix("198.18.0.0/24")}, By: capture.Setter{Began: began, Socket: cookie}}))
	}
	pretends(1<<64 - 1)
	w.isCaptured(t, 10*time.Second, "shop-1", hello+":80")
	now, err := capture.Now()
	must(t, err)
	pretends(now)
	w.saidWithin(t, 20*time.Second, 1, 1)
	must(t, l.Close())
	w.saidWithin(t, 20*time.Second, 0, 1)
	w.isCaptured(t, 10*time.Second, "shop-1", hello+":80")
}
