//go:build linux

package wan

import (
	"bytes"
	_ "embed"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"testing"
	"text/template"
	"time"

	"github.com/isthmus-mesh/isthmus/integration/stock"
	"github.com/isthmus-mesh/isthmus/internal/netspace"
	"github.com/isthmus-mesh/isthmus/internal/wan"
)

// root is the top of the repository.
const root = "../.."

// line is what lies between east and west when no test has made it worse.
var line = wan.Conditions{Delay: 40 * time.Millisecond}

// admin and spareAdmin are our processes' admin servers; on the host spare there
// are two of them.
const (
	admin      = "127.0.0.1:16000"
	spareAdmin = "127.0.0.1:16001"
)

// gatewayAddress is that of the gateway in the west.
const gatewayAddress = "10.71.9.1:15008"

var (
	pods   = []string{"10.71.2.10", "10.71.2.11", "10.71.2.12", "10.71.2.13", "10.71.2.14", "10.71.2.15"} // in the west
	spares = []string{"10.71.3.10", "10.71.3.11"}
	east   = map[string][]string{
		"client-ours":  {"10.71.1.2", "10.71.1.4"},
		"client-stock": {"10.71.1.3"},
		"spare":        append([]string{"10.71.9.2"}, spares...),
	}
	west = map[string][]string{
		"gateway":      {"10.71.9.1"},
		"server-ours":  pods,
		"server-stock": {"10.71.2.3"},
	}
)

// services in the order of their virtual addresses, 240.240.0.0 and so on.
var services = []string{"near-ours", "far-ours", "near-stock", "far-stock", "both", "archive"}

// entries are the listeners of our client's node proxy, by workload and service.
var entries = map[[2]string]string{
	{"shop", "near-ours"}: "127.0.0.1:16100",
	{"shop", "far-ours"}:  "127.0.0.1:16101",
	{"shop", "far-stock"}: "127.0.0.1:16102",
	{"shop", "both"}:      "127.0.0.1:16103",
	{"till", "far-ours"}:  "127.0.0.1:16104",
	{"shop", "archive"}:   "127.0.0.1:16105",
}

// world is everything that runs.
type world struct {
	*netspace.Space
	bin     string
	ztunnel string // binary of a stock one, or empty
	link    *wan.Link
	gateway *netspace.Process            // in the west
	clients map[string]*netspace.Process // the node proxies in the east, by host
}

// newWorld starts all of it. The caller closes what it gets, also with an error.
func newWorld(ztunnel string) (*world, error) {
	space, err := netspace.New("wan")
	w := &world{Space: space, ztunnel: ztunnel, clients: map[string]*netspace.Process{}}
	if err != nil {
		return w, err
	}
	for _, step := range []func() error{
		w.build, w.lay, w.configure, w.serveApps, w.startOurs, w.startStock,
	} {
		if err := step(); err != nil {
			return w, err
		}
	}
	return w, nil
}

func (w *world) close() error {
	if w.link != nil {
		w.link.Close()
	}
	return w.Close()
}

func (w *world) build() (err error) {
	w.bin, err = w.Build(root)
	return err
}

// lay makes the hosts and the line.
func (w *world) lay() error {
	if err := errors.Join(w.Segment("east", east), w.Segment("west", west)); err != nil {
		return err
	}
	a, err := w.Tap("east")
	if err != nil {
		return err
	}
	b, err := w.Tap("west")
	if err != nil {
		a.Close()
		return err
	}
	w.link = wan.Join(a, b, line, 1)
	return nil
}

//go:embed testdata/mesh.yaml
var meshFile string

func (w *world) configure() error {
	if err := w.isthmus(nil, "ca", "init", "--dir", "ca", "--trust-domain", "cluster.local"); err != nil {
		return err
	}
	for _, n := range []string{"west", "spare"} {
		if err := w.isthmus(nil, "network", "init", "--dir", "networks/"+n, "--network", n); err != nil {
			return err
		}
	}
	var mesh bytes.Buffer
	err := template.Must(template.New("mesh").Parse(meshFile)).Execute(&mesh, struct{ Services, Pods, Spares []string }{services, pods, spares})
	if err != nil {
		return err
	}
	outbound := ""
	for e, listen := range entries {
		outbound += fmt.Sprintf("  - {workload: %s, listen: %q, to: %q}\n", e[0], listen, e[1]+".demo.svc.cluster.local:80")
	}
	common := "discovery: {file: mesh.yaml}\nidentity: {source: ca, dir: ca}\nlog: {level: info, format: json}\ntimeouts: {drain: 1s}\nadmin: {address: %q}\n"
	return errors.Join(
		w.write("mesh.yaml", mesh.Bytes()),
		w.write("gateway.yaml", fmt.Appendf(nil, "name: gw-west\nnetwork: west\nlines: {transport: auto}\nfederation: {keys: networks/west, networks: networks/spare/network.yaml}\n"+common, admin)),
		w.write("server-ours.yaml", fmt.Appendf(nil, "node: server-ours\nnetwork: west\n"+common, admin)),
		w.write("spare-gateway.yaml", fmt.Appendf(nil, "name: gw-spare\nnetwork: spare\nlines: {transport: auto}\nfederation: {keys: networks/spare, networks: networks/west/network.yaml}\n"+common, spareAdmin)),
		w.write("spare.yaml", fmt.Appendf(nil, "node: spare\nnetwork: spare\n"+common, admin)),
		w.write("client-ours.yaml", fmt.Appendf(nil, "node: client-ours\nnetwork: east\noutbound:\n"+outbound+common, admin)))
}

