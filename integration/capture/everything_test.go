//go:build linux

package capture

import (
	"errors"
	"fmt"
	"io"
	"net"
	"os/exec"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/isthmus-mesh/isthmus/internal/netspace"
)

// newWorldAll has node proxies that capture everything.
func newWorldAll(t *testing.T) *world {
	t.Helper()
	w := newWorld(t)
	for _, host := range []string{"node-a", "node-b"} {
		w.scope(t, host, "all")
	}
	w.until(t, 10*time.Second, "shop-1", hello+":80", answered)
	return w
}

// config is the configuration of a node proxy with that scope.
func (w *world) config(host, admin, scope string) string {
	pods := map[string][]string{"node-a": {"shop-1", "shop-2"}, "node-b": {"hello-1", "hello-2"}}[host]
	return strings.Replace(w.node(strings.TrimPrefix(host, "node-"), admin, pods...), "scope: vips", "scope: "+scope, 1)
}

// scope starts a node proxy anew with that scope.
func (w *world) scope(t testing.TB, host, scope string) {
	t.Helper()
	must(t, w.nodes[host].Stop(syscall.SIGTERM, 10*time.Second))
	w.write(t, host+".yaml", w.config(host, admin, scope))
	w.start(t, host)
}

func v6(a string) string { return "[fd71::" + strings.ReplaceAll(a, ".", ":") + "]" }

// line waits for a line of a node's access log that has all of these; nil: it does not have that.
func (w *world) line(t *testing.T, host string, want map[string]any) {
	t.Helper()
	if !w.logs(t, host, func(l map[string]any) bool {
		for k, v := range want {
			if fmt.Sprint(l[k]) != fmt.Sprint(v) { // numbers are float64 there
				return false
			}
		}
		return true
	}) {
		t.Errorf("no line of %s's log has %v:\n%s", host, want, netspace.Tail(w.file(host+".log")))
	}
}

// ends has an error unless a connection comes to nothing at once: refused or reset, without a byte.
func (w *world) ends(from, to string) error {
	began := time.Now()
	c, err := w.Dial(from, to)
	if err == nil {
		defer c.Close()
		c.SetDeadline(time.Now().Add(5 * time.Second))
		var n int
		if n, err = c.Read(make([]byte, 1)); n > 0 || err == io.EOF {
			return fmt.Errorf("%s to %s: %d bytes, %v", from, to, n, err)
		}
	}
	if took := time.Since(began); took > 3*time.Second || errors.Is(err, syscall.ETIMEDOUT) {
		return fmt.Errorf("%s to %s: %v after %v", from, to, err, took)
	}
	return nil
}

