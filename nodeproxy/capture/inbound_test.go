//go:build linux

package capture

import (
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/isthmus-mesh/isthmus/internal/netspace"
	"github.com/isthmus-mesh/isthmus/nodeproxy/podns"
)

// The states of an application.
const (
	nobody  = "nobody" // never listened
	running = "running"
	dead    = "dead" // has listened, and does not any more
	hung    = "hung" // has a full accept queue
)

// listenAs has a socket of the pod listen at an address as an application in that state does.
func (p *pod) listenAs(t *testing.T, state string, at netip.AddrPort) {
	t.Helper()
	if state == nobody {
		return
	}
	family, backlog, own := unix.AF_INET, 100, unix.Sockaddr(nil)
	if at.Addr().Is4() {
		own = &unix.SockaddrInet4{Port: int(at.Port()), Addr: at.Addr().As4()}
	} else {
		family, own = unix.AF_INET6, &unix.SockaddrInet6{Port: int(at.Port()), Addr: at.Addr().As16()}
	}
	if state == hung {
		backlog = 0
	}
	fd := -1
	must(t, p.ns.Do(func() (err error) {
		if fd, err = unix.Socket(family, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0); err == nil {
			err = errors.Join(unix.Bind(fd, own), unix.Listen(fd, backlog))
		}
		return err
	}))
	if state == dead {
		unix.Close(fd)
		return
	}
	t.Cleanup(func() { unix.Close(fd) })
	for i := 0; state == hung && i < 3; i++ { // the pod's own connections fill the queue
		must(t, p.ns.Do(func() error {
			c, err := unix.Socket(family, unix.SOCK_STREAM|unix.SOCK_CLOEXEC|unix.SOCK_NONBLOCK, 0)
			if err == nil {
				t.Cleanup(func() { unix.Close(c) })
				err = unix.Connect(c, own)
			}
			if errors.Is(err, unix.EINPROGRESS) {
				err = nil
			}
			return os.NewSyscallError("connect", err)
		}))
	}
}

// outcome is what a host sees of a connect.
func (p *pod) outcome(t *testing.T, host, to string, limit time.Duration) string {
	t.Helper()
	ns, err := podns.Open(p.Path(host))
	must(t, err)
	defer ns.Close()
	d := net.Dialer{Timeout: limit, Control: ns.Control}
	c, err := d.Dial("tcp", to)
	var timeout net.Error
	switch {
	case err == nil:
		c.Close()
		return "connected"
	case errors.Is(err, syscall.ECONNREFUSED):
		return "refused"
	case errors.As(err, &timeout) && timeout.Timeout():
		return "no answer"
	}
	return err.Error()
}

