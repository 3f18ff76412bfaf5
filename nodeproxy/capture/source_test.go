//go:build linux

package capture

import (
	"errors"
	"fmt"
	"io"
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
)

// application echoes in a host, and says whom it sees.
func (p *pod) application(t *testing.T, host, address string) {
	t.Helper()
	l, err := p.Listen(host, address)
	must(t, err)
	t.Cleanup(func() { l.Close() })
	go func() {
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			go func() {
				defer c.Close()
				fmt.Fprintf(c, "%s\n", c.RemoteAddr())
				io.Copy(c, c)
			}()
		}
	}()
}

// as connects to the pod from within, from another address.
func (p *pod) as(from netip.AddrPort, to string) (net.Conn, error) {
	d := net.Dialer{Timeout: 2 * time.Second, Control: func(n, a string, c syscall.RawConn) error {
		if err := errors.Join(p.ns.Control(n, a, c), Mark(n, a, c)); err != nil {
			return err
		}
		return control(c, func(fd int) error {
			if err := setTransparent(fd, from.Addr().Is6()); err != nil {
				return err
			}
			return os.NewSyscallError("bind", unix.Bind(fd, sockaddr(from)))
		})
	}}
	return d.Dial("tcp", to)
}

// seen is the first line that an application says.
func seen(t *testing.T, c net.Conn) string {
	t.Helper()
	c.SetDeadline(time.Now().Add(2 * time.Second))
	var line []byte
	for b := make([]byte, 1); ; line = append(line, b[0]) {
		if _, err := io.ReadFull(c, b); err != nil {
			t.Fatalf("the application says %q, %v", line, err)
		}
		if b[0] == '\n' {
			return string(line)
		}
	}
}

// echoed has an error unless c carries bytes both ways.
func echoed(c net.Conn) error {
	c.SetDeadline(time.Now().Add(2 * time.Second))
	if _, err := io.WriteString(c, "ping"); err != nil {
		return err
	}
	b := make([]byte, 4)
	if _, err := io.ReadFull(c, b); err != nil || string(b) != "ping" {
		return fmt.Errorf("%q came back, %w", b, err)
	}
	return nil
}

// routing is what ip shows of rules and of our table, for both families.
func (p *pod) routing(t *testing.T) string {
	t.Helper()
	var all []string
	for _, args := range []string{"-4 rule", "-6 rule", "-4 route show table all", "-6 route show table all"} {
		out, err := exec.Command("ip", strings.Fields("-n "+strings.TrimPrefix(p.Path("pod"), "/run/netns/")+" "+args)...).CombinedOutput()
		must(t, err)
		lines := slices.Sorted(strings.Lines(string(out)))
		all = append(all, slices.DeleteFunc(lines, func(l string) bool { return strings.Contains(l, "fe80::") })...) // the kernel adds them a second or two after a link is up
	}
	return strings.Join(all, "")
}

func (p *pod) ports(t testing.TB) *Ports {
	t.Helper()
	ports, err := PortsOf(p.ns)
	must(t, err)
	return ports
}

func newSource(t *testing.T) *pod {
	t.Helper()
	p := newPod(t)
	must(t, SetSource(p.ns, false))
	must(t, SetSource(p.ns, true))
	return p
}

func TestAnApplicationSeesTheAddressOfTheClient(t *testing.T) {
	p := newSource(t)
	p.application(t, "pod", ":8080")
	for from, to := range map[string]string{otherAddress: podAddress + ":8080", other6: "[" + pod6 + "]:8080", "10.99.1.2": podAddress + ":8080"} {
		c, err := p.as(netip.AddrPortFrom(netip.MustParseAddr(from), 0), to)
		if err != nil {
			t.Errorf("connect from %s: %v", from, err)
			continue
		}
		defer c.Close()
		if got := seen(t, c); got != c.LocalAddr().String() || !strings.Contains(got, from) {
			t.Errorf("the application sees %s, want %s", got, from)
		}
		if err := echoed(c); err != nil {
			t.Error(err)
		}
		// The end of each direction is one of its own.
		must(t, c.(*net.TCPConn).CloseWrite())
		if b, err := io.ReadAll(c); len(b) > 0 || err != nil {
			t.Errorf("after its end the application says %q, %v", b, err)
		}
	}
	for from, to := range map[string]string{otherAddress: podAddress + ":8081", other6: "[" + pod6 + "]:8081"} {
		began := time.Now()
		if _, err := p.as(netip.AddrPortFrom(netip.MustParseAddr(from), 0), to); !errors.Is(err, unix.ECONNREFUSED) || time.Since(began) > time.Second {
			t.Errorf("connect from %s where nobody listens: %v after %v, want refused at once", from, err, time.Since(began))
		}
	}
}

