package gateway_test

import (
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/rs/zerolog"

	"github.com/isthmus-mesh/isthmus/discovery"
	"github.com/isthmus-mesh/isthmus/gateway"
	"github.com/isthmus-mesh/isthmus/internal/meshtest"
)

func TestAdminShowsReadinessMetricsAndState(t *testing.T) {
	s := newSite(t, 2)
	s.Write()
	gw := s.StartGateway("west", "gw-1")
	status, body := gw.Get(t, "/healthz/ready")
	if status == 503 && !strings.Contains(body, "federation") {
		t.Errorf("not ready, but %q does not say what is pending", body)
	}
	s.Start()
	session := s.dial(t)
	stream, _, refused := connect(t, session, hello, nil)
	if refused != nil {
		t.Fatal(refused)
	}
	state := gw.State(t)
	if state["name"] != "gw-1" || state["network"] != "west" || state["draining"] != false || state["sessions"] != float64(1) || state["revision"] != float64(1) {
		t.Errorf("/state = %v", state)
	}
	if nodes, _ := state["nodes"].([]any); len(nodes) != 2 || nodes[0] != "west-1" || nodes[1] != "west-2" {
		t.Errorf("/state lists nodes %v; want west-1 and west-2", state["nodes"])
	}
	open := 0
	for _, row := range gw.Rows(t, "pods") {
		if row.Has("open", 1) {
			open++
		}
	}
	if open != 1 || len(gw.Rows(t, "pods")) != 2 {
		t.Errorf("/state lists pods %v; want two, one with an open connection", state["pods"])
	}
	stream.Close()
	meshtest.Eventually(t, "the stream is counted", func() bool {
		return gw.Metric(t, "isthmus_tunnels_opened_total") == 1 && gw.Metric(t, `isthmus_tunnels_closed_total{result="ended"}`) == 1
	})
	for _, row := range gw.Rows(t, "pods") {
		if !row.Has("open", 0) {
			t.Errorf("after its end the stream still counts: %v", row)
		}
	}
}

// The sum is that of the ports, also where two services share one; a filter leaves
// out what does not concern the service.
func TestStateAddsUpAndCanBeFiltered(t *testing.T) {
	s := newSite(t, 1)
	s.EachGateway = alone
	s.Service("same", 90, 8080) // the port that hello:80 leads to
	both := s.Pod("west", "west-2", "both-1", "hello", "same")
	s.pods[0].Edit(func(w *discovery.Workload) { w.State = "notReady" })
	s.Write()
	gw := s.StartGateway("west", "gw-1")
	gw.AwaitReady(t)
	both.Serve(meshtest.HBONEPort, echo)
	session := s.dial(t)
	for range 3 {
		if _, _, refused := connect(t, session, hello, nil); refused != nil {
			t.Fatal(refused)
		}
	}
	row := gw.Row(t, "pods", "workload", both.UID)
	ports, _ := row["ports"].(map[string]any)
	if port, _ := ports["8080"].(map[string]any); !row.Has("open", 3, "suspected", false, "hop", "healthy") || port["open"] != float64(3) || port["usable"] != true || len(port["services"].([]any)) != 2 {
		t.Errorf("%v; want 3 open connections, all on port 8080, which two services lead to", row)
	}
	if state := gw.State(t); state["sessions"] != float64(1) || state["streams"] != float64(3) {
		t.Errorf("%v sessions and %v streams; want 1 and 3", state["sessions"], state["streams"])
	}
	notReady := gw.Row(t, "pods", "workload", s.pods[0].UID)
	if port, _ := notReady["ports"].(map[string]any)["8080"].(map[string]any); port["usable"] != false {
		t.Errorf("a pod that is not ready is usable: %v", notReady)
	}
	for query, want := range map[string]int{"same.default.svc.cluster.local": 1, "hello.default.mesh.internal": 2} {
		status, body := gw.Get(t, "/state?service="+query)
		var state struct{ Pods []any }
		if err := json.Unmarshal([]byte(body), &state); err != nil || status != 200 || len(state.Pods) != want {
			t.Errorf("?service=%s: %d, %v, %d pods, want %d", query, status, err, len(state.Pods), want)
		}
	}
	for query, want := range map[string]int{"?service=nobody": 404, "?svc=hello": 400} {
		if status, body := gw.Get(t, "/state"+query); status != want || !strings.Contains(body, "error") {
			t.Errorf("%s: %d %s, want %d and why", query, status, body, want)
		}
	}
}

func TestStartsWithoutNodesAfterABoundedWait(t *testing.T) {
	s := newSite(t, 1) // and its node proxy does not run
	s.Write()
	gw := s.StartGateway("west", "gw-1")
	gw.AwaitReady(t)
	gw.Log.Await(t, "starting before all nodes and gateways connected", "level", "warn")
	l := gw.Log.Find("starting before all nodes and gateways connected")[0]
	if nodes, gateways := fmt.Sprint(l["missing_nodes"]), fmt.Sprint(l["missing_gateways"]); nodes != "[west-1]" || strings.Contains(gateways, "west/gw-1") {
		t.Errorf("missing are nodes %s, gateways %s; want the one node, and not this gateway", nodes, gateways)
	}
}

