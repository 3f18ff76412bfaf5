//go:build linux

package capture

import (
	"fmt"
	"net"
	"os"
	"regexp"
	"strconv"
	"sync"
	"sync/atomic"
	"testing"
	"time"
)

// Connections whose ends do not read hold at most the memory budget of each node proxy on their
// path, in both directions. The processes stay near GOMEMLIMIT, which is a soft limit, and other
// connections open. Without a limit each process grows to 480 MiB here.
func TestUnreadConnectionsStayInMemoryLimit(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	const limit, most, connections = 128 << 20, 192 << 20, 150
	for _, host := range []string{"node-a", "node-b"} {
		must(t, w.nodes[host].Stop(os.Interrupt, 20*time.Second))
		w.nodes[host].Env = append(w.nodes[host].Env, fmt.Sprint("GOMEMLIMIT=", limit))
		must(t, w.Start(w.nodes[host], w.Ready(host, admin)))
	}
	w.until(t, 20*time.Second, "shop-1", hello+":80", answered)

	var open sync.WaitGroup
	var conns []net.Conn
	var sent atomic.Int64
	defer func() {
		for _, c := range conns {
			c.Close()
		}
		open.Wait()
	}()
	for i := range connections {
		// The application echoes: once nothing is read from c it stops reading too.
		c, err := w.Dial(fmt.Sprint("shop-", 1+i%2), hello+":80")
		must(t, err)
		conns = append(conns, c)
		open.Go(func() {
			for p := make([]byte, 64<<10); ; {
				n, err := c.Write(p)
				sent.Add(int64(n))
				if err != nil {
					return
				}
			}
		})
	}
	calls := 0
	for last, until := int64(-1), time.Now().Add(time.Minute); sent.Load() != last && time.Now().Before(until); calls++ {
		last = sent.Load()
		for range 10 {
			if _, err := w.call("shop-2", hello+":80"); err != nil {
				t.Errorf("a connection beside those that are not read: %v", err)
			}
			time.Sleep(50 * time.Millisecond)
		}
	}
	for _, host := range []string{"node-a", "node-b"} {
		select {
		case <-w.nodes[host].Ended():
			t.Fatalf("%s ended: %v", host, w.nodes[host].State())
		default:
		}
		budget, used, peak := w.gauge(t, host, "isthmus_memory_budget_bytes"), w.gauge(t, host, "isthmus_memory_used_bytes"), w.peak(t, host)
		t.Logf("%s: %.0f MiB used of a budget of %.0f, peak of the process %.0f, GOMEMLIMIT %d; %d MiB sent",
			host, used/(1<<20), budget/(1<<20), float64(peak)/(1<<20), limit>>20, sent.Load()>>20)
		if used > budget {
			t.Errorf("%s: %.0f bytes of buffers, budget %.0f", host, used, budget)
		}
		if peak > most {
			t.Errorf("%s: peak %d bytes, GOMEMLIMIT %d, want at most %d", host, peak, limit, most)
		}
	}
}

// gauge returns a metric without labels of a node proxy.
func (w *world) gauge(t *testing.T, host, name string) float64 {
	t.Helper()
	text, err := w.Get(host, admin, "/metrics")
	must(t, err)
	m := regexp.MustCompile(`(?m)^` + name + ` (\S+)$`).FindSubmatch(text)
	if m == nil {
		t.Fatalf("%s has no metric %s", host, name)
	}
	v, err := strconv.ParseFloat(string(m[1]), 64)
	must(t, err)
	return v
}

// peak returns the largest resident memory that a node proxy had, in bytes.
func (w *world) peak(t *testing.T, host string) int {
	t.Helper()
	text, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", w.nodes[host].PID()))
	must(t, err)
	m := regexp.MustCompile(`VmHWM:\s*(\d+) kB`).FindSubmatch(text)
	if m == nil {
		t.Fatalf("%s: no VmHWM in its status", host)
	}
	kb, err := strconv.Atoi(string(m[1]))
	must(t, err)
	return kb << 10
}
