package interop

import (
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
	"syscall"

	"golang.org/x/sys/unix"
)

// space is a set of network namespaces, one per host, joined by a bridge that
// has a namespace of its own: nothing of it is seen outside.
type space struct {
	prefix string
	hosts  map[string]*os.File // open namespaces, by host
	guard  *exec.Cmd
	hold   io.Closer // closing it lets the guard remove everything
}

// newSpace makes the namespaces; addresses are the hosts' in 10.71.0.0/16.
// However this process ends, they are removed: a guard waits for its end.
func newSpace(addresses map[string]string) (*space, error) {
	s := &space{prefix: fmt.Sprintf("isthmus-interop-%d-", os.Getpid()), hosts: map[string]*os.File{}}
	if err := s.startGuard(); err != nil {
		return s, err
	}
	bridge := s.prefix + "bridge"
	err := ip("netns add "+bridge, "-n "+bridge+" link add br0 type bridge", "-n "+bridge+" link set br0 up")
	if err != nil {
		return s, err
	}
	port := 0
	for host, address := range addresses {
		ns := s.prefix + host
		port++
		err := ip("netns add "+ns,
			fmt.Sprintf("-n %s link add p%d type veth peer name eth0 netns %s", bridge, port, ns),
			fmt.Sprintf("-n %s link set p%d master br0 up", bridge, port),
			"-n "+ns+" addr add "+address+"/16 dev eth0",
			"-n "+ns+" link set eth0 up",
			"-n "+ns+" link set lo up",
			"-n "+ns+" route add default dev eth0")
		if err != nil {
			return s, err
		}
		if s.hosts[host], err = os.Open(filepath.Join("/run/netns", ns)); err != nil {
			return s, err
		}
		// A stock ztunnel does not start when an outgoing connection happens to
		// have one of its ports.
		if err := s.in(host, func() error {
			return os.WriteFile("/proc/sys/net/ipv4/ip_local_port_range", []byte("20000 60999"), 0o644)
		}); err != nil {
			return s, err
		}
	}
	return s, nil
}

// startGuard starts a shell that reads until this process closes its end of the
// pipe or dies, also by the timeout of go test, and then removes the namespaces.
func (s *space) startGuard() error {
	s.guard = exec.Command("sh", "-c", `read -r _; for n in $(ip netns list | cut -d' ' -f1 | grep "^$0"); do ip netns del "$n"; done`, s.prefix)
	s.guard.SysProcAttr = &syscall.SysProcAttr{Setsid: true} // not reached by an interrupt from the terminal
	in, err := s.guard.StdinPipe()
	s.hold = in
	return errors.Join(err, s.guard.Start())
}

// remove returns when the namespaces are gone.
func (s *space) remove() error {
	for _, f := range s.hosts {
		f.Close()
	}
	s.hold.Close()
	s.guard.Wait()
	left, err := exec.Command("ip", "netns", "list").Output()
	if strings.Contains(string(left), s.prefix) {
		return fmt.Errorf("namespaces %s* were not removed: %s", s.prefix, left)
	}
	return err
}

// in runs f on a thread inside a host: sockets that f makes itself belong there.
func (s *space) in(host string, f func() error) error {
	done := make(chan error, 1)
	go func() {
		runtime.LockOSThread() // the thread goes back, or ends with the goroutine
		home, err := os.Open(fmt.Sprintf("/proc/self/task/%d/ns/net", unix.Gettid()))
		if err != nil {
			done <- err
			return
		}
		defer home.Close()
		if err := unix.Setns(int(s.hosts[host].Fd()), unix.CLONE_NEWNET); err != nil {
			done <- fmt.Errorf("enter host %s: %w", host, err)
			return
		}
		err = f()
		if unix.Setns(int(home.Fd()), unix.CLONE_NEWNET) == nil {
			runtime.UnlockOSThread()
		}
		done <- err
	}()
	return <-done
}

func ip(lines ...string) error {
	for _, l := range lines {
		if out, err := exec.Command("ip", strings.Fields(l)...).CombinedOutput(); err != nil {
			return fmt.Errorf("ip %s: %w: %s", l, err, out)
		}
	}
	return nil
}
