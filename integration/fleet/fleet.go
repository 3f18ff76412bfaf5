//go:build linux

// Package fleet starts gateways and node proxies as processes on addresses of
// 127.0.0.0/8, without privileges, for programs that load them. It promises that
// nothing is left when Close returns or the caller ends, however it ends.
package fleet

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"time"

	"go.yaml.in/yaml/v3"
)

const (
	hbonePort = 15008
	adminPort = 15000
)

// Fleet is the processes of one mesh and the folder of their files. Its methods
// are for one goroutine, but for Write and those of Process.
type Fleet struct {
	Dir       string // configurations, certificate authority and logs
	Keep      bool   // leave Dir behind
	Nice      int    // how much lower than the caller's the priority of the processes is
	On        []int  // the only processors that the processes may use; nil: all that the caller may
	Processes []*Process

	bin    string
	second byte // 127.<second>.0.0/16
	lock   net.Listener
}

// Process is one gateway or node proxy.
type Process struct {
	Name    string
	Program string         // gateway or nodeproxy
	Host    netip.Addr     // of its admin server and, of a gateway, its tunnels
	Config  map[string]any // its file; what Add fills in may be changed before Start

	cmd  *exec.Cmd
	gone chan struct{}
}

// New claims a /16 and makes a folder. bin holds the programs isthmus, gateway and
// nodeproxy.
func New(name, bin string) (*Fleet, error) {
	bin, err := filepath.Abs(bin)
	if err != nil {
		return nil, err
	}
	f := &Fleet{bin: bin}
	for f.second = 60; f.lock == nil && f.second < 250; f.second++ {
		if f.lock, err = net.Listen("tcp4", fmt.Sprintf("127.%d.255.1:%d", f.second, hbonePort)); err == nil {
			break
		}
	}
	if err != nil {
		return nil, fmt.Errorf("find loopback addresses 127.x.0.0/16 that nobody uses: %w", err)
	}
	if f.Dir, err = os.MkdirTemp("", "isthmus-"+name+"-"); err != nil {
		f.lock.Close()
		return nil, err
	}
	return f, nil
}

// Addr is one address of the fleet's.
func (f *Fleet) Addr(network, host byte) netip.Addr {
	return netip.AddrFrom4([4]byte{127, f.second, network, host})
}

// Gateway and Node add a process whose own addresses are at host. more goes into
// its configuration.
func (f *Fleet) Gateway(network, name string, host netip.Addr, more map[string]any) *Process {
	return f.add(&Process{Name: name, Program: "gateway", Host: host, Config: map[string]any{"name": name, "network": network,
		"federation": map[string]any{"keys": filepath.Join("networks", network), "networks": knownNetworks}}}, more)
}

func (f *Fleet) Node(network, name string, host netip.Addr, more map[string]any) *Process {
	return f.add(&Process{Name: name, Program: "nodeproxy", Host: host, Config: map[string]any{"node": name, "network": network}}, more)
}

func (f *Fleet) add(p *Process, more map[string]any) *Process {
	p.gone = make(chan struct{})
	p.Config["discovery"] = map[string]any{"file": "mesh.yaml"}
	p.Config["identity"] = map[string]any{"source": "ca", "dir": "ca"}
	p.Config["log"] = map[string]any{"level": "warn", "format": "json"}
	p.Config["admin"] = map[string]any{"address": p.admin()}
	for k, v := range more {
		p.Config[k] = v
	}
	f.Processes = append(f.Processes, p)
	return p
}

// Tunnels is where a gateway listens.
func (p *Process) Tunnels() netip.AddrPort { return netip.AddrPortFrom(p.Host, hbonePort) }

func (p *Process) admin() string { return netip.AddrPortFrom(p.Host, adminPort).String() }

// Write writes v as YAML to a file in Dir, in one step.
func (f *Fleet) Write(name string, v any) error {
	text, err := yaml.Marshal(v)
	if err != nil {
		return err
	}
	next := filepath.Join(f.Dir, "."+name)
	if err := os.WriteFile(next, text, 0o600); err != nil {
		return err
	}
	return os.Rename(next, filepath.Join(f.Dir, name))
}

// startTime is how long all processes together may take to be ready.
const startTime = time.Minute