// Connections to destinations that the mesh does not have are left to the kernel, in both families. Those to its services,
// and to its pods by their own addresses, go by the mesh.
func TestAPodAllOfWhoseConnectionsAreCaptured(t *testing.T) {
	t.Parallel()
	w := newWorldAll(t)
	w.serve(t, "gateway") // an outsider, beside
	outsider := addresses["gateway"]
	if text, err := w.call("shop-1", outsider+":8080"); err != nil || text != "gateway sees "+addresses["shop-1"] {
		t.Errorf("a call to an outsider: %q, %v", text, err)
	}
	if text, err := w.call("shop-1", v6(outsider)+":8080"); err != nil || !strings.HasPrefix(text, "gateway sees fd71::") {
		t.Errorf("a call to an outsider by IPv6: %q, %v", text, err)
	}
	for range 2 {
		if _, err := w.call("shop-1", outsider+":9"); !refused("", err) {
			t.Errorf("a call to a port of an outsider that is closed: %v", err)
		}
	}
	// Names and addresses of the mesh as ever.
	for _, to := range []string{hello + ":80", "[" + hello6 + "]:80", taken + ":80", local + ":80"} {
		if _, err := w.call("shop-1", to); err != nil {
			t.Errorf("a call to %s: %v", to, err)
		}
	}
	for _, to := range []string{"240.240.77.77:80", hello + ":81", taken + ":81", "[" + hello6 + "]:81"} {
		if _, err := w.call("shop-1", to); !refused("", err) {
			t.Errorf("a call to %s, which no service has: %v, want that it is refused", to, err)
		}
	}
	// A pod's address is the pod's, by the mesh: both ends prove who they are.
	if text, err := w.call("shop-1", addresses["shop-2"]+":8080"); err != nil || text != "shop-2 sees "+addresses["shop-1"] {
		t.Errorf("a call to the other pod itself: %q, %v", text, err)
	}
	w.line(t, "node-a", map[string]any{"direction": "outbound", "source": "shop-1", "workload": "shop-2", "peer": "spiffe://cluster.local/ns/demo/sa/basket", "plain": nil})
	w.line(t, "node-a", map[string]any{"direction": "inbound", "workload": "shop-2", "peer": "spiffe://cluster.local/ns/demo/sa/shop", "target": 8080, "plain": nil})
	for to, passed := range map[string]bool{outsider + ":8080": true, addresses["shop-2"] + ":8080": false, hello + ":80": false, taken + ":80": false, "240.240.77.77:80": false} {
		b, err := w.Get("node-a", admin, "/explain?source=shop-1&destination="+to)
		must(t, err)
		if got := strings.Contains(string(b), `"passedOn":`); got != passed {
			t.Errorf("explain says of %s: %s, want that it is passed on: %t", to, b, passed)
		}
	}
	// Itself it reaches as ever.
	for _, at := range []string{addresses["shop-1"], "127.0.0.1", v6(addresses["shop-1"]), "[::1]"} {
		if _, err := w.call("shop-1", at+":8080"); err != nil {
			t.Errorf("a call of the pod to itself at %s: %v", at, err)
		}
	}
	for _, l := range w.lines(t, "node-a") {
		if l["direction"] == "outbound" && (l["plain"] == true || l["service"] == outsider) {
			t.Errorf("the node proxy has carried a connection to an outsider: %v", l)
		}
	}
	// UDP is left alone.
	u, err := w.ListenPacket("gateway", outsider+":5353")
	must(t, err)
	defer u.Close()
	var c net.Conn
	must(t, w.In("shop-1", func() (err error) { c, err = net.Dial("udp", outsider+":5353"); return err }))
	defer c.Close()
	_, err = c.Write([]byte("query"))
	must(t, err)
	u.SetDeadline(time.Now().Add(2 * time.Second))
	if _, from, err := u.ReadFrom(make([]byte, 9)); err != nil || from.String() != c.LocalAddr().String() {
		t.Errorf("UDP comes from %v, %v", from, err)
	}
}

// A service of the own network goes by the mesh to those of its pods that accept tunnels; one that has none of those, and a
// pod that does not, are reached as without us.
func TestWhatOfTheOwnNetworkTheMeshCarries(t *testing.T) {
	t.Parallel()
	w := newWorldAll(t)
	const inner, outer = "10.96.0.77", "10.96.0.78"
	w.serve(t, "gateway")
	must(t, w.IP("gateway", "addr add "+outer+"/32 dev eth0")) // as who has that cluster IP
	text := strings.Replace(mesh, "workloads:\n", `  - {name: inner, namespace: demo, vips: ["`+inner+`"], ports: [{port: 8080}]}
  - {name: outer, namespace: demo, vips: ["`+outer+`"], ports: [{port: 8080}]}
workloads:
  - {uid: old, namespace: demo, serviceAccount: old, network: net-a, node: elsewhere, protocol: TCP, addresses: [`+addresses["gateway"]+`], services: [inner.demo.svc.cluster.local, outer.demo.svc.cluster.local]}
`, 1)
	w.write(t, "mesh.yaml", strings.Replace(text, "services: [local.demo.svc.cluster.local]}\n  - {uid: hello-1", "services: [local.demo.svc.cluster.local, inner.demo.svc.cluster.local]}\n  - {uid: hello-1", 1))
	w.until(t, 10*time.Second, "shop-1", inner+":8080", answered)
	for range 10 {
		if text, err := w.call("shop-1", inner+":8080"); err != nil || text != "shop-2 sees "+addresses["shop-1"] {
			t.Errorf("a service with a pod in the mesh: %q, %v", text, err)
		}
	}
	w.line(t, "node-a", map[string]any{"direction": "outbound", "service": "inner.demo.svc.cluster.local", "workload": "shop-2", "peer": "spiffe://cluster.local/ns/demo/sa/basket", "plain": nil})
	for _, to := range []string{outer, addresses["gateway"]} {
		if text, err := w.call("shop-1", to+":8080"); err != nil || text != "gateway sees "+addresses["shop-1"] {
			t.Errorf("a call to %s, which is not in the mesh: %q, %v", to, text, err)
		}
	}
}

