package nodeproxy_test

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"strings"
	"sync"
	"syscall"
	"testing"

	"github.com/isthmus-mesh/isthmus/gateway"
	"github.com/isthmus-mesh/isthmus/internal/meshtest"
	"github.com/isthmus-mesh/isthmus/nodeproxy"
)

// blind turns every judgement off, so that a test sees retry alone.
func blind(m *meshtest.Mesh) {
	m.EachNode = blindNode
	m.EachGateway = func(c *gateway.Config) {
		c.OutlierDetection.Scope = gateway.ScopeNone
		c.Federation.Health = false
	}
}

func blindNode(c *nodeproxy.Config) {
	c.OutlierDetection.Scope = nodeproxy.ScopeNone
	c.Federation.Health = false
}

func TestRefusedPortIsRetriedElsewhereUnseen(t *testing.T) {
	p := newPair(t, 2)
	blind(p.Mesh)
	sick := p.pods[0].App(8080)
	p.pods[1].App(8080)
	p.Start()
	if err := sick.Refuse(context.Background(), 8080); err != nil {
		t.Fatal(err)
	}
	for i := range 20 {
		if got, err := meshtest.Hello(p.listen.hello); err != nil || got != "hello-2" {
			t.Fatalf("connection %d: answered by %q, %v; want hello-2", i, got, err)
		}
	}
	line := p.client().Log.Await(t, "attempt failed", "reason", "refused", "network", "west", "endpoint", p.pods[0].Endpoint())
	if !line.Has("service", "hello.default.svc.cluster.local", "port", 80) {
		t.Errorf("the log of the failed attempt %v does not name service and port", line)
	}
	if n := p.client().Metric(t, `isthmus_connect_retries_total{reason="refused"}`); n < 1 {
		t.Errorf("retries counted: %v, want some", n)
	}
}

func TestRefusedPortIsRetriedElsewhereOnTheOwnNetwork(t *testing.T) {
	m := meshtest.New(t)
	m.Networks("east")
	m.Service("hello", 80, 8080)
	shop := m.Pod("east", "east-1", "shop-1")
	sick, well := m.Pod("east", "east-1", "hello-1", "hello"), m.Pod("east", "east-2", "hello-2", "hello")
	at := shop.Outbound(hello)
	well.App(8080)
	blind(m)
	m.Start()
	for i := range 20 {
		if got, err := meshtest.Hello(at); err != nil || got != "hello-2" {
			t.Fatalf("connection %d: answered by %q, %v; want hello-2", i, got, err)
		}
	}
	m.Process("node proxy east-1").Log.Await(t, "attempt failed", "reason", "refused", "endpoint", sick.Endpoint())
}

func TestWithoutRetryARefusalIsAReset(t *testing.T) {
	p := newPair(t, 1)
	p.EachNode = func(c *nodeproxy.Config) { c.Retry.Attempts = 0 }
	p.Start()
	if _, err := meshtest.Hello(p.listen.hello); !errors.Is(err, syscall.ECONNRESET) {
		t.Errorf("got %v; want ECONNRESET", err)
	}
	p.client().Log.Await(t, "connection", "direction", "outbound", "result", "refused", "attempts", 1, "endpoint", p.pods[0].Endpoint())
}

func TestRetriesEndWithTheirNumber(t *testing.T) {
	p := newPair(t, 2)
	p.EachNode = func(c *nodeproxy.Config) { c.Retry.Attempts = 3 }
	p.Start()
	if _, err := meshtest.Hello(p.listen.hello); !errors.Is(err, syscall.ECONNRESET) {
		t.Errorf("got %v; want ECONNRESET", err)
	}
	p.client().Log.Await(t, "connection", "direction", "outbound", "result", "refused", "attempts", 4)
}

