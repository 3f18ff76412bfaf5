package gateway_test

import (
	"context"
	"io"
	"net"
	"syscall"
	"testing"
	"time"

	"golang.org/x/net/http2"
	"golang.org/x/sys/unix"

	"github.com/isthmus-mesh/isthmus/gateway"
	"github.com/isthmus-mesh/isthmus/hbone"
	"github.com/isthmus-mesh/isthmus/hbone/header"
	"github.com/isthmus-mesh/isthmus/internal/meshtest"
)

// Whatever a client leaves out, no pod is blamed: not even one that would not have
// answered.
func TestAClientThatDoesNotFinishItsHelloEjectsNobody(t *testing.T) {
	s := newSite(t, 1)
	s.EachGateway = func(c *gateway.Config) {
		alone(c)
		c.Timeouts.Silence, c.Timeouts.Answer, c.Timeouts.Hello = time.Millisecond, time.Millisecond, 50*time.Millisecond
	}
	s.Write()
	gw := s.StartGateway("west", "gw-1")
	gw.AwaitReady(t)
	pod := s.pods[0]
	pod.Serve(meshtest.HBONEPort, func(c *net.TCPConn) { io.Copy(io.Discard, c) })
	session, hi, streams := s.dial(t), clientHello(t), 0
	open := func() *hbone.Stream {
		t.Helper()
		st, _, refused := connect(t, session, hello, hbone.Header{header.NamePin: pod.Endpoint().String()})
		if refused != nil {
			t.Fatal(refused)
		}
		streams++
		return st
	}
	for _, bytes := range [][]byte{nil, hi[:1], hi[:len(hi)/2], hi[:len(hi)-1], []byte("something else")} {
		for _, waits := range []bool{true, false} {
			for range 3 {
				st := open()
				st.Write(bytes)
				if waits && (len(bytes) == 0 || bytes[0] == hi[0]) {
					if err := st.WaitReadable(); err == nil || err == io.EOF { // until the gateway resets it
						t.Errorf("%d bytes of a hello: %v, want a reset", len(bytes), err)
					}
				} else if waits {
					time.Sleep(5 * time.Millisecond) // what is no hello goes through
				}
				st.Reset(http2.ErrCodeCancel)
			}
		}
	}
	meshtest.Eventually(t, "all have ended", func() bool { return len(gw.Log.Find("tunnel")) == streams })
	if l := gw.Log.Find("outlier changed"); len(l) > 0 {
		t.Errorf("a client ejected a pod: %v", l[0])
	}
	if row := gw.Row(t, "pods", "workload", pod.UID); !row.Has("hop", "healthy", "hopHealth", 1, "open", 0) {
		t.Errorf("/state says %v of the pod; want full health", row)
	}
	if n := gw.Metric(t, `isthmus_tunnels_closed_total{result="no_hello"}`); n < 12 {
		t.Errorf("%v connections ended with result no_hello, want 12 or more", n)
	}
}

// A client that sends nothing keeps nothing: neither for longer than the pod, nor
// for longer than timeouts.hello.
func TestASilentStreamEnds(t *testing.T) {
	for name, c := range map[string]struct {
		hello time.Duration
		pod   func(*net.TCPConn)
	}{
		"with the pod's connection": {time.Hour, func(c *net.TCPConn) { time.Sleep(10 * time.Millisecond) }},
		"when its time is over":     {50 * time.Millisecond, func(c *net.TCPConn) { io.Copy(io.Discard, c) }},
	} {
		t.Run(name, func(t *testing.T) {
			s := newSite(t, 1)
			s.EachGateway = func(g *gateway.Config) {
				alone(g)
				g.Timeouts.Hello = c.hello
			}
			s.Write()
			gw := s.StartGateway("west", "gw-1")
			gw.AwaitReady(t)
			s.pods[0].Serve(meshtest.HBONEPort, c.pod)
			session := s.dial(t)
			for range 20 {
				if _, _, refused := connect(t, session, hello, nil); refused != nil {
					t.Fatal(refused)
				}
			}
			meshtest.Eventually(t, "no stream is left", func() bool {
				return session.Streams() == 0 && gw.Row(t, "pods", "workload", s.pods[0].UID).Has("open", 0)
			})
			if l := gw.Log.Find("outlier changed"); len(l) > 0 {
				t.Errorf("silent clients ejected a pod: %v", l[0])
			}
		})
	}
}

