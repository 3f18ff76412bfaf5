package sockdiag

import (
	"context"
	"errors"
	"net"
	"net/netip"
	"os"
	"os/exec"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/isthmus-mesh/isthmus/internal/netspace"
)

func open(t testing.TB) *Table {
	t.Helper()
	table, err := Open(nil)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(table.Close)
	return table
}

// listen listens without accepting; reuse shares the port with others that say so.
func listen(t testing.TB, network, at string, reuse bool) *net.TCPListener {
	t.Helper()
	c := net.ListenConfig{Control: func(_, _ string, c syscall.RawConn) error {
		if !reuse {
			return nil
		}
		return c.Control(func(fd uintptr) { unix.SetsockoptInt(int(fd), unix.SOL_SOCKET, unix.SO_REUSEPORT, 1) })
	}}
	l, err := c.Listen(t.Context(), network, at)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { l.Close() })
	return l.(*net.TCPListener)
}

func dial(t testing.TB, at netip.AddrPort) net.Conn {
	t.Helper()
	c, err := net.Dial("tcp", at.String())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { c.Close() })
	return c
}

func portOf(l *net.TCPListener) uint16 { return l.Addr().(*net.TCPAddr).AddrPort().Port() }

func loopback(l *net.TCPListener) netip.AddrPort {
	return netip.AddrPortFrom(netip.MustParseAddr("127.0.0.1"), portOf(l))
}

func TestAListenerIsFoundHoweverItIsBound(t *testing.T) {
	table := open(t)
	for _, c := range []struct{ network, at, ask string }{
		{"tcp4", "127.0.0.1:0", "127.0.0.1"}, {"tcp4", "0.0.0.0:0", "127.0.0.1"}, {"tcp", ":0", "127.0.0.1"},
		{"tcp", ":0", "::1"}, {"tcp6", "[::1]:0", "::1"}, {"tcp6", "[::]:0", "::1"},
	} {
		l := listen(t, c.network, c.at, false)
		at := netip.AddrPortFrom(netip.MustParseAddr(c.ask), portOf(l))
		got, ok, err := table.Listener(at)
		if err != nil || !ok || got.Local.Port() != at.Port() || got.Queue != 0 || got.Backlog == 0 {
			t.Errorf("%s %s: asked for %v: %+v, %t, %v", c.network, c.at, at, got, ok, err)
		}
		if group, err := table.Group(got); err != nil || len(group) != 1 || group[0] != got {
			t.Errorf("%s %s: group %+v, %v; want it alone", c.network, c.at, group, err)
		}
		l.Close()
		if got, ok, err := table.Listener(at); ok || err != nil {
			t.Errorf("%s %s: closed, and there is %+v, %v", c.network, c.at, got, err)
		}
	}
	only6 := listen(t, "tcp6", "[::]:0", false)
	if got, ok, err := table.Listener(loopback(only6)); ok || err != nil {
		t.Errorf("a listener of IPv6 alone is taken for one of IPv4: %+v, %v", got, err)
	}
}

func TestWhatWaitsInTheQueueIsToldFromWhatWasAccepted(t *testing.T) {
	table := open(t)
	for _, network := range []string{"tcp4", "tcp"} { // the second one is of both families
		l := listen(t, network, ":0", false)
		at := loopback(l)
		for range 2 {
			dial(t, at)
		}
		dial(t, netip.AddrPortFrom(netip.MustParseAddr("127.0.0.2"), at.Port()))
		c, err := l.Accept()
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { c.Close() })
		got, ok, err := table.Listener(at)
		if err != nil || !ok || got.Queue != 2 {
			t.Errorf("%s: %+v, %t, %v; want 2 in the queue", network, got, ok, err)
		}
		if list, err := table.Waiting(got); err != nil || len(list) != 2 {
			t.Errorf("%s: %+v, %v; want 2 that wait", network, list, err)
		}
	}
}

func TestAGroupHasAllThatShareAPort(t *testing.T) {
	table := open(t)
	first := listen(t, "tcp4", "127.0.0.1:0", true)
	listen(t, "tcp4", first.Addr().String(), true)
	listen(t, "tcp4", netip.AddrPortFrom(netip.IPv4Unspecified(), portOf(first)).String(), true) // less exact: serves others
	one, ok, err := table.Listener(loopback(first))
	if err != nil || !ok {
		t.Fatal(ok, err)
	}
	if group, err := table.Group(one); err != nil || len(group) != 2 || !slices.Contains(group, one) {
		t.Errorf("%+v, %v; want the two of this address", group, err)
	}
}

// next returns the ports of the next event, and fails after a while.
func next(t *testing.T, table *Table) []uint16 {
	t.Helper()
	timer := time.AfterFunc(10*time.Second, table.Close)
	defer timer.Stop()
	ports, err := table.Next(nil)
	if err != nil {
		t.Fatal(err)
	}
	return ports
}