// Start makes a certificate authority and starts every process; mesh.yaml is
// already there. It returns when all are ready.
func (f *Fleet) Start(ctx context.Context) error {
	ctx, cancel := context.WithTimeoutCause(ctx, startTime, fmt.Errorf("not ready within %v", startTime))
	defer cancel()
	ca := exec.CommandContext(ctx, filepath.Join(f.bin, "isthmus"), "ca", "init", "--dir", "ca", "--trust-domain", "cluster.local")
	ca.Dir = f.Dir
	if out, err := ca.CombinedOutput(); err != nil {
		return fmt.Errorf("isthmus ca init: %w\n%s(make build makes the programs)", err, out)
	}
	if err := f.linkNetworks(ctx); err != nil {
		return err
	}
	for _, p := range f.Processes {
		if err := f.launch(p); err != nil {
			return fmt.Errorf("start %s: %w", p.Name, err)
		}
	}
	for _, p := range f.Processes {
		if err := p.awaitReady(ctx); err != nil {
			return fmt.Errorf("start %s: %w; its log is in %s", p.Name, err, f.Dir)
		}
	}
	return nil
}

// knownNetworks lists the keys of all networks of the fleet.
const knownNetworks = "networks.yaml"

// linkNetworks makes a key for each network and makes them known to all.
func (f *Fleet) linkNetworks(ctx context.Context) error {
	list := "networks:\n"
	done := map[any]bool{}
	for _, p := range f.Processes {
		network := p.Config["network"]
		if done[network] {
			continue
		}
		done[network] = true
		dir := filepath.Join("networks", fmt.Sprint(network))
		init := exec.CommandContext(ctx, filepath.Join(f.bin, "isthmus"), "network", "init", "--dir", dir, "--network", fmt.Sprint(network))
		init.Dir = f.Dir
		if out, err := init.CombinedOutput(); err != nil {
			return fmt.Errorf("isthmus network init: %w\n%s", err, out)
		}
		entry, err := os.ReadFile(filepath.Join(f.Dir, dir, "network.yaml"))
		if err != nil {
			return err
		}
		list += strings.TrimPrefix(string(entry), "networks:\n")
	}
	return os.WriteFile(filepath.Join(f.Dir, knownNetworks), []byte(list), 0o600)
}

func (f *Fleet) launch(p *Process) error {
	if err := f.Write(p.Name+".yaml", p.Config); err != nil {
		return err
	}
	log, err := os.Create(filepath.Join(f.Dir, p.Name+".log"))
	if err != nil {
		return err
	}
	defer log.Close()
	args := []string{filepath.Join(f.bin, p.Program), "--config", p.Name + ".yaml"}
	if f.Nice > 0 {
		args = append([]string{"nice", "-n", strconv.Itoa(f.Nice)}, args...)
	}
	p.cmd = exec.Command(args[0], args[1:]...)
	p.cmd.Dir, p.cmd.Stdout, p.cmd.Stderr = f.Dir, log, log
	p.cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	started := make(chan error)
	go func() { // the death signal follows the thread that started the child
		runtime.LockOSThread() // for good: the thread ends with this goroutine, and what it is bound to
		if err := bind(f.On); err != nil {
			started <- err
			close(p.gone)
			return
		}
		started <- p.cmd.Start()
		p.cmd.Wait()
		close(p.gone)
	}()
	return <-started
}

func (p *Process) awaitReady(ctx context.Context) error {
	for {
		if p.Get(ctx, "/healthz/ready", func(io.Reader) error { return nil }) == nil {
			return nil
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

// Pid is the number of a started process.
func (p *Process) Pid() int { return p.cmd.Process.Pid }

// Get asks the admin server.
func (p *Process) Get(ctx context.Context, path string, read func(io.Reader) error) error {
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, "http://"+p.admin()+path, nil)
	if err != nil {
		return err
	}
	client := &http.Client{Timeout: 10 * time.Second, Transport: &http.Transport{DisableKeepAlives: true}}
	resp, err := client.Do(req)
	if err != nil {
		return err
	}
	defer resp.Body.Close()
	if resp.StatusCode != http.StatusOK {
		return fmt.Errorf("%s: %s", path, resp.Status)
	}
	return read(resp.Body)
}

// Close ends everything; a process that does not end in time is killed.
func (f *Fleet) Close() {
	var all sync.WaitGroup
	for _, p := range f.Processes {
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
	f.lock.Close()
	if !f.Keep {
		os.RemoveAll(f.Dir)
	}
}
