//go:build linux

package capture

import (
	"context"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"net/netip"
	"os"
	"slices"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// modelPorts is a slow twin of Ports: all ports that may be taken.
func modelPorts(low, high int, reserved []portRange, application int) (list []uint16) {
	for p := low; p <= high; p++ {
		free := p%2 == 1 && p-low >= (high-low+1)/2 && p != application
		for _, r := range reserved {
			free = free && (p < int(r.low) || p > int(r.high))
		}
		if free {
			list = append(list, uint16(p))
		}
	}
	return list
}

func TestPortsMatchModel(t *testing.T) {
	seed := rand.Uint64()
	rng := rand.New(rand.NewPCG(seed, 0))
	for range 500 {
		low := 1 + rng.IntN(60000)
		high := min(low+rng.IntN(300), 65535)
		var text string
		var reserved []portRange
		for range rng.IntN(4) {
			a := uint32(low + rng.IntN(300))
			r := portRange{a, min(a+uint32(rng.IntN(20)), 65535)}
			if reserved = append(reserved, r); text != "" {
				text += ","
			}
			if text += fmt.Sprint(r.low); r.high > r.low {
				text += fmt.Sprintf("-%d", r.high)
			}
		}
		application := low + rng.IntN(high-low+1)
		p, err := parsePorts(fmt.Sprintf("%d\t%d\n", low, high), text+"\n")
		if err != nil {
			t.Fatalf("seed %d: range %d-%d, reserved %q: %v", seed, low, high, text, err)
		}
		want := modelPorts(low, high, reserved, application)
		for round := range 2 { // each port once before any is taken again
			var got []uint16
			for range want {
				port, ok := p.take(uint16(application))
				if !ok {
					t.Fatalf("seed %d: range %d-%d, reserved %q: no port after %v", seed, low, high, text, got)
				}
				got = append(got, port)
			}
			if slices.Sort(got); !slices.Equal(got, want) {
				t.Fatalf("seed %d: range %d-%d, reserved %q, application %d, round %d: ports %v, want %v", seed, low, high, text, application, round, got, want)
			}
		}
		if len(want) == 0 {
			if port, ok := p.take(uint16(application)); ok {
				t.Fatalf("seed %d: range %d-%d, reserved %q: port %d, want none", seed, low, high, text, port)
			}
		}
	}
}

func TestParsePortsRejectsGarbage(t *testing.T) {
	for _, text := range [][2]string{{"", ""}, {"1", ""}, {"1 2 3", ""}, {"a b", ""}, {"9 1", ""}, {"1 65536", ""}, {"1 9", "x"}, {"1 9", "4-3"}, {"1 9", "1-2-3"}, {"-1 9", ""}} {
		if p, err := parsePorts(text[0], text[1]); err == nil {
			t.Errorf("parsePorts(%q, %q) = %+v, want an error", text[0], text[1], p)
		}
	}
}

// scarce gives the pod a few local ports, as sysctl would.
func (p *pod) scarce(t *testing.T, limits string) *Ports {
	t.Helper()
	must(t, p.ns.Do(func() error { return os.WriteFile("/proc/sys/net/ipv4/ip_local_port_range", []byte(limits), 0o600) }))
	return p.ports(t)
}

// Which end of a connection closes first.
const (
	clientCloses = iota
	applicationCloses
	applicationResets
	ways
)

// closes runs an application that ends each connection as the client wants, which sends one byte for it.
func (p *pod) closes(t *testing.T, host, address string) {
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
				way := make([]byte, 1)
				switch io.ReadFull(c, way); way[0] {
				case clientCloses:
					io.Copy(io.Discard, c)
				case applicationResets:
					c.(*net.TCPConn).SetLinger(0)
				}
			}()
		}
	}()
}

