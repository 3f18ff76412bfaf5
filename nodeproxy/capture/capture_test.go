//go:build linux

package capture

import (
	"context"
	"errors"
	"io"
	"net"
	"net/netip"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/google/nftables"
	"golang.org/x/sys/unix"

	"github.com/isthmus-mesh/isthmus/internal/netspace"
	"github.com/isthmus-mesh/isthmus/nodeproxy/podns"
)

const (
	podAddress   = "10.71.1.1"
	otherAddress = "10.71.1.2"
	pod6         = "fd71::1"
	other6       = "fd71::2"
)

// pod is a host that stands for a pod, beside another host.
type pod struct {
	*netspace.Space
	ns *podns.Namespace
}

func newPod(t testing.TB) *pod {
	t.Helper()
	netspace.NeedRoot(t)
	s, err := netspace.New("capture")
	t.Cleanup(func() {
		if err := s.Close(); err != nil {
			t.Error(err)
		}
	})
	must(t, err)
	must(t, s.Segment("net", map[string][]string{"pod": {podAddress}, "other": {otherAddress}}))
	for host, a := range map[string]string{"pod": pod6, "other": other6} {
		must(t, s.IP(host, "addr add "+a+"/64 dev eth0 nodad"))
		must(t, s.IP(host, "-6 route add default dev eth0"))
	}
	ns, err := podns.Open(s.Path("pod"))
	must(t, err)
	t.Cleanup(func() { ns.Close() })
	return &pod{s, ns}
}

