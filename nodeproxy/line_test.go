package nodeproxy_test

import (
	"encoding/json"
	"net/netip"
	"net/url"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/isthmus-mesh/isthmus/gateway"
	"github.com/isthmus-mesh/isthmus/internal/answer"
	"github.com/isthmus-mesh/isthmus/internal/meshtest"
	"github.com/isthmus-mesh/isthmus/nodeproxy"
)

// Connections to another network's gateways are set up as lines says, and status, explain and metrics have what the kernel
// measured on them. Those within the network are not among them.
func TestLinesAreMeasured(t *testing.T) {
	m := meshtest.New(t)
	m.Networks("east", "west")
	host := m.Service("hello", 80, 8080)
	m.Gateway("east", "gw-1")
	m.Gateway("west", "gw-1")
	m.Pod("west", "west-1", "hello-1", "hello").App(8080)
	near := m.Service("near", 80, 8080)
	m.Pod("east", "east-2", "near-1", "near").App(8080)
	client := m.Pod("east", "east-1", "client-1")
	far, own := client.Outbound(host+":80"), client.Outbound(near+":80")
	m.EachNode = func(c *nodeproxy.Config) { c.Lines.CongestionControl, c.Lines.MaxSegment = "reno", 1000 }
	m.EachGateway = func(c *gateway.Config) { c.Lines.CongestionControl, c.Lines.MaxSegment = "reno", 1000 }
	m.Start()
	node := m.Process("node proxy east-1")
	status := func() (s answer.Status) {
		t.Helper()
		_, body := node.Get(t, "/status")
		if err := json.Unmarshal([]byte(body), &s); err != nil {
			t.Fatal(err)
		}
		return s
	}
	for _, a := range []netip.AddrPort{far, own} {
		if _, err := meshtest.Hello(a); err != nil {
			t.Fatal(err)
		}
	}
	node.Log.Await(t, "connection", "direction", "outbound", "network", "west", "transport", "tcp")
	if line := node.Log.Await(t, "connection", "direction", "outbound", "network", "east"); line.Has("transport", "tcp") {
		t.Errorf("access log %v: a transport without a gateway", line)
	}
	lines := status().Lines
	if len(lines) != 1 || lines[0].Network != "west" || lines[0].Connections < 1 || lines[0].Congestion["reno"] != lines[0].Connections {
		t.Fatalf("lines %+v; want one to west, all of its connections with reno", lines)
	}
	// A busy machine acknowledges late, so that the kernel may send a segment again.
	if l := lines[0]; l.Loss == nil || l.RTTMicros <= 0 || l.RTTMicros > time.Second.Microseconds() || *l.Loss > 0.5 {
		t.Errorf("%+v: want segments, most of them not lost, and a round trip of this machine", l)
	}
	if n := node.Metric(t, `isthmus_line_connections{congestion="reno",network="west",transport="tcp"}`); n != float64(lines[0].Connections) {
		t.Errorf("isthmus_line_connections is %g, status has %d connections", n, lines[0].Connections)
	}
	_, body := node.Get(t, "/explain?"+url.Values{"source": {"east/default/client-1"}, "destination": {host + ":80"}}.Encode())
	var e answer.Explanation
	if err := json.Unmarshal([]byte(body), &e); err != nil {
		t.Fatal(err, body)
	}
	if len(e.Candidates) == 0 || e.Candidates[0].Line == nil || !strings.Contains(e.Candidates[0].Sentence(time.Now()), "line: ") {
		t.Errorf("explain has no line: %s", body)
	}
}

// A name in lines.transports that neither discovery nor a link has is a problem, of a node proxy and of a gateway. It is none
// while these may not have all networks yet.
func TestStatusHasUnknownNetworkOfTransports(t *testing.T) {
	m := meshtest.New(t)
	m.Networks("east", "west")
	m.Gateway("east", "gw-1")
	m.Gateway("west", "gw-1")
	m.Pod("east", "east-1", "client-1")
	withoutFile(t, m, "gw-1")
	files := map[string]string{"east": m.WriteOwn("east"), "west": m.WriteOwn("west")}
	each, transports := m.EachNode, map[string]string{"wset": "auto", "west": "auto"}
	m.EachNode = func(c *nodeproxy.Config) {
		each(c)
		c.Federation.Networks, c.Lines.Transports = m.LinkFile(c.Network), transports
	}
	m.EachGateway = func(c *gateway.Config) {
		c.Discovery.File, c.Federation.Networks = files[c.Network], m.LinkFile(c.Network)
		if c.Network == "east" {
			c.Lines.Transports = transports
		}
	}
	status := func(process string) (s answer.Status, found []string) {
		_, body := m.Process(process).Get(t, "/status")
		if err := json.Unmarshal([]byte(body), &s); err != nil {
			t.Fatal(err)
		}
		for _, p := range s.Problems {
			if strings.Contains(p, "lines.transports") {
				found = append(found, p)
			}
		}
		return s, found
	}
	m.StartNode("east", "east-1")
	if s, found := status("node proxy east-1"); len(s.Pending) == 0 || len(found) > 0 {
		t.Errorf("without a gateway, pending %q: problems %q, want none", s.Pending, found)
	}
	m.Start()
	want := []string{`lines.transports: wset: no network of that name is known: did you mean "west"?`}
	for _, process := range []string{"node proxy east-1", "gateway east/gw-1"} {
		meshtest.Eventually(t, process+" is ready", func() bool { s, _ := status(process); return len(s.Pending) == 0 })
		if _, found := status(process); !slices.Equal(found, want) {
			t.Errorf("%s: problems %q, want %q", process, found, want)
		}
	}
}