// Others reach a pod in plain text as without us, and it sees who they are; but for the node proxy's own ports.
func TestOthersReachACapturedPodInPlainText(t *testing.T) {
	needsNft(t)
	t.Parallel()
	w := newWorldAll(t)
	w.police(t)
	outsider := addresses["gateway"]
	if text, err := w.call("gateway", addresses["shop-1"]+":8080"); err != nil || text != "shop-1 sees "+outsider {
		t.Errorf("a call of an outsider: %q, %v", text, err)
	}
	w.line(t, "node-a", map[string]any{"direction": "inbound", "workload": "shop-1", "target": 8080, "service": "local.demo.svc.cluster.local", "port": 80, "plain": true, "peer": nil, "result": "ok"})
	if text, err := w.call("gateway", v6(addresses["shop-1"])+":8080"); err != nil || !strings.HasPrefix(text, "shop-1 sees fd71::") {
		t.Errorf("a call of an outsider by IPv6: %q, %v", text, err)
	}
	if err := w.ends("gateway", addresses["shop-1"]+":9"); err != nil {
		t.Error(err)
	}
	// Nothing loops.
	for _, port := range []string{"15001", "15006"} {
		for from, to := range map[string]string{"gateway": addresses["shop-1"], "shop-2": addresses["shop-1"], "shop-1": addresses["shop-1"]} {
			if err := w.ends(from, to+":"+port); err != nil {
				t.Error(err)
			}
		}
		for _, to := range []string{"127.0.0.1", "[::1]", addresses["shop-1"], v6(addresses["shop-1"]), v6(addresses["shop-2"])} {
			if err := w.ends("shop-1", to+":"+port); err != nil {
				t.Error(err)
			}
		}
	}
	if err := w.ends("shop-2", addresses["shop-1"]+":15008"); err != nil {
		t.Error(err)
	}
	if _, err := w.call("gateway", addresses["shop-1"]+":8080"); err != nil {
		t.Error(err)
	}
}

// A pod that leaves the mesh and goes on is captured no more; what it has open goes on while it is drained, and then
// nothing of ours is left.
func TestAPodThatLeavesKeepsWhatIsOpen(t *testing.T) {
	needsNft(t)
	t.Parallel()
	w := newWorldAll(t)
	w.serve(t, "gateway")
	outsider, app := addresses["gateway"]+":8080", addresses["shop-1"]+":8080"
	var list []net.Conn
	for _, call := range [][2]string{{"shop-1", outsider}, {"gateway", app}, {"shop-1", hello + ":80"}, {"shop-1", addresses["shop-2"] + ":8080"}} {
		c, err := w.Dial(call[0], call[1])
		must(t, err)
		defer c.Close()
		hear(t, c)
		list = append(list, c)
	}
	var rest strings.Builder
	for line := range strings.Lines(mesh) {
		if !strings.Contains(line, "uid: shop-1,") {
			rest.WriteString(line)
		}
	}
	w.write(t, "mesh.yaml", rest.String())
	for end := time.Now().Add(10 * time.Second); w.said(t, "node-a", "captured no more") == 0; time.Sleep(10 * time.Millisecond) {
		if time.Now().After(end) {
			t.Fatal("the pod does not leave")
		}
	}
	before := w.plain(t, "node-a")
	for i, c := range list {
		c.SetDeadline(time.Now().Add(time.Second))
		b := make([]byte, 4)
		_, err := io.WriteString(c, "ping")
		if err == nil {
			_, err = io.ReadFull(c, b)
		}
		if err != nil {
			t.Errorf("connection %d: %q, %v", i, b, err)
		}
	}
	for from, to := range map[string]string{"shop-1": outsider, "gateway": app} {
		if _, err := w.call(from, to); err != nil {
			t.Errorf("of a pod that has left, %s to %s: %v", from, to, err)
		}
	}
	if n := w.plain(t, "node-a"); n != before {
		t.Errorf("%d connections of a pod that has left were captured", n-before)
	}
	for end := time.Now().Add(10 * time.Second); ; time.Sleep(20 * time.Millisecond) {
		out, err := w.ruleset("shop-1")
		must(t, err)
		if !strings.Contains(out, "isthmus") && w.routing(t, "shop-1") == "" {
			break
		}
		if time.Now().After(end) {
			t.Fatalf("left in the pod:\n%s%s", out, w.routing(t, "shop-1"))
		}
	}
}

// plain counts what was carried in no tunnel.
func (w *world) plain(t *testing.T, log string) (n int) {
	t.Helper()
	for _, l := range w.lines(t, log) {
		if l["plain"] == true {
			n++
		}
	}
	return n
}

// ruleset is all rules of a host.
func (w *world) ruleset(host string) (string, error) { return w.Nft(host, "list ruleset") }

func command(name string, args ...string) error {
	out, err := exec.Command(name, args...).CombinedOutput()
	if err != nil {
		return fmt.Errorf("%s %v: %w: %s", name, args, err, out)
	}
	return nil
}
