//go:build linux

package capture

import (
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/miekg/dns"

	"github.com/isthmus-mesh/isthmus/internal/netspace"
)

// What an unchanged pod sends to a virtual address is answered by a pod of the other network, as
// whom its node's proxy has proven it.
func TestAnUnchangedPodCallsTheOtherNetwork(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	for _, to := range []string{hello + ":80", "[" + hello6 + "]:80", taken + ":80", local + ":80"} {
		text, err := w.call("shop-1", to)
		if err != nil {
			t.Errorf("a call to %s: %v", to, err)
			continue
		}
		want := "hello-"
		if to == local+":80" {
			want = "shop-" // itself, by chance
		}
		if !strings.HasPrefix(text, want) {
			t.Errorf("a call to %s is answered %q, want by a pod called %s…", to, text, want)
		}
	}
	// Nothing else is touched: pods reach each other as before.
	if text, err := w.call("shop-1", addresses["shop-2"]+":8080"); err != nil || text != "shop-2 sees "+addresses["shop-1"] {
		t.Errorf("a call to the other pod itself: %q, %v", text, err)
	}
	if _, err := w.call("shop-1", "240.240.77.77:80"); err == nil {
		t.Error("an address that nobody has answers")
	}
	if _, err := w.call("shop-2", hello+":80"); err != nil {
		t.Error(err)
	}
	who := map[string]string{"shop-1": "shop", "shop-2": "basket"}
	for pod, account := range who { // the log is written after the connections
		out := func(l map[string]any) bool {
			return l["source"] == pod && strings.HasPrefix(fmt.Sprint(l["workload"]), "hello") && l["peer"] == "spiffe://cluster.local/ns/demo/sa/hello"
		}
		if !w.logs(t, "node-a", out) {
			t.Errorf("no line of node-a's log says that %s has called hello as the identity of hello", pod)
		}
		in := func(l map[string]any) bool {
			return l["direction"] == "inbound" && l["peer"] == "spiffe://cluster.local/ns/demo/sa/"+account
		}
		if !w.logs(t, "node-b", in) {
			t.Errorf("no line of node-b's log has the identity of %s", pod)
		}
	}
}

// A name is answered in the pod, by curl's own resolver and with curl's own request, as long as there is a
// node proxy; other names, and all of them without it, are answered by the pod's own server.
func TestNamesAreAnsweredInThePod(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	var asked sync.Map
	u, err := w.ListenPacket("gateway", addresses["gateway"]+":53")
	must(t, err)
	server := &dns.Server{PacketConn: u, Handler: dns.HandlerFunc(func(rw dns.ResponseWriter, q *dns.Msg) {
		name := strings.ToLower(q.Question[0].Name)
		asked.Store(name, true)
		r := new(dns.Msg).SetRcode(q, dns.RcodeNameError)
		if name == "other.example." {
			r.SetReply(q)
			if q.Question[0].Qtype == dns.TypeA {
				r.Answer = []dns.RR{&dns.A{Hdr: dns.RR_Header{Name: q.Question[0].Name, Rrtype: dns.TypeA, Class: dns.ClassINET, Ttl: 5}, A: net.ParseIP("192.0.2.7")}}
			}
		}
		rw.WriteMsg(r)
	})}
	go server.ActivateAndServe()
	t.Cleanup(func() { server.Shutdown() })
	resolve := func(name string) string {
		t.Helper()
		p := &netspace.Process{Host: "shop-1", Args: []string{"getent", "ahosts", name}, Log: w.file("getent.log"), Names: w.file("resolv.conf")}
		os.Remove(p.Log)
		w.Start(p, func() error { return errors.New("it ends") })
		b, err := os.ReadFile(p.Log)
		must(t, err)
		return string(b)
	}
	if got := resolve("hello.demo.mesh.internal"); !strings.Contains(got, hello+" ") || !strings.Contains(got, hello6+" ") {
		t.Errorf("hello.demo.mesh.internal is %q, want %s and %s", got, hello, hello6)
	}
	asked.Range(func(name, _ any) bool {
		t.Errorf("the pod's server was asked for %s", name)
		return true
	})
	if got := resolve("other.example"); !strings.Contains(got, "192.0.2.7") {
		t.Errorf("other.example is %q", got)
	}
	must(t, w.IP("shop-1", "-6 addr flush dev eth0 scope global"))
	must(t, w.nodes["node-a"].Stop(syscall.SIGKILL, 5*time.Second))
	w.start(t, "node-a")
	if got := resolve("hello.demo.mesh.internal"); !strings.Contains(got, hello+" ") || strings.Contains(got, hello6) {
		t.Errorf("in a pod without IPv6 hello.demo.mesh.internal is %q, want %s alone", got, hello)
	}
	must(t, w.nodes["node-a"].Stop(syscall.SIGKILL, 5*time.Second))
	if got := resolve("other.example"); !strings.Contains(got, "192.0.2.7") {
		t.Errorf("without a node proxy other.example is %q", got)
	}
	if got := resolve("hello.demo.mesh.internal"); strings.Contains(got, "240.240") {
		t.Errorf("without a node proxy the mesh's name is %q", got)
	}
	w.start(t, "node-a")
	if got := resolve("hello.demo.mesh.internal"); !strings.Contains(got, hello+" ") {
		t.Errorf("with the next node proxy hello.demo.mesh.internal is %q", got)
	}
}

