//go:build linux

package capture

import (
	"syscall"
	"testing"
	"time"

	"github.com/isthmus-mesh/isthmus/internal/netspace"
)

// Of three node proxies the last one is killed: connections come to the second, so that the first has nothing to lose when it stops.
func TestConnectionsComeToTheSecondOfThree(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	var last *netspace.Process
	for _, g := range [][2]string{{"node-a-2", secondary}, {"node-a-3", "127.0.0.1:16002"}} {
		w.write(t, g[0]+".yaml", w.node("a", g[1], "shop-1", "shop-2"))
		last = w.process("node-a", g[0])
		must(t, w.Start(last, w.Ready("node-a", g[1])))
	}
	must(t, last.Stop(syscall.SIGKILL, 5*time.Second))
	time.Sleep(time.Second)
	for range 40 {
		if _, err := w.call("shop-1", hello+":80"); err != nil {
			t.Fatal(err)
		}
	}
	w.logs(t, "node-a-2", func(l map[string]any) bool { return l["source"] == "shop-1" })
	for _, l := range w.lines(t, "node-a") {
		if l["source"] == "shop-1" {
			t.Fatal("a connection has come to the first node proxy")
		}
	}
}