func must(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// listen opens a port of the node proxy in the pod.
func (p *pod) listen(t *testing.T, network, address string) net.Listener {
	t.Helper()
	c := net.ListenConfig{Control: func(n, a string, c syscall.RawConn) error {
		return errors.Join(p.ns.Control(n, a, c), Share(n, a, c))
	}}
	l, err := c.Listen(context.Background(), network, address)
	must(t, err)
	t.Cleanup(func() { l.Close() })
	return l
}

// dial connects from the pod.
func (p *pod) dial(network, address string, more func(string, string, syscall.RawConn) error) (net.Conn, error) {
	d := net.Dialer{Timeout: 2 * time.Second, Control: func(n, a string, c syscall.RawConn) error {
		if err := p.ns.Control(n, a, c); err != nil || more == nil {
			return err
		}
		return more(n, a, c)
	}}
	return d.Dial(network, address)
}

var mesh = Rules{Ranges: []netip.Prefix{netip.MustParsePrefix("240.240.0.0/16"), netip.MustParsePrefix("2001:2::/48")},
	Addresses: []netip.Addr{netip.MustParseAddr("10.96.0.7"), netip.MustParseAddr("fd96::7")}}

// tables are the rules in the pod, as the kernel prints them to nobody but this test.
func (p *pod) tables(t *testing.T) (names []string) {
	t.Helper()
	must(t, p.ns.FD(func(fd int) error {
		c, err := nftables.New(nftables.WithNetNSFd(fd))
		must(t, err)
		list, err := c.ListTables()
		for _, l := range list {
			names = append(names, l.Name)
		}
		return err
	}))
	return names
}

func TestConnectionsToVirtualAddressesAreCaptured(t *testing.T) {
	p := newPod(t)
	four, six := p.listen(t, "tcp4", "127.0.0.1:15001"), p.listen(t, "tcp6", "[::1]:15001")
	must(t, Set(p.ns, mesh))
	for _, to := range []string{"240.240.0.0:80", "240.240.255.255:65535", "10.96.0.7:443", "[2001:2::1]:80", "[2001:2:0:ffff:ffff:ffff:ffff:ffff]:1", "[fd96::7]:5432"} {
		c, err := p.dial("tcp", to, nil)
		if err != nil {
			t.Errorf("connect to %s: %v, want that it is captured", to, err)
			continue
		}
		l := four
		if strings.HasPrefix(to, "[") {
			l = six
		}
		got, err := l.Accept()
		must(t, err)
		original, err := Original(got.(*net.TCPConn))
		if err != nil || original.String() != to {
			t.Errorf("a connection to %s says that it was to go to %v, %v", to, original, err)
		}
		c.Close()
		got.Close()
	}
}

func TestWhatIsNotForTheMeshIsLeftAlone(t *testing.T) {
	p := newPod(t)
	l := p.listen(t, "tcp4", "127.0.0.1:15001")
	must(t, Set(p.ns, mesh))
	for _, address := range []string{otherAddress + ":8080", "[" + other6 + "]:8080"} {
		other, err := p.Listen("other", address)
		must(t, err)
		go func() {
			c, err := other.Accept()
			if err == nil {
				io.WriteString(c, "other")
				c.Close()
			}
			other.Close()
		}()
		c, err := p.dial("tcp", address, nil)
		must(t, err)
		if b, err := io.ReadAll(c); string(b) != "other" || err != nil {
			t.Errorf("%s says %q, %v", address, b, err)
		}
		if from := c.LocalAddr().(*net.TCPAddr).IP.String(); from != podAddress && from != pod6 {
			t.Errorf("the connection comes from %s", from)
		}
		c.Close()
	}
	// One that nobody has led here has no destination.
	c, err := p.dial("tcp", "127.0.0.1:15001", nil)
	must(t, err)
	defer c.Close()
	got, err := l.Accept()
	must(t, err)
	defer got.Close()
	if to, err := Original(got.(*net.TCPConn)); !errors.Is(err, ErrDirect) {
		t.Errorf("a direct connection was to go to %v, %v; want ErrDirect", to, err)
	}
}

// Whether there is a node proxy or not: nothing for the mesh leaves the pod.
func TestNothingForTheMeshLeavesThePod(t *testing.T) {
	p := newPod(t)
	for _, a := range []string{"240.240.0.9", "10.96.0.7"} {
		must(t, p.IP("other", "addr add "+a+"/32 dev eth0"))
	}
	must(t, p.IP("other", "addr add 2001:2::9/128 dev eth0 nodad"))
	heard := make(chan string, 10)
	for _, a := range []string{"240.240.0.9:80", "10.96.0.7:80", "[2001:2::9]:80"} {
		l, err := p.Listen("other", a)
		must(t, err)
		defer l.Close()
		go func() {
			if _, err := l.Accept(); err == nil {
				heard <- a
			}
		}()
	}
	c, err := p.dial("tcp", "240.240.0.9:80", nil)
	must(t, err) // the test can fail: without rules it is answered
	c.Close()
	<-heard

	must(t, Set(p.ns, mesh))
	for _, a := range []string{"240.240.0.9:80", "10.96.0.7:80", "[2001:2::9]:80"} {
		began := time.Now()
		_, err := p.dial("tcp", a, nil)
		if !errors.Is(err, unix.ECONNREFUSED) || time.Since(began) > time.Second {
			t.Errorf("connect to %s without a node proxy: %v after %v, want refused at once", a, err, time.Since(began))
		}
	}
	for _, a := range []string{"240.240.0.9:80", "[2001:2::9]:80"} {
		u, err := p.dial("udp", a, nil)
		must(t, err)
		for err == nil { // the kernel tells it with the next call
			if _, err = u.Write([]byte("x")); err == nil {
				u.SetReadDeadline(time.Now().Add(time.Second))
				_, err = u.Read(make([]byte, 1))
			}
		}
		if !errors.Is(err, unix.ECONNREFUSED) && !errors.Is(err, unix.EPERM) {
			t.Errorf("UDP to %s: %v, want that it is refused at once", a, err)
		}
		u.Close()
	}
	// What the node proxy sends itself goes its way.
	if c, err := p.dial("tcp", "10.96.0.7:80", Mark); err != nil {
		t.Errorf("a marked connection: %v", err)
	} else {
		c.Close()
	}
	select {
	case a := <-heard:
		if a != "240.240.0.9:80" {
			break // the marked one
		}
		t.Errorf("%s was reached", a)
	case <-time.After(time.Second):
	}
}

func TestRulesAreReplacedUnderOpenConnectionsAndRemoved(t *testing.T) {
	p := newPod(t)
	before := p.tables(t)
	l := p.listen(t, "tcp4", "127.0.0.1:15001")
	must(t, Set(p.ns, mesh))
	c, err := p.dial("tcp", "240.240.0.1:80", nil)
	must(t, err)
	defer c.Close()
	got, err := l.Accept()
	must(t, err)
	defer got.Close()
	say := func(when string) {
		t.Helper()
		for _, way := range [][2]net.Conn{{c, got}, {got, c}} {
			way[0].SetDeadline(time.Now().Add(2 * time.Second))
			way[1].SetDeadline(time.Now().Add(2 * time.Second))
			_, err := way[0].Write([]byte("ping"))
			must(t, err)
			b := make([]byte, 4)
			if _, err := io.ReadFull(way[1], b); err != nil {
				t.Fatalf("%s an open connection is lost: %v", when, err)
			}
		}
	}
	for range 3 {
		must(t, Set(p.ns, mesh))
		say("after the same rules were set again")
	}
	must(t, Set(p.ns, Rules{Ranges: mesh.Ranges}))
	say("after its rules have changed")
	if n := len(p.tables(t)); n != len(before)+1 {
		t.Errorf("%d tables, want one", n)
	}
	if original, err := Original(got.(*net.TCPConn)); err != nil || original.String() != "240.240.0.1:80" {
		t.Errorf("original destination %v, %v", original, err)
	}
	for range 2 {
		must(t, Remove(p.ns))
		if n := len(p.tables(t)); n != len(before) {
			t.Errorf("%d tables are left", n)
		}
	}
}

// Rules are set while connections come: those to what is captured before and after are captured.
func TestNoConnectionMeetsHalfTheRules(t *testing.T) {
	p := newPod(t)
	always := []string{"240.240.0.9", "10.96.0.1"} // of a range, and one of the addresses
	lost := make(chan string, len(always))
	for _, a := range always {
		must(t, p.IP("other", "addr add "+a+"/32 dev eth0"))
		leaked, err := p.Listen("other", a+":80")
		must(t, err)
		defer leaked.Close()
		go func() {
			if _, err := leaked.Accept(); err == nil {
				lost <- a
			}
		}()
	}
	l := p.listen(t, "tcp4", "127.0.0.1:15001")
	go func() {
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			c.Close()
		}
	}()
	rules := []Rules{mesh, mesh}
	rules[0].Addresses = append(many(2), mesh.Addresses...)
	rules[1].Addresses = many(500)
	must(t, Set(p.ns, rules[0]))
	stop, done := make(chan struct{}), make(chan error, 1)
	go func() {
		for n := 0; ; n++ {
			select {
			case <-stop:
				done <- nil
				return
			default:
			}
			if err := Set(p.ns, rules[n%2]); err != nil {
				done <- err
				return
			}
		}
	}()
	var refused []error
	for n := range 10000 {
		c, err := p.dial("tcp", always[n%2]+":80", nil)
		if err != nil {
			refused = append(refused, err)
			continue
		}
		c.(*net.TCPConn).SetLinger(0)
		c.Close()
	}
	close(stop)
	must(t, <-done)
	if len(refused) > 0 {
		t.Errorf("%d of 10000 connections failed while rules were set: %v", len(refused), refused[0])
	}
	select {
	case a := <-lost:
		t.Errorf("a connection to %s left the pod while rules were replaced", a)
	default:
	}
}

