//go:build linux

package replicas

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"testing"
	"time"

	"go.yaml.in/yaml/v3"

	"github.com/isthmus-mesh/isthmus/internal/netspace"
	"github.com/isthmus-mesh/isthmus/internal/testlb"
)

// root is the top of the repository.
const root = "../.."

const (
	clientAddress   = "10.72.1.2" // of the pod that calls
	eastGateway     = "10.72.1.9"
	balancerAddress = "10.72.9.9"
	entry           = "127.0.0.1:16100" // of the service, on the host client

	clientAdmin  = "127.0.0.1:16000"
	gatewayAdmin = "127.0.0.1:16001"
	hbonePort    = ":15008"
)

// pods of the west are all on the host server.
var pods = []string{"10.72.2.10", "10.72.2.11", "10.72.2.12", "10.72.2.13"}

// replicas are the gateways of the west that there will have been, each on a host of its own.
var replicas = map[string]string{"gw-1": "10.72.3.1", "gw-2": "10.72.3.2", "gw-3": "10.72.3.3", "gw-4": "10.72.3.4", "gw-5": "10.72.3.5", "gw-6": "10.72.3.6"}

// lameDuck and drain are those of the gateways of the west.
const (
	lameDuck = 3 * time.Second
	drain    = 2 * time.Second
)

// world is two networks that know of each other by their link alone: one client in the east,
// and in the west pods behind replicas that have one address.
type world struct {
	*netspace.Space
	bin      string
	balancer testlb.Balancer
	front    *testlb.Front
	gateways map[string]*netspace.Process
	listed   []string // gateways in the west's own discovery
}

// newWorld starts all of it, with the first three replicas. The caller closes what it gets,
// also with an error.
func newWorld() (*world, error) {
	space, err := netspace.New("replicas")
	w := &world{Space: space, gateways: map[string]*netspace.Process{}}
	w.balancer.Policy = testlb.RoundRobin
	if err != nil {
		return w, err
	}
	for _, step := range []func() error{w.build, w.lay, w.configure, w.serveApps, w.serveBalancer, w.start} {
		if err := step(); err != nil {
			return w, err
		}
	}
	return w, nil
}

func (w *world) close() error {
	if w.front != nil {
		w.front.Close()
	}
	return w.Close()
}

func (w *world) build() (err error) {
	w.bin, err = w.Build(root)
	return err
}

func (w *world) lay() error {
	hosts := map[string][]string{"client": {clientAddress, eastGateway}, "balancer": {balancerAddress}, "server": pods}
	for name, at := range replicas {
		hosts[name] = []string{at}
	}
	return w.Segment("all", hosts)
}

// network is one entry of federation.networks.
type network struct {
	Name      string   `yaml:"name"`
	Account   string   `yaml:"gatewayServiceAccount"`
	Keys      []string `yaml:"keys"`
	Addresses []string `yaml:"addresses"`
}

func (w *world) configure() error {
	if err := w.isthmus("ca", "init", "--dir", "ca", "--trust-domain", "cluster.local"); err != nil {
		return err
	}
	keys := map[string][]string{}
	for _, name := range []string{"east", "west"} {
		if err := w.isthmus("network", "init", "--dir", "networks/"+name, "--network", name); err != nil {
			return err
		}
		text, err := os.ReadFile(filepath.Join(w.Dir, "networks", name, "network.yaml"))
		if err != nil {
			return err
		}
		var made struct{ Networks []network }
		if err := yaml.Unmarshal(text, &made); err != nil || len(made.Networks) != 1 {
			return fmt.Errorf("what isthmus network init has made of %s: %w: %s", name, err, text)
		}
		keys[name] = made.Networks[0].Keys
	}
	link := func(to, at string) any {
		return map[string]any{"networks": []network{{to, "isthmus-system/gateway", keys[to], []string{at + hbonePort}}}}
	}
	common := map[string]any{"identity": map[string]any{"source": "ca", "dir": "ca"}, "log": map[string]any{"level": "info", "format": "json"}}
	with := func(more map[string]any) map[string]any {
		for k, v := range common {
			more[k] = v
		}
		return more
	}
	errs := []error{
		w.write("east-links.yaml", link("west", balancerAddress)),
		w.write("west-links.yaml", link("east", eastGateway)),
		w.write("east.yaml", map[string]any{"trustDomain": "cluster.local", "networks": []any{map[string]any{"name": "east"}}, "gateways": []any{gatewayRecord("east", "gw-east", eastGateway)},
			"workloads": []any{map[string]any{"uid": "shop", "namespace": "demo", "serviceAccount": "shop", "network": "east", "node": "client", "addresses": []string{clientAddress}}}}),
		w.list("gw-1", "gw-2", "gw-3"),
		w.write("client.yaml", with(map[string]any{"node": "client", "network": "east", "discovery": map[string]any{"file": "east.yaml"}, "federation": map[string]any{"networks": "east-links.yaml"},
			"admin": map[string]any{"address": clientAdmin}, "outbound": []any{map[string]any{"workload": "shop", "listen": entry, "to": "far.demo.svc.cluster.local:80"}}})),
		w.write("server.yaml", with(map[string]any{"node": "server", "network": "west", "discovery": map[string]any{"file": "west.yaml"}, "federation": map[string]any{"networks": "west-links.yaml"},
			"admin": map[string]any{"address": clientAdmin}})),
		w.write("gw-east.yaml", with(map[string]any{"name": "gw-east", "network": "east", "discovery": map[string]any{"file": "east.yaml"},
			"federation": map[string]any{"keys": "networks/east", "networks": "east-links.yaml"}, "admin": map[string]any{"address": gatewayAdmin}})),
	}
	for name := range replicas {
		errs = append(errs, w.write(name+".yaml", with(map[string]any{"name": name, "network": "west", "discovery": map[string]any{"file": "west.yaml"},
			"federation": map[string]any{"keys": "networks/west", "networks": "west-links.yaml"}, "admin": map[string]any{"address": gatewayAdmin},
			"address":  map[string]any{"hosts": []string{balancerAddress + hbonePort}},
			"timeouts": map[string]any{"lameDuck": lameDuck.String(), "drain": drain.String()}})))
	}
	return errors.Join(errs...)
}

