//go:build linux

package capture

import (
	"fmt"
	"io"
	"net"
	"os"
	"strconv"
	"strings"
	"sync/atomic"
	"testing"
	"time"
)

// entrances are the ways from a pod to its node proxy, each to a connection to hello.
var entrances = []struct {
	name string
	dial func(w *world) (net.Conn, error)
}{
	{"captured", func(w *world) (net.Conn, error) { return w.Dial("shop-1", hello+":80") }},
	{"listener", func(w *world) (net.Conn, error) { return w.Dial("shop-1", addresses["node-a"]+":7000") }},
	{"socks", func(w *world) (net.Conn, error) {
		c, err := w.Dial("shop-1", addresses["node-a"]+":15080")
		if err == nil {
			err = socks(c, "hello.demo.svc.cluster.local", 80)
		}
		return c, err
	}},
}

// socks asks for a connection as SOCKS5.
func socks(c net.Conn, host string, port uint16) error {
	request := append([]byte{5, 1, 0, 5, 1, 0, 3, byte(len(host))}, host...)
	if _, err := c.Write(append(request, byte(port>>8), byte(port))); err != nil {
		return err
	}
	var reply [12]byte
	if _, err := io.ReadFull(c, reply[:]); err != nil || reply[3] != 0 {
		return fmt.Errorf("SOCKS reply %v, %w", reply, err)
	}
	return nil
}

// benchWorld has all entrances.
func benchWorld(b *testing.B) *world {
	w := newWorldWith(b, "outbound: [{workload: shop-1, listen: \"0.0.0.0:7000\", to: \"hello.demo.svc.cluster.local:80\"}]\nsocks: [{workload: shop-1, listen: \"0.0.0.0:15080\"}]\n")
	for _, e := range entrances {
		for range 200 { // and all sessions that are kept are there
			once(b, w, e.dial)
		}
	}
	return w
}

// once opens a connection, hears from the far application and ends it.
func once(b *testing.B, w *world, dial func(*world) (net.Conn, error)) {
	c, err := dial(w)
	must(b, err)
	defer c.Close()
	c.SetDeadline(time.Now().Add(10 * time.Second))
	var greeting [6]byte
	if _, err := io.ReadFull(c, greeting[:]); err != nil {
		b.Fatalf("no greeting: %v", err)
	}
}

// processor is the processor time that a process has used.
func processor(b *testing.B, pid int) time.Duration {
	text, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	must(b, err)
	f := strings.Fields(string(text)[strings.LastIndexByte(string(text), ')')+1:])
	user, err := strconv.ParseInt(f[11], 10, 64)
	must(b, err)
	system, err := strconv.ParseInt(f[12], 10, 64)
	must(b, err)
	return time.Duration(user+system) * 10 * time.Millisecond
}

// What it costs a node proxy to open a connection, by each entrance; eight clients at once.
func BenchmarkConnect(b *testing.B) {
	w := benchWorld(b)
	for _, e := range entrances {
		b.Run(e.name, func(b *testing.B) {
			var n atomic.Int64
			before := processor(b, w.nodes["node-a"].PID())
			b.SetParallelism(4) // times GOMAXPROCS
			b.RunParallel(func(pb *testing.PB) {
				for pb.Next() {
					once(b, w, e.dial)
					n.Add(1)
				}
			})
			b.ReportMetric(float64((processor(b, w.nodes["node-a"].PID())-before).Microseconds())/float64(n.Load()), "cpu-µs/op")
		})
	}
}

// What goes through one open connection, there and back.
func BenchmarkEcho(b *testing.B) {
	w := benchWorld(b)
	const chunk = 256 << 10
	for _, e := range entrances {
		b.Run(e.name, func(b *testing.B) {
			c, err := e.dial(w)
			must(b, err)
			defer c.Close()
			for c1 := make([]byte, 1); c1[0] != '\n'; {
				_, err := io.ReadFull(c, c1)
				must(b, err)
			}
			before := processor(b, w.nodes["node-a"].PID())
			b.SetBytes(chunk)
			out, in := make([]byte, chunk), make([]byte, chunk)
			for b.Loop() {
				go c.Write(out)
				_, err := io.ReadFull(c, in)
				must(b, err)
			}
			b.ReportMetric(float64((processor(b, w.nodes["node-a"].PID())-before).Microseconds())/float64(b.N), "cpu-µs/op")
		})
	}
}
