package nodeproxy_test

import (
	"errors"
	"io"
	"net"
	"net/netip"
	"syscall"
	"testing"
	"time"

	"github.com/isthmus-mesh/isthmus/gateway"
	"github.com/isthmus-mesh/isthmus/internal/meshtest"
)

// wired is a pair with two gateways, each behind a wire that can be cut: to its
// peers that is the death of the gateway.
type wired struct {
	*pair
	wires map[string]*meshtest.Wire
}

func newWired(t testing.TB, pods int) *wired {
	w := &wired{pair: newPair(t, pods), wires: map[string]*meshtest.Wire{}}
	w.Gateway("west", "gw-2")
	return w
}

// start runs everything, the gateways behind their wires.
func (w *wired) start(t testing.TB) {
	t.Helper()
	w.Write()
	for _, name := range []string{"gw-1", "gw-2"} {
		behind := netip.AddrPortFrom(w.Addr(), meshtest.HBONEPort)
		w.wires[name] = w.Wire(w.GatewayAt("west", name), behind)
		w.StartGateway("west", name, func(c *gateway.Config) { c.Listen = behind })
	}
	w.Start()
	for name := range w.wires {
		w.gateway(name).AwaitReady(t)
	}
}

func (w *wired) gateway(name string) *meshtest.Process { return w.Process("gateway west/" + name) }

// carrier waits for the one gateway that has an open stream.
func (w *wired) carrier(t testing.TB) string {
	t.Helper()
	found := ""
	meshtest.Eventually(t, "an open stream at a gateway", func() bool {
		for name := range w.wires {
			for _, pod := range w.gateway(name).Rows(t, "pods") {
				if pod.Text("open") != "0" {
					found = name
				}
			}
		}
		return found != ""
	})
	return found
}

func TestATunnelBrokenBeforeTheFirstByteIsReplacedUnseen(t *testing.T) {
	w := newWired(t, 1)
	accepted, speak := make(chan struct{}, 8), make(chan struct{})
	w.pods[0].Serve(8080, func(c *net.TCPConn) {
		accepted <- struct{}{}
		<-speak
		io.WriteString(c, "220 ready\n")
	})
	w.start(t)
	c, err := meshtest.Dial(w.listen.hello)
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	<-accepted
	w.wires[w.carrier(t)].Cut()
	select {
	case <-accepted: // again, through the other gateway
	case <-time.After(meshtest.Patience):
		t.Fatal("the broken tunnel is not replaced")
	}
	close(speak)
	if got, err := io.ReadAll(c); err != nil || string(got) != "220 ready\n" {
		t.Errorf("the client reads %q, %v; want the banner of the second tunnel", got, err)
	}
	c.Close()
	w.client().Log.Await(t, "connection", "direction", "outbound", "attempts", 2, "result", "ok")
}

func TestATunnelBrokenAfterTheFirstByteIsCutAndNotRepeated(t *testing.T) {
	w := newWired(t, 1)
	app := w.pods[0].Serve(8080, func(c *net.TCPConn) {
		io.WriteString(c, "220 ready\n")
		io.Copy(io.Discard, c)
	})
	w.start(t)
	c, err := meshtest.Dial(w.listen.hello)
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	if _, err := io.ReadFull(c, make([]byte, 10)); err != nil {
		t.Fatal(err)
	}
	w.wires[w.carrier(t)].Cut()
	if _, err := c.Read(make([]byte, 1)); !errors.Is(err, syscall.ECONNRESET) {
		t.Errorf("the client reads %v; want ECONNRESET", err)
	}
	w.client().Log.Await(t, "connection", "direction", "outbound", "attempts", 1)
	if n := app.Accepted.Load(); n != 1 {
		t.Errorf("the application was dialed %d times; want once", n)
	}
}

func TestADeadGatewayIsLeftOutAndReadmittedWhenBack(t *testing.T) {
	w := newWired(t, 2)
	for _, pod := range w.pods {
		pod.App(8080)
	}
	w.start(t)
	flow := meshtest.Flow(t, w.listen.hello, 4)
	flow.AwaitMore(t, 50)
	if w.wires["gw-1"].Carried.Load() == 0 || w.wires["gw-2"].Carried.Load() == 0 {
		t.Error("not all gateways of a network are used")
	}
	w.wires["gw-1"].Cut()
	cut := time.Now()
	w.client().Log.Await(t, "outlier changed", "edge", "ejected", "scope", "gateway", "network", "west", "gateway", "gw-1")
	flow.AwaitMore(t, 100)
	w.wires["gw-1"].Mend()
	w.client().Log.Await(t, "outlier changed", "edge", "readmitted", "scope", "gateway", "network", "west", "gateway", "gw-1")
	through := func() int {
		return len(w.client().Log.Find("connection", "direction", "outbound", "gateway", "gw-1", "result", "ok"))
	}
	before := through()
	meshtest.Eventually(t, "gw-1 used again", func() bool { return through() > before })
	_, failed := flow.Stop()
	for _, f := range failed {
		if f.Begun.After(cut) {
			t.Errorf("a connection that began %v after the gateway died failed: %v", f.Begun.Sub(cut), f)
		}
	}
	if n := len(failed); n > 4 {
		t.Errorf("%d connections were cut with the gateway; at most the 4 under way may be", n)
	}
	for _, l := range w.client().Log.Find("outlier changed") {
		if l.Text("scope") != "gateway" {
			t.Errorf("a dead gateway moved somebody else's health: %v", l)
		}
	}
}
