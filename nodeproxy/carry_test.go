package nodeproxy_test

import (
	"errors"
	"fmt"
	"io"
	"net"
	"syscall"
	"testing"
	"time"

	"github.com/isthmus-mesh/isthmus/internal/meshtest"
)

const hello = "hello.default.svc.cluster.local:80"

// pair is the smallest mesh with two networks: shop on east calls hello on
// west, through one gateway.
type pair struct {
	*meshtest.Mesh
	shop   *meshtest.Pod
	pods   []*meshtest.Pod // hello-1, hello-2, …
	listen struct{ hello, other addr }
}

// newPair describes a pair with n pods of hello on as many nodes; nothing runs
// yet.
func newPair(t testing.TB, n int) *pair {
	p := &pair{Mesh: meshtest.New(t)}
	p.Networks("east", "west")
	p.Service("hello", 80, 8080, 81, 8081)
	p.Gateway("west", "gw-1")
	p.shop = p.Pod("east", "east-1", "shop-1")
	for i := range n {
		p.pods = append(p.pods, p.Pod("west", fmt.Sprintf("west-%d", i+1), fmt.Sprintf("hello-%d", i+1), "hello"))
	}
	p.listen.hello = p.shop.Outbound(hello)
	p.listen.other = p.shop.Outbound("hello.default.svc.cluster.local:81")
	return p
}

// client is the node proxy beside shop.
func (p *pair) client() *meshtest.Process { return p.Process("node proxy east-1") }

// node is the node proxy beside the pod with that number.
func (p *pair) node(n int) *meshtest.Process { return p.Process(fmt.Sprintf("node proxy west-%d", n)) }

func TestCarriesAConnectionThroughDoubleHBONE(t *testing.T) {
	p := newPair(t, 1)
	p.pods[0].App(8080)
	p.Start()

	if got, err := meshtest.Hello(p.listen.hello); err != nil || got != "hello-1" {
		t.Fatalf("answered by %q, %v; want hello-1", got, err)
	}
	line := p.client().Log.Await(t, "connection", "direction", "outbound")
	want := []any{"service", "hello.default.svc.cluster.local", "port", 80, "network", "west", "endpoint", p.pods[0].Endpoint(),
		"workload", p.pods[0].UID, "identity", p.shop.Identity(), "peer", p.pods[0].Identity(), "attempts", 1, "result", "ok", "bytes_sent", 8, "bytes_received", 15}
	if !line.Has(want...) {
		t.Errorf("access log of the client's node = %v; want %v", line, want)
	}
	inbound := p.node(1).Log.Await(t, "connection", "direction", "inbound")
	if want := []any{"identity", p.pods[0].Identity(), "peer", p.shop.Identity(), "target", 8080, "port", 80, "trace", line.Text("trace"), "result", "ok"}; !inbound.Has(want...) {
		t.Errorf("access log of the pod's node = %v; want %v", inbound, want)
	}
	p.client().Stop(t) // the session with the pod is kept as long as it lives
	forward := p.Process("gateway west/gw-1").Log.Await(t, "tunnel", "direction", "forward")
	if want := []any{"peer", p.shop.Identity(), "endpoint", p.pods[0].Endpoint(), "opened_by", line.Text("trace")}; !forward.Has(want...) {
		t.Errorf("access log of the gateway = %v; want %v", forward, want)
	}
	if result := forward.Text("result"); result != "ended" && result != "server_ended" { // the server ends its side when the client does, and may be heard first
		t.Errorf("the tunnel's result at the gateway is %q, want that it has ended", result)
	}
}

func TestCarriesAConnectionThroughSingleHBONEOnOneNetwork(t *testing.T) {
	for _, where := range []struct{ name, node string }{{"same node", "east-1"}, {"another node", "east-2"}} {
		t.Run(where.name, func(t *testing.T) {
			m := meshtest.New(t)
			m.Networks("east")
			m.Service("hello", 80, 8080)
			shop := m.Pod("east", "east-1", "shop-1")
			pod := m.Pod("east", where.node, "hello-1", "hello")
			at := shop.Outbound(hello)
			pod.App(8080)
			m.Start()

			if got, err := meshtest.Hello(at); err != nil || got != "hello-1" {
				t.Fatalf("answered by %q, %v; want hello-1", got, err)
			}
			m.Process("node proxy "+where.node).Log.Await(t, "connection", "direction", "inbound", "peer", shop.Identity(), "target", 8080, "result", "ok")
		})
	}
}

func TestAPodIsReachedByItsAddressOnItsOwnNetwork(t *testing.T) {
	m := meshtest.New(t)
	m.Networks("east")
	shop := m.Pod("east", "east-1", "shop-1")
	pod := m.Pod("east", "east-2", "hello-1")
	at := shop.Outbound(pod.At(9000).String())
	pod.App(9000)
	m.Start()
	if got, err := meshtest.Hello(at); err != nil || got != "hello-1" {
		t.Errorf("answered by %q, %v; want hello-1", got, err)
	}
}