func TestTheEndOfAListenerIsHeardAndThatOfConnectionsIsNot(t *testing.T) {
	table := open(t)
	for _, network := range []string{"tcp4", "tcp", "tcp6"} {
		l := listen(t, network, ":0", false)
		at := loopback(l)
		if network == "tcp6" {
			at = netip.AddrPortFrom(netip.IPv6Loopback(), at.Port())
		}
		for range 20 {
			c := dial(t, at)
			s, err := l.Accept()
			if err != nil {
				t.Fatal(err)
			}
			c.Close()
			s.Close()
		}
		began := time.Now()
		l.Close()
		for ports := next(t, table); !slices.Contains(ports, at.Port()); ports = next(t, table) {
			t.Logf("%s: another one: %v", network, ports) // of this machine
		}
		t.Logf("%s: heard after %v", network, time.Since(began))
	}
}

func TestCloseEndsNextAndFreesTheNamespace(t *testing.T) {
	table, err := Open(nil)
	if err != nil {
		t.Fatal(err)
	}
	ended := make(chan error)
	go func() {
		for {
			if _, err := table.Next(nil); err != nil {
				ended <- err
				return
			}
		}
	}()
	table.Close()
	select {
	case err := <-ended:
		if !errors.Is(err, os.ErrClosed) {
			t.Errorf("Next ended with %v", err)
		}
	case <-time.After(10 * time.Second):
		t.Fatal("Next goes on")
	}
	if _, _, err := table.Listener(netip.MustParseAddrPort("127.0.0.1:1")); !errors.Is(err, os.ErrClosed) {
		t.Errorf("a closed table answers %v", err)
	}
}

// TestATableIsOfItsNamespace also shows what happens to what is seen when that ends.
func TestATableIsOfItsNamespace(t *testing.T) {
	s := space(t)
	in := inHost{s, "pod"}
	table, err := Open(in)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(table.Close)
	l, err := s.Listen("pod", "127.0.0.1:8080")
	if err != nil {
		t.Fatal(err)
	}
	at := netip.MustParseAddrPort("127.0.0.1:8080")
	if _, ok, err := table.Listener(at); !ok || err != nil {
		t.Errorf("not seen in its namespace: %v", err)
	}
	if got, ok, _ := open(t).Listener(at); ok {
		t.Errorf("seen in the test's own namespace: %+v", got)
	}
	l.Close()
	if got := next(t, table); !slices.Equal(got, []uint16{8080}) {
		t.Errorf("%v; want the end of 8080", got)
	}
}

type inHost struct {
	s    *netspace.Space
	host string
}

func (h inHost) Do(f func() error) error { return h.s.In(h.host, f) }

// space is one host without a network.
func space(t *testing.T) *netspace.Space {
	t.Helper()
	netspace.NeedRoot(t)
	s, err := netspace.New("sockdiag")
	t.Cleanup(func() { s.Close() })
	if err != nil {
		t.Fatal(err)
	}
	if err := s.Segment("lan", map[string][]string{"pod": {"10.9.0.1"}}); err != nil {
		t.Fatal(err)
	}
	return s
}

func BenchmarkListener(b *testing.B) {
	table := open(b)
	l := listen(b, "tcp4", "127.0.0.1:0", false)
	at := loopback(l)
	for b.Loop() {
		if _, ok, err := table.Listener(at); !ok || err != nil {
			b.Fatal(ok, err)
		}
	}
}

func BenchmarkWaiting(b *testing.B) {
	table := open(b)
	l := listen(b, "tcp4", "127.0.0.1:0", false)
	at := loopback(l)
	one, _, err := table.Listener(at)
	if err != nil {
		b.Fatal(err)
	}
	for b.Loop() {
		if _, err := table.Waiting(one); err != nil {
			b.Fatal(err)
		}
	}
}

// BenchmarkConnection is what a connection costs, with and without somebody who hears
// that it ends.
func BenchmarkConnection(b *testing.B) {
	for _, heard := range []bool{false, true} {
		b.Run(map[bool]string{false: "unheard", true: "heard"}[heard], func(b *testing.B) {
			if heard {
				open(b)
			}
			l := listen(b, "tcp4", "127.0.0.1:0", false)
			ctx, stop := context.WithCancel(b.Context())
			defer stop()
			go func() {
				for ctx.Err() == nil {
					if c, err := l.Accept(); err == nil {
						c.Close()
					}
				}
			}()
			at := loopback(l).String()
			for b.Loop() {
				c, err := net.Dial("tcp", at)
				if err != nil {
					b.Fatal(err)
				}
				c.(*net.TCPConn).SetLinger(0)
				c.Close()
			}
			l.Close()
		})
	}
}

