//go:build linux

package capture

import (
	"fmt"
	"io"
	"net"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/isthmus-mesh/isthmus/integration/stock"
	"github.com/isthmus-mesh/isthmus/internal/netspace"
	"github.com/isthmus-mesh/isthmus/nodeproxy/capture"
	"github.com/isthmus-mesh/isthmus/nodeproxy/podns"
)

// entrance is a way from a pod to its node proxy, and so to a connection to hello.
type entrance struct {
	name string
	host string // of the node proxy
	dial func(w *world) (net.Conn, error)
}

var entrances = []entrance{
	{"captured", "node-a", func(w *world) (net.Conn, error) { return w.Dial("shop-1", hello+":80") }},
	{"listener", "node-a", func(w *world) (net.Conn, error) { return w.Dial("shop-1", addresses["node-a"]+":7000") }},
	{"socks", "node-a", func(w *world) (net.Conn, error) {
		c, err := w.Dial("shop-1", addresses["node-a"]+":15080")
		if err == nil {
			err = socks(c, "hello.demo.svc.cluster.local", 80)
		}
		return c, err
	}},
}

// stockPod is captured by a stock ztunnel, with ZTUNNEL=<binary>: one in shared mode beside node-a, told of the pod as by
// the node agent of istio-cni, whose sockets are in the pod. Rules of ours lead to them.
const stockPod = "shop-2"

var stockEntrance = entrance{"stock", "stock", func(w *world) (net.Conn, error) { return w.Dial(stockPod, hello+":80") }}

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

// startStock has stockPod leave node-a, and starts a stock ztunnel on the same host that serves it.
func startStock(b *testing.B, w *world, ztunnel string) {
	line := regexp.MustCompile(`(uid: ` + stockPod + `,.* node: )node-a`)
	w.write(b, "mesh.yaml", line.ReplaceAllString(mesh, "${1}stock"))
	ns, err := podns.Open(w.Path(stockPod))
	must(b, err)
	b.Cleanup(func() { ns.Close() })
	for end := time.Now().Add(20 * time.Second); ; time.Sleep(50 * time.Millisecond) {
		_, there, err := capture.Owner(ns)
		must(b, err)
		if !there {
			break
		}
		if time.Now().After(end) {
			b.Fatalf("%s is still captured by node-a", stockPod)
		}
	}
	must(b, capture.Set(ns, capture.Rules{Owner: "ztunnel", Ranges: []netip.Prefix{netip.MustParsePrefix("240.240.0.0/16")}}))
	export := exec.Command(filepath.Join(w.bin, "isthmus"), "export", "ztunnel", "--config", "mesh.yaml", "--node", "stock")
	export.Dir = w.Dir
	known, err := export.Output()
	must(b, err)
	w.write(b, "stock.yaml", string(known))
	ca := &netspace.Process{Host: "node-a", Args: []string{filepath.Join(w.bin, "isthmus"), "ca", "serve", "--dir", "ca", "--listen", stock.CA}, Log: w.file("ca.log")}
	must(b, w.Start(ca, w.Accepts("node-a", stock.CA)))
	agent, err := stock.Serve(w.file("agent.sock"), stock.Pod{UID: stockPod, Name: stockPod, Namespace: "demo", ServiceAccount: "basket", Path: w.Path(stockPod)})
	must(b, err)
	b.Cleanup(func() { agent.Close() })
	w.nodes["stock"] = &netspace.Process{Host: "node-a", Args: []string{ztunnel}, Log: w.file("stock.log"), Env: stock.SharedEnvironment("stock", w.file("agent.sock"), "net-a", "info,access=info")}
	must(b, w.Start(w.nodes["stock"], w.Ready("node-a", stock.Ready)))
	must(b, agent.Told())
}

// benchWorld has all entrances.
func benchWorld(b *testing.B) (*world, []entrance) {
	w := newWorldWith(b, "outbound: [{workload: shop-1, listen: \"0.0.0.0:7000\", to: \"hello.demo.svc.cluster.local:80\"}]\nsocks: [{workload: shop-1, listen: \"0.0.0.0:15080\"}]\n")
	all := entrances
	if z := os.Getenv("ZTUNNEL"); z != "" {
		startStock(b, w, z)
		all = append(all[:len(all):len(all)], stockEntrance)
	}
	for _, e := range all {
		for range 200 { // and all sessions that are kept are there
			once(b, w, e.dial)
		}
	}
	return w, all
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
	w, all := benchWorld(b)
	for _, e := range all {
		b.Run(e.name, func(b *testing.B) { e.connects(b, w) })
	}
}