// over has a connection end in that way, and returns when it has.
func over(c *net.TCPConn, way byte) error {
	defer c.Close()
	c.SetDeadline(time.Now().Add(5 * time.Second))
	if _, err := c.Write([]byte{way}); err != nil {
		return err
	}
	if way == clientCloses {
		if err := c.CloseWrite(); err != nil {
			return err
		}
	}
	if _, err := io.Copy(io.Discard, c); err != nil && (way != applicationResets || !errors.Is(err, unix.ECONNRESET)) {
		return err
	}
	return nil
}

// With far more connections than ports, from one client address and from the
// pod's own, none fails, whichever end closes first. The pod's own calls and
// listeners find ports all the while.
func TestSourceOutlastsPortRange(t *testing.T) {
	p := newSource(t)
	ports := p.scarce(t, "40000 40039")
	p.closes(t, "pod", ":8080")
	p.closes(t, "other", ":8081")
	for client, own := range map[string]string{otherAddress: podAddress, other6: pod6} {
		to, elsewhere := net.JoinHostPort(own, "8080"), net.JoinHostPort(client, "8081")
		for name, source := range map[string]func(string, string, syscall.RawConn) error{client: Source(netip.MustParseAddr(client), ports), own: Own(ports)} {
			for n := range 150 {
				c, err := dialIn(p, to, source)
				if err != nil {
					t.Fatalf("connection %d from %s: %v", n, name, err)
				}
				at := c.LocalAddr().(*net.TCPAddr)
				if at.IP.String() != name || at.Port%2 == 0 || at.Port < 40020 || at.Port > 40039 {
					t.Fatalf("connection %d comes from %v, want %s and an odd port of 40020 to 40039", n, at, name)
				}
				if err := over(c, byte(n%ways)); err != nil {
					t.Fatalf("connection %d from %v: %v", n, at, err)
				}
				if n%15 > 0 {
					continue
				}
				if c, err = p.Dial("pod", elsewhere); err != nil {
					t.Fatalf("the pod's own call beside connection %d: %v", n, err)
				}
				must(t, over(c, clientCloses))
				l, err := p.Listen("pod", ":0")
				if err != nil {
					t.Fatalf("a listener of the pod beside connection %d: %v", n, err)
				}
				l.Close()
			}
		}
	}
}

// dialIn connects from within the pod as a node proxy does.
func dialIn(p *pod, to string, source func(string, string, syscall.RawConn) error) (*net.TCPConn, error) {
	d := net.Dialer{Timeout: 2 * time.Second, Control: func(n, a string, c syscall.RawConn) error {
		for _, f := range []func(string, string, syscall.RawConn) error{p.ns.Control, Mark, source} {
			if err := f(n, a, c); err != nil {
				return err
			}
		}
		return nil
	}}
	c, err := d.DialContext(context.Background(), "tcp", to)
	if err != nil {
		return nil, err
	}
	return c.(*net.TCPConn), nil
}

// A port that has a listener of the pod, or a connection of its own, is passed over.
func TestPortsPassOverTakenOnes(t *testing.T) {
	p := newSource(t)
	p.scarce(t, "40000 40039")
	p.closes(t, "pod", ":8080")
	for port := 40021; port < 40039; port += 2 {
		l, err := p.Listen("pod", fmt.Sprintf(":%d", port))
		must(t, err)
		t.Cleanup(func() { l.Close() })
	}
	ports := p.ports(t)
	for _, source := range []func(string, string, syscall.RawConn) error{Source(netip.MustParseAddr(otherAddress), ports), Own(ports)} {
		for range 5 { // the one before is in TIME_WAIT
			c, err := dialIn(p, podAddress+":8080", source)
			if err != nil {
				t.Fatal(err)
			}
			if port := c.LocalAddr().(*net.TCPAddr).Port; port != 40039 {
				t.Errorf("port %d has a listener, and is used; want 40039", port)
			}
			must(t, over(c, clientCloses))
		}
	}
	l, err := p.Listen("pod", ":40039")
	must(t, err) // the port's last connection is in TIME_WAIT, and both have SO_REUSEADDR
	l.Close()
}
