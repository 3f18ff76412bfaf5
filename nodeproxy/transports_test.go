package nodeproxy_test

import (
	"encoding/json"
	"net"
	"net/netip"
	"net/url"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/isthmus-mesh/isthmus/gateway"
	"github.com/isthmus-mesh/isthmus/internal/answer"
	"github.com/isthmus-mesh/isthmus/internal/lines"
	"github.com/isthmus-mesh/isthmus/internal/meshtest"
	"github.com/isthmus-mesh/isthmus/internal/tcp"
	"github.com/isthmus-mesh/isthmus/nodeproxy"
)

// udpPath carries packets to a gateway and back, until it is blocked.
type udpPath struct {
	blocked atomic.Bool
	carried atomic.Int64 // packets to the gateway

	front   *net.UDPConn
	to      *net.UDPAddr
	mu      sync.Mutex
	clients map[netip.AddrPort]*net.UDPConn
	running sync.WaitGroup
}

func newUDPPath(t testing.TB, from, to netip.AddrPort) *udpPath {
	t.Helper()
	front, err := net.ListenUDP("udp4", net.UDPAddrFromAddrPort(from))
	if err != nil {
		t.Fatal(err)
	}
	u := &udpPath{front: front, to: net.UDPAddrFromAddrPort(to), clients: map[netip.AddrPort]*net.UDPConn{}}
	u.running.Go(u.forward)
	t.Cleanup(func() {
		front.Close()
		u.mu.Lock()
		for _, c := range u.clients {
			c.Close()
		}
		u.mu.Unlock()
		u.running.Wait()
	})
	return u
}

func (u *udpPath) forward() {
	for buf := make([]byte, 64<<10); ; {
		n, client, err := u.front.ReadFromUDPAddrPort(buf)
		if err != nil {
			return
		}
		u.mu.Lock()
		back := u.clients[client]
		if back == nil {
			if back, err = net.DialUDP("udp4", nil, u.to); err == nil {
				u.clients[client] = back
				u.running.Go(func() { u.back(back, client) })
			}
		}
		u.mu.Unlock()
		if back != nil && !u.blocked.Load() {
			back.Write(buf[:n])
			u.carried.Add(1)
		}
	}
}

func (u *udpPath) back(from *net.UDPConn, client netip.AddrPort) {
	for buf := make([]byte, 64<<10); ; {
		n, err := from.Read(buf)
		if err != nil {
			return
		}
		if !u.blocked.Load() {
			u.front.WriteToUDPAddrPort(buf[:n], client)
		}
	}
}

// autoPair is a pair with lines.transport: auto at its client, whose TCP connections seem to lose packets.
type autoPair struct {
	*pair
	udp *udpPath
}

func newAutoPair(t *testing.T) *autoPair {
	var calls atomic.Uint64
	nodeproxy.MeasureLines(t, 100*time.Millisecond, func() tcp.Info {
		n := calls.Add(1)
		return tcp.Info{Congestion: "bbr", RTT: 400 * time.Millisecond, MinRTT: 400 * time.Millisecond, Segments: 1000 * n, Retransmitted: 10 * n}
	})
	a := &autoPair{pair: newPair(t, 2)} // after that, so that its processes stop before
	a.EachNode = func(c *nodeproxy.Config) { c.Lines.Transports = map[string]string{"west": lines.Auto} }
	for _, pod := range a.pods {
		pod.App(8080)
	}
	return a
}

// start runs everything. UDP to the gateway passes a path that can be blocked.
func (a *autoPair) start(t *testing.T, gatewayTransport string) {
	t.Helper()
	a.Write()
	at, behind := a.GatewayAt("west", "gw-1"), netip.AddrPortFrom(a.Addr(), meshtest.HBONEPort)
	a.Wire(at, behind)
	if gatewayTransport != lines.TCP {
		a.udp = newUDPPath(t, at, behind)
	}
	a.StartGateway("west", "gw-1", func(c *gateway.Config) {
		c.Listen, c.Lines.Transport = behind, gatewayTransport
	})
}

// line returns what status says of west.
func (a *autoPair) line(t *testing.T) (l answer.Line) {
	t.Helper()
	_, body := a.client().Get(t, "/status")
	var s answer.Status
	if err := json.Unmarshal([]byte(body), &s); err != nil {
		t.Fatal(err)
	}
	for _, l := range s.Lines {
		if l.Network == "west" {
			return l
		}
	}
	return l
}

func (a *autoPair) awaitTransport(t *testing.T, transport, reason string) {
	t.Helper()
	var l answer.Line
	defer func() {
		if t.Failed() {
			t.Logf("last: %+v", l)
		}
	}()
	meshtest.Eventually(t, transport+" because of "+reason, func() bool {
		l = a.line(t)
		return l.Transport == transport && strings.Contains(l.Reason, reason)
	})
}

func TestAutoStaysOnTCPWhileUDPIsBlocked(t *testing.T) {
	a := newAutoPair(t)
	a.start(t, lines.Auto)
	a.udp.blocked.Store(true)
	a.Start()
	flow := meshtest.Flow(t, a.listen.hello, 4)
	a.awaitTransport(t, lines.TCP, "UDP failed")
	flow.AwaitMore(t, 100)
	if _, failed := flow.Stop(); len(failed) > 0 {
		t.Errorf("%d connections failed, the first: %v", len(failed), failed[0])
	}
	if l := a.line(t); l.QUIC > 0 || l.Connections == 0 {
		t.Errorf("%+v: want TCP alone", l)
	}
	t.Logf("slowest %v", flow.Slowest())
}

