//go:build linux

// Package netspace makes hosts on one machine: network namespaces on bridges
// that have namespaces of their own, so that nothing of them is seen outside
// and every host has all its ports and addresses to itself. It starts processes
// in hosts and lets the caller dial and listen there. However the caller ends,
// processes, namespaces and the directory are removed.
//
// Hosts need root and the command ip. A space without any needs neither: its
// processes run Here, with the same care for their end. It is for tests, benchmarks and drills, and
// knows nothing of meshes.
package netspace

import (
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"

	"golang.org/x/sys/unix"
)

// Here is the host of the caller itself; every space has it.
const Here = ""

// Space is a set of hosts on segments. Its methods may be called at the same
// time, except Close.
type Space struct {
	// Dir is a new directory for binaries, configurations and logs: the working
	// directory of processes. It is removed with the space.
	Dir string

	prefix string // of the names of all namespaces
	guard  *exec.Cmd
	hold   io.Closer // closing it lets the guard remove everything

	mu        sync.Mutex
	ports     int                 // of all bridges
	segments  map[string]string   // namespaces of bridges, by segment
	hosts     map[string]*os.File // open namespaces, by host
	processes []*Process          // all that were started
}

// spaces counts those that this process has made: several may be there at once.
var spaces atomic.Int64

// New makes a space without hosts; name is for the eyes of whoever lists
// namespaces. The caller closes what it gets, also with an error.
func New(name string) (*Space, error) {
	s := &Space{
		prefix:   fmt.Sprintf("isthmus-%s-%d-%d-", name, os.Getpid(), spaces.Add(1)),
		segments: map[string]string{},
		hosts:    map[string]*os.File{},
	}
	var err error
	if s.Dir, err = os.MkdirTemp("", "isthmus-"+name+"-"); err != nil {
		return s, err
	}
	return s, s.startGuard()
}

// startGuard starts a shell that reads until this process closes its end of the
// pipe or dies, also by the timeout of go test, and then removes everything.
// Processes have been killed by then, or die at the same moment: see Start.
func (s *Space) startGuard() error {
	s.guard = exec.Command("sh", "-c", `read -r _
for n in $(ip netns list | cut -d' ' -f1 | grep "^$0"); do ip netns del "$n"; done
rm -rf "$1" || { sleep 1; rm -rf "$1"; }`, s.prefix, s.Dir)
	s.guard.SysProcAttr = &syscall.SysProcAttr{Setsid: true} // not reached by an interrupt from the terminal
	in, err := s.guard.StdinPipe()
	if err != nil {
		return err
	}
	s.hold = in
	return s.guard.Start()
}

// Close kills the processes that still run and removes all that the space made.
func (s *Space) Close() error {
	var errs []error
	for _, p := range s.processes {
		errs = append(errs, p.Stop(os.Kill, killTime))
	}
	for _, f := range s.hosts {
		f.Close()
	}
	if s.hold == nil || s.guard.Process == nil { // no guard, and so no namespaces
		return errors.Join(append(errs, os.RemoveAll(s.Dir))...)
	}
	s.hold.Close()
	s.guard.Wait()
	if len(s.segments) == 0 {
		return errors.Join(errs...)
	}
	left, err := exec.Command("ip", "netns", "list").Output()
	if strings.Contains(string(left), s.prefix) {
		err = fmt.Errorf("namespaces %s* were not removed: %s", s.prefix, left)
	}
	return errors.Join(append(errs, err)...)
}

// Segment makes a bridge and hosts on it. A host has one or more IPv4 addresses;
// connections go out from the first. All hosts of a space are in one /16, so
// that segments which are joined at layer 2 reach each other without routes.
func (s *Space) Segment(name string, hosts map[string][]string) error {
	bridge := s.prefix + "segment-" + name
	err := ip("netns add "+bridge, "-n "+bridge+" link add br0 type bridge", "-n "+bridge+" link set br0 up")
	if err != nil {
		return err
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.segments[name] = bridge
	for host, addresses := range hosts {
		if err := s.addHost(host, bridge, addresses); err != nil {
			return err
		}
	}
	return nil
}

// Host adds a host to a segment; see Segment.
func (s *Space) Host(segment, name string, addresses ...string) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	bridge := s.segments[segment]
	if bridge == "" {
		return fmt.Errorf("no segment %q", segment)
	}
	return s.addHost(name, bridge, addresses)
}

// IP runs the command ip in a host, for example to add an address or a route.
func (s *Space) IP(host string, args ...string) error {
	return ip("-n " + s.prefix + host + " " + strings.Join(args, " "))
}

func (s *Space) addHost(host, bridge string, addresses []string) error {
	ns := s.prefix + host
	s.ports++
	lines := []string{
		"netns add " + ns,
		fmt.Sprintf("-n %s link add p%d type veth peer name eth0 netns %s", bridge, s.ports, ns),
		fmt.Sprintf("-n %s link set p%d master br0 up", bridge, s.ports),
	}
	for _, a := range addresses {
		lines = append(lines, "-n "+ns+" addr add "+a+"/16 dev eth0")
	}
	lines = append(lines,
		"-n "+ns+" link set eth0 up",
		"-n "+ns+" link set lo up",
		"-n "+ns+" route add default dev eth0")
	if err := ip(lines...); err != nil {
		return err
	}
	f, err := os.Open(s.Path(host))
	if err != nil {
		return err
	}
	s.hosts[host] = f
	// Below are the ports of stock proxies, which do not start when an outgoing
	// connection happens to have one of them.
	return in(f, func() error {
		return os.WriteFile("/proc/sys/net/ipv4/ip_local_port_range", []byte("20000 60999"), 0o644)
	})
}

// Path is where the network namespace of a host is mounted.
func (s *Space) Path(host string) string { return filepath.Join("/run/netns", s.prefix+host) }

// In runs f on a thread inside a host: sockets that f makes itself belong there.
func (s *Space) In(host string, f func() error) error {
	if host == Here {
		return f()
	}
	ns, err := s.namespace(host)
	if err != nil {
		return err
	}
	if err := in(ns, f); err != nil {
		return fmt.Errorf("in host %s: %w", host, err)
	}
	return nil
}

func (s *Space) namespace(host string) (*os.File, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if ns := s.hosts[host]; ns != nil {
		return ns, nil
	}
	return nil, fmt.Errorf("no host %q", host)
}

// in runs f on a thread inside a namespace.
func in(ns *os.File, f func() error) error {
	done := make(chan error, 1)
	go func() {
		runtime.LockOSThread() // the thread goes back, or ends with the goroutine
		home, err := within(ns, f)
		if home {
			runtime.UnlockOSThread()
		}
		done <- err
	}()
	return <-done
}

// within runs f inside a namespace on the caller's thread, which is locked. home: the thread is where it was.
func within(ns *os.File, f func() error) (home bool, err error) {
	own, err := os.Open(fmt.Sprintf("/proc/self/task/%d/ns/net", unix.Gettid()))
	if err != nil {
		return true, err
	}
	defer own.Close()
	if err := unix.Setns(int(ns.Fd()), unix.CLONE_NEWNET); err != nil {
		return true, fmt.Errorf("enter namespace %s: %w", ns.Name(), err)
	}
	err = f()
	return unix.Setns(int(own.Fd()), unix.CLONE_NEWNET) == nil, err
}

func ip(lines ...string) error {
	for _, l := range lines {
		if out, err := exec.Command("ip", strings.Fields(l)...).CombinedOutput(); err != nil {
			return fmt.Errorf("ip %s: %w: %s", l, err, out)
		}
	}
	return nil
}
