package interop

import (
	"bytes"
	_ "embed"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"text/template"
	"time"

	"github.com/isthmus-mesh/isthmus/integration/stock"
	"github.com/isthmus-mesh/isthmus/internal/netspace"
)

// root is the top of the repository.
const root = "../.."

// Accounts that a gateway may run as; clients want the first.
const (
	gatewayAccount  = "istio-system/eastwest"
	impostorAccount = "istio-system/impostor"
)

const (
	ourAdmin     = "127.0.0.1:16000" // of our processes; stock ones have 15000 to themselves
	secondAdmin  = "127.0.0.1:16001" // of a gateway that takes over
	drainTimeout = 20 * time.Second
)

// addresses are the hosts: one proxy each, because ours and a stock one cannot
// both have port 15008.
var addresses = map[string]string{
	"client-ours": "10.71.1.2", "client-stock": "10.71.1.3",
	"server-ours": "10.71.2.2", "server-stock": "10.71.2.3",
	"gateway":        "10.71.9.1",
	"server-stock-2": "10.71.2.12", "server-stock-3": "10.71.2.13", // run only while a test needs them
	"server-many": "10.71.3.1", // of the first of its pods
	// Played by this process, for recording: see recorder.
	"server-tape": "10.71.2.4", "gateway-tape": "10.71.9.2",
}

// manyPods are on one host, behind our node proxy.
const manyPods = 10

func manyAddress(i int) string { return fmt.Sprintf("10.71.3.%d", i+1) }

// services in the order of their virtual addresses, 240.240.0.0 and so on.
var services = []string{"ghost", "near-ours", "near-stock", "far-ours", "far-stock", "near-tape", "far-tape", "beyond-tape", "far-many", "far-herd"}

// vip is where clients reach a service.
func vip(service string, port uint16) netip.AddrPort {
	for i, s := range services {
		if s == service {
			return netip.AddrPortFrom(netip.AddrFrom4([4]byte{240, 240, 0, byte(i)}), port)
		}
	}
	panic("no service " + service)
}

// world is everything that runs.
type world struct {
	*netspace.Space
	bin     string
	ztunnel string
	app     *app

	gateway *netspace.Process
	proxies map[string]*netspace.Process // by host
	cas     map[string]*netspace.Process // of stock proxies, by host
}

// newWorld starts all of it around a stock ztunnel. The caller closes what it
// gets, also with an error.
func newWorld(ztunnel string) (*world, error) {
	space, err := netspace.New("interop")
	w := &world{Space: space, ztunnel: ztunnel, app: &app{left: make(chan taken, 8)}, proxies: map[string]*netspace.Process{}, cas: map[string]*netspace.Process{}}
	if err != nil {
		return w, err
	}
	if w.bin, err = w.Build(root); err != nil {
		return w, err
	}
	for _, step := range []func() error{
		w.makeHosts,
		w.initCA,
		w.configure,
		func() error { return w.serveApps("ours", "stock") },
		func() error { return w.startStock("client-stock", "demo/shop-stock/shop", "net-a") },
		func() error { return w.startStock("server-stock", "demo/far-stock/pay", "net-b") },
		func() error { return w.startOurs("client-ours") },
		func() error { return w.startOurs("server-ours") },
		func() error { return w.startGateway("gateway.yaml") },
	} {
		if err := step(); err != nil {
			return w, err
		}
	}
	return w, nil
}

func (w *world) makeHosts() error {
	hosts := map[string][]string{}
	for host, address := range addresses {
		hosts[host] = []string{address}
	}
	for i := range manyPods {
		hosts["server-many"] = append(hosts["server-many"][:i], manyAddress(i))
	}
	return w.Segment("all", hosts)
}

func (w *world) initCA() error {
	return errors.Join(w.isthmus("ca", "init", "--dir", "ca", "--trust-domain", "cluster.local"), w.isthmus("network", "init", "--dir", "network", "--network", "net-b"))
}

//go:embed testdata/mesh.yaml
var meshFile string

// configure writes a mesh file for clients and servers, one for the gateway
// (which does not know the ghost), one for an impostor, and our processes' own.
func (w *world) configure() error {
	t := template.Must(template.New("mesh").Parse(meshFile))
	var many []string
	for i := range manyPods {
		many = append(many, manyAddress(i))
	}
	for name, mesh := range map[string]struct {
		GatewayAccount string
		Ghost          bool
		Services       []string
		Many           []string
	}{
		"mesh.yaml":          {gatewayAccount, true, services, many},
		"mesh-client.yaml":   {gatewayAccount, true, services, many}, // of our client alone
		"mesh-gateway.yaml":  {gatewayAccount, false, services, many},
		"mesh-impostor.yaml": {impostorAccount, false, services, many},
	} {
		var text bytes.Buffer
		if err := t.Execute(&text, mesh); err != nil {
			return err
		}
		if err := w.write(name, text.Bytes()); err != nil {
			return err
		}
	}
	common := fmt.Sprintf("identity: {source: ca, dir: ca}\nlog: {level: info, format: json}\nadmin: {address: \"%s\"}\ntimeouts: {drain: %v}\n", ourAdmin, drainTimeout)
	return errors.Join(
		w.write("gateway.yaml", []byte("name: eastwest\nnetwork: net-b\nreusePort: true\nfederation: {keys: network}\ndiscovery: {file: mesh-gateway.yaml}\n"+common)),
		w.write("gateway-2.yaml", []byte("name: eastwest\nnetwork: net-b\nreusePort: true\nfederation: {keys: network}\ndiscovery: {file: mesh-gateway.yaml}\n"+strings.Replace(common, ourAdmin, secondAdmin, 1))),
		w.write("impostor.yaml", []byte("name: eastwest\nnetwork: net-b\nfederation: {keys: network}\ndiscovery: {file: mesh-impostor.yaml}\n"+common)),
		w.write("client-ours.yaml", []byte("node: client-ours\nnetwork: net-a\ndiscovery: {file: mesh-client.yaml}\n"+
			"socks: [{workload: shop-ours, listen: \""+stock.Socks+"\"}]\n"+common)),
		w.write("server-many.yaml", []byte("node: server-many\nnetwork: net-b\ndiscovery: {file: mesh.yaml}\n"+common)),
		w.write("server-ours.yaml", []byte("node: server-ours\nnetwork: net-b\ndiscovery: {file: mesh.yaml}\n"+common)))
}