func (e entrance) connects(b *testing.B, w *world) {
	var n atomic.Int64
	before := processor(b, w.nodes[e.host].PID())
	b.SetParallelism(4) // times GOMAXPROCS
	b.RunParallel(func(pb *testing.PB) {
		for pb.Next() {
			once(b, w, e.dial)
			n.Add(1)
		}
	})
	b.ReportMetric(float64((processor(b, w.nodes[e.host].PID())-before).Microseconds())/float64(n.Load()), "cpu-µs/op")
}

// What goes through one open connection, there and back.
func BenchmarkEcho(b *testing.B) {
	w, all := benchWorld(b)
	for _, e := range all {
		b.Run(e.name, func(b *testing.B) { e.echoes(b, w) })
	}
}

func (e entrance) echoes(b *testing.B, w *world) {
	const chunk = 256 << 10
	c, err := e.dial(w)
	must(b, err)
	defer c.Close()
	for c1 := make([]byte, 1); c1[0] != '\n'; {
		_, err := io.ReadFull(c, c1)
		must(b, err)
	}
	before := processor(b, w.nodes[e.host].PID())
	b.SetBytes(chunk)
	out, in := make([]byte, chunk), make([]byte, chunk)
	for b.Loop() {
		go c.Write(out)
		_, err := io.ReadFull(c, in)
		must(b, err)
	}
	b.ReportMetric(float64((processor(b, w.nodes[e.host].PID())-before).Microseconds())/float64(b.N), "cpu-µs/op")
}

// What plain connections cost, out of a pod and into it: with scope vips they pass by the node proxy, and with scope all
// they come to it.
func BenchmarkPlain(b *testing.B) {
	w := newWorldWith(b, "")
	w.serve(b, "gateway")
	for _, scope := range []string{"vips", "all"} {
		w.scope(b, "node-a", scope)
		for name, way := range map[string][2]string{"out": {"shop-1", addresses["gateway"]}, "in": {"gateway", addresses["shop-1"]}} {
			e := entrance{name: name, host: "node-a", dial: func(w *world) (net.Conn, error) { return w.Dial(way[0], way[1]+":8080") }}
			once(b, w, e.dial)
			b.Run(scope+"/connect/"+name, func(b *testing.B) { e.connects(b, w) })
			b.Run(scope+"/echo/"+name, func(b *testing.B) { e.echoes(b, w) })
		}
	}
}

// What a connection to an outsider costs a captured pod, once the destination is decided on, by its ratio to that of a pod that
// is not captured: both are opened by turns, in each scope. The median of several parts counts, as others load the machine.
func BenchmarkOutsider(b *testing.B) {
	for host, a := range map[string]string{"bare": bareAddress, "outsider": outsiderAddress} {
		addresses[host] = a
		defer delete(addresses, host)
	}
	w := newWorldWith(b, "")
	open := func(host string) (took time.Duration) {
		must(b, w.In(host, func() error {
			began := time.Now()
			c, err := net.Dial("tcp", outsiderAddress+":8080")
			if took = time.Since(began); err == nil {
				c.(*net.TCPConn).SetLinger(0)
				c.Close()
			}
			return err
		}))
		return took
	}
	for _, scope := range []string{"vips", "all"} {
		w.scope(b, "node-a", scope)
		open("bare")
		open("shop-1")
		b.Run(scope, func(b *testing.B) {
			const each = 200
			var ratios, bare []float64
			for range max(b.N/each, 1) {
				sum := map[string]time.Duration{}
				for range each {
					for _, host := range []string{"bare", "shop-1"} {
						sum[host] += open(host)
					}
				}
				ratios = append(ratios, float64(sum["shop-1"])/float64(sum["bare"]))
				bare = append(bare, float64(sum["bare"].Microseconds())/each)
			}
			slices.Sort(ratios)
			slices.Sort(bare)
			b.ReportMetric(ratios[len(ratios)/2], "ratio")
			b.ReportMetric(bare[len(bare)/2], "bare-µs")
		})
	}
}