// Whatever address the client has: the pod's own connections with that address go where they went before.
func TestOtherConnectionsWithTheAddressOfTheClientAreLeftAlone(t *testing.T) {
	p := newSource(t)
	p.application(t, "pod", ":8080")
	p.application(t, "other", ":8080")
	for client, own := range map[string]string{otherAddress: podAddress, other6: pod6} {
		at := func(a string, port uint16) netip.AddrPort {
			return netip.AddrPortFrom(netip.MustParseAddr(a), port)
		}
		out := func(port int) net.Conn { // one of the pod itself, to the client's address
			var c net.Conn
			must(t, p.In("pod", func() (err error) {
				d := net.Dialer{Timeout: 2 * time.Second, LocalAddr: net.TCPAddrFromAddrPort(at(own, uint16(port)))}
				c, err = d.Dial("tcp", at(client, 8080).String())
				return err
			}))
			t.Cleanup(func() { c.Close() })
			if got := seen(t, c); !strings.Contains(got, own) {
				t.Errorf("the host %s sees %s, want %s", client, got, own)
			}
			return c
		}
		before := out(0)
		// From the same port of the client's address to the same port of the pod's: one in plain text from the client
		// itself comes first, and ours must not take its answers.
		var plain net.Conn
		must(t, p.In("other", func() (err error) {
			d := net.Dialer{Timeout: 2 * time.Second, LocalAddr: net.TCPAddrFromAddrPort(at(client, 45001))}
			plain, err = d.Dial("tcp", at(own, 8080).String())
			return err
		}))
		t.Cleanup(func() { plain.Close() })
		seen(t, plain)
		if c, err := p.as(at(client, 45001), at(own, 8080).String()); err == nil {
			c.Close()
			t.Errorf("two connections from %s, port 45001, at once", client)
		}
		if err := echoed(plain); err != nil {
			t.Errorf("the plain connection of %s: %v", client, err)
		}
		ours, err := p.as(at(client, 45003), at(own, 8080).String())
		must(t, err)
		defer ours.Close()
		seen(t, ours)
		same := out(45003) // with the port that ours has
		after := out(0)
		for range 3 {
			for name, c := range map[string]net.Conn{"opened before": before, "of the client itself": plain, "ours": ours, "with our port": same, "opened after": after} {
				if err := echoed(c); err != nil {
					t.Errorf("%s, the connection %s: %v", client, name, err)
				}
			}
		}
	}
}

func TestNothingOfSourcesIsLeftBehind(t *testing.T) {
	p := newPod(t)
	p.application(t, "pod", ":8080")
	must(t, p.IP("pod", "rule add fwmark 0x111/0xfff pref 32764 lookup 100")) // istio-cni's
	must(t, p.IP("pod", "route add local default dev lo table 100"))
	must(t, Set(p.ns, mesh))
	tables, routing := p.tables(t), p.routing(t)
	for _, six := range []bool{false, true} {
		must(t, SetSource(p.ns, six))
	}
	once := p.routing(t)
	if strings.Count(once, "lookup 1337") != 2 || strings.Count(once, "table 1337") != 2 {
		t.Fatalf("rules and routes are\n%s", once)
	}
	c, err := p.as(netip.MustParseAddrPort(otherAddress+":0"), podAddress+":8080")
	must(t, err)
	defer c.Close()
	seen(t, c)
	for range 3 { // the next process does the same, under open connections
		must(t, SetSource(p.ns, false))
		must(t, SetSource(p.ns, true))
		must(t, Set(p.ns, mesh))
		if err := echoed(c); err != nil {
			t.Errorf("an open connection when the rules are set again: %v", err)
		}
	}
	if again := p.routing(t); again != once {
		t.Errorf("rules and routes set again are\n%s\nwant\n%s", again, once)
	}
	for range 2 {
		must(t, RemoveSource(p.ns))
		if got := p.routing(t); got != routing {
			t.Errorf("rules and routes that are left:\n%s\nwant\n%s", got, routing)
		}
		if got := p.tables(t); !slices.Equal(got, tables) {
			t.Errorf("tables that are left: %v, want %v", got, tables)
		}
	}
}

// What would not work is found before a connection meets it, and leaves the pod as it was.
func TestSourcesAreTriedBeforeTheyAreUsed(t *testing.T) {
	p := newPod(t)
	for _, own := range []string{podAddress, pod6} {
		if err := TrySource(p.ns, netip.MustParseAddr(own), p.ports(t)); err == nil {
			t.Errorf("%s: without rules a connection from an address that is not the pod's own is answered", own)
		}
		must(t, SetSource(p.ns, own == pod6))
		began := time.Now()
		if err := TrySource(p.ns, netip.MustParseAddr(own), p.ports(t)); err != nil {
			t.Errorf("%s: %v", own, err)
		}
		t.Logf("%s: tried in %v", own, time.Since(began))
	}
	must(t, Routed(p.ns, netip.MustParseAddr(podAddress)))
	must(t, p.IP("pod", "route del default"))
	if err := Routed(p.ns, netip.MustParseAddr(podAddress)); err == nil || !strings.Contains(err.Error(), "no route") {
		t.Errorf("without a route: %v", err)
	}
	must(t, RemoveSource(p.ns))
}

func BenchmarkSource(b *testing.B) {
	p := newPod(b)
	for b.Loop() {
		must(b, SetSource(p.ns, false))
		must(b, TrySource(p.ns, netip.MustParseAddr(podAddress), p.ports(b)))
	}
}
