package nodeproxy

import (
	"context"
	"net"
	"net/netip"
	"syscall"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/testutil"
	"golang.org/x/sys/unix"

	"github.com/isthmus-mesh/isthmus/federation"
	"github.com/isthmus-mesh/isthmus/federation/healthstream"
	"github.com/isthmus-mesh/isthmus/health"
)

// seeing is a testWitness that watches the sockets of its pod, and its one port.
func seeing(t *testing.T, addr string, port uint16) (*testWitness, health.Key) {
	t.Helper()
	w := newTestWitness(t, addr)
	w.declares.Store(uint32(port))
	k := health.Key{Endpoint: w.pod.Load().Endpoint, Port: port}
	ctx, cancel := context.WithCancel(context.Background())
	w.sockets = newListeners(ctx, openSockets, w.witness, prometheus.NewRegistry(), w.log)
	t.Cleanup(func() { cancel(); w.sockets.wait() })
	w.sockets.start()
	w.sockets.watch("x", nil)
	w.sockets.revise(func(string) []watchedPort {
		return []watchedPort{{k, netip.AddrPortFrom(w.pod.Load().Addresses[0], port)}}
	})
	if n := testutil.ToFloat64(w.sockets.metrics.suspected.WithLabelValues("gone")); n != 0 {
		t.Fatal("suspected before anything happened")
	}
	return w, k
}

// listenAt listens on one port, again if it was used before; reuse shares it.
func listenAt(t *testing.T, at string, reuse bool) *net.TCPListener {
	t.Helper()
	c := net.ListenConfig{Control: func(_, _ string, c syscall.RawConn) error {
		return c.Control(func(fd uintptr) {
			if reuse {
				unix.SetsockoptInt(int(fd), unix.SOL_SOCKET, unix.SO_REUSEPORT, 1)
			}
		})
	}}
	l, err := c.Listen(t.Context(), "tcp4", at)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { l.Close() })
	return l.(*net.TCPListener)
}

func (w *testWitness) said(k health.Key) federation.EndpointFact {
	f, _ := w.Fact(healthstream.Target(k))
	return f.EndpointFact
}

func TestAListenerThatIsClosedIsEjectedBeforeAnybodyConnects(t *testing.T) {
	l := listenAt(t, "127.99.6.1:0", false)
	at := l.Addr().String()
	w, k := seeing(t, "127.99.6.1", addrPort(l.Addr()).Port())
	began := time.Now()
	l.Close()
	within(t, "ejected", func() bool { return w.isOut(k) })
	t.Logf("ejected after %v", time.Since(began))
	if f := w.said(k); f.State != federation.Ejected || f.Reason != "refused" {
		t.Errorf("said %+v; want ejected, refused", f)
	}
	began = time.Now()
	listenAt(t, at, false)
	within(t, "readmitted", func() bool { return !w.isOut(k) })
	t.Logf("readmitted after %v", time.Since(began))
}

func TestAListenerThatHandsItsPortOverMovesNothing(t *testing.T) {
	l := listenAt(t, "127.99.6.2:0", true)
	w, k := seeing(t, "127.99.6.2", addrPort(l.Addr()).Port())
	for range 20 {
		next := listenAt(t, l.Addr().String(), true)
		l.Close()
		l = next
		if c, reason, err := w.dial(t.Context(), w.pod.Load(), k.Port, netip.Addr{}); err != nil {
			t.Fatal(reason, err)
		} else {
			c.Close()
		}
	}
	time.Sleep(4 * listenerLook) // nothing comes of it: there is nothing to wait for
	if n := w.reports.Load(); n != 0 || w.isOut(k) || len(w.All()) != 0 {
		t.Errorf("%d reports, out %t, %v; want nothing", n, w.isOut(k), w.All())
	}
}

func TestAnApplicationThatAcceptsNobodyIsOutUntilItDoes(t *testing.T) {
	l := listenAt(t, "127.99.6.3:0", false)
	w, k := seeing(t, "127.99.6.3", addrPort(l.Addr()).Port())
	began := time.Now()
	connect := func() {
		c, reason, err := w.dial(t.Context(), w.pod.Load(), k.Port, netip.Addr{})
		if err != nil {
			t.Fatalf("%s, %v: there is room in the queue", reason, err)
		}
		t.Cleanup(func() { c.Close() })
	}
	within(t, "ejected", func() bool { connect(); time.Sleep(5 * time.Millisecond); return w.isOut(k) })
	t.Logf("ejected after %v", time.Since(began))
	if f := w.said(k); f.State != federation.Ejected || f.Reason != string(stalledReason) {
		t.Errorf("said %+v; want ejected, stalled", f)
	}
	connect() // whoever has no other choice
	for range 20 {
		time.Sleep(listenerLook / 2)
		if !w.isOut(k) {
			t.Fatal("a connect that succeeds has readmitted it")
		}
	}
	if n := w.prober.Active(); n != 0 {
		t.Errorf("%d series of probes fill the queue", n)
	}
	began = time.Now()
	go func() {
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			c.Close()
		}
	}()
	within(t, "readmitted", func() bool { return !w.isOut(k) })
	t.Logf("readmitted after %v", time.Since(began))
}

func TestAFullAcceptQueueIsFoundWhileTheFirstConnectWaits(t *testing.T) {
	l := listenAt(t, "127.99.6.4:0", false)
	raw, err := l.SyscallConn()
	if err != nil {
		t.Fatal(err)
	}
	raw.Control(func(fd uintptr) { err = unix.Listen(int(fd), 2) }) // a backlog of 2
	if err != nil {
		t.Fatal(err)
	}
	w, k := seeing(t, "127.99.6.4", addrPort(l.Addr()).Port())
	for range 3 {
		c, err := net.Dial("tcp4", l.Addr().String())
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { c.Close() })
	}
	began := time.Now()
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		w.dial(ctx, w.pod.Load(), k.Port, netip.Addr{})
	}()
	within(t, "ejected", func() bool { return w.isOut(k) })
	t.Logf("ejected after %v", time.Since(began))
	if took := time.Since(began); took > w.timeout/2 {
		t.Errorf("ejected after %v: by the connect's own timeout", took)
	}
	cancel()
	<-ended
}

// Who accepts is not stalled, also if others than ours connect: by another address of the pod.
func TestWhoAcceptsThoseOfAnotherAddressIsNotStalled(t *testing.T) {
	l := listenAt(t, "0.0.0.0:0", false)
	port := addrPort(l.Addr()).Port()
	w, k := seeing(t, "127.99.6.5", port)
	for range 40 {
		c, reason, err := w.dial(t.Context(), w.pod.Load(), k.Port, netip.Addr{})
		if err != nil {
			t.Fatal(reason, err)
		}
		t.Cleanup(func() { c.Close() })
	}
	accepted := 0
	for end := time.Now().Add(1500 * time.Millisecond); time.Now().Before(end); time.Sleep(20 * time.Millisecond) {
		c, err := l.Accept()
		if err != nil {
			t.Fatal(err)
		}
		c.Close()
		accepted++
		for range 2 {
			c, err := net.Dial("tcp4", netip.AddrPortFrom(netip.MustParseAddr("127.0.0.1"), port).String())
			if err != nil {
				t.Fatal(err)
			}
			t.Cleanup(func() { c.Close() })
		}
		if w.isOut(k) {
			t.Fatalf("out as %q, and has accepted %d", w.said(k).Reason, accepted)
		}
	}
	if testutil.ToFloat64(w.sockets.metrics.censuses) < 2 {
		t.Error("no censuses: this proves nothing")
	}
}
