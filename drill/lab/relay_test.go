package lab

import (
	"bufio"
	"context"
	"fmt"
	"net"
	"net/netip"
	"os"
	"testing"
	"time"
)

// echo listens on a free loopback port and sends every line back.
func echo(t *testing.T) netip.AddrPort {
	t.Helper()
	l, err := net.Listen("tcp4", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { l.Close() })
	go func() {
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			go func() {
				defer c.Close()
				for r := bufio.NewReader(c); ; {
					line, err := r.ReadString('\n')
					if err != nil {
						return
					}
					fmt.Fprint(c, line)
				}
			}()
		}
	}()
	return netip.MustParseAddrPort(l.Addr().String())
}

func startRelay(t *testing.T) *relay {
	t.Helper()
	r, err := newRelay(t.Context(), nil, netip.MustParseAddrPort("127.0.0.1:0"), echo(t))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(r.close)
	return r
}

func dialRelay(t *testing.T, r *relay) net.Conn {
	t.Helper()
	c, err := net.Dial("tcp4", r.listener.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { c.Close() })
	return c
}

func ask(c net.Conn, wait time.Duration) error {
	c.SetDeadline(time.Now().Add(wait))
	fmt.Fprintln(c, "x")
	_, err := bufio.NewReader(c).ReadString('\n')
	return err
}

func TestRelayCutSwallowsEverythingAndKeepsConnectionsOpen(t *testing.T) {
	r := startRelay(t)
	c := dialRelay(t, r)
	if err := ask(c, 10*time.Second); err != nil {
		t.Fatalf("before the cut: %v", err)
	}
	r.setCut(true)
	passed := r.passed.Load()
	if err := ask(c, 100*time.Millisecond); !os.IsTimeout(err) {
		t.Errorf("old connection while cut: got %v, want a timeout", err)
	}
	n := dialRelay(t, r)
	if err := ask(n, 100*time.Millisecond); !os.IsTimeout(err) {
		t.Errorf("new connection while cut: got %v, want a timeout", err)
	}
	if got := r.passed.Load(); got != passed {
		t.Errorf("%d bytes passed the cut", got-passed)
	}
	if r.swallowed.Load() == 0 || r.met.Load() == 0 {
		t.Errorf("swallowed %d bytes, met %d connections; want both above 0", r.swallowed.Load(), r.met.Load())
	}
}

func TestRelayHealsWithFreshConnections(t *testing.T) {
	r := startRelay(t)
	c := dialRelay(t, r)
	if err := ask(c, 10*time.Second); err != nil {
		t.Fatal(err)
	}
	r.setCut(true)
	r.setCut(false)
	if err := ask(c, 10*time.Second); err == nil || os.IsTimeout(err) {
		t.Errorf("connection that lost bytes: got %v, want it closed", err)
	}
	if err := ask(dialRelay(t, r), 10*time.Second); err != nil {
		t.Errorf("fresh connection: %v", err)
	}
}

func TestRelayToADeadGatewayClosesAtOnce(t *testing.T) {
	l, _ := net.Listen("tcp4", "127.0.0.1:0")
	dead := netip.MustParseAddrPort(l.Addr().String())
	l.Close()
	r, err := newRelay(context.Background(), nil, netip.MustParseAddrPort("127.0.0.1:0"), dead)
	if err != nil {
		t.Fatal(err)
	}
	defer r.close()
	if err := ask(dialRelay(t, r), 10*time.Second); err == nil || os.IsTimeout(err) {
		t.Errorf("got %v, want closed", err)
	}
}