// Every port of a captured pod does what it does without capture for the node's own processes, which meet its own socket.
// For others one with a listener leads to the node proxy, and one without is refused, as without capture.
func TestInboundRulesFollowListeners(t *testing.T) {
	p := newPod(t)
	must(t, p.Host("net", "outsider", "10.71.1.3"))
	must(t, p.IP("outsider", "addr add fd71::3/64 dev eth0 nodad"))
	node, err := podns.Open(p.Path("other"))
	must(t, err)
	defer node.Close()
	own4, own6 := netip.MustParseAddr(podAddress), netip.MustParseAddr(pod6)
	type port struct {
		name, to, state      string
		node, outsider, want string
	}
	var ports []*port
	number := uint16(9000)
	for _, state := range []string{nobody, running, dead, hung} {
		for _, at := range []netip.Addr{netip.IPv4Unspecified(), netip.IPv6Unspecified(), own4, own6, netip.MustParseAddr("127.0.0.1"), netip.IPv6Loopback()} {
			if at.IsLoopback() && state != running || state == nobody && !at.IsUnspecified() {
				continue
			}
			number++
			p.listenAs(t, state, netip.AddrPortFrom(at, number))
			for _, own := range []netip.Addr{own4, own6} {
				to := netip.AddrPortFrom(own, number).String()
				ports = append(ports, &port{name: fmt.Sprintf("%s at %s, to %s", state, at, to), to: to, state: state})
			}
		}
	}
	limit := func(state string) time.Duration {
		if state == hung { // a slow machine has no answer either
			return 300 * time.Millisecond
		}
		return 5 * time.Second
	}
	for _, x := range ports {
		x.node, x.outsider = p.outcome(t, "other", x.to, limit(x.state)), p.outcome(t, "outsider", x.to, limit(x.state))
		if x.node != x.outsider {
			t.Fatalf("%s: without capture %s and %s", x.name, x.node, x.outsider)
		}
		if x.want = x.outsider; x.want == "no answer" {
			x.want = "connected" // by the node proxy
		}
	}
	in := p.listen(t, "tcp", "[::]:15006")
	must(t, Exempt(p.ns, []*podns.Namespace{node}))
	must(t, Set(p.ns, all()))
	for _, x := range ports {
		if got := p.outcome(t, "other", x.to, limit(x.state)); got != x.node {
			t.Errorf("%s: a process of the node is %s, and without capture %s", x.name, got, x.node)
		}
		got := p.outcome(t, "outsider", x.to, 5*time.Second)
		if got != x.want {
			t.Errorf("%s: an outsider is %s, want %s", x.name, got, x.want)
		}
		if got == "connected" {
			if to, _ := originalOf(t, in); to != x.to {
				t.Errorf("%s: the connection of an outsider was to go to %s", x.name, to)
			}
		}
	}
	in.(*net.TCPListener).SetDeadline(time.Now().Add(50 * time.Millisecond))
	if c, err := in.Accept(); err == nil {
		t.Errorf("a connection of %s came to the node proxy, and none was to", c.RemoteAddr())
	}
	// A listener that opens later is found at once.
	number++
	for _, own := range []netip.Addr{own4, own6} {
		to := netip.AddrPortFrom(own, number)
		p.listenAs(t, running, to)
		if got := p.outcome(t, "outsider", to.String(), 5*time.Second); got != "connected" {
			t.Errorf("a new listener: an outsider is %s", got)
		}
		in.(*net.TCPListener).SetDeadline(time.Time{})
		if got, _ := originalOf(t, in); got != to.String() {
			t.Errorf("a new listener: the connection was to go to %s, want %s", got, to)
		}
		if got := p.outcome(t, "other", to.String(), 5*time.Second); got != "connected" {
			t.Errorf("a new listener: a process of the node is %s", got)
		}
	}
	// Without a node proxy the node still reaches applications, and nobody else does.
	in.Close()
	for _, x := range ports {
		if got := p.outcome(t, "other", x.to, limit(x.state)); got != x.node {
			t.Errorf("%s: without a node proxy a process of the node is %s, want %s", x.name, got, x.node)
		}
		if got := p.outcome(t, "outsider", x.to, 5*time.Second); got != "refused" {
			t.Errorf("%s: without a node proxy an outsider is %s", x.name, got)
		}
	}
	must(t, Remove(p.ns))
	for _, x := range ports {
		if got := p.outcome(t, "outsider", x.to, limit(x.state)); got != x.outsider {
			t.Errorf("%s: released, an outsider is %s, want %s", x.name, got, x.outsider)
		}
	}
}

// What the node masquerades for others has its address, and is not exempt: not even with the port of one of its listeners.
func TestExemptionNeedsASocketOfTheNode(t *testing.T) {
	netspace.NeedNft(t)
	p := newPod(t)
	node, err := podns.Open(p.Path("other"))
	must(t, err)
	defer node.Close()
	must(t, p.Host("net", "outsider", "10.71.1.3"))
	must(t, node.Do(func() error { return os.WriteFile("/proc/sys/net/ipv4/ip_forward", []byte("1"), 0o644) }))
	_, err = p.Nft("other", "add table ip nat; add chain ip nat post { type nat hook postrouting priority 100; }; add rule ip nat post ip saddr 10.71.1.3 masquerade")
	must(t, err)
	must(t, p.IP("outsider", "route add "+podAddress+"/32 via "+otherAddress))
	in := p.listen(t, "tcp", "[::]:15006")
	must(t, Exempt(p.ns, []*podns.Namespace{node}))
	must(t, Set(p.ns, all()))
	to := netip.AddrPortFrom(netip.MustParseAddr(podAddress), 8080)
	p.listenAs(t, running, netip.AddrPortFrom(netip.IPv6Unspecified(), 8080))
	outsider, err := podns.Open(p.Path("outsider"))
	must(t, err)
	defer outsider.Close()
	for port := 43210; port < 43214; port++ {
		if port%2 == 0 {
			l, err := p.Listen("other", fmt.Sprint(otherAddress, ":", port))
			must(t, err)
			defer l.Close()
		}
		d := net.Dialer{Timeout: 5 * time.Second, LocalAddr: &net.TCPAddr{Port: port}, Control: outsider.Control}
		c, err := d.Dial("tcp", to.String())
		must(t, err)
		defer c.Close()
		got, came := originalOf(t, in)
		if got != to.String() {
			t.Fatalf("what the node masquerades did not come to the node proxy: %s", got)
		}
		if from := came.RemoteAddr().(*net.TCPAddr).IP.String(); from != otherAddress {
			t.Fatalf("it comes from %s, want that the node masquerades it", from)
		}
	}
}