func (w *world) write(name string, text []byte) error {
	return os.WriteFile(filepath.Join(w.Dir, name), text, 0o600)
}

// isthmus runs a command of ours and writes what it prints to out, if not nil.
func (w *world) isthmus(out *bytes.Buffer, args ...string) error {
	cmd := exec.Command(filepath.Join(w.bin, "isthmus"), args...)
	cmd.Dir, cmd.Stderr = w.Dir, os.Stderr
	if out != nil {
		cmd.Stdout = out
	}
	if err := cmd.Run(); err != nil {
		return fmt.Errorf("isthmus %v: %w", args, err)
	}
	return nil
}

func (w *world) startOurs() error {
	w.gateway = w.ours("gateway", "gateway", "gateway.yaml")
	if err := w.Start(w.gateway, w.Ready("gateway", admin)); err != nil {
		return err
	}
	for _, p := range []struct{ host, program, config, admin string }{
		{"spare", "gateway", "spare-gateway.yaml", spareAdmin},
		{"server-ours", "nodeproxy", "server-ours.yaml", admin}, // a node proxy waits a while for its gateways
		{"spare", "nodeproxy", "spare.yaml", admin},
	} {
		if err := w.Start(w.ours(p.host, p.program, p.config), w.Ready(p.host, p.admin)); err != nil {
			return err
		}
	}
	w.clients["client-ours"] = w.ours("client-ours", "nodeproxy", "client-ours.yaml")
	return w.Start(w.clients["client-ours"], w.ready("client-ours"))
}

func (w *world) ours(host, program, config string) *netspace.Process {
	return &netspace.Process{Host: host, Args: []string{filepath.Join(w.bin, program), "--config", config}, Log: w.log(config[:len(config)-len(".yaml")])}
}

func (w *world) log(name string) string { return filepath.Join(w.Dir, name+".log") }

// startStock starts the stock proxies, if there is a binary.
func (w *world) startStock() error {
	if w.ztunnel == "" {
		return nil
	}
	for _, p := range []struct{ host, workload, network string }{
		{"server-stock", "demo/far-stock/pay", "west"},
		{"client-stock", "demo/shop-stock/shop", "east"},
	} {
		var config bytes.Buffer
		if err := w.isthmus(&config, "export", "ztunnel", "--config", "mesh.yaml", "--node", p.host); err != nil {
			return err
		}
		if err := w.write(p.host+".yaml", config.Bytes()); err != nil {
			return err
		}
		ca := &netspace.Process{Host: p.host, Log: w.log(p.host + "-ca"), Args: []string{filepath.Join(w.bin, "isthmus"), "ca", "serve", "--dir", "ca", "--listen", stock.CA}}
		if err := w.Start(ca, w.Accepts(p.host, stock.CA)); err != nil {
			return err
		}
		w.clients[p.host] = &netspace.Process{Host: p.host, Log: w.log(p.host), Args: []string{w.ztunnel}, Env: stock.Environment(p.host, p.workload, p.network, "info")}
		if err := w.Start(w.clients[p.host], w.ready(p.host)); err != nil {
			return err
		}
	}
	return nil
}

// ready asks whether the node proxy of a host serves.
func (w *world) ready(host string) func() error {
	if host == "client-stock" || host == "server-stock" {
		return w.Ready(host, stock.Ready)
	}
	return w.Ready(host, admin)
}

// forget kills and starts again the node proxy of a client's host, so that it
// has no session to anybody.
func (w *world) forget(t *testing.T, host string) {
	t.Helper()
	if err := w.clients[host].Stop(os.Kill, 5*time.Second); err != nil {
		t.Fatal(err)
	}
	if err := w.Start(w.clients[host], w.ready(host)); err != nil {
		t.Fatal(err)
	}
}
