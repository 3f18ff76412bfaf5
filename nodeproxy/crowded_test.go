package nodeproxy

import (
	"context"
	"errors"
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
	p.crowded = func() bool { asked.Add(1); return true }
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
		if n := asked.Load(); n != int32(i+1) {
			t.Errorf("listener %d: asked %d times in all", i, n)
		}
	}
	if n := testutil.ToFloat64(p.metrics.closed.WithLabelValues("source", "overload")); n != 2 {
		t.Errorf("%v are counted as refused for overload, want 2", n)
	}
}
