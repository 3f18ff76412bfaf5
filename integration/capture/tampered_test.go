//go:build linux

package capture

import (
	"net"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/google/nftables"

	"github.com/isthmus-mesh/isthmus/nodeproxy/podns"
)

// flush does in a pod what `nft flush ruleset` does.
func (w *world) flush(t *testing.T, pod string) {
	t.Helper()
	ns, err := podns.Open(w.Path(pod))
	must(t, err)
	defer ns.Close()
	must(t, ns.FD(func(fd int) error {
		c, err := nftables.New(nftables.WithNetNSFd(fd))
		must(t, err)
		c.FlushRuleset()
		return c.Flush()
	}))
}

// isCaptured waits until connections of a pod to a virtual address are accepted or refused: they are neither before.
func (w *world) isCaptured(t *testing.T, within time.Duration, pod, address string) time.Duration {
	t.Helper()
	began := time.Now()
	for {
		err := w.In(pod, func() error {
			c, err := net.DialTimeout("tcp", address, 100*time.Millisecond) // less than neighbours take to be nobody
			if err == nil {
				c.Close()
			}
			return err
		})
		switch {
		case err == nil, refused("", err):
			return time.Since(began)
		case time.Since(began) > within:
			t.Fatalf("after %v connections of %s to %s are not captured: %v", within, pod, address, err)
		}
	}
}

// What else uses nftables in a pod, such as a container runtime, may take all rules away: they are back at once.
func TestRulesThatWereFlushedComeBack(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	if _, err := w.call("shop-1", hello+":80"); err != nil {
		t.Fatal(err)
	}
	w.flush(t, "shop-1")
	t.Logf("captured again %v after the rules were flushed", w.isCaptured(t, time.Second, "shop-1", hello+":80"))
}

// While two node proxies of one node overlap, the younger one sets the rules. They stay when the older one stops.
func TestRulesAreThoseOfTheNodeProxyThatIsLeft(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	const more = "198.18.7.7:80" // in a range that only the next one has
	w.write(t, "mesh-2.yaml", mesh)
	next := strings.Replace(w.node("a", secondary, "shop-1", "shop-2"), "scope: vips", "scope: vips\n  ranges: [240.240.0.0/16, \"2001:2::/48\", 198.18.7.0/24]", 1)
	w.write(t, "node-a-2.yaml", strings.Replace(next, "mesh.yaml", "mesh-2.yaml", 1))
	must(t, w.Start(w.process("node-a", "node-a-2"), w.Ready("node-a", secondary)))
	w.isCaptured(t, 2*time.Second, "shop-1", more)
	w.write(t, "mesh.yaml", strings.Replace(mesh, taken, "10.96.0.10", 1)) // both have news
	w.write(t, "mesh-2.yaml", strings.Replace(mesh, taken, "10.96.0.10", 1))
	w.isCaptured(t, 8*time.Second, "shop-1", "10.96.0.10:80")
	w.nodes["node-a"].Signal(syscall.SIGTERM)
	select {
	case <-w.nodes["node-a"].Ended():
	case <-time.After(10 * time.Second):
		t.Fatal("the node proxy does not stop")
	}
	w.isCaptured(t, 2*time.Second, "shop-1", more)
	if _, err := w.call("shop-1", hello+":80"); err != nil {
		t.Error(err)
	}
}
