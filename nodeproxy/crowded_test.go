package nodeproxy

import (
	"context"
	"errors"
	"io"
	"net"
	"net/netip"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus/testutil"
	"github.com/rs/zerolog"
)

// A process in which no more connections may wait refuses in the accept loop, before a
// byte is read: at listeners of one destination, and at SOCKS listeners.
func TestAProcessWithoutTimeRefusesBeforeItReads(t *testing.T) {
	cfg := DefaultConfig()
	free := netip.MustParseAddrPort("127.0.0.1:0")
	cfg.Admin.Address = free
	cfg.Outbound = []Outbound{{Workload: "shop", Listen: free, To: "hello.default.svc.cluster.local:80"}}
	cfg.Socks = []Socks{{Workload: "shop", Listen: free}}
	p := newProxy(cfg, zerolog.Nop())
	defer p.stop()
	var asked atomic.Int32
	p.crowded = func(int) bool { asked.Add(1); return true }
	if err := p.listen(); err != nil {
		t.Fatal(err)
	}
	defer p.admin.Close()
	for i, o := range p.outbounds {
		ctx, cancel := context.WithCancel(t.Context())
		done := make(chan struct{})
		go func() { o.run(ctx); close(done) }()
		c, err := net.Dial("tcp4", o.listener.Addr().String())
		if err == nil { // or the reset is there already
			c.SetReadDeadline(time.Now().Add(20 * time.Second))
			_, err = c.Read(make([]byte, 1))
			c.Close()
		}
		if !errors.Is(err, syscall.ECONNRESET) {
			t.Errorf("listener %d: %v, want a reset", i, err)
		}
		cancel()
		o.listener.Close()
		<-done
		if asked.Swap(0) == 0 {
			t.Errorf("listener %d: not asked", i)
		}
	}
	if n := testutil.ToFloat64(p.metrics.closed.WithLabelValues("source", "overload")); n != 2 {
		t.Errorf("%v are counted as refused for overload, want 2", n)
	}
}

// crowd is a proxy with one listener, at which n connections wait that nobody has accepted.
func crowd(t *testing.T, n int) (p *Proxy, o *outbound, apps []net.Conn) {
	t.Helper()
	cfg := DefaultConfig()
	free := netip.MustParseAddrPort("127.0.0.1:0")
	cfg.Admin.Address = free
	cfg.Outbound = []Outbound{{Workload: "shop", Listen: free, To: "hello.default.svc.cluster.local:80"}}
	p = newProxy(cfg, zerolog.Nop())
	t.Cleanup(p.stop)
	if err := p.listen(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(p.closeListeners)
	for range n {
		c, err := net.Dial("tcp4", p.outbounds[0].listener.Addr().String())
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { c.Close() })
		c.SetReadDeadline(time.Now().Add(20 * time.Second))
		apps = append(apps, c)
	}
	return p, p.outbounds[0], apps
}

// What waits in the kernel's queue while the process has no time is refused without a
// net.Conn, and what it has time for again is served like any other.
func TestWhatWaitsToBeAcceptedIsRefusedOrServed(t *testing.T) {
	p, o, apps := crowd(t, 300)
	var asked atomic.Int32
	p.crowded = func(int) bool { return asked.Add(1) <= 200 }
	o.serve = func(ctx context.Context, app *net.TCPConn) func(context.Context) {
		return func(context.Context) { io.Copy(app, app); app.Close() }
	}
	done := make(chan struct{})
	go func() { o.run(t.Context()); close(done) }()
	refused, served := 0, 0
	for i, c := range apps {
		_, err := c.Write([]byte("x"))
		if err == nil {
			_, err = c.Read(make([]byte, 1))
		}
		switch {
		case err == nil:
			served++
			if c.(*net.TCPConn).CloseWrite(); err == nil {
				_, err = c.Read(make([]byte, 1))
			}
			if err != io.EOF {
				t.Errorf("connection %d ended with %v, want the far side's end", i, err)
			}
		case errors.Is(err, syscall.ECONNRESET) || errors.Is(err, syscall.EPIPE):
			refused++
		default:
			t.Errorf("connection %d: %v", i, err)
		}
	}
	if refused != 200 || served != 100 {
		t.Errorf("%d were refused and %d served, want 200 and 100", refused, served)
	}
	if n := testutil.ToFloat64(p.metrics.closed.WithLabelValues("source", "overload")); n != 200 {
		t.Errorf("%v are counted as refused for overload, want 200", n)
	}
	o.listener.Close()
	<-done
	if n := len(o.slots); n != 0 {
		t.Errorf("%d places are still taken", n)
	}
}

// While the accept loop is behind, connections that begin do a part of its work: here the
// loop does not run at all.
func TestConnectionsThatBeginRelieveTheAcceptLoop(t *testing.T) {
	p, o, _ := crowd(t, 3+3*relief)
	p.crowded = func(int) bool { return true }
	o.serve = func(ctx context.Context, app *net.TCPConn) func(context.Context) { app.Close(); return nil }
	begin := func() float64 {
		app, err := o.listener.AcceptTCP()
		if err != nil {
			t.Fatal(err)
		}
		o.slots <- struct{}{}
		o.begin(t.Context(), app)
		o.conns.Wait()
		return testutil.ToFloat64(p.metrics.closed.WithLabelValues("source", "overload"))
	}
	if n := begin(); n != 0 {
		t.Errorf("%v are refused though the loop is not behind", n)
	}
	o.behind.Store(true)
	if n := begin(); n != 2*relief {
		t.Errorf("%v are refused when one begins and is served, want %d", n, 2*relief)
	}
	if begin(); o.behind.Load() {
		t.Error("still behind, and nobody waits")
	}
}

// One that may be served is not taken out of the queue but by the accept loop.
func TestWhoMayBeServedIsLeftToTheAcceptLoop(t *testing.T) {
	p, o, _ := crowd(t, 3)
	many := 0
	p.crowded = func(int) bool { many++; return many <= 2 }
	o.refuseQueued(maxAppConns)
	if n := testutil.ToFloat64(p.metrics.closed.WithLabelValues("source", "overload")); n != 2 {
		t.Errorf("%v were refused, want 2", n)
	}
	o.listener.SetDeadline(time.Now().Add(10 * time.Second))
	app, err := o.listener.AcceptTCP()
	if err != nil {
		t.Fatalf("the third is not in the queue: %v", err)
	}
	app.Close()
}

// What is accepted has the keep-alive that package net sets.
func TestAcceptedConnectionsAreKeptAlive(t *testing.T) {
	_, o, _ := crowd(t, 1)
	app, err := o.listener.AcceptTCP()
	if err != nil {
		t.Fatal(err)
	}
	defer app.Close()
	raw, err := app.SyscallConn()
	if err != nil {
		t.Fatal(err)
	}
	var got [4]int
	raw.Control(func(fd uintptr) {
		for i, option := range [][2]int{{syscall.SOL_SOCKET, syscall.SO_KEEPALIVE}, {syscall.IPPROTO_TCP, syscall.TCP_KEEPIDLE}, {syscall.IPPROTO_TCP, syscall.TCP_KEEPINTVL}, {syscall.IPPROTO_TCP, syscall.TCP_KEEPCNT}} {
			if got[i], err = syscall.GetsockoptInt(int(fd), option[0], option[1]); err != nil {
				t.Error(err)
			}
		}
	})
	if want := [4]int{1, 15, 15, 9}; got != want {
		t.Errorf("keep-alive, idle, interval and count are %v, want %v", got, want)
	}
}