func TestNamesAreAskedOfTheNodeProxyWhileItLives(t *testing.T) {
	p := newPod(t)
	answer := func(c net.PacketConn, who string) {
		t.Cleanup(func() { c.Close() })
		go func() {
			b := make([]byte, 10)
			for {
				_, from, err := c.ReadFrom(b)
				if err != nil {
					return
				}
				c.WriteTo([]byte(who), from)
			}
		}()
	}
	ask := func(at string) string {
		t.Helper()
		c, err := p.dial("udp", at, nil)
		must(t, err)
		defer c.Close()
		c.SetDeadline(time.Now().Add(time.Second))
		c.Write([]byte("?"))
		b := make([]byte, 10)
		n, err := c.Read(b)
		if err != nil {
			return err.Error()
		}
		return string(b[:n])
	}
	for _, a := range []string{otherAddress + ":53", "[" + other6 + "]:53"} {
		c, err := p.ListenPacket("other", a)
		must(t, err)
		answer(c, "resolver")
	}
	listen := net.ListenConfig{Control: p.ns.Control}
	for _, a := range []string{"127.0.0.1:15053", "[::1]:15053"} {
		c, err := listen.ListenPacket(t.Context(), "udp", a)
		must(t, err)
		answer(c, "proxy")
	}
	stranger, err := p.ListenPacket("other", otherAddress+":5353")
	must(t, err)
	answer(stranger, "stranger")
	resolvers := []netip.Addr{netip.MustParseAddr(otherAddress), netip.MustParseAddr(other6), netip.MustParseAddr("127.0.0.11")}
	n, err := CaptureNames(p.ns, resolvers)
	must(t, err)
	second, err := CaptureNames(p.ns, resolvers) // the next process, while this one still lives
	must(t, err)
	for at, want := range map[string]string{otherAddress + ":53": "proxy", "[" + other6 + "]:53": "proxy", otherAddress + ":5353": "stranger"} {
		if got := ask(at); got != want {
			t.Errorf("%s answers %q, want %q", at, got, want)
		}
	}
	must(t, n.Close())
	if got := ask(otherAddress + ":53"); got != "proxy" {
		t.Errorf("while the second process lives %q answers, want the proxy", got)
	}
	must(t, second.Close())
	for _, at := range []string{otherAddress + ":53", "[" + other6 + "]:53"} {
		if got := ask(at); got != "resolver" {
			t.Errorf("once nobody captures names %q answers at %s, want the resolver", got, at)
		}
	}
	if left := p.tables(t); len(left) != 0 {
		t.Errorf("tables %v are left", left)
	}
}

