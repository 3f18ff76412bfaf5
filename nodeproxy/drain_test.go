package nodeproxy_test

import (
	"context"
	"io"
	"net"
	"strings"
	"testing"
	"time"

	"github.com/isthmus-mesh/isthmus/internal/meshtest"
	"github.com/isthmus-mesh/isthmus/nodeproxy"
)

// drains stops a process under traffic, which a sibling must take over.
func drains(t *testing.T, p *pair, leaving *meshtest.Process) {
	t.Helper()
	flow := meshtest.Flow(t, p.listen.hello, 6)
	flow.AwaitMore(t, 60)
	leaving.Stop(t)
	flow.AwaitMore(t, 60)
	if _, failed := flow.Stop(); len(failed) > 0 {
		t.Errorf("%d connections failed, the first: %v", len(failed), failed[0])
	}
	if len(leaving.Log.Find("draining")) != 1 || len(leaving.Log.Find("stopped")) != 1 {
		t.Error("the log does not say draining and stopped, once each")
	}
}

func TestAGatewayDrainsUnderTrafficWithoutAFailure(t *testing.T) {
	p := newPair(t, 2)
	p.Gateway("west", "gw-2")
	for _, pod := range p.pods {
		pod.App(8080)
	}
	p.Start()
	drains(t, p, p.Process("gateway west/gw-1"))
}

func TestTheNodeOfAPodDrainsUnderTrafficWithoutAFailure(t *testing.T) {
	p := newPair(t, 2)
	p.Gateway("west", "gw-2")
	for _, pod := range p.pods {
		pod.App(8080)
	}
	p.Start()
	drains(t, p, p.node(1))
}

func TestDrainLetsOpenConnectionsEnd(t *testing.T) {
	for _, which := range []string{"node proxy east-1", "gateway west/gw-1", "node proxy west-1"} {
		t.Run(which, func(t *testing.T) {
			p := newPair(t, 1)
			p.EachNode = func(c *nodeproxy.Config) { c.Timeouts.Drain = 3 * meshtest.Patience }
			p.pods[0].App(8080)
			p.Start()
			c, err := meshtest.Dial(p.listen.hello)
			if err != nil {
				t.Fatal(err)
			}
			defer c.Close()
			if _, err := meshtest.Ask(c, "1"); err != nil {
				t.Fatal(err)
			}
			leaving := p.Process(which)
			leaving.Cancel()
			leaving.Log.Await(t, "draining")
			if got, err := meshtest.Ask(c, "2"); err != nil || got != "hello-1" {
				t.Errorf("while draining: %q, %v; want hello-1", got, err)
			}
			if status, _ := leaving.Get(t, "/healthz/ready"); status != 503 {
				t.Errorf("readiness of a draining process: %d; want 503", status)
			}
			c.CloseWrite()
			if _, err := io.ReadAll(c); err != nil {
				t.Errorf("end of the connection: %v", err)
			}
			select {
			case <-leaving.Ended(): // with the last connection, long before the limit
			case <-time.After(meshtest.Patience):
				t.Error("still draining after the last connection has ended")
			}
		})
	}
}

func TestDrainEndsWithItsTimeLimit(t *testing.T) {
	p := newPair(t, 1)
	p.EachNode = func(c *nodeproxy.Config) { c.Timeouts.Drain = 200 * time.Millisecond }
	arrived := make(chan struct{}, 1)
	p.pods[0].Serve(8080, func(c *net.TCPConn) {
		io.ReadFull(c, make([]byte, 1))
		arrived <- struct{}{}
		io.Copy(io.Discard, c)
	})
	p.Start()
	c, err := meshtest.Dial(p.listen.hello)
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	io.WriteString(c, "and never ends")
	select {
	case <-arrived:
	case <-time.After(meshtest.Patience):
		t.Fatal("the connection does not arrive")
	}
	p.client().Stop(t)
	if _, err := c.Read(make([]byte, 1)); err == nil || err == io.EOF {
		t.Errorf("the application reads %v; want a reset: its connection was cut", err)
	}
	if line := p.client().Log.Await(t, "connection", "direction", "outbound", "result", "stopped"); !strings.Contains(line.Text("error"), "timeouts.drain (200ms) was over") {
		t.Errorf("the line says %v; want the real cause", line)
	}
}

func TestARefusedPortDuringDrainIsStillAnsweredTruly(t *testing.T) {
	p := newPair(t, 2)
	sick := p.pods[0].App(8080)
	p.pods[1].App(8080)
	p.Start()
	if err := sick.Refuse(context.Background(), 8080); err != nil {
		t.Fatal(err)
	}
	held, err := meshtest.Dial(p.listen.hello)
	if err != nil {
		t.Fatal(err)
	}
	defer held.Close()
	if got, err := meshtest.Ask(held, "1"); err != nil || got != "hello-2" {
		t.Fatalf("%q, %v; want hello-2", got, err)
	}
	p.node(1).Cancel()
	for range 10 {
		if got, err := meshtest.Hello(p.listen.hello); err != nil || got != "hello-2" {
			t.Errorf("%q, %v; want hello-2", got, err)
		}
	}
}
