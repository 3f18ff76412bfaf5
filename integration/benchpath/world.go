//go:build linux

package main

import (
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/isthmus-mesh/isthmus/internal/netspace"
)

// world is everything that runs for the whole measurement: the proxies, one
// application per server and one load generator per client.
type world struct {
	topology
	space    *netspace.Space
	bin      string // directory of our binaries
	self     string // this binary: application, relay and generator
	ready    map[*netspace.Process]func() error
	admins   map[*netspace.Process]string // addresses of admin servers of ours
	proxies  map[string]*netspace.Process // by client-KIND, server-KIND, gateway, relay
	apps     map[string]*netspace.Process // by kind
	loads    map[string]*netspace.Process // by kind
	variants []*variant
	rest     time.Duration // before memory is taken
}

// newWorld starts everything; ztunnel is the path of a stock one, when the
// topology has its kind. The caller closes what it gets, also with an error.
func newWorld(t topology, bin, ztunnel string, entry entry) (w *world, err error) {
	w = &world{
		topology: t, bin: bin,
		ready: map[*netspace.Process]func() error{}, admins: map[*netspace.Process]string{},
		proxies: map[string]*netspace.Process{}, apps: map[string]*netspace.Process{}, loads: map[string]*netspace.Process{},
	}
	if w.self, err = os.Executable(); err != nil {
		return w, err
	}
	if w.space, err = netspace.New("bench"); err != nil {
		return w, err
	}
	steps := []func() error{
		w.makeHosts,
		func() error { return w.isthmus("ca", "init", "--dir", "ca", "--trust-domain", "cluster.local") },
		func() error { return w.isthmus("network", "init", "--dir", "network", "--network", "net-b") },
		func() error { return t.configure(w.space.Dir) },
		func() error { return w.startOurs("gateway", "gateway", t.gateway) },
		func() error { return w.startOurs("nodeproxy", "server-ours", t.servers[ours]) },
		func() error { return w.startOurs("nodeproxy", "client-ours", t.clients[ours]) },
		w.startRelay,
	}
	for _, k := range t.kinds {
		steps = append(steps, func() error { return w.startEnds(k) })
		if entry == byRedirect {
			steps = append(steps, func() error { return w.redirect(k) })
		}
	}
	if slices.Contains(t.kinds, stock) {
		steps = append(steps,
			func() error {
				return w.startStock(ztunnel, "client-stock", "demo/shop-stock/shop", "net-a", t.clients[stock])
			},
			func() error {
				return w.startStock(ztunnel, "server-stock", "demo/far-stock/pay", "net-b", t.servers[stock])
			})
	}
	for _, step := range steps {
		if err := step(); err != nil {
			return w, err
		}
	}
	w.variants = w.makeVariants(entry)
	return w, nil
}

func (w *world) close() error {
	if w.space == nil {
		return nil
	}
	return w.space.Close()
}

func (w *world) makeHosts() error {
	hosts := w.segment()
	if len(hosts) == 0 {
		return nil
	}
	if err := w.space.Segment("all", hosts); err != nil {
		return err
	}
	for host := range hosts {
		// Thousands of short connections a second would otherwise use up the ports
		// that wait for a minute. On loopback this is the default.
		if err := w.space.In(host, func() error {
			return os.WriteFile("/proc/sys/net/ipv4/tcp_tw_reuse", []byte("1"), 0o644)
		}); err != nil {
			return err
		}
	}
	return nil
}

func (w *world) start(host, name string, ready func() error, env []string, args ...string) (*netspace.Process, error) {
	p := &netspace.Process{Host: host, Args: args, Env: env, Log: filepath.Join(w.space.Dir, name+".log")}
	w.ready[p] = ready
	return p, w.space.Start(p, ready)
}

// startOurs starts a proxy by its configuration file, NAME.yaml.
func (w *world) startOurs(program, name string, at place) (err error) {
	admin := at.local(adminPort).String()
	w.proxies[name], err = w.start(at.host, name, w.space.Ready(at.host, admin), nil, filepath.Join(w.bin, program), "--config", name+".yaml")
	w.admins[w.proxies[name]] = admin
	return err
}

func (w *world) startRelay() (err error) {
	address := w.gateway.at(relayPort).String()
	w.proxies["relay"], err = w.start(w.gateway.host, "relay", w.space.Accepts(w.gateway.host, address), nil,
		w.self, "serve-relay", address, w.servers[ours].at(appPort).String())
	return err
}

// startEnds starts the application of a kind's server and the generator of its
// client.
func (w *world) startEnds(kind string) (err error) {
	server, client := w.servers[kind], w.clients[kind]
	address := server.at(appPort).String()
	w.apps[kind], err = w.start(server.host, "app-"+kind, w.space.Accepts(server.host, address), nil, w.self, "serve-app", address)
	if err != nil {
		return err
	}
	socket := filepath.Join(w.space.Dir, "load-"+kind+".sock")
	w.loads[kind], err = w.start(client.host, "load-"+kind, func() error { _, err := os.Stat(socket); return err }, nil, w.self, "serve-load", socket)
	return err
}

// socket is where a generator takes loads.
func (w *world) socket(generator *netspace.Process) string {
	return generator.Args[len(generator.Args)-1]
}

// restart kills a process and starts it again: nothing is left of its past.
func (w *world) restart(p *netspace.Process) error {
	if err := p.Stop(os.Kill, patience); err != nil {
		return err
	}
	return w.space.Start(p, w.ready[p])
}

// logs are the ends of what a variant's proxies wrote, for the reader of a
// failure.
func (w *world) logs(v *variant) string {
	var b strings.Builder
	for _, r := range v.roles {
		if text := netspace.Tail(r.process.Log); text != "" {
			fmt.Fprintf(&b, "\n%s: %s", r.Name, text)
		}
	}
	return b.String()
}