// The kernel decides once for a pair of addresses and ports. A query of the pod from a port that the node
// proxy has just asked the same resolver from is one of the pod's all the same.
func TestAQueryIsNotTakenForOneOfTheNodeProxys(t *testing.T) {
	p := newPod(t)
	for _, x := range []struct{ own, proxy, resolver string }{{podAddress, "127.0.0.1:15053", otherAddress + ":53"}, {pod6, "[::1]:15053", "[" + other6 + "]:53"}} {
		serve := func(c net.PacketConn, err error, who string) {
			must(t, err)
			t.Cleanup(func() { c.Close() })
			go func() {
				b := make([]byte, 10)
				for {
					_, from, err := c.ReadFrom(b)
					if err != nil {
						return
					}
					c.WriteTo([]byte(who), from)
				}
			}()
		}
		c, err := p.ListenPacket("other", x.resolver)
		serve(c, err, "resolver")
		lc := net.ListenConfig{Control: p.ns.Control}
		c, err = lc.ListenPacket(t.Context(), "udp", x.proxy)
		serve(c, err, "proxy")
		ask := func(port int, more func(string, string, syscall.RawConn) error) string {
			t.Helper()
			d := net.Dialer{LocalAddr: &net.UDPAddr{IP: net.ParseIP(x.own), Port: port}, Control: func(n, a string, c syscall.RawConn) error {
				err := p.ns.Control(n, a, c)
				if err == nil && more != nil {
					err = more(n, a, c)
				}
				return err
			}}
			c, err := d.Dial("udp", x.resolver)
			must(t, err)
			defer c.Close()
			c.SetDeadline(time.Now().Add(2 * time.Second))
			c.Write([]byte("?"))
			b := make([]byte, 10)
			n, err := c.Read(b)
			if err != nil {
				return err.Error()
			}
			return string(b[:n])
		}
		n, err := CaptureNames(p.ns, []netip.Addr{netip.MustParseAddrPort(x.resolver).Addr()})
		must(t, err)
		for port := 30000; port < 30010; port++ {
			if got := ask(port, Mark); got != "resolver" {
				t.Errorf("the node proxy asks %s and is answered by %q", x.resolver, got)
			}
			if got := ask(port, nil); got != "proxy" {
				t.Errorf("the pod asks %s from the same port and is answered by %q, want the node proxy", x.resolver, got)
			}
			if got := ask(port, Mark); got != "resolver" {
				t.Errorf("the node proxy asks %s from the pod's port and is answered by %q", x.resolver, got)
			}
		}
		must(t, n.Close())
	}
}
