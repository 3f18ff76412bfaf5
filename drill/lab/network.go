package lab

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os"
	"os/exec"
	"runtime"
	"strings"
	"sync"
	"time"

	"github.com/isthmus-mesh/isthmus/drill/scenario"
)

// network is the network that a drill's processes and sockets are in: the
// machine's own, or a namespace in which packets can be made to vanish. Nil is
// the machine's own.
type network struct {
	ns *os.File

	mu     sync.Mutex
	closed bool
	inside sync.WaitGroup // those who use ns; joined with mu held, and closed false
}

// networkFor returns the machine's own network, or a new one if a fault needs
// it. The starter's thread, and so every child, is then in the new one; it is
// gone with the last process and socket in it.
func networkFor(s *scenario.Scenario, st *starter) (*network, error) {
	for _, f := range s.Faults {
		if !f.NeedsRoot() {
			continue
		}
		n, err := newNetwork(st)
		if err != nil {
			return nil, fmt.Errorf("make a network of its own for the drill: %w: the fault %s (%s) makes packets vanish, which needs root and the command ip: run the drill as root, or take a fault that does not, such as freeze or hang", err, f.Name, f.Kind)
		}
		return n, nil
	}
	return nil, nil
}

// hole is the device into which packets vanish, and holeTable the routes to it.
const (
	hole      = "hole"
	holeTable = "66"
	holePref  = "10"
)

func newNetwork(st *starter) (*network, error) {
	n := &network{}
	var err error
	done := make(chan struct{})
	st.jobs <- func() {
		defer close(done)
		n.ns, err = leaveNetwork()
	}
	<-done
	if err != nil {
		return nil, err
	}
	// Local addresses are looked up before all other rules; a rule that takes
	// packets from an address must come before that.
	err = n.ip("link set lo up", "link add "+hole+" type veth peer name "+hole+"-end",
		"link set "+hole+" arp off up", "link set "+hole+"-end arp off up",
		"rule add pref 1000 lookup local", "rule del pref 0 lookup local", "route add default dev "+hole+" table "+holeTable)
	if err == nil {
		err = n.in(func() error {
			return os.WriteFile("/proc/sys/net/ipv4/conf/"+hole+"/route_localnet", []byte("1"), 0)
		})
	}
	if err != nil {
		n.close()
		return nil, err
	}
	return n, nil
}

// close waits for those who are inside: package net/http goes on dialing for a request
// that was given up.
func (n *network) close() {
	if n == nil {
		return
	}
	n.mu.Lock()
	n.closed = true
	n.mu.Unlock()
	n.inside.Wait()
	n.ns.Close()
}

var errNetworkClosed = errors.New("the drill is over")

// enter reports whether n may be used until n.inside.Done.
func (n *network) enter() bool {
	n.mu.Lock()
	defer n.mu.Unlock()
	if !n.closed {
		n.inside.Add(1)
	}
	return !n.closed
}

// in runs f on a thread in the network: sockets and processes that f makes
// belong there.
func (n *network) in(f func() error) error {
	if n == nil {
		return f()
	}
	if !n.enter() {
		return errNetworkClosed
	}
	done := make(chan error, 1)
	go func() {
		defer n.inside.Done()
		runtime.LockOSThread() // it goes back, or the thread ends with the goroutine
		back, err := enterNetwork(n.ns)
		if err != nil {
			done <- fmt.Errorf("enter the drill's network: %w", err)
			return
		}
		err = f()
		if back() == nil {
			runtime.UnlockOSThread()
		}
		done <- err
	}()
	return <-done
}

// ip runs commands of ip(8) in the network.
func (n *network) ip(lines ...string) error {
	return n.in(func() error {
		for _, l := range lines {
			if out, err := exec.Command("ip", strings.Fields(l)...).CombinedOutput(); err != nil {
				return fmt.Errorf("ip %s: %w: %s", l, err, strings.TrimSpace(string(out)))
			}
		}
		return nil
	})
}

// vanish makes every packet from and to a vanish, or ends that.
func (n *network) vanish(a netip.Addr, on bool) error {
	if n == nil {
		return errors.New("packets can vanish only in a network of the drill's own")
	}
	do := map[bool]string{true: "add", false: "del"}[on]
	var lines []string
	for _, way := range []string{"from", "to"} {
		lines = append(lines, fmt.Sprintf("rule %s pref %s %s %s lookup %s", do, holePref, way, a, holeTable))
	}
	return n.ip(lines...)
}

func (n *network) listen(ctx context.Context, a netip.AddrPort) (l net.Listener, err error) {
	err = n.in(func() error {
		var lc net.ListenConfig
		l, err = lc.Listen(ctx, "tcp4", a.String())
		return err
	})
	return l, err
}

func (n *network) dial(ctx context.Context, deadline time.Time, a netip.AddrPort) (c net.Conn, err error) {
	err = n.in(func() error {
		d := net.Dialer{Deadline: deadline}
		c, err = d.DialContext(ctx, "tcp4", a.String())
		return err
	})
	return c, err
}