func (w *world) write(name string, text []byte) error {
	file := filepath.Join(w.Dir, name)
	if err := os.MkdirAll(filepath.Dir(file), 0o700); err != nil {
		return err
	}
	return os.WriteFile(file, text, 0o600)
}

// denyPort is an authorization policy of stock proxies: a server of theirs answers
// 401 on that port. Ours have no policies here.
const denyPort = `policies:
  - {name: no-8082, namespace: demo, scope: Namespace, action: Deny, dryRun: false, rules: [[[{destinationPorts: [8082]}]]]}`

// edit replaces old, which must be there, in a file.
func (w *world) edit(name, old, with string) error {
	text, err := os.ReadFile(filepath.Join(w.Dir, name))
	if err == nil && !strings.Contains(string(text), old) {
		err = fmt.Errorf("%s has no %q", name, old)
	}
	if err != nil {
		return err
	}
	return w.write(name, []byte(strings.Replace(string(text), old, with, 1)))
}

func (w *world) serveApps(pods ...string) error {
	for _, pod := range pods {
		host := "server-" + pod
		if _, err := w.serveApp(host, addresses[host], pod); err != nil {
			return err
		}
		l, err := w.Listen(host, addresses[host]+":8082") // who does not get there was denied, not refused
		if err != nil {
			return err
		}
		go w.app.serve(pod, l)
	}
	return nil
}

// serveApp starts the application of one pod; closing the listener ends it.
func (w *world) serveApp(host, address, pod string) (net.Listener, error) {
	l, err := w.Listen(host, address+":8080")
	if err == nil {
		go w.app.serve(pod, l)
	}
	return l, err
}

func (w *world) startOurs(host string) error {
	w.proxies[host] = &netspace.Process{Host: host, Args: []string{filepath.Join(w.bin, "nodeproxy"), "--config", host + ".yaml"}, Log: filepath.Join(w.Dir, host+".log")}
	return w.Start(w.proxies[host], w.ready(w.proxies[host]))
}

func (w *world) startGateway(config string) error {
	w.gateway = w.newGateway(config)
	return w.Start(w.gateway, w.ready(w.gateway))
}

func (w *world) newGateway(config string) *netspace.Process {
	return &netspace.Process{Host: "gateway", Args: []string{filepath.Join(w.bin, "gateway"), "--config", config}, Log: filepath.Join(w.Dir, "gateway.log")}
}

// ready asks whether a proxy serves.
func (w *world) ready(p *netspace.Process) func() error {
	if strings.Contains(p.Host, "stock") {
		return w.Ready(p.Host, stock.Ready)
	}
	return w.Ready(p.Host, ourAdmin)
}

// startStock gives a ztunnel the configuration that isthmus export writes and
// the certificates that isthmus ca serve issues.
func (w *world) startStock(host, workload, network string) error {
	if err := w.isthmus("export", "ztunnel", "--config", "mesh.yaml", "--node", host); err != nil {
		return err
	}
	if err := w.edit(host+".yaml", "policies: []", denyPort); err != nil {
		return err
	}
	ca := &netspace.Process{Host: host, Args: []string{filepath.Join(w.bin, "isthmus"), "ca", "serve", "--dir", "ca", "--listen", stock.CA}, Log: filepath.Join(w.Dir, host+"-ca.log")}
	w.cas[host] = ca
	if err := w.Start(ca, w.Accepts(host, stock.CA)); err != nil {
		return err
	}
	w.proxies[host] = &netspace.Process{Host: host, Args: []string{w.ztunnel}, Log: filepath.Join(w.Dir, host+".log"), Env: stock.Environment(host, workload, network, "info,access=info")}
	return w.Start(w.proxies[host], w.ready(w.proxies[host]))
}

// isthmus runs a command of ours. What export prints goes to <node>.yaml.
func (w *world) isthmus(args ...string) error {
	cmd := exec.Command(filepath.Join(w.bin, "isthmus"), args...)
	cmd.Dir, cmd.Stderr = w.Dir, os.Stderr
	out, err := cmd.Output()
	if err == nil && args[0] == "export" {
		err = w.write(args[len(args)-1]+".yaml", out)
	}
	if err != nil {
		return fmt.Errorf("isthmus %v: %w", args, err)
	}
	return nil
}

// belief is what the gateway's /state says about one pod.
type belief struct {
	Workload, Hop string
	Ports         map[string]struct{ Witness string }
}

func (w *world) beliefs(t *testing.T) (b []belief) {
	t.Helper()
	text, err := w.Get("gateway", ourAdmin, "/state")
	if err != nil {
		t.Fatal(err)
	}
	var s struct{ Pods []belief }
	if err := json.Unmarshal(text, &s); err != nil {
		t.Fatal(err)
	}
	return s.Pods
}