func TestAConnectionIsFoundByItsEnds(t *testing.T) {
	table := open(t)
	for _, at := range []string{"127.0.0.1:0", "[::1]:0", "[::]:0"} {
		l := listen(t, "tcp", at, false)
		to := loopback(l)
		if at == "[::1]:0" {
			to = netip.AddrPortFrom(netip.IPv6Loopback(), portOf(l))
		}
		c := dial(t, to)
		from := c.LocalAddr().(*net.TCPAddr).AddrPort()
		check := func(local, remote netip.AddrPort, want bool) {
			t.Helper()
			if got, err := table.Connected(local, remote); got != want || err != nil {
				t.Errorf("%s: a connection of %s to %s: %t, %v, want %t", at, local, remote, got, err, want)
			}
		}
		check(from, to, true)
		check(to, from, true)                                            // the other end, which nobody has accepted
		check(to, netip.AddrPortFrom(from.Addr(), from.Port()^1), false) // the listener is none
		check(netip.AddrPortFrom(from.Addr(), from.Port()^1), to, false)
		c.(*net.TCPConn).SetLinger(0)
		c.Close()
		check(from, to, false)
	}
}

// A connection that has ended shares its port with the listener that accepted it. End leaves that one alone, of both
// families and also of link-local addresses, and so it does with a new connection that has the same ends.
func TestEndResetsOneConnectionOnly(t *testing.T) {
	s := space(t)
	if err := s.Host("lan", "other", "10.9.0.2"); err != nil {
		t.Fatal(err)
	}
	table, err := Open(inHost{s, "pod"})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(table.Close)
	in := func(host string, f func() error) {
		t.Helper()
		if err := s.In(host, f); err != nil {
			t.Fatal(err)
		}
	}
	linkLocal(t, s, "other") // from which it connects
	for _, address := range []string{"10.9.0.1", linkLocal(t, s, "pod")} {
		var l *net.TCPListener
		config := net.ListenConfig{}
		config.SetMultipathTCP(false)
		in("pod", func() error {
			x, err := config.Listen(t.Context(), "tcp", ":8080")
			if err == nil {
				l = x.(*net.TCPListener)
			}
			return err
		})
		from := &net.TCPAddr{Port: 40000} // always the same
		dial := func() (client, server net.Conn) {
			t.Helper()
			in("other", func() (err error) {
				client, err = (&net.Dialer{LocalAddr: from, Timeout: 5 * time.Second}).Dial("tcp", net.JoinHostPort(address, "8080"))
				return err
			})
			l.SetDeadline(time.Now().Add(5 * time.Second))
			server, err := l.Accept()
			if err != nil {
				t.Fatalf("%s: the listener: %v", address, err)
			}
			return client, server
		}
		found := func() (c Connection) {
			t.Helper()
			if err := table.All(func(x Connection) { c = x }); err != nil || c.Local.Port() != 8080 {
				t.Fatalf("%s: found %+v, %v", address, c, err)
			}
			return c
		}
		reset := func(c net.Conn) {
			c.(*net.TCPConn).SetLinger(0)
			c.Close()
		}
		client, server := dial()
		first := found()
		if there, err := table.Listens(first); !there || err != nil {
			t.Errorf("%s: no listener of a connection: %v", address, err)
		}
		reset(client)
		server.Read(make([]byte, 1)) // until the reset has come
		server.Close()
		if ended, err := table.End(first); ended || err != nil {
			t.Errorf("%s: a connection that has ended: %t, %v", address, ended, err)
		}
		client, server = dial()
		if ended, err := table.End(first); ended || err != nil {
			t.Errorf("%s: one that has ended, and another has its ends: %t, %v", address, ended, err)
		}
		if _, err := client.Write([]byte("x")); err != nil {
			t.Error(err)
		}
		server.SetDeadline(time.Now().Add(5 * time.Second))
		if n, err := server.Read(make([]byte, 1)); n != 1 {
			t.Errorf("%s: the new connection has ended: %v", address, err)
		}
		if ended, err := table.End(found()); !ended || err != nil {
			t.Errorf("%s: an open connection: %t, %v", address, ended, err)
		}
		client.SetDeadline(time.Now().Add(5 * time.Second))
		if _, err := client.Read(make([]byte, 1)); !errors.Is(err, syscall.ECONNRESET) {
			t.Errorf("%s: the client of a connection that End reset: %v", address, err)
		}
		server.Close()
		reset(client)
		client, server = dial() // the listener lives
		reset(client)
		server.Close()
		l.Close()
	}
}

// linkLocal waits for the link-local address of a host, and returns it with its interface.
func linkLocal(t *testing.T, s *netspace.Space, host string) (address string) {
	t.Helper()
	for end := time.Now().Add(5 * time.Second); address == ""; time.Sleep(20 * time.Millisecond) {
		if time.Now().After(end) {
			t.Fatal("no link-local address")
		}
		if err := s.In(host, func() error {
			out, err := exec.Command("ip", "-6", "-o", "addr", "show", "dev", "eth0", "scope", "link", "-tentative").Output()
			if f := strings.Fields(string(out)); len(f) > 3 {
				address, _, _ = strings.Cut(f[3], "/")
			}
			return err
		}); err != nil {
			t.Fatal(err)
		}
	}
	return address + "%eth0"
}