func TestRetriesEndWithTheBudgetOfTheService(t *testing.T) {
	p := newPair(t, 1)
	blind(p.Mesh)
	p.EachNode = func(c *nodeproxy.Config) {
		blindNode(c)
		c.Retry.BudgetBurst, c.Retry.BudgetRatio = 4, 0
	}
	p.pods[0].App(8081)
	p.Start()
	attempts := 0
	for range 5 {
		meshtest.Hello(p.listen.hello)
	}
	lines := func() []meshtest.Line {
		return p.client().Log.Find("connection", "direction", "outbound", "result", "refused")
	}
	meshtest.Eventually(t, "5 failed connections in the log", func() bool { return len(lines()) == 5 })
	for _, l := range lines() {
		var n int
		fmt.Sscan(l.Text("attempts"), &n)
		attempts += n
	}
	if attempts != 5+4 {
		t.Errorf("5 connections made %d attempts; want 5 and the 4 repeats of the budget", attempts)
	}
	if n := p.client().Metric(t, "isthmus_retry_budget_exhausted_total"); n != 5 {
		t.Errorf("isthmus_retry_budget_exhausted_total %v; want 5", n)
	}
	if got, err := meshtest.Hello(p.listen.other); err != nil || got != "hello-1" {
		t.Errorf("other port of the service: %q, %v; want hello-1", got, err)
	}
}

// ledger counts the requests that applications have been given.
type ledger struct {
	mu   sync.Mutex
	seen map[string]int
}

// take reads one line and counts it.
func (l *ledger) take(c *net.TCPConn) string {
	line, err := bufio.NewReader(c).ReadString('\n')
	if err != nil {
		return ""
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.seen == nil {
		l.seen = map[string]int{}
	}
	l.seen[strings.TrimSpace(line)]++
	return line
}

func (l *ledger) count(request string) int {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.seen[request]
}

func TestARequestArrivesExactlyOnceThroughRetries(t *testing.T) {
	p := newPair(t, 3)
	blind(p.Mesh)
	var got ledger
	p.pods[2].Serve(8080, func(c *net.TCPConn) { io.WriteString(c, got.take(c)) })
	p.Start()
	for i := range 30 {
		c, err := meshtest.Dial(p.listen.hello)
		if err != nil {
			t.Fatal(err)
		}
		request := fmt.Sprintf("request %d", i)
		fmt.Fprintln(c, request) // while the tunnel is still being tried for
		answer, err := io.ReadAll(c)
		c.Close()
		if err != nil || string(answer) != request+"\n" {
			t.Fatalf("%s: answer %q, %v", request, answer, err)
		}
		if n := got.count(request); n != 1 {
			t.Fatalf("%s arrived %d times; want once", request, n)
		}
	}
	p.client().Log.Await(t, "attempt failed", "reason", "refused")
}

func TestWhatAnApplicationHasReadIsNeverRepeated(t *testing.T) {
	p := newPair(t, 2)
	var got ledger
	for _, pod := range p.pods {
		pod.Serve(8080, func(c *net.TCPConn) {
			got.take(c)
			c.SetLinger(0)
		})
	}
	p.Start()
	for i := range 6 {
		request := fmt.Sprintf("request %d", i)
		c, err := meshtest.Dial(p.listen.hello)
		if err != nil {
			t.Fatal(err)
		}
		fmt.Fprintln(c, request)
		_, err = io.ReadAll(c)
		c.Close()
		if !errors.Is(err, syscall.ECONNRESET) {
			t.Errorf("%s: %v; want the application's reset", request, err)
		}
		if n := got.count(request); n != 1 {
			t.Errorf("%s arrived %d times; want once", request, n)
		}
	}
}

func TestARepeatGoesByTheNewestSnapshot(t *testing.T) {
	m := meshtest.New(t)
	m.Networks("east")
	m.Service("hello", 80, 8080)
	shop := m.Pod("east", "east-1", "shop-1")
	m.Pod("east", "east-2", "hello-1", "hello") // nothing listens there
	at := shop.Outbound(hello)
	m.EachNode = func(c *nodeproxy.Config) { c.Retry.Attempts = 100 }
	m.Start()
	answer := make(chan string, 1)
	go func() {
		got, err := meshtest.Hello(at)
		answer <- fmt.Sprint(got, err)
	}()
	m.Process("node proxy east-1").Log.Await(t, "attempt failed", "reason", "refused", "attempt", 3)
	well := m.Pod("east", "east-2", "hello-2", "hello")
	well.App(8080)
	m.Write()
	if got := <-answer; got != "hello-2<nil>" {
		t.Errorf("the connection that was waiting got %q; want hello-2, which discovery has learnt meanwhile", got)
	}
}
