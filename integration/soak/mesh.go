//go:build linux

package main

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/http"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"sync"
	"syscall"
	"time"

	"go.yaml.in/yaml/v3"

	"github.com/isthmus-mesh/isthmus/discovery"
)

const (
	hbonePort = 15008
	adminPort = 15000
	appPort   = 8080
	nearPods  = 4 // on the clients' network: single HBONE
	farPods   = 8 // behind two gateways: double HBONE
	// idleTime is how long proxies keep sessions without streams. It is short so
	// that a run ends soon after its traffic.
	idleTime = 3 * time.Second
)

// mesh is everything that runs: two networks, east with the clients.
type mesh struct {
	options
	dir       string
	second    byte // 127.<second>.0.0/16
	lock      net.Listener
	processes []*process
	pods      []*pod
	listeners []netip.AddrPort // of clients, at their node proxy
	apps      apps
}

type process struct {
	name, program string
	admin         netip.AddrPort
	config        map[string]any
	cmd           *exec.Cmd
	gone          chan struct{}
}

func newMesh(o options) (*mesh, error) {
	bin, err := filepath.Abs(o.bin)
	if err != nil {
		return nil, err
	}
	o.bin = bin
	m := &mesh{options: o}
	if m.dir, err = os.MkdirTemp("", "isthmus-soak-"); err != nil {
		return nil, err
	}
	for second := byte(60); second < 250; second++ {
		if m.lock, err = net.Listen("tcp4", fmt.Sprintf("127.%d.255.1:%d", second, hbonePort)); err == nil {
			m.second = second
			break
		}
	}
	if m.lock == nil {
		os.RemoveAll(m.dir)
		return nil, fmt.Errorf("find loopback addresses 127.x.0.0/16 that nobody uses: %w", err)
	}
	for i := range nearPods {
		m.pods = append(m.pods, &pod{name: fmt.Sprintf("near-%d", i), service: "near", network: "east", node: "east-2", address: m.addr(1, byte(10+i))})
	}
	for i := range farPods {
		m.pods = append(m.pods, &pod{name: fmt.Sprintf("far-%d", i), service: "far", network: "west", node: fmt.Sprintf("west-%d", 1+i%2), address: m.addr(2, byte(10+i))})
	}
	m.plan()
	return m, nil
}

func (m *mesh) addr(network, host byte) netip.Addr {
	return netip.AddrFrom4([4]byte{127, m.second, network, host})
}

// plan fills processes and listeners.
func (m *mesh) plan() {
	gateway := func(network, name string, host netip.Addr) {
		m.add(name, "gateway", host, map[string]any{"name": name, "network": network})
	}
	node := func(network, name string, host netip.Addr, more map[string]any) {
		c := map[string]any{"node": name, "network": network, "timeouts": map[string]any{"idle": idleTime.String()}}
		for k, v := range more {
			c[k] = v
		}
		m.add(name, "nodeproxy", host, c)
	}
	gateway("east", "gw-east", m.addr(1, 1))
	gateway("west", "gw-west-1", m.addr(2, 1))
	gateway("west", "gw-west-2", m.addr(2, 2))
	node("east", "east-2", m.addr(1, 3), nil)
	node("west", "west-1", m.addr(2, 3), nil)
	node("west", "west-2", m.addr(2, 4), nil)
	var outbound []any
	for i, e := range [][2]string{{"shop", "near"}, {"shop", "far"}, {"till", "far"}} {
		at := netip.AddrPortFrom(m.addr(1, 100), uint16(9000+i))
		m.listeners = append(m.listeners, at)
		outbound = append(outbound, map[string]any{"workload": e[0], "listen": at.String(), "to": e[1] + ".default.svc.cluster.local:80"})
	}
	node("east", "east-1", m.addr(1, 2), map[string]any{"outbound": outbound})
}

func (m *mesh) add(name, program string, host netip.Addr, config map[string]any) {
	p := &process{name: name, program: program, admin: netip.AddrPortFrom(host, adminPort), config: config, gone: make(chan struct{})}
	config["discovery"] = map[string]any{"file": "mesh.yaml"}
	config["identity"] = map[string]any{"source": "ca", "dir": "ca"}
	config["log"] = map[string]any{"level": "warn", "format": "json"}
	config["admin"] = map[string]any{"address": p.admin.String()}
	m.processes = append(m.processes, p)
}