// Tunnels begin in the namespace of the pod whose connection they carry: what holds for the packets of
// one pod holds for its tunnels, and no other pod's connection is in them.
func TestTunnelsBeginInThePod(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	tunnels := func(host string) (n int) {
		must(t, w.In(host, func() error {
			b, err := os.ReadFile("/proc/thread-self/net/tcp")
			for line := range strings.Lines(string(b)) {
				if f := strings.Fields(line); len(f) > 3 && f[2] == "0109470A:3AA0" && f[3] == "01" { // 10.71.9.1:15008, established
					n++
				}
			}
			return err
		}))
		return n
	}
	hosts := []string{"shop-1", "shop-2"}
	for i, pod := range hosts {
		if _, err := w.call(pod, hello+":80"); err != nil {
			t.Fatal(err)
		}
		for j, other := range hosts {
			if n := tunnels(other); (n > 0) != (j <= i) {
				t.Errorf("after a call of %s there are %d tunnels from %s", pod, n, other)
			}
		}
	}
	if n := tunnels("node-a"); n > 0 {
		t.Errorf("%d tunnels begin at the node", n)
	}
}

// A killed node proxy leaves rules behind: what they capture is refused, and never sent on.
func TestAKilledNodeProxy(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	strays := w.strays(t, "gateway", hello+":80", taken+":80", "["+hello6+"]:80")
	if _, err := w.call("shop-1", hello+":80"); err != nil {
		t.Fatal(err)
	}
	must(t, w.nodes["node-a"].Stop(syscall.SIGKILL, 5*time.Second))
	for _, to := range []string{hello + ":80", taken + ":80", "[" + hello6 + "]:80", "240.240.9.9:80"} {
		if text, err := w.call("shop-1", to); !refused(text, err) {
			t.Errorf("a call to %s without a node proxy: %q, %v, want refused", to, text, err)
		}
	}
	if text, err := w.call("shop-1", addresses["shop-2"]+":8080"); err != nil {
		t.Errorf("a call that is not the mesh's: %q, %v", text, err)
	}
	began := time.Now()
	w.start(t, "node-a")
	t.Logf("answered again %v after the start of the process, which was ready after %v", time.Since(began)+w.until(t, time.Second, "shop-1", hello+":80", answered), time.Since(began))
	if got := strays(); len(got) > 0 {
		t.Errorf("these left the pod in plain text: %v", got)
	}
}

// The next node proxy is in the pods before the one before it stops, and not one connection fails.
func TestTheNextNodeProxyTakesOver(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.write(t, "node-a-2.yaml", w.node("a", secondary, "shop-1", "shop-2"))
	stop, done := make(chan struct{}), make(chan error, 1)
	calls := 0
	go func() {
		for {
			select {
			case <-stop:
				done <- nil
				return
			default:
			}
			if _, err := w.call("shop-1", hello+":80"); err != nil {
				done <- fmt.Errorf("call %d: %w", calls, err)
				return
			}
			calls++
		}
	}()
	next := w.process("node-a", "node-a-2")
	must(t, w.Start(next, w.Ready("node-a", secondary)))
	w.nodes["node-a"].Signal(syscall.SIGTERM)
	select {
	case <-w.nodes["node-a"].Ended():
	case <-time.After(10 * time.Second):
		t.Error("the node proxy does not stop")
	}
	close(stop)
	if err := <-done; err != nil {
		t.Errorf("%v\n%s", err, netspace.Tail(w.file("node-a-2.log")))
	}
	t.Logf("%d calls", calls)
	if _, err := w.call("shop-2", hello+":80"); err != nil {
		t.Error(err)
	}
}

// A pod that leaves the mesh keeps nothing of it, and is captured again when it comes back.
func TestPodsLeaveAndComeBack(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	if _, err := w.call("shop-2", hello+":80"); err != nil {
		t.Fatal(err)
	}
	var rest strings.Builder
	for line := range strings.Lines(mesh) {
		if !strings.Contains(line, "uid: shop-2") {
			rest.WriteString(line)
		}
	}
	w.write(t, "mesh.yaml", rest.String())
	w.until(t, 2*time.Second, "shop-2", hello+":80", func(_ string, err error) bool { return err != nil && !refused("", err) })
	if _, err := w.call("shop-1", hello+":80"); err != nil {
		t.Errorf("the other pod: %v", err)
	}
	w.write(t, "mesh.yaml", mesh)
	t.Logf("captured %v after the file was written", w.until(t, 10*time.Second, "shop-2", hello+":80", answered))
}

