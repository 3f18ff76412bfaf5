//go:build linux

package main

import (
	"context"
	"fmt"
	"net"
	"net/netip"
	"sync"
	"time"

	"github.com/isthmus-mesh/isthmus/discovery"
	"github.com/isthmus-mesh/isthmus/integration/fleet"
)

const (
	appPort = 8080
	pods    = 3 // of each service
)

// world is two networks, clients in the east; near's pods are there too.
type world struct {
	options
	*fleet.Fleet
	paths     []path
	listeners []net.Listener
	apps      sync.WaitGroup
}

// path is one way from load to application.
type path struct {
	name, about string
	entry       string // host:port of the listener
}

func newWorld(o options) (*world, error) {
	f, err := fleet.New("overload", o.bin)
	if err != nil {
		return nil, err
	}
	f.Keep = o.keep
	if o.apart {
		if f.On, err = fleet.Apart(); err != nil {
			f.Close()
			return nil, fmt.Errorf("--apart: %w", err)
		}
	} else {
		f.Nice = 10 // what waits is to wait in the proxies and not in the load
	}
	w := &world{options: o, Fleet: f}
	w.Gateway("west", "gw-west", w.Addr(2, 1), nil)
	w.Node("east", "east-2", w.Addr(1, 3), nil)
	w.Node("west", "west-1", w.Addr(2, 3), nil)
	w.client("east-1", w.Addr(1, 2), nil,
		path{name: "single", about: "pods of the own network"},
		path{name: "double", about: "pods behind a gateway, sessions with them kept"})
	// This scope leaves the choice of pods to the gateway, so that no inner
	// session can be kept: each connection costs a handshake.
	w.client("east-3", w.Addr(1, 4), map[string]any{"scope": "networkService"},
		path{name: "double-fresh", about: "pods behind a gateway, a handshake for each connection"})
	return w, nil
}

// services by the first word of a path's name.
var services = map[string]string{"single": "near", "double": "far", "double-fresh": "far"}

func (w *world) client(node string, host netip.Addr, outlier map[string]any, paths ...path) {
	var outbound []any
	for i, p := range paths {
		p.entry = netip.AddrPortFrom(host, uint16(9000+i)).String()
		w.paths = append(w.paths, p)
		outbound = append(outbound, map[string]any{"workload": "client-" + node, "listen": p.entry, "to": services[p.name] + ".default.svc.cluster.local:80"})
	}
	more := map[string]any{"outbound": outbound}
	if outlier != nil {
		more["outlierDetection"] = outlier
	}
	w.Node("east", node, host, more)
}

func (w *world) start(ctx context.Context) error {
	c := discovery.Config{TrustDomain: "cluster.local", Networks: []discovery.Network{{Name: "east"}, {Name: "west"}}}
	c.Gateways = []discovery.Gateway{{Name: "gw-west", Network: "west", Address: w.Processes[0].Tunnels()}}
	for i, node := range []string{"east-1", "east-3"} {
		c.Workloads = append(c.Workloads, discovery.Workload{UID: "client-" + node, ServiceAccount: node, Network: "east", Node: node, Addresses: []netip.Addr{w.Addr(1, byte(50+i))}})
	}
	for i, s := range []struct{ name, network, node string }{{"near", "east", "east-2"}, {"far", "west", "west-1"}} {
		host := s.name + ".default.svc.cluster.local"
		c.Services = append(c.Services, discovery.Service{Name: s.name, Global: true, Ports: []discovery.ServicePort{{Port: 80, TargetPort: appPort}}})
		for j := range pods {
			at := w.Addr(byte(1+i), byte(10+j))
			c.Workloads = append(c.Workloads, discovery.Workload{UID: fmt.Sprintf("%s-%d", s.name, j), ServiceAccount: s.name, Network: s.network, Node: s.node,
				Addresses: []netip.Addr{at}, Services: []string{host}})
			if err := w.serve(at); err != nil {
				return err
			}
		}
	}
	if err := w.Write("mesh.yaml", c); err != nil {
		return err
	}
	return w.Start(ctx)
}

// serve is one application: it sends back the first byte that it gets.
func (w *world) serve(at netip.Addr) error {
	l, err := net.Listen("tcp4", netip.AddrPortFrom(at, appPort).String())
	if err != nil {
		return err
	}
	w.listeners = append(w.listeners, l)
	go func() {
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			w.apps.Go(func() {
				defer c.Close()
				c.SetDeadline(time.Now().Add(2 * patience))
				var b [1]byte
				if n, _ := c.Read(b[:]); n == 1 {
					c.Write(b[:])
				}
			})
		}
	}()
	return nil
}

func (w *world) close() {
	w.Close()
	for _, l := range w.listeners {
		l.Close()
	}
	w.apps.Wait()
}

// moved is how often anybody's health has moved, in any process.
func (w *world) moved(ctx context.Context) (edges float64, err error) {
	for _, p := range w.Processes {
		m, err := p.Metrics(ctx)
		if err != nil {
			return 0, fmt.Errorf("%s: %w; its log is in %s", p.Name, err, w.Dir)
		}
		if m["isthmus_outlier_edges_total"] == nil {
			continue // it has never counted one
		}
		n, err := m.Sum("isthmus_outlier_edges_total", nil)
		if err != nil {
			return 0, err
		}
		edges += n
	}
	return edges, nil
}
