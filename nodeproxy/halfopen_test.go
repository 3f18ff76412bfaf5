package nodeproxy_test

import (
	"net"
	"net/netip"
	"sync/atomic"
	"testing"
	"time"

	"github.com/isthmus-mesh/isthmus/gateway"
	"github.com/isthmus-mesh/isthmus/internal/meshtest"
	"github.com/isthmus-mesh/isthmus/nodeproxy"
)

// forgetful passes connections on to a gateway, until it forgets those that it
// has: from then on what they carry vanishes, and new ones pass.
type forgetful struct {
	epoch, conns atomic.Int64
	over         chan struct{} // closed when the test ends: what was forgotten is cut
}

func (f *forgetful) forget() { f.epoch.Add(1) }

func (f *forgetful) serve(a *net.TCPConn, behind netip.AddrPort) {
	b, err := meshtest.Dial(behind)
	if err != nil {
		return
	}
	defer b.Close()
	go func() {
		<-f.over
		a.Close()
		b.Close()
	}()
	f.conns.Add(1)
	mine := f.epoch.Load()
	pass := func(dst, src *net.TCPConn) {
		buf := make([]byte, 64<<10)
		for {
			n, err := src.Read(buf)
			if err != nil {
				return
			}
			if f.epoch.Load() == mine {
				dst.Write(buf[:n])
			}
		}
	}
	go pass(b, a)
	pass(a, b)
}

// newForgetful is a pair with a forgetful firewall before its gateway.
func newForgetful(t *testing.T, edit func(*nodeproxy.Config)) (*pair, *forgetful) {
	p, f := newPair(t, 1), &forgetful{over: make(chan struct{})}
	p.EachNode = edit
	p.pods[0].App(8080)
	p.Write()
	behind := netip.AddrPortFrom(p.Addr(), meshtest.HBONEPort)
	p.Serve(p.GatewayAt("west", "gw-1"), func(a *net.TCPConn) { f.serve(a, behind) })
	p.StartGateway("west", "gw-1", func(c *gateway.Config) { c.Listen = behind })
	p.Start()
	p.Process("gateway west/gw-1").AwaitReady(t)
	for range 5 {
		if _, err := meshtest.Hello(p.listen.hello); err != nil {
			t.Fatal(err)
		}
	}
	t.Cleanup(func() { close(f.over) }) // last, so that it is the first to run
	return p, f
}

// A connection that can be repeated is: on the session that the pool has opened
// beside the one that the firewall has forgotten, without a retry elsewhere, and
// nobody is to blame.
func TestANewConnectionOutlivesAFirewallThatForgets(t *testing.T) {
	p, f := newForgetful(t, func(c *nodeproxy.Config) { c.Retry.Early = false })
	before := f.conns.Load()
	f.forget()
	began := time.Now()
	if got, err := meshtest.Hello(p.listen.hello); err != nil || got != "hello-1" {
		t.Fatalf("answered by %q, %v; want hello-1", got, err)
	}
	t.Logf("took %v", time.Since(began))
	line := p.client().Log.Find("connection", "direction", "outbound")
	if last := line[len(line)-1]; !last.Has("attempts", 1, "result", "ok") {
		t.Errorf("%v; want one attempt", last)
	}
	if won := p.client().Metric(t, "isthmus_pool_hedges_won_total"); won < 1 {
		t.Errorf("isthmus_pool_hedges_won_total %v; want the session with the gateway, and perhaps that with the pod", won)
	}
	if n := f.conns.Load() - before; n != 1 {
		t.Errorf("%d new connections to the gateway, want 1", n)
	}
}

// What an application said on the forgotten session may have arrived: its
// connection fails, once, and that is not held against the gateway, which would be
// asked again.
func TestEarlyDataThatAFirewallSwallowsIsNobodysFault(t *testing.T) {
	p, f := newForgetful(t, func(c *nodeproxy.Config) { c.Timeouts.Connect = 3 * time.Second })
	before := f.conns.Load()
	f.forget()
	_, err := meshtest.Hello(p.listen.hello)
	t.Logf("the connection that spoke early: %v", err) // none on a slow machine: then the session was no longer thought lively
	if got, err := meshtest.Hello(p.listen.hello); err != nil || got != "hello-1" {
		t.Errorf("the next connection was answered by %q, %v; want hello-1", got, err)
	}
	if n := f.conns.Load() - before; n != 1 {
		t.Errorf("%d new connections to the gateway, want 1: others are probes of a gateway that is well", n)
	}
}