// discovery describes the mesh as it is now, with the pods that are in it.
func (m *mesh) discovery() discovery.Config {
	c := discovery.Config{TrustDomain: "cluster.local", Networks: []discovery.Network{{Name: "east"}, {Name: "west"}}}
	for _, p := range m.processes {
		if p.program == "gateway" {
			c.Gateways = append(c.Gateways, discovery.Gateway{Name: p.name, Network: p.config["network"].(string), Address: netip.AddrPortFrom(p.admin.Addr(), hbonePort)})
		}
	}
	for _, name := range []string{"near", "far"} {
		c.Services = append(c.Services, discovery.Service{Name: name, Global: true, Ports: []discovery.ServicePort{{Port: 80, TargetPort: appPort}}})
	}
	for i, name := range []string{"shop", "till"} {
		c.Workloads = append(c.Workloads, discovery.Workload{UID: name, ServiceAccount: name, Network: "east", Node: "east-1", Addresses: []netip.Addr{m.addr(1, byte(50+i))}})
	}
	for _, p := range m.pods {
		if w, ok := p.workload(); ok {
			c.Workloads = append(c.Workloads, w)
		}
	}
	return c
}

// publish writes the discovery file in one step.
func (m *mesh) publish() error {
	return m.write("mesh.yaml", m.discovery())
}

func (m *mesh) write(name string, v any) error {
	text, err := yaml.Marshal(v)
	if err != nil {
		return err
	}
	next := filepath.Join(m.dir, "."+name)
	if err := os.WriteFile(next, text, 0o600); err != nil {
		return err
	}
	return os.Rename(next, filepath.Join(m.dir, name))
}

// start brings everything up and returns when all processes are ready.
func (m *mesh) start(ctx context.Context) error {
	ctx, cancel := context.WithTimeoutCause(ctx, time.Minute, errors.New("not ready within a minute"))
	defer cancel()
	ca := exec.CommandContext(ctx, filepath.Join(m.bin, "isthmus"), "ca", "init", "--dir", "ca", "--trust-domain", "cluster.local")
	ca.Dir = m.dir
	if out, err := ca.CombinedOutput(); err != nil {
		return fmt.Errorf("isthmus ca init: %w\n%s(make build makes the binaries)", err, out)
	}
	for _, p := range m.pods {
		if err := p.listen(&m.apps); err != nil {
			return err
		}
		p.state = ready
	}
	if err := m.publish(); err != nil {
		return err
	}
	for _, p := range m.processes {
		if err := m.launch(p); err != nil {
			return err
		}
	}
	for _, p := range m.processes {
		if err := p.awaitReady(ctx); err != nil {
			return fmt.Errorf("start %s: %w; its log is in %s", p.name, err, m.dir)
		}
	}
	return nil
}

func (m *mesh) launch(p *process) error {
	if err := m.write(p.name+".yaml", p.config); err != nil {
		return err
	}
	log, err := os.Create(filepath.Join(m.dir, p.name+".log"))
	if err != nil {
		return err
	}
	defer log.Close()
	p.cmd = exec.Command(filepath.Join(m.bin, p.program), "--config", p.name+".yaml")
	p.cmd.Dir, p.cmd.Stdout, p.cmd.Stderr = m.dir, log, log
	p.cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	started := make(chan error)
	go func() { // the death signal follows the thread that started the child
		runtime.LockOSThread()
		started <- p.cmd.Start()
		p.cmd.Wait()
		close(p.gone)
	}()
	return <-started
}

func (p *process) awaitReady(ctx context.Context) error {
	for {
		resp, err := http.Get("http://" + p.admin.String() + "/healthz/ready")
		if err == nil {
			resp.Body.Close()
			if resp.StatusCode == http.StatusOK {
				return nil
			}
		}
		select {
		case <-time.After(50 * time.Millisecond):
		case <-p.gone:
			return errors.New("it ended")
		case <-ctx.Done():
			return context.Cause(ctx)
		}
	}
}

// close ends everything.
func (m *mesh) close() {
	var all sync.WaitGroup
	for _, p := range m.processes {
		if p.cmd == nil || p.cmd.Process == nil {
			continue
		}
		p.cmd.Process.Signal(syscall.SIGTERM)
		all.Go(func() {
			select {
			case <-p.gone:
			case <-time.After(15 * time.Second):
				p.cmd.Process.Kill()
				<-p.gone
			}
		})
	}
	all.Wait()
	for _, p := range m.pods {
		p.shut()
	}
	m.apps.wait()
	m.lock.Close()
	if !m.keep {
		os.RemoveAll(m.dir)
	}
}