// A pod whose ports are taken is not captured by half.
func TestAPodWhosePortsAreTaken(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	must(t, w.Host("all", "shop-3", "10.71.1.13"))
	other, err := w.Listen("shop-3", ":15001")
	must(t, err)
	w.write(t, "node-a.yaml", w.node("a", admin, "shop-1", "shop-2", "shop-3"))
	w.write(t, "mesh.yaml", mesh+"  - {uid: shop-3, namespace: demo, serviceAccount: shop, network: net-a, node: node-a, addresses: [10.71.1.13]}\n")
	must(t, w.nodes["node-a"].Stop(syscall.SIGTERM, 5*time.Second))
	w.start(t, "node-a")
	if _, err := w.call("shop-1", hello+":80"); err != nil {
		t.Errorf("the other pod: %v", err)
	}
	if text, err := w.call("shop-3", hello+":80"); err == nil || refused(text, err) {
		t.Errorf("a pod that cannot be captured has rules: %q, %v", text, err)
	}
	text, err := os.ReadFile(w.file("node-a.log"))
	must(t, err)
	if !strings.Contains(string(text), "port 15001 of the pod is taken") {
		t.Errorf("the log does not say that the port is taken")
	}
	status, err := w.Get("node-a", admin, "/status")
	must(t, err)
	if !strings.Contains(string(status), "pod shop-3 is not captured: port 15001 of the pod is taken") {
		t.Errorf("the status does not say that shop-3 is not captured: %s", status)
	}
	other.Close()
	w.until(t, 12*time.Second, "shop-3", hello+":80", answered)
}

// Who a connection is from is decided by the namespace that it begins in, and by nothing that a pod says.
func TestAPodWithItsNeighboursAddressIsItself(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	must(t, w.IP("shop-2", "addr add "+addresses["shop-1"]+"/32 dev lo"))
	var c net.Conn
	must(t, w.In("shop-2", func() (err error) {
		d := net.Dialer{Timeout: 5 * time.Second, LocalAddr: &net.TCPAddr{IP: net.ParseIP(addresses["shop-1"])}}
		c, err = d.Dial("tcp", hello+":80")
		return err
	}))
	defer c.Close()
	c.SetDeadline(time.Now().Add(5 * time.Second))
	b := make([]byte, 6)
	if _, err := io.ReadFull(c, b); err != nil || string(b) != "hello-" {
		t.Fatalf("the answer is %q, %v", b, err)
	}
	c.Close()
	for end := time.Now().Add(5 * time.Second); ; time.Sleep(20 * time.Millisecond) {
		lines := w.lines(t, "node-b")
		if len(lines) > 0 {
			if peer := lines[len(lines)-1]["peer"]; peer != "spiffe://cluster.local/ns/demo/sa/basket" {
				t.Errorf("the connection is one of %v", peer)
			}
			break
		}
		if time.Now().After(end) {
			t.Fatal("node-b has no line of the connection")
		}
	}
	for _, l := range w.lines(t, "node-a") {
		if l["source"] != "shop-2" {
			t.Errorf("the log of node-a says that the connection is one of %v", l["source"])
		}
	}
}

// The node proxy of another mesh leaves a pod alone that one has already, and rules that nobody needs any more are
// taken out by a node proxy that is told to.
func TestPodsOfAnotherMeshAndRelease(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.write(t, "mesh-2.yaml", strings.ReplaceAll(mesh, "net-a", "net-z"))
	other := strings.NewReplacer("network: net-a", "network: net-z", "mesh.yaml", "mesh-2.yaml").Replace(w.node("a", secondary, "shop-1"))
	w.write(t, "node-z.yaml", other)
	must(t, w.Start(w.process("node-a", "node-z"), w.Ready("node-a", secondary)))
	text, err := os.ReadFile(w.file("node-z.log"))
	must(t, err)
	if !strings.Contains(string(text), "captured by a node proxy of another mesh or network (cluster.local/net-a; this is one of cluster.local/net-z)") {
		t.Errorf("the second mesh's node proxy does not say that the pod is taken:\n%s", text)
	}
	for range 20 {
		if _, err := w.call("shop-1", hello+":80"); err != nil {
			t.Fatalf("with another mesh's node proxy beside: %v", err)
		}
	}
	must(t, w.nodes["node-a"].Stop(syscall.SIGTERM, 10*time.Second))
	if text, err := w.call("shop-2", hello+":80"); !refused(text, err) {
		t.Errorf("without a node proxy: %q, %v", text, err)
	}
	w.write(t, "node-a.yaml", strings.Replace(w.node("a", admin, "shop-1", "shop-2"), "scope: vips", "scope: release", 1))
	w.start(t, "node-a")
	for _, pod := range []string{"shop-1", "shop-2"} {
		w.until(t, 10*time.Second, pod, hello+":80", func(text string, err error) bool { return err != nil && !refused(text, err) })
	}
}
