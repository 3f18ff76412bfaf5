//go:build linux

package capture

import (
	"fmt"
	"syscall"
	"testing"
	"time"
)

// Of three node proxies the last one is killed: connections come to the second, so that the first has nothing to lose when it stops.
func TestConnectionsComeToTheSecondOfThree(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.overlap(t, "node-a-2", "node-a-3")
	must(t, w.nodes["node-a-3"].Stop(syscall.SIGKILL, 5*time.Second))
	w.comeTo(t, "node-a-2", "node-a")
}

// Of three node proxies the first one is killed: connections come to the last as before, so that the second has nothing to
// lose when it stops, and then to the second when the last is killed.
func TestConnectionsComeToTheLastOfThree(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.overlap(t, "node-a-2", "node-a-3", "node-a-4")
	must(t, w.nodes["node-a"].Stop(syscall.SIGKILL, 5*time.Second))
	w.comeTo(t, "node-a-4", "node-a-2", "node-a-3")
	must(t, w.nodes["node-a-4"].Stop(syscall.SIGKILL, 5*time.Second))
	w.comeTo(t, "node-a-3", "node-a-2")
}

// overlap has more node proxies begin on node-a, one after the other.
func (w *world) overlap(t *testing.T, names ...string) {
	t.Helper()
	for i, name := range names {
		at := fmt.Sprintf("127.0.0.1:%d", 16001+i)
		w.write(t, name+".yaml", w.node("a", at, "shop-1", "shop-2"))
		w.nodes[name] = w.process("node-a", name)
		must(t, w.Start(w.nodes[name], w.Ready("node-a", at)))
	}
}

// comeTo has connections opened, which are to come to one node proxy and to none of others.
func (w *world) comeTo(t *testing.T, one string, others ...string) {
	t.Helper()
	time.Sleep(time.Second)
	carried := func(name string) (n int) {
		for _, l := range w.lines(t, name) {
			if l["source"] == "shop-1" {
				n++
			}
		}
		return n
	}
	before := carried(one)
	for range 40 {
		if _, err := w.call("shop-1", hello+":80"); err != nil {
			t.Fatal(err)
		}
	}
	for end := time.Now().Add(5 * time.Second); carried(one) == before && time.Now().Before(end); {
		time.Sleep(10 * time.Millisecond)
	}
	got := carried(one) - before
	for _, o := range others {
		if n := carried(o); n > 0 {
			t.Errorf("of 40 connections %d have come to %s, and %d to %s", got, one, n, o)
		}
	}
}
