package nodeproxy_test

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/isthmus-mesh/isthmus/discovery"
	"github.com/isthmus-mesh/isthmus/gateway"
	"github.com/isthmus-mesh/isthmus/hbone/header"
	"github.com/isthmus-mesh/isthmus/internal/meshtest"
	"github.com/isthmus-mesh/isthmus/nodeproxy"
)

// Whoever reads one warning of a failure knows who wanted what, what was tried, and
// what really happened at the far end.
func TestAFailureIsOneUsefulLine(t *testing.T) {
	p := newPair(t, 1)
	p.EachNode = func(c *nodeproxy.Config) { c.Retry.Attempts = 2 }
	sick := p.pods[0].App(8080)
	p.Start()
	if err := sick.Refuse(context.Background(), 8080); err != nil {
		t.Fatal(err)
	}
	c, err := meshtest.Dial(p.listen.hello)
	if err != nil {
		t.Fatal(err)
	}
	io.WriteString(c, "hello 1\n")
	io.ReadAll(c)
	c.Close()
	line := p.client().Log.Await(t, "connection", "direction", "outbound")
	if !line.Has("level", "warn", "source", p.shop.UID, "service", "hello.default.svc.cluster.local", "port", 80, "network", "west",
		"workload", p.pods[0].UID, "gateway", "gw-1", "attempts", 3, "result", "refused") {
		t.Errorf("the line says %v", line)
	}
	var tried []struct {
		Pod, Gateway, Reason, Error string
		Times                       int
	}
	b, _ := json.Marshal(line["tried"])
	if err := json.Unmarshal(b, &tried); err != nil || len(tried) != 1 || tried[0].Times != 3 {
		t.Fatalf("tried: %s (%v); want one place that was tried 3 times", b, err)
	}
	cause := fmt.Sprintf("dial tcp %s: connect: connection refused", p.pods[0].At(8080))
	for _, at := range tried {
		if at.Pod != p.pods[0].UID || at.Gateway != "gw-1" || at.Reason != "refused" || !strings.Contains(at.Error, cause) {
			t.Errorf("tried %+v; want the pod, its gateway, and the cause %q", at, cause)
		}
	}
	for _, l := range p.client().Log.Find("attempt failed") {
		if l.Text("level") != "debug" {
			t.Errorf("a single attempt at level %s", l.Text("level"))
		}
	}
}

// stateWarnings are about the state of a peer or a service, once each, and not about
// a connection.
var stateWarnings = []string{"dazed: no endpoint is healthy, all are used alike", "health stream lost", "handshake refused"}