func TestAStreamDoesNotOutliveThePodsEndForEver(t *testing.T) {
	s := newSite(t, 1)
	s.EachGateway = func(c *gateway.Config) {
		alone(c)
		c.Timeouts.HalfClosed = 50 * time.Millisecond
	}
	s.Write()
	gw := s.StartGateway("west", "gw-1")
	gw.AwaitReady(t)
	s.pods[0].Serve(meshtest.HBONEPort, func(c *net.TCPConn) {
		c.CloseWrite()
		io.Copy(io.Discard, c)
	})
	session := s.dial(t)
	st, _, refused := connect(t, session, hello, nil)
	if refused != nil {
		t.Fatal(refused)
	}
	st.Write([]byte("something else"))
	meshtest.Eventually(t, "the stream is gone", func() bool {
		return session.Streams() == 0 && gw.Row(t, "pods", "workload", s.pods[0].UID).Has("open", 0)
	})
}

// When the client has gone nobody waits for the pod any more.
func TestDiallingEndsWithTheClient(t *testing.T) {
	s := newSite(t, 2)
	s.EachGateway = func(c *gateway.Config) {
		alone(c)
		c.Timeouts.Dial = time.Hour
	}
	s.Write()
	gw := s.StartGateway("west", "gw-1")
	gw.AwaitReady(t)
	for _, p := range s.pods {
		unresponsive(t, p)
	}
	st, err := s.dial(t).Start(&hbone.Request{Authority: hello})
	if err != nil {
		t.Fatal(err)
	}
	meshtest.Eventually(t, "a pod is dialed", func() bool { return gw.Metric(t, "isthmus_tunnels_opened_total") == 1 })
	ctx, cancel := context.WithTimeout(context.Background(), 20*time.Millisecond)
	defer cancel()
	if _, err := st.AwaitResponse(ctx); err == nil {
		t.Fatal("answered")
	}
	st.Reset(http2.ErrCodeCancel)
	gw.Log.Await(t, "tunnel", "result", "cancelled", "attempts", 1)
	if l := gw.Log.Find("outlier changed"); len(l) > 0 {
		t.Errorf("a client that left ejected a pod: %v", l[0])
	}
}

// unresponsive makes connecting to the pod's node proxy hang, as behind a firewall
// that drops: a listener whose backlog is full.
func unresponsive(t *testing.T, p *meshtest.Pod) {
	t.Helper()
	fd, err := unix.Socket(unix.AF_INET, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { unix.Close(fd) })
	at := &unix.SockaddrInet4{Port: meshtest.HBONEPort, Addr: p.Addr.As4()}
	if err := unix.Bind(fd, at); err != nil {
		t.Fatal(err)
	}
	if err := unix.Listen(fd, 0); err != nil {
		t.Fatal(err)
	}
	for range 10 {
		c, err := net.DialTimeout("tcp4", p.At(meshtest.HBONEPort).String(), 200*time.Millisecond)
		if err != nil {
			return // full
		}
		t.Cleanup(func() { c.Close() })
	}
	t.Fatal("the backlog does not fill up", syscall.EAGAIN)
}

// Repeats at other pods have a budget, and what failed is in one line.
func TestRepeatsAreBoundedAndToldInOneLine(t *testing.T) {
	s := newSite(t, 3)
	s.EachGateway = func(c *gateway.Config) {
		alone(c)
		c.OutlierDetection.Scope = gateway.ScopeNone
		c.Retry.BudgetBurst, c.Retry.BudgetRatio = 5, 0
		c.Log.Level = "debug"
	}
	s.Write()
	gw := s.StartGateway("west", "gw-1")
	gw.AwaitReady(t)
	session := s.dial(t)
	for range 10 { // nobody listens anywhere
		if _, _, refused := connect(t, session, hello, nil); refused == nil || refused.Reason() != header.ReasonUnreachable {
			t.Fatalf("%v, want unreachable", refused)
		}
	}
	meshtest.Eventually(t, "the access log", func() bool { return len(gw.Log.Find("tunnel")) == 10 })
	attempts := 0
	for _, l := range gw.Log.Find("tunnel", "level", "warn", "result", "unreachable", "peer", s.shop.Identity(), "service", "hello.default.svc.cluster.local") {
		tried, _ := l["tried"].([]any)
		attempts += len(tried)
		first, _ := tried[0].(map[string]any)
		if first["reason"] != "connect_refused" || first["gateway"] != "gw-1" || first["pod"] == "" {
			t.Errorf("the line names %v, want pod, gateway and the reason refused", tried)
		}
	}
	if attempts != 15 {
		t.Errorf("10 connections took %d attempts, want 15: a burst of 5 repeats", attempts)
	}
	if n := gw.Metric(t, "isthmus_retry_budget_exhausted_total"); n != 8 {
		t.Errorf("isthmus_retry_budget_exhausted_total = %v, want 8", n)
	}
	for _, l := range gw.Log.Find("attempt failed") {
		if l.Text("level") != "debug" {
			t.Errorf("a single attempt is told at %v", l["level"])
		}
	}
}
