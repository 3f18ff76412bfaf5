//go:build linux

package capture

import (
	"errors"
	"net"
	"net/netip"
	"syscall"
	"testing"
	"time"
)

// all is mesh with everything else, both ways.
func all() Rules {
	r := mesh
	r.Everything, r.Inbound = true, true
	return r
}

// originalOf is where the next connection of l was to go.
func originalOf(t *testing.T, l net.Listener) (string, net.Conn) {
	t.Helper()
	l.(*net.TCPListener).SetDeadline(time.Now().Add(2 * time.Second))
	c, err := l.Accept()
	if err != nil {
		return err.Error(), nil
	}
	t.Cleanup(func() { c.Close() })
	to, err := Original(c.(*net.TCPConn))
	if err != nil {
		return err.Error(), c
	}
	return to.String(), c
}

// from dials from the other host.
func (p *pod) from(t *testing.T, to string) (net.Conn, error) {
	t.Helper()
	c, err := p.Dial("other", to)
	if err == nil {
		t.Cleanup(func() { c.Close() })
	}
	return c, err
}

func TestMeshDestinationsAreCaptured(t *testing.T) {
	p := newPod(t)
	four, six := p.listen(t, "tcp4", "127.0.0.1:15001"), p.listen(t, "tcp6", "[::1]:15001")
	u, _ := p.decide(t, all(), func(FirstPacket) Verdict { return Mesh })
	for _, to := range []string{otherAddress + ":80", "192.0.2.7:443", "240.240.0.1:80", "10.96.0.7:443", "[" + other6 + "]:80", "[2001:2::1]:80", "[2001:db8::7]:443"} {
		c, err := p.dial("tcp", to, nil)
		if err != nil {
			t.Errorf("connect to %s: %v, want that it is captured", to, err)
			continue
		}
		defer c.Close()
		l := four
		if c.RemoteAddr().(*net.TCPAddr).IP.To4() == nil {
			l = six
		}
		if got, _ := originalOf(t, l); got != to {
			t.Errorf("a connection to %s was to go to %s", to, got)
		}
	}
	// Without a node proxy they are refused, and so are captured addresses that were never decided on.
	four.Close()
	six.Close()
	u.Close()
	for _, to := range []string{otherAddress + ":80", "[" + other6 + "]:80", "240.240.0.9:80", "10.96.0.7:1", "[2001:2::9]:80"} {
		if _, err := p.dial("tcp", to, nil); !errors.Is(err, syscall.ECONNREFUSED) {
			t.Errorf("connect to %s without a node proxy: %v, want that it is refused", to, err)
		}
	}
}

func TestWhatIsNotOpenedToOthersIsLeftAlone(t *testing.T) {
	p := newPod(t)
	four, six := p.listen(t, "tcp4", "127.0.0.1:15001"), p.listen(t, "tcp6", "[::1]:15001")
	p.decide(t, all(), func(f FirstPacket) Verdict {
		t.Errorf("a connection to %v is to be decided on", f.To)
		return Refused
	})
	const linkLocal = "fe80::77"
	must(t, p.IP("other", "addr add "+linkLocal+"/64 dev eth0 nodad"))
	must(t, p.IP("pod", "addr add fe80::78/64 dev eth0 nodad"))
	for to, host := range map[string]string{podAddress + ":8080": "pod", "[" + pod6 + "]:8080": "pod", "127.0.0.1:8081": "pod", "[::1]:8081": "pod", "[" + linkLocal + "%eth0]:8080": "other"} {
		l, err := p.Listen(host, to)
		must(t, err)
		defer l.Close()
		c, err := p.Dial("pod", to)
		if err != nil {
			t.Errorf("connect to %s: %v", to, err)
			continue
		}
		c.Close()
		l.(*net.TCPListener).SetDeadline(time.Now().Add(2 * time.Second))
		if _, err := l.Accept(); err != nil {
			t.Errorf("a connection to %s does not arrive: %v", to, err)
		}
	}
	l, err := p.Listen("other", otherAddress+":80")
	must(t, err)
	defer l.Close()
	c, err := p.dial("tcp", otherAddress+":80", Mark)
	must(t, err)
	c.Close()
	if _, err := l.Accept(); err != nil {
		t.Errorf("what the node proxy opens itself does not arrive: %v", err)
	}
	u, err := p.ListenPacket("other", otherAddress+":53")
	must(t, err)
	defer u.Close()
	d, err := p.dial("udp", otherAddress+":53", nil)
	must(t, err)
	defer d.Close()
	_, err = d.Write([]byte("udp"))
	must(t, err)
	u.SetDeadline(time.Now().Add(2 * time.Second))
	if _, _, err := u.ReadFrom(make([]byte, 9)); err != nil {
		t.Errorf("UDP does not arrive: %v", err)
	}
	for _, l := range []net.Listener{four, six} {
		l.(*net.TCPListener).SetDeadline(time.Now())
		if _, err := l.Accept(); err == nil {
			t.Error("something came to the node proxy")
		}
	}
}

