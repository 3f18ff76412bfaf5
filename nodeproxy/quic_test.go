package nodeproxy_test

import (
	"encoding/json"
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/isthmus-mesh/isthmus/gateway"
	"github.com/isthmus-mesh/isthmus/internal/answer"
	"github.com/isthmus-mesh/isthmus/internal/lines"
	"github.com/isthmus-mesh/isthmus/internal/meshtest"
	"github.com/isthmus-mesh/isthmus/internal/testlb"
	"github.com/isthmus-mesh/isthmus/nodeproxy"
)

// quicPair is a pair whose tunnels between networks run over QUIC.
func quicPair(t *testing.T, pods int) *pair {
	p := newPair(t, pods)
	p.EachGateway = func(c *gateway.Config) {
		c.Lines.Transport = lines.QUIC
		c.Timeouts.LameDuck = 500 * time.Millisecond
	}
	p.EachNode = func(c *nodeproxy.Config) { c.Lines.Transport = lines.QUIC }
	for _, pod := range p.pods {
		pod.App(8080)
	}
	return p
}

func TestCallAcrossByQUIC(t *testing.T) {
	p := quicPair(t, 2)
	p.Start()
	for range 20 {
		if _, err := meshtest.Hello(p.listen.hello); err != nil {
			t.Fatal(err)
		}
	}
	p.client().Log.Await(t, "connection", "direction", "outbound", "gateway", "gw-1", "transport", "quic", "result", "ok")
	p.Process("gateway west/gw-1").Log.Await(t, "ready", "quic", p.GatewayAt("west", "gw-1").String())
}

// Connections that are open at once are spread over QUIC streams and QUIC connections.
func TestConnectionsSpreadOverQUIC(t *testing.T) {
	p := quicPair(t, 1)
	p.Start()
	const connections = 40
	var all sync.WaitGroup
	for range connections {
		all.Go(func() {
			c, err := meshtest.Dial(p.listen.hello)
			if err != nil {
				t.Error(err)
				return
			}
			t.Cleanup(func() { c.Close() })
			if _, err := meshtest.Ask(c, "1"); err != nil {
				t.Error(err)
			}
		})
	}
	all.Wait()
	sessions := func(process string) int { return int(p.Process(process).Metric(t, "isthmus_admitted_sessions")) }
	inner, outer := sessions("node proxy west-1"), sessions("gateway west/gw-1")
	t.Logf("%d connections: %d sessions with the pod, on %d QUIC connections", connections, inner, outer)
	if inner < connections/8 || outer < inner/2 {
		t.Errorf("%d connections are in %d sessions with the pod, on %d QUIC connections, want at most 8 connections in each, and 2 sessions", connections, inner, outer)
	}
}

// A node proxy that is to dial by QUIC does not reach a gateway without it. Status names the cause, and the line although no
// connection is open.
func TestQUICNeedsGatewayWithQUIC(t *testing.T) {
	p := quicPair(t, 1)
	p.EachGateway = nil
	p.Start()
	if pod, err := meshtest.Hello(p.listen.hello); err == nil {
		t.Errorf("%s has answered", pod)
	}
	_, body := p.client().Get(t, "/status")
	var s answer.Status
	if err := json.Unmarshal([]byte(body), &s); err != nil {
		t.Fatal(err)
	}
	refused := fmt.Sprintf("QUIC to %v: UDP port refused", p.GatewayAt("west", "gw-1"))
	if len(s.Gateways) != 1 || !strings.Contains(s.Gateways[0].Error, refused) || strings.Contains(s.Gateways[0].Error, "recvmmsg") {
		t.Errorf("gateways %+v; want one with the error %q", s.Gateways, refused)
	}
	if len(s.Lines) != 1 || s.Lines[0].String() != "small messages use quic (lines.transport)" || s.Lines[0].Network != "west" {
		t.Errorf("lines %+v; want one to west, by QUIC", s.Lines)
	}
	if n := p.client().Metric(t, `isthmus_line_transport{network="west",transport="quic"}`); n != 1 {
		t.Errorf("isthmus_line_transport of quic is %v", n)
	}
}

// A gateway whose UDP has an address of its own is dialed there by QUIC.
func TestQUICAddressIsDialled(t *testing.T) {
	for _, gateways := range []int{1, 2} {
		var fronts []*testlb.UDP
		t.Cleanup(func() { // after the processes have stopped
			for _, u := range fronts {
				u.Close()
			}
		})
		p := quicPair(t, 1)
		if gateways == 2 {
			p.Gateway("west", "gw-2")
		}
		for i := range p.Config.Gateways {
			if g := &p.Config.Gateways[i]; g.Network == "west" {
				at := netip.AddrPortFrom(p.Addr(), 443)
				u, err := testlb.ServeUDP(at, g.Address)
				if err != nil {
					t.Fatal(err)
				}
				fronts = append(fronts, u)
				g.QUICAddresses = []netip.AddrPort{at}
			}
		}
		p.Start()
		for range 5 {
			if _, err := meshtest.Hello(p.listen.hello); err != nil {
				t.Fatal(err)
			}
		}
		if !slices.ContainsFunc(fronts, func(u *testlb.UDP) bool { return u.Packets() > 0 }) {
			t.Errorf("%d gateways: no packet at the QUIC addresses", gateways)
		}
	}
}

func TestRollingRestartByQUIC(t *testing.T) { rollingRestart(t, quicPair(t, 2), func() {}) }

func TestRollingRestartByAuto(t *testing.T) {
	a := newAutoPair(t)
	a.EachGateway = func(c *gateway.Config) {
		c.Lines.Transport = lines.Auto
		c.Timeouts.LameDuck = 500 * time.Millisecond
	}
	rollingRestart(t, a.pair, func() { a.awaitTransport(t, lines.QUIC, "") })
}

// rollingRestart restarts two gateways under traffic, after ready has returned. No connection fails.
func rollingRestart(t *testing.T, p *pair, ready func()) {
	p.Gateway("west", "gw-2")
	p.Start()
	flow := meshtest.Flow(t, p.listen.hello, 6)
	flow.AwaitMore(t, 60)
	ready()
	for _, name := range []string{"gw-1", "gw-2"} {
		p.Process("gateway west/" + name).Stop(t)
		flow.AwaitMore(t, 60)
		p.StartGateway("west", name).AwaitReady(t)
		flow.AwaitMore(t, 60)
	}
	if _, failed := flow.Stop(); len(failed) > 0 {
		t.Errorf("%d connections failed, the first: %v", len(failed), failed[0])
	}
}
