//go:build linux

package main

import (
	"context"
	"fmt"
	"net/netip"
	"time"

	"github.com/isthmus-mesh/isthmus/discovery"
	"github.com/isthmus-mesh/isthmus/integration/fleet"
)

const (
	appPort  = 8080
	nearPods = 4 // on the clients' network: single HBONE
	farPods  = 8 // behind two gateways: double HBONE
	// idleTime is how long proxies keep sessions without streams. It is short so
	// that a run ends soon after its traffic.
	idleTime = 5 * time.Second
)

// mesh is everything that runs: two networks, east with the clients.
type mesh struct {
	options
	*fleet.Fleet
	pods      []*pod
	listeners []netip.AddrPort // of clients, at their node proxy
	apps      apps
}

func newMesh(o options) (*mesh, error) {
	f, err := fleet.New("soak", o.bin)
	if err != nil {
		return nil, err
	}
	f.Keep = o.keep
	m := &mesh{options: o, Fleet: f}
	for i := range nearPods {
		m.pods = append(m.pods, &pod{name: fmt.Sprintf("near-%d", i), service: "near", network: "east", node: "east-2", address: m.Addr(1, byte(10+i))})
	}
	for i := range farPods {
		m.pods = append(m.pods, &pod{name: fmt.Sprintf("far-%d", i), service: "far", network: "west", node: fmt.Sprintf("west-%d", 1+i%2), address: m.Addr(2, byte(10+i))})
	}
	m.plan()
	return m, nil
}

// plan says which processes there are.
func (m *mesh) plan() {
	m.Gateway("east", "gw-east", m.Addr(1, 1), nil)
	m.Gateway("west", "gw-west-1", m.Addr(2, 1), nil)
	m.Gateway("west", "gw-west-2", m.Addr(2, 2), nil)
	var outbound []any
	for i, e := range [][2]string{{"shop", "near"}, {"shop", "far"}, {"till", "far"}} {
		at := netip.AddrPortFrom(m.Addr(1, 100), uint16(9000+i))
		m.listeners = append(m.listeners, at)
		outbound = append(outbound, map[string]any{"workload": e[0], "listen": at.String(), "to": e[1] + ".default.svc.cluster.local:80"})
	}
	for _, p := range []*fleet.Process{
		m.Node("east", "east-1", m.Addr(1, 2), map[string]any{"outbound": outbound}),
		m.Node("east", "east-2", m.Addr(1, 3), nil),
		m.Node("west", "west-1", m.Addr(2, 3), nil),
		m.Node("west", "west-2", m.Addr(2, 4), nil),
	} {
		p.Config["timeouts"] = map[string]any{"idle": idleTime.String()}
	}
}

// discovery describes the mesh as it is now, with the pods that are in it.
func (m *mesh) discovery() discovery.Config {
	c := discovery.Config{TrustDomain: "cluster.local", Networks: []discovery.Network{{Name: "east"}, {Name: "west"}}}
	for _, p := range m.Processes {
		if p.Program == "gateway" {
			c.Gateways = append(c.Gateways, discovery.Gateway{Name: p.Name, Network: p.Config["network"].(string), Address: p.Tunnels()})
		}
	}
	for _, name := range []string{"near", "far"} {
		c.Services = append(c.Services, discovery.Service{Name: name, Global: true, Ports: []discovery.ServicePort{{Port: 80, TargetPort: appPort}}})
	}
	for i, name := range []string{"shop", "till"} {
		c.Workloads = append(c.Workloads, discovery.Workload{UID: name, ServiceAccount: name, Network: "east", Node: "east-1", Addresses: []netip.Addr{m.Addr(1, byte(50+i))}})
	}
	for _, p := range m.pods {
		if w, ok := p.workload(); ok {
			c.Workloads = append(c.Workloads, w)
		}
	}
	return c
}

// publish writes the discovery file.
func (m *mesh) publish() error { return m.Write("mesh.yaml", m.discovery()) }

// start brings everything up and returns when all processes are ready.
func (m *mesh) start(ctx context.Context) error {
	for _, p := range m.pods {
		if err := p.listen(&m.apps); err != nil {
			return err
		}
		p.set(ready)
	}
	if err := m.publish(); err != nil {
		return err
	}
	return m.Start(ctx)
}

// close ends everything.
func (m *mesh) close() {
	m.Close()
	for _, p := range m.pods {
		p.shut()
	}
	m.apps.wait()
}
