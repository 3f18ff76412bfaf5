package nodeproxy_test

import (
	"bytes"
	"context"
	"crypto/sha256"
	"errors"
	"io"
	"math/rand/v2"
	"net"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/isthmus-mesh/isthmus/gateway"
	"github.com/isthmus-mesh/isthmus/internal/meshtest"
	"github.com/isthmus-mesh/isthmus/nodeproxy"
)

// quiet waits until nobody counts an open connection any more; a gateway counts
// the sessions that the client keeps, so they must end with it.
func quiet(t *testing.T, p *pair) {
	t.Helper()
	none := func(proc *meshtest.Process, lists ...string) {
		t.Helper()
		meshtest.Eventually(t, "no open connection in its /state", func() bool {
			for _, list := range lists {
				for _, row := range proc.Rows(t, list) {
					if !row.Has("open", 0) {
						return false
					}
				}
			}
			return true
		})
	}
	none(p.client(), "ownNetwork", "networkServices", "gateways")
	p.client().Stop(t)
	none(p.Process("gateway west/gw-1"), "pods")
}

func TestManyConnectionsAtOnceKeepTheirBytesApart(t *testing.T) {
	p := newPair(t, 2)
	for _, pod := range p.pods {
		pod.Serve(8080, func(c *net.TCPConn) { io.Copy(c, c) })
	}
	p.Start()
	var wg sync.WaitGroup
	for i := range 150 {
		wg.Go(func() {
			sent := make([]byte, 100_000)
			rand.NewChaCha8(sha256.Sum256([]byte{byte(i)})).Read(sent)
			c, err := meshtest.Dial(p.listen.hello)
			if err != nil {
				t.Error(err)
				return
			}
			defer c.Close()
			go func() {
				c.Write(sent)
				c.CloseWrite()
			}()
			if got, err := io.ReadAll(c); err != nil || !bytes.Equal(got, sent) {
				t.Errorf("connection %d: %d bytes back, the same %v, %v", i, len(got), bytes.Equal(got, sent), err)
			}
		})
	}
	wg.Wait()
	quiet(t, p)
}

func TestClientsThatLeaveAreNobodysFault(t *testing.T) {
	p := newPair(t, 1)
	p.pods[0].Serve(8080, func(c *net.TCPConn) { io.Copy(io.Discard, c) })
	p.Start()
	for i := range 40 {
		c, err := meshtest.Dial(p.listen.hello)
		if err != nil {
			t.Fatal(err)
		}
		if i%2 == 0 {
			c.SetLinger(0) // at once, whatever the tunnel is doing
		}
		c.Close()
	}
	p.pods[0].App(8081)
	if got, err := meshtest.Hello(p.listen.other); err != nil || got != "hello-1" {
		t.Errorf("%q, %v; want hello-1", got, err)
	}
	if row := p.client().Row(t, "gateways", "name", "gw-1"); !row.Has("health", 1) {
		t.Errorf("the client believes %v of the gateway; want full health", row)
	}
	quiet(t, p)
	for _, name := range []string{"node proxy east-1", "node proxy west-1", "gateway west/gw-1"} {
		if l := p.Process(name).Log.Find("outlier changed"); len(l) > 0 {
			t.Errorf("%s judged somebody: %v", name, l[0])
		}
	}
}

func TestCertificatesAreRenewedUnderTrafficWithoutAFailure(t *testing.T) {
	p := newPair(t, 1)
	p.EachNode = func(c *nodeproxy.Config) { c.Identity.TTL = 4 * time.Second }
	p.EachGateway = func(c *gateway.Config) { c.Identity.TTL = 4 * time.Second }
	p.pods[0].App(8080)
	p.Start()
	flow := meshtest.Flow(t, p.listen.hello, 2)
	for _, who := range []struct {
		proc *meshtest.Process
		id   any
	}{{p.client(), p.shop.Identity()}, {p.node(1), p.pods[0].Identity()}, {p.Process("gateway west/gw-1"), p.ID("isthmus-system/gateway-west")}} {
		meshtest.Eventually(t, "three generations of certificates", func() bool {
			return len(who.proc.Log.Find("svid renewed", "id", who.id)) >= 2
		})
	}
	flow.AwaitMore(t, 20)
	if _, failed := flow.Stop(); len(failed) > 0 {
		t.Errorf("%d connections failed, the first: %v", len(failed), failed[0])
	}
}

func TestLosingTheFederationLeavesTrafficFlowing(t *testing.T) {
	p := reported(t, 2)
	sick := p.pods[0].App(8080)
	p.pods[1].App(8080)
	p.Start()
	if err := sick.Refuse(context.Background(), 8080); err != nil {
		t.Fatal(err)
	}
	id := p.pods[0].Endpoint()
	p.untilFirst(t, p.client().Log, "known", "network", "west", "port", 80, "healthy", 1)
	p.Process("gateway east/gw-1").Stop(t) // the only one that tells east anything
	meshtest.Eventually(t, "the client knows that it hears nothing", func() bool {
		return p.client().State(t)["attachedGateways"] == float64(0)
	})
	for i := range 30 {
		if got, err := meshtest.Hello(p.listen.hello); err != nil || got != "hello-2" {
			t.Fatalf("connection %d: %q, %v; want hello-2, by what was last known", i, got, err)
		}
	}
	if err := sick.Heal(context.Background(), 8080); err != nil {
		t.Fatal(err)
	}
	p.Process("gateway west/gw-1").Log.Await(t, "outlier changed", "edge", "readmitted", "endpoint", id)
	flow := meshtest.Flow(t, p.listen.hello, 2)
	flow.AwaitMore(t, 60)
	if _, failed := flow.Stop(); len(failed) > 0 {
		t.Errorf("%d connections failed, the first: %v", len(failed), failed[0])
	}
	p.StartGateway("east", "gw-1").AwaitReady(t)
	meshtest.Eventually(t, "east hears of the heal", func() bool {
		row := p.client().Row(t, "networkServices", "network", "west", "port", 80)
		return row.Has("known", true, "healthy", 2)
	})
}

func TestAServiceOfAnotherNetworkWithoutAGatewayHasNoWay(t *testing.T) {
	p := newPair(t, 1)
	p.Config.Gateways = nil
	p.Start()
	if _, err := meshtest.Hello(p.listen.hello); !errors.Is(err, syscall.ECONNRESET) {
		t.Errorf("got %v; want ECONNRESET", err)
	}
	line := p.client().Log.Await(t, "connection", "direction", "outbound", "result", "no_route")
	if !strings.Contains(line.Text("error"), "gateway") {
		t.Errorf("the log says %q; want it to speak of the missing gateway", line.Text("error"))
	}
}