func TestAllThatIsOpenedToThePodIsCaptured(t *testing.T) {
	p := newPod(t)
	in := p.listen(t, "tcp", "[::]:15006")
	must(t, Set(p.ns, all()))
	must(t, p.IP("pod", "addr add 10.71.1.77/32 dev eth0")) // one that nobody knows of
	must(t, p.IP("other", "route add 10.71.1.77/32 via "+podAddress))
	for _, to := range []string{podAddress + ":8080", "[" + pod6 + "]:8080", "10.71.1.77:22"} {
		app, err := p.Listen("pod", to)
		must(t, err)
		defer app.Close()
		c, err := p.from(t, to)
		if err != nil {
			t.Errorf("connect to %s: %v, want that it is captured", to, err)
			continue
		}
		got, came := originalOf(t, in)
		if got != to {
			t.Errorf("a connection to %s was to go to %s", to, got)
		}
		if came != nil && came.RemoteAddr().String() != c.LocalAddr().String() {
			t.Errorf("a connection of %s is one of %s", c.LocalAddr(), came.RemoteAddr())
		}
	}
	if _, err := p.from(t, podAddress+":15006"); err == nil {
		if got, _ := originalOf(t, in); got != ErrDirect.Error() {
			t.Errorf("a connection to the port itself was to go to %s", got)
		}
	}
	for _, to := range []string{podAddress + ":15008", "[" + pod6 + "]:15008"} {
		l, err := p.Listen("pod", to)
		must(t, err)
		defer l.Close()
		if _, err := p.from(t, to); err != nil {
			t.Errorf("connect to %s: %v", to, err)
		}
		l.(*net.TCPListener).SetDeadline(time.Now().Add(2 * time.Second))
		if _, err := l.Accept(); err != nil {
			t.Errorf("a tunnel to %s does not arrive: %v", to, err)
		}
	}
	in.Close()
	if _, err := p.from(t, podAddress+":8080"); !errors.Is(err, syscall.ECONNREFUSED) {
		t.Errorf("connect without a node proxy: %v, want that it is refused", err)
	}
}

// What was open before goes on when a pod is captured, when less of it is and when nothing is any more. What was
// captured goes on as long as there is a table of ours: with the last rule of NAT the kernel stops to translate.
func TestOpenConnectionsOutliveAChangeOfScope(t *testing.T) {
	p := newPod(t)
	pair := func(from, at string) [2]net.Conn {
		t.Helper()
		l, err := p.Listen(map[string]string{"pod": "other", "other": "pod"}[from], at)
		must(t, err)
		defer l.Close()
		c, err := p.Dial(from, at)
		must(t, err)
		got, err := l.Accept()
		must(t, err)
		t.Cleanup(func() { c.Close(); got.Close() })
		return [2]net.Conn{c, got}
	}
	say := func(when string, list ...[2]net.Conn) {
		t.Helper()
		for i, c := range list {
			for _, way := range [][2]net.Conn{{c[0], c[1]}, {c[1], c[0]}} {
				way[0].SetDeadline(time.Now().Add(2 * time.Second))
				way[1].SetDeadline(time.Now().Add(2 * time.Second))
				if _, err := way[0].Write([]byte("ping")); err != nil {
					t.Errorf("%s, connection %d: %v", when, i, err)
				}
				if n, err := way[1].Read(make([]byte, 4)); err != nil || n != 4 {
					t.Errorf("%s, connection %d: %d bytes, %v", when, i, n, err)
				}
			}
		}
	}
	plain := [][2]net.Conn{pair("pod", otherAddress+":80"), pair("other", podAddress+":80"), pair("pod", "["+other6+"]:80")}
	l := p.listen(t, "tcp4", "127.0.0.1:15001")
	in := p.listen(t, "tcp", "[::]:15006")
	_, decided := p.decide(t, all(), func(FirstPacket) Verdict { return Mesh })
	app, err := p.Listen("pod", podAddress+":8080")
	must(t, err)
	say("captured", plain...)
	out, err := p.dial("tcp", "192.0.2.7:80", nil)
	must(t, err)
	_, accepted := originalOf(t, l)
	arrived, err := p.from(t, podAddress+":8080")
	must(t, err)
	_, taken := originalOf(t, in)
	app.Close()
	captured := [][2]net.Conn{{out, accepted}, {arrived, taken}}
	for _, r := range []Rules{decided, mesh, all(), decided, {Everything: true}, {Everything: true, Inbound: true}, {Owner: "it leaves"}} {
		must(t, Set(p.ns, r))
		say("with "+r.String(), append(captured, plain...)...)
		if hold, err := Hold(p.ns, r); err != nil || !hold {
			t.Errorf("%s do not hold: %v", r, err)
		}
	}
	must(t, Set(p.ns, mesh))
	if _, err := p.from(t, podAddress+":8080"); !errors.Is(err, syscall.ECONNREFUSED) {
		t.Errorf("after a return to virtual addresses what comes in is captured: %v", err)
	}
	must(t, Remove(p.ns))
	say("released", plain...)
}

// Queries by TCP are the node proxy's while it answers, although all TCP is led elsewhere.
func TestNamesComeBeforeEverythingElse(t *testing.T) {
	p := newPod(t)
	names := p.listen(t, "tcp4", "127.0.0.1:15053")
	p.listen(t, "tcp4", "127.0.0.1:15001")
	n, err := CaptureNames(p.ns, []netip.Addr{netip.MustParseAddr(otherAddress)})
	must(t, err)
	defer n.Close()
	must(t, Set(p.ns, all()))
	c, err := p.dial("tcp", otherAddress+":53", nil)
	must(t, err)
	defer c.Close()
	names.(*net.TCPListener).SetDeadline(time.Now().Add(2 * time.Second))
	if _, err := names.Accept(); err != nil {
		t.Errorf("a query by TCP does not come to the node proxy's names: %v", err)
	}
}