func gatewayRecord(network, name, at string) map[string]any {
	return map[string]any{"name": name, "network": network, "address": at + hbonePort, "serviceAccount": "isthmus-system/gateway"}
}

// list makes gateways known in the west, beside those that are.
func (w *world) list(names ...string) error {
	w.listed = append(w.listed, names...)
	file := map[string]any{"trustDomain": "cluster.local", "networks": []any{map[string]any{"name": "west"}},
		"services": []any{map[string]any{"name": "far", "namespace": "demo", "global": true, "ports": []any{map[string]any{"name": "app", "port": 80, "targetPort": 8080}}}}}
	var gateways, workloads []any
	for _, n := range w.listed {
		gateways = append(gateways, gatewayRecord("west", n, replicas[n]))
	}
	for i, at := range pods {
		workloads = append(workloads, map[string]any{"uid": fmt.Sprint("far-", i), "namespace": "demo", "serviceAccount": "far", "network": "west", "node": "server", "addresses": []string{at},
			"services": []string{"far.demo.svc.cluster.local"}})
	}
	file["gateways"], file["workloads"] = gateways, workloads
	return w.write("west.yaml", file)
}

// write writes a file in one step.
func (w *world) write(name string, v any) error {
	text, err := yaml.Marshal(v)
	if err != nil {
		return err
	}
	next := filepath.Join(w.Dir, "."+name)
	if err := os.WriteFile(next, text, 0o600); err != nil {
		return err
	}
	return os.Rename(next, filepath.Join(w.Dir, name))
}

func (w *world) isthmus(args ...string) error {
	cmd := exec.Command(filepath.Join(w.bin, "isthmus"), args...)
	cmd.Dir = w.Dir
	if out, err := cmd.CombinedOutput(); err != nil {
		return fmt.Errorf("isthmus %v: %w\n%s", args, err, out)
	}
	return nil
}

func (w *world) process(host, program, name string) *netspace.Process {
	return &netspace.Process{Host: host, Args: []string{filepath.Join(w.bin, program), "--config", name + ".yaml"}, Log: w.log(name)}
}

func (w *world) log(name string) string { return filepath.Join(w.Dir, name+".log") }

func (w *world) start() error {
	for _, name := range []string{"gw-1", "gw-2", "gw-3"} {
		if err := w.startGateway(name); err != nil {
			return err
		}
	}
	w.lead("gw-1", "gw-2", "gw-3")
	return errors.Join(
		w.Start(w.process("server", "nodeproxy", "server"), w.Ready("server", clientAdmin)),
		w.Start(w.process("client", "gateway", "gw-east"), w.Ready("client", gatewayAdmin)),
		w.Start(w.process("client", "nodeproxy", "client"), w.Ready("client", clientAdmin)))
}

func (w *world) startGateway(name string) error {
	w.gateways[name] = w.process(name, "gateway", name)
	return w.Start(w.gateways[name], w.Ready(name, gatewayAdmin))
}

// lead has the balancer lead to these replicas.
func (w *world) lead(names ...string) {
	var to []string
	for _, n := range names {
		to = append(to, replicas[n]+hbonePort)
	}
	w.balancer.Set(to...)
}

func (w *world) serveBalancer() error {
	return w.In("balancer", func() (err error) {
		w.front, err = testlb.ServeBy(&w.balancer, netip.MustParseAddrPort(balancerAddress+hbonePort), func(_ context.Context, backend string) (*net.TCPConn, error) {
			return w.Dial("balancer", backend)
		})
		return err
	})
}

// cut loses all that is sent between a gateway and the pods, in silence, or ends that.
func (w *world) cut(t *testing.T, gateway string, cut bool) {
	t.Helper()
	do := "del"
	if cut {
		do = "add"
	}
	if err := w.IP("server", "route", do, "blackhole", replicas[gateway]+"/32"); err != nil {
		t.Fatal(err)
	}
}