func TestNewNamesWhatCannotWork(t *testing.T) {
	s := newSite(t, 1)
	s.Write()
	busy, err := net.Listen("tcp4", s.GatewayAt("west", "gw-1").String())
	if err != nil {
		t.Fatal(err)
	}
	defer busy.Close()
	for _, c := range []struct {
		name string
		edit func(*gateway.Config)
		want []string
	}{
		{"not in discovery", func(c *gateway.Config) { c.Name = "gw-9" }, []string{"gw-9", "west", s.File()}},
		{"no discovery file", func(c *gateway.Config) { c.Discovery.File = "/nowhere.yaml" }, []string{"/nowhere.yaml"}},
		{"no CA", func(c *gateway.Config) { c.Identity.Dir = t.TempDir() }, []string{"identity.dir"}},
		{"address in use", func(*gateway.Config) {}, []string{"listen", s.GatewayAt("west", "gw-1").String(), "another gateway"}},
		{"admin address in use", func(c *gateway.Config) {
			c.Admin.Address = s.GatewayAt("west", "gw-1")
			c.Listen = c.Admin.Address
		}, []string{s.GatewayAt("west", "gw-1").String()}},
		{"operations address in use", func(c *gateway.Config) {
			c.Operations.Address = s.GatewayAt("west", "gw-1")
			c.Listen = netip.AddrPortFrom(s.Addr(), 15008)
		}, []string{"operations.address", s.GatewayAt("west", "gw-1").String()}},
		{"bad node account", func(c *gateway.Config) { c.NodeServiceAccount = "nodeproxy" }, []string{"nodeServiceAccount", `"nodeproxy"`, "namespace/name"}},
	} {
		t.Run(c.name, func(t *testing.T) {
			cfg := s.GatewayConfig("west", "gw-1")
			c.edit(&cfg)
			_, err := gateway.New(cfg, zerolog.Nop())
			if err == nil {
				t.Fatal("no error")
			}
			for _, want := range c.want {
				if !strings.Contains(err.Error(), want) {
					t.Errorf("error %q does not name %q", err, want)
				}
			}
		})
	}
}

// manySockets is how many connections nobody ever speaks on.
const manySockets = 10_000

func TestHalfOpenConnectionsLeaveTheGatewayServing(t *testing.T) {
	needDescriptors(t, 2*manySockets/5+4096)
	s := newSite(t, 1)
	s.EachGateway = func(c *gateway.Config) {
		alone(c)
		c.Timeouts.Handshake = 2 * time.Second
	}
	s.Write()
	gw := s.StartGateway("west", "gw-1")
	gw.AwaitReady(t)
	s.pods[0].Serve(meshtest.HBONEPort, echo)
	session := s.dial(t)
	at := s.GatewayAt("west", "gw-1").String()

	var open []net.Conn
	defer func() {
		for _, c := range open {
			c.Close()
		}
	}()
	refused := 0
	for i := range manySockets {
		c, err := net.Dial("tcp4", at)
		if err != nil {
			t.Fatalf("connection %d: %v", i, err)
		}
		open = append(open, c)
		if len(open) > manySockets/5 { // what the gateway has dropped may go here too
			for _, c := range open[:manySockets/10] {
				c.SetReadDeadline(time.Now().Add(time.Millisecond))
				if _, err := c.Read(make([]byte, 1)); err != nil && !isTimeout(err) {
					refused++
				}
				c.Close()
			}
			open = open[manySockets/10:]
		}
		if i%1000 == 500 {
			chosen(t, session, nil) // the session that was there goes on
		}
	}
	if refused == 0 {
		t.Error("the gateway keeps every connection that does not speak")
	}
	if n := gw.Metric(t, `isthmus_peers_refused_total{reason="overload"}`); n == 0 {
		t.Error("connections over the limit are not counted")
	}
	meshtest.Eventually(t, "a new session while the old sockets are still open", func() bool {
		fresh, err := s.Session(s.shop.Identity(), s.GatewayAt("west", "gw-1"), s.ID("isthmus-system/gateway-west"))
		return err == nil && chosen(t, fresh, nil) != 0
	})
}

func isTimeout(err error) bool {
	var ne net.Error
	return errors.As(err, &ne) && ne.Timeout()
}

// needDescriptors fails early, and clearly, where the test cannot run.
func needDescriptors(t *testing.T, n uint64) {
	t.Helper()
	var l syscall.Rlimit
	if err := syscall.Getrlimit(syscall.RLIMIT_NOFILE, &l); err != nil {
		t.Fatal(err)
	}
	if l.Cur >= n {
		return
	}
	l.Cur = min(n, l.Max)
	if err := syscall.Setrlimit(syscall.RLIMIT_NOFILE, &l); err != nil || l.Cur < n {
		t.Fatalf("the test needs %d file descriptors, the limit is %d (%v): raise ulimit -Hn", n, l.Max, err)
	}
}