// A session that is to use QUIC, and gets no answer, is open over TCP in the same dial.
func TestAutoDialFallsBackToTCP(t *testing.T) {
	a := newAutoPair(t)
	other := a.Pod("east", "east-1", "other-1")
	listen := other.Outbound(hello)
	a.start(t, lines.Auto)
	a.Start()
	flow := meshtest.Flow(t, a.listen.hello, 2)
	a.awaitTransport(t, lines.QUIC, "")
	flow.Stop()
	a.udp.blocked.Store(true)
	began := time.Now()
	if _, err := meshtest.Hello(listen); err != nil {
		t.Fatal(err)
	}
	took := time.Since(began)
	t.Logf("the first connection took %v", took)
	if took < 300*time.Millisecond || took > 2*time.Second {
		t.Errorf("the first connection took %v; want the pause before TCP is tried, and little more", took)
	}
	a.awaitTransport(t, lines.TCP, "")
	a.udp.blocked.Store(false)
	a.client().Stop(t)
}

func TestAutoStaysOnTCPWithoutQUICAtGateway(t *testing.T) {
	a := newAutoPair(t)
	a.start(t, lines.TCP)
	a.Start()
	flow := meshtest.Flow(t, a.listen.hello, 4)
	a.awaitTransport(t, lines.TCP, "UDP failed")
	flow.AwaitMore(t, 100)
	if _, failed := flow.Stop(); len(failed) > 0 {
		t.Errorf("%d connections failed, the first: %v", len(failed), failed[0])
	}
	if l := a.line(t); l.QUIC > 0 || l.Connections == 0 {
		t.Errorf("%+v: want TCP alone", l)
	}
}

// New connections move to QUIC while TCP loses packets, and back when UDP dies. None fails, but for those whose first bytes
// were sent ahead of a response (retry.early): they fail as they do when TCP dies.
func TestAutoMovesToQUICAndBack(t *testing.T) {
	a := newAutoPair(t)
	auto := a.EachNode
	a.EachNode = func(c *nodeproxy.Config) {
		auto(c)
		c.Retry.Early = false
	}
	a.start(t, lines.Auto)
	a.Start()
	flow := meshtest.Flow(t, a.listen.hello, 4)
	a.awaitTransport(t, lines.QUIC, "lost 1 %")
	client := a.client()
	meshtest.Eventually(t, "a QUIC connection", func() bool { return a.line(t).QUIC > 0 })
	if n := client.Metric(t, `isthmus_line_transport{network="west",transport="quic"}`); n != 1 {
		t.Errorf("isthmus_line_transport of quic is %v", n)
	}
	if n := client.Metric(t, `isthmus_line_quic_failing{network="west"}`); n != 0 {
		t.Errorf("isthmus_line_quic_failing is %v while QUIC is used", n)
	}
	if l := a.line(t); l.QUICRTTMicros <= 0 || l.QUICRTTMicros > time.Second.Microseconds() || l.QUICLoss == nil || *l.QUICLoss > 0.5 {
		t.Errorf("%+v: want statistics of QUIC", l)
	}
	for _, metric := range []string{
		`isthmus_line_connections{congestion="newreno",network="west",transport="quic"}`,
		`isthmus_line_rtt_seconds{network="west",transport="quic"}`,
		`isthmus_line_transport_changes_total{network="west",transport="quic"}`,
	} {
		if n := client.Metric(t, metric); n <= 0 {
			t.Errorf("%s is %v", metric, n)
		}
	}
	_, body := client.Get(t, "/explain?"+url.Values{"source": {a.shop.UID}, "destination": {hello}}.Encode())
	if !strings.Contains(body, `"transport":"quic"`) && !strings.Contains(body, `"transport": "quic"`) {
		t.Errorf("explain has no transport: %s", body)
	}
	<-time.After(1500 * time.Millisecond) // a PING has measured the round trip then, of which four are silence
	before := a.udp.carried.Load()
	flow.AwaitMore(t, 100)
	if n := a.udp.carried.Load() - before; n < 100 {
		t.Errorf("%d packets over QUIC for 100 connections", n)
	}
	if _, failed := flow.Stop(); len(failed) > 0 {
		t.Errorf("%d connections failed, the first: %v", len(failed), failed[0])
	}
	a.udp.blocked.Store(true)
	blocked := time.Now()
	flow = meshtest.Flow(t, a.listen.hello, 8)
	a.awaitTransport(t, lines.TCP, "")
	t.Logf("TCP %v after UDP was blocked", time.Since(blocked))
	flow.AwaitMore(t, 100)
	a.awaitTransport(t, lines.TCP, "UDP failed")
	flow.AwaitMore(t, 100)
	if _, failed := flow.Stop(); len(failed) > 0 {
		t.Errorf("%d connections failed, the first: %v", len(failed), failed[0])
	}
	t.Logf("slowest connection %v", flow.Slowest())
	if flow.Slowest() > 2*time.Second {
		t.Errorf("a connection took %v after UDP was blocked", flow.Slowest())
	}
	if n := client.Metric(t, `isthmus_line_transport{network="west",transport="quic"}`); n != 0 {
		t.Errorf("isthmus_line_transport of quic is %v after the failure", n)
	}
	if n := client.Metric(t, `isthmus_line_quic_failing{network="west"}`); n != 1 {
		t.Errorf("isthmus_line_quic_failing is %v after the failure", n)
	}
	if n := client.Metric(t, `isthmus_line_quic_failures_total{network="west"}`); n == 0 {
		t.Error("no failed QUIC handshake is counted")
	}
	if out := client.Log.Find("outlier changed", "scope", "gateway"); len(out) > 0 {
		t.Errorf("the gateway was ejected: %v", out[0])
	}
	a.udp.blocked.Store(false) // so that open sessions close
	client.Stop(t)
}
