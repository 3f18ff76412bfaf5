//go:build linux

// Package capture runs node proxies that capture pods in their own network namespaces: two
// networks, pods that know nothing of it, and real binaries, in namespaces of this test alone. It needs
// root, nf_tables and no Kubernetes.
package capture

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/isthmus-mesh/isthmus/internal/netspace"
)

const (
	root      = "../.."
	admin     = "127.0.0.1:16000"
	secondary = "127.0.0.1:16001" // of a node proxy that takes over
	hello     = "240.240.0.1"     // the service of net-b, whose pods are hello-1 and hello-2
	hello6    = "2001:2::1"
	local     = "240.240.0.2" // the service of net-a, whose pods are shop-1 and shop-2
	taken     = "10.96.0.9"   // the cluster IP of hello on net-a
)

// addresses of the hosts: nodes, the gateway and one for each pod.
var addresses = map[string]string{
	"node-a": "10.71.1.1", "shop-1": "10.71.1.11", "shop-2": "10.71.1.12",
	"node-b": "10.71.2.1", "hello-1": "10.71.2.11", "hello-2": "10.71.2.12",
	"gateway": "10.71.9.1",
}

const mesh = `trustDomain: cluster.local
networks: [{name: net-a}, {name: net-b}]
gateways: [{name: eastwest, network: net-b, address: "10.71.9.1:15008", serviceAccount: isthmus-system/gateway}]
services:
  - {name: hello, namespace: demo, global: true, vips: ["240.240.0.1", "2001:2::1", 10.96.0.9], ports: [{name: http, port: 80, targetPort: 8080}]}
  - {name: local, namespace: demo, global: true, vips: ["240.240.0.2"], ports: [{name: http, port: 80, targetPort: 8080}]}
workloads:
  - {uid: shop-1, namespace: demo, serviceAccount: shop, network: net-a, node: node-a, addresses: [10.71.1.11], services: [local.demo.svc.cluster.local]}
  - {uid: shop-2, namespace: demo, serviceAccount: basket, network: net-a, node: node-a, addresses: [10.71.1.12], services: [local.demo.svc.cluster.local]}
  - {uid: hello-1, namespace: demo, serviceAccount: hello, network: net-b, node: node-b, addresses: [10.71.2.11], services: [hello.demo.svc.cluster.local]}
  - {uid: hello-2, namespace: demo, serviceAccount: hello, network: net-b, node: node-b, addresses: [10.71.2.12], services: [hello.demo.svc.cluster.local]}
`

// bin is where the programs are.
var bin string