// Whatever makes it fail, a connection is one warning at the client's node proxy, which
// says who wanted what and what was tried, and at most one of each process behind it.
func TestEveryKindOfFailureIsOneWarning(t *testing.T) {
	foreign := foreignCA(t)
	none := func(*testing.T, *pair) {}
	for name, c := range map[string]struct {
		before    func(*testing.T, *pair) // nothing runs yet; nil: the pod answers
		after     func(*testing.T, *pair) // all run
		open      bool                    // after happens to an open connection
		result    string
		noPod     bool // there was none to name
		noTries   bool // it had not failed before
		noGateway bool // it did not come as far
		farMayBe  int  // warnings of the processes on west
	}{
		"refused": {after: func(t *testing.T, p *pair) { p.pods[0].App(8080).Refuse(t.Context(), 8080) }, before: none, result: "refused"},
		"timeout": {after: func(t *testing.T, p *pair) { p.pods[0].App(8080).Hang(t.Context(), 8080) }, before: none, result: "timeout"},
		"reset": {before: func(_ *testing.T, p *pair) {
			p.pods[0].Node = "" // instead of its node proxy:
			p.pods[0].Serve(meshtest.HBONEPort, func(c *net.TCPConn) { io.ReadFull(c, make([]byte, 1)); c.SetLinger(0) })
		}, after: none, result: "connect", farMayBe: 1},
		"gateway gone":            {after: func(t *testing.T, p *pair) { p.Process("gateway west/gw-1").Stop(t) }, result: "connect", noPod: true},
		"gateway gone while open": {after: func(t *testing.T, p *pair) { p.Process("gateway west/gw-1").Stop(t) }, open: true, result: "tunnel_lost", noTries: true},
		"node proxy gone":         {after: func(t *testing.T, p *pair) { p.node(1).Stop(t) }, result: "unreachable", farMayBe: 1},
		"tls": {before: func(_ *testing.T, p *pair) {
			p.Write()
			p.StartNode("west", "west-1", func(c *nodeproxy.Config) { c.Identity.Dir = foreign })
		}, after: none, result: "identity", farMayBe: 1},
		"unavailable": {before: func(_ *testing.T, p *pair) {
			p.pods[0].Edit(func(w *discovery.Workload) { w.State = "terminating" })
		}, after: none, result: "no_endpoint", noPod: true, noTries: true, noGateway: true},
	} {
		t.Run(name, func(t *testing.T) {
			p := newPair(t, 1)
			p.EachNode = func(c *nodeproxy.Config) {
				c.Retry.Attempts, c.Retry.Early = 2, false
				c.Timeouts.App, c.Timeouts.Drain = 300*time.Millisecond, 50*time.Millisecond
			}
			p.EachGateway = func(c *gateway.Config) { c.Timeouts.Drain = 50 * time.Millisecond }
			if c.before == nil {
				p.pods[0].App(8080)
			} else {
				c.before(t, p)
			}
			p.Start()
			if c.open {
				conn := p.held(t)
				c.after(t, p)
				io.ReadAll(conn)
				conn.Close()
			} else {
				c.after(t, p)
				if got, err := meshtest.Hello(p.listen.hello); err == nil {
					t.Fatalf("answered by %s", got)
				}
			}
			line := p.client().Log.Await(t, "connection", "direction", "outbound")
			if !line.Has("level", "warn", "source", p.shop.UID, "service", "hello.default.svc.cluster.local", "port", 80, "result", c.result) ||
				line.Text("error") == "" || !c.noPod && line.Text("workload") != p.pods[0].UID || !c.noTries && line["tried"] == nil || !c.noGateway && line.Text("gateway") != "gw-1" {
				t.Errorf("the line says %v", line)
			}
			if name == "gateway gone" {
				if tried, _ := line["tried"].([]any); len(tried) != 1 || tried[0].(map[string]any)["pod"] != nil || line["workload"] != nil || strings.Count(line.Text("error"), "gw-1") != 1 {
					t.Errorf("the line says %v; want the gateway alone, named once in the error", line)
				}
			}
			if l := warnings(p.client()); len(l) != 1 {
				t.Errorf("%d warnings at the client; want 1: %v", len(l), l)
			}
			for _, far := range []string{"node proxy west-1", "gateway west/gw-1"} {
				if p.Process(far) == nil {
					continue
				}
				if l := warnings(p.Process(far)); len(l) > c.farMayBe {
					t.Errorf("%d warnings of %s; want at most %d: %v", len(l), far, c.farMayBe, l)
				}
			}
		})
	}
}

// held is a connection of shop to hello that is open.
func (p *pair) held(t *testing.T) *net.TCPConn {
	t.Helper()
	conn, err := meshtest.Dial(p.listen.hello)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { conn.Close() })
	io.WriteString(conn, "hello 1\n")
	if _, err := io.ReadFull(conn, make([]byte, 1)); err != nil {
		t.Fatal(err)
	}
	return conn
}

// warnings are the lines at warn and above that are not about a state.
func warnings(p *meshtest.Process) []meshtest.Line {
	return slices.DeleteFunc(p.Log.Above(), func(l meshtest.Line) bool { return slices.Contains(stateWarnings, l.Text("message")) })
}

// What a peer says has happened is bounded, and cannot break a line or a terminal.
func TestACauseIsOnlyText(t *testing.T) {
	for in, want := range map[string]string{
		"dial tcp 10.0.0.7:8080: connect: connection refused": "dial tcp 10.0.0.7:8080: connect: connection refused",
		"line\r\nisthmus-pin: 1\x1b[31m":                      "line??isthmus-pin: 1?[31m",
		strings.Repeat("é", 300):                              "..." + strings.Repeat("?", 197),
		strings.Repeat("open: ", 90) + "connection refused":   "..." + (strings.Repeat("open: ", 90) + "connection refused")[90*6+18-192:], // from a whole word on
		"\xff\xfe ": "??",
	} {
		if got := header.Cause(in); got != want {
			t.Errorf("Cause(%q) = %q; want %q", in, got, want)
		}
	}
}