// bothTunnels runs a test body once over a double and once over a single
// tunnel: dial connects the client's application to handle.
func bothTunnels(t *testing.T, handle func(*net.TCPConn), body func(t *testing.T, dial func(testing.TB) *net.TCPConn)) {
	for _, kind := range []string{"double", "single"} {
		t.Run(kind, func(t *testing.T) {
			m := meshtest.New(t)
			m.Networks("east", "west")
			m.Service("hello", 80, 8080)
			m.Gateway("west", "gw-1")
			shop := m.Pod("east", "east-1", "shop-1")
			network, node := "west", "west-1"
			if kind == "single" {
				network, node = "east", "east-2"
			}
			pod := m.Pod(network, node, "hello-1", "hello")
			at := shop.Outbound(hello)
			pod.Serve(8080, handle)
			m.Start()
			body(t, func(t testing.TB) *net.TCPConn {
				t.Helper()
				c, err := meshtest.Dial(at)
				if err != nil {
					t.Fatal(err)
				}
				t.Cleanup(func() { c.Close() })
				return c
			})
		})
	}
}

func TestHalfCloseOfTheClientReachesTheApplication(t *testing.T) {
	sum := func(c *net.TCPConn) {
		got, err := io.ReadAll(c) // until the client's FIN
		fmt.Fprintf(c, "%d %v", len(got), err)
	}
	bothTunnels(t, sum, func(t *testing.T, dial func(testing.TB) *net.TCPConn) {
		c := dial(t)
		if _, err := c.Write(make([]byte, 300_000)); err != nil {
			t.Fatal(err)
		}
		if err := c.CloseWrite(); err != nil {
			t.Fatal(err)
		}
		got, err := io.ReadAll(c)
		if err != nil || string(got) != "300000 <nil>" {
			t.Errorf("the application says %q, %v; want it to have read 300000 bytes and then EOF", got, err)
		}
	})
}

func TestHalfCloseOfTheApplicationLeavesTheOtherDirectionOpen(t *testing.T) {
	late := make(chan string, 2)
	handle := func(c *net.TCPConn) {
		io.WriteString(c, "bye")
		c.CloseWrite()
		got, err := io.ReadAll(c)
		late <- fmt.Sprintf("%s %v", got, err)
	}
	bothTunnels(t, handle, func(t *testing.T, dial func(testing.TB) *net.TCPConn) {
		c := dial(t)
		if got, err := io.ReadAll(c); err != nil || string(got) != "bye" {
			t.Fatalf("read %q, %v; want bye and EOF", got, err)
		}
		if _, err := io.WriteString(c, "still here"); err != nil {
			t.Fatal(err)
		}
		c.CloseWrite()
		if got := <-late; got != "still here <nil>" {
			t.Errorf("after its half-close the application read %q; want \"still here <nil>\"", got)
		}
	})
}

func TestResetOfTheApplicationIsSeenAsReset(t *testing.T) {
	handle := func(c *net.TCPConn) {
		io.ReadFull(c, make([]byte, 5))
		c.SetLinger(0) // the deferred Close sends RST
	}
	bothTunnels(t, handle, func(t *testing.T, dial func(testing.TB) *net.TCPConn) {
		c := dial(t)
		io.WriteString(c, "12345")
		if _, err := c.Read(make([]byte, 1)); !errors.Is(err, syscall.ECONNRESET) {
			t.Errorf("read: %v; want ECONNRESET", err)
		}
	})
}

func TestResetOfTheClientIsSeenAsReset(t *testing.T) {
	seen := make(chan error, 2)
	handle := func(c *net.TCPConn) {
		io.ReadFull(c, make([]byte, 5))
		io.WriteString(c, "ok")
		_, err := c.Read(make([]byte, 1))
		seen <- err
	}
	bothTunnels(t, handle, func(t *testing.T, dial func(testing.TB) *net.TCPConn) {
		c := dial(t)
		io.WriteString(c, "12345")
		if _, err := io.ReadFull(c, make([]byte, 2)); err != nil {
			t.Fatal(err)
		}
		c.SetLinger(0)
		c.Close()
		select {
		case err := <-seen:
			if !errors.Is(err, syscall.ECONNRESET) {
				t.Errorf("the application reads %v; want ECONNRESET", err)
			}
		case <-time.After(meshtest.Patience):
			t.Error("the application hears nothing of the client's reset")
		}
	})
}

func TestTheFarApplicationMaySpeakFirst(t *testing.T) {
	bothTunnels(t, func(c *net.TCPConn) { io.WriteString(c, "220 ready\r\n"); io.Copy(io.Discard, c) },
		func(t *testing.T, dial func(testing.TB) *net.TCPConn) {
			c := dial(t)
			got := make([]byte, 11)
			if _, err := io.ReadFull(c, got); err != nil || string(got) != "220 ready\r\n" {
				t.Errorf("banner %q, %v; want \"220 ready\\r\\n\" without a byte from the client", got, err)
			}
		})
}