func TestMain(m *testing.M) {
	if os.Getenv(withoutNetfilter) != "" {
		fmt.Fprintln(os.Stderr, becomeWithoutNetfilter(os.Args[1:]))
		os.Exit(1)
	}
	s, err := netspace.New("capture-bin")
	if err == nil {
		bin, err = s.Build(root)
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
	code := m.Run()
	s.Close()
	os.Exit(code)
}

// world is everything that runs.
type world struct {
	*netspace.Space
	bin   string
	nodes map[string]*netspace.Process
}

func must(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// needsNft skips a test where nft is not installed; in CI the test fails instead.
func needsNft(t testing.TB) {
	t.Helper()
	netspace.NeedNft(t)
}

func newWorld(t *testing.T) *world { return newWorldWith(t, "") }

// newWorldWith adds more to the configuration of node-a, and gateway to that of the gateway.
func newWorldWith(t testing.TB, more string, gateway ...string) *world {
	t.Helper()
	netspace.NeedRoot(t)
	s, err := netspace.New("capture")
	w := &world{Space: s, nodes: map[string]*netspace.Process{}}
	t.Cleanup(func() {
		if t.Failed() {
			for host := range w.nodes {
				t.Logf("%s:\n%s", host, netspace.Tail(w.file(host+".log")))
			}
		}
		if err := s.Close(); err != nil {
			t.Error(err)
		}
	})
	must(t, err)
	w.bin = bin
	hosts := map[string][]string{}
	for host, a := range addresses {
		hosts[host] = []string{a}
	}
	must(t, s.Segment("all", hosts))
	for host, a := range addresses {
		must(t, s.IP(host, "addr add fd71::"+strings.ReplaceAll(a, ".", ":")+"/64 dev eth0 nodad"))
		must(t, s.IP(host, "-6 route add default dev eth0"))
	}
	emptyProc(t, w.Dir)
	w.write(t, "mesh.yaml", mesh)
	w.write(t, "resolv.conf", "nameserver "+addresses["gateway"]+"\nsearch demo.svc.cluster.local svc.cluster.local cluster.local\noptions ndots:5\n")
	w.write(t, "gateway.yaml", "name: eastwest\nnetwork: net-b\nfederation: {keys: network}\n"+w.common(admin)+strings.Join(gateway, ""))
	w.write(t, "node-a.yaml", w.node("a", admin, "shop-1", "shop-2")+more)
	w.write(t, "node-b.yaml", w.node("b", admin, "hello-1", "hello-2"))
	w.isthmus(t, "ca", "init", "--dir", "ca", "--trust-domain", "cluster.local")
	w.isthmus(t, "network", "init", "--dir", "network", "--network", "net-b")
	for host := range addresses {
		if !strings.HasPrefix(host, "node") && host != "gateway" {
			w.serve(t, host)
		}
	}
	eastwest := &netspace.Process{Host: "gateway", Args: []string{filepath.Join(w.bin, "gateway"), "--config", "gateway.yaml"}, Log: w.file("gateway.log")}
	must(t, w.Start(eastwest, w.Ready("gateway", admin)))
	w.start(t, "node-b")
	w.start(t, "node-a")
	return w
}

func (w *world) file(name string) string { return filepath.Join(w.Dir, name) }

// emptyProc makes a proc file system of a directory, with no pods: its only process is whoever reads it.
func emptyProc(t testing.TB, dir string) {
	t.Helper()
	must(t, os.MkdirAll(dir, 0o700))
	for _, name := range []string{"self", "1"} {
		must(t, os.Symlink("/proc/self", filepath.Join(dir, name)))
	}
}

func (w *world) common(admin string) string {
	return fmt.Sprintf("discovery: {file: mesh.yaml}\nidentity: {source: ca, dir: ca}\nlog: {level: info, format: json}\nadmin: {address: %q}\n", admin)
}

// node is the configuration of a node proxy that captures pods.
func (w *world) node(name, admin string, pods ...string) string {
	text := fmt.Sprintf("node: node-%s\nnetwork: net-%s\ntimeouts: {drain: 2s}\n%scapture:\n  scope: vips\n  proc: %s\n  namespaces:\n", name, name, w.common(admin), w.Dir) // no process of this machine is a pod of this test
	for _, p := range pods {
		text += fmt.Sprintf("    - {workload: %s, path: %s, resolvConf: resolv.conf}\n", p, w.Path(p))
	}
	return text
}

func (w *world) write(t testing.TB, name, text string) {
	t.Helper()
	must(t, os.WriteFile(w.file(name)+".new", []byte(text), 0o600))
	must(t, os.Rename(w.file(name)+".new", w.file(name)))
}

func (w *world) isthmus(t testing.TB, args ...string) {
	t.Helper()
	cmd := exec.Command(filepath.Join(w.bin, "isthmus"), args...)
	cmd.Dir = w.Dir
	if out, err := cmd.CombinedOutput(); err != nil {
		t.Fatalf("isthmus %v: %v\n%s", args, err, out)
	}
}

func (w *world) start(t testing.TB, host string) {
	t.Helper()
	w.nodes[host] = w.process(host, host)
	must(t, w.Start(w.nodes[host], w.Ready(host, admin)))
}

func (w *world) process(host, config string) *netspace.Process {
	return &netspace.Process{Host: host, Args: []string{filepath.Join(w.bin, "nodeproxy"), "--config", config + ".yaml"}, Log: w.file(config + ".log")}
}

// serve has a pod answer on port 8080 with its name and whom it sees, until the client ends, and
// then echo.
func (w *world) serve(t testing.TB, pod string) io.Closer {
	t.Helper()
	l, err := w.Listen(pod, ":8080")
	must(t, err)
	t.Cleanup(func() { l.Close() })
	go func() {
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			go func() {
				defer c.Close()
				fmt.Fprintf(c, "%s sees %s\n", pod, c.RemoteAddr().(*net.TCPAddr).IP)
				io.Copy(c, c)
				c.(*net.TCPConn).CloseWrite()
			}()
		}
	}()
	return l
}

// call connects from a pod, says something and returns the answer.
func (w *world) call(pod, address string) (string, error) {
	c, err := w.Dial(pod, address)
	if err != nil {
		return "", err
	}
	defer c.Close()
	c.SetDeadline(time.Now().Add(5 * time.Second))
	if _, err := io.WriteString(c, "ping"); err != nil {
		return "", err
	}
	end := c.CloseWrite()
	b, err := io.ReadAll(c)
	if err == nil {
		err = end // of a connection that was reset, ENOTCONN; the read has the cause
	}
	text := string(b)
	if err == nil && !strings.HasSuffix(text, "\nping") {
		err = fmt.Errorf("the answer is %q", text)
	}
	return strings.TrimSuffix(text, "\nping"), err
}

// until waits for a call to do what is wanted.
func (w *world) until(t *testing.T, within time.Duration, pod, address string, want func(string, error) bool) time.Duration {
	t.Helper()
	began := time.Now()
	for {
		text, err := w.call(pod, address)
		if want(text, err) {
			return time.Since(began)
		}
		if time.Since(began) > within {
			t.Fatalf("after %v a call of %s to %s is still %q, %v", within, pod, address, text, err)
		}
		time.Sleep(10 * time.Millisecond)
	}
}

func answered(_ string, err error) bool { return err == nil }
func refused(_ string, err error) bool  { return errors.Is(err, syscall.ECONNREFUSED) }

// lines are those of a node proxy's access log.
func (w *world) lines(t *testing.T, host string) (out []map[string]any) {
	t.Helper()
	text, err := os.ReadFile(w.file(host + ".log"))
	must(t, err)
	for line := range strings.Lines(string(text)) {
		var m map[string]any
		if json.Unmarshal([]byte(line), &m) == nil && m["message"] == "connection" {
			out = append(out, m)
		}
	}
	return out
}

// logs waits for a line of a node proxy's access log.
func (w *world) logs(t *testing.T, host string, want func(map[string]any) bool) bool {
	t.Helper()
	for end := time.Now().Add(5 * time.Second); time.Now().Before(end); time.Sleep(10 * time.Millisecond) {
		if slices.ContainsFunc(w.lines(t, host), want) {
			return true
		}
	}
	return false
}

// strays listens in a host for what rules should have caught.
func (w *world) strays(t *testing.T, host string, at ...string) (seen func() []string) {
	t.Helper()
	var mu sync.Mutex
	var got []string
	for _, a := range at {
		ip, _, err := net.SplitHostPort(a)
		must(t, err)
		bits := "/32"
		if strings.Contains(ip, ":") {
			bits = "/128 nodad"
		}
		must(t, w.IP(host, "addr add "+ip+bits+" dev eth0"))
		l, err := w.Listen(host, "0.0.0.0:80")
		if strings.Contains(ip, ":") {
			l, err = w.Listen(host, a)
		}
		if errors.Is(err, syscall.EADDRINUSE) {
			continue
		}
		must(t, err)
		t.Cleanup(func() { l.Close() })
		go func() {
			for {
				c, err := l.Accept()
				if err != nil {
					return
				}
				mu.Lock()
				got = append(got, c.RemoteAddr().String()+" at "+c.LocalAddr().String())
				mu.Unlock()
				c.Close()
			}
		}()
	}
	return func() []string {
		mu.Lock()
		defer mu.Unlock()
		return append([]string(nil), got...)
	}
}
