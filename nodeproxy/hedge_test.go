package nodeproxy_test

import (
	"context"
	"testing"
	"time"

	"github.com/isthmus-mesh/isthmus/health"
	"github.com/isthmus-mesh/isthmus/internal/meshtest"
	"github.com/isthmus-mesh/isthmus/nodeproxy"
)

// hung is a pair of which the application of the first pod accepts nobody, and nobody but
// the clients finds out.
func hung(t *testing.T, pods int, with func(*nodeproxy.Config)) *pair {
	t.Helper()
	p := newPair(t, pods)
	p.EachNode = func(c *nodeproxy.Config) {
		c.OutlierDetection.Mode = health.ModeOff
		c.OutlierDetection.Listeners = false
		c.Federation.Health = false
		with(c)
	}
	sick := p.pods[0].App(8080)
	for _, pod := range p.pods[1:] {
		pod.App(8080)
	}
	p.Start()
	warm(t, p)
	if err := sick.Hang(context.Background(), 8080); err != nil {
		t.Fatal(err)
	}
	return p
}

// slowest says hello n times and returns how long the longest took.
func (p *pair) slowest(t *testing.T, n int) (longest time.Duration) {
	t.Helper()
	for i := range n {
		began := time.Now()
		if got, err := meshtest.Hello(p.listen.hello); err != nil || got == "hello-1" {
			t.Fatalf("connection %d: %q, %v", i, got, err)
		}
		longest = max(longest, time.Since(began))
	}
	return longest
}

func TestACallLeavesAnApplicationThatTakesLongToAccept(t *testing.T) {
	p := hung(t, 2, func(*nodeproxy.Config) {})
	longest := p.slowest(t, 12)
	t.Logf("the longest took %v", longest)
	if longest < 100*time.Millisecond {
		t.Errorf("the longest took %v; want more than 100 ms: one has waited for the pod that does not accept", longest)
	}
	id := p.pods[0].Endpoint()
	line := p.client().Log.Await(t, "connection", "direction", "outbound", "hedges", 1)
	if !line.Has("attempts", 2, "result", "ok") || line.Text("endpoint") == id.String() {
		t.Errorf("its line is %v; want two attempts, and the other pod", line)
	}
	p.node(1).Log.Await(t, "connection", "direction", "inbound", "endpoint", id, "result", "withdrawn")
	left, told := p.client().Metric(t, `isthmus_hedges_total{result="withdrawn"}`), p.node(1).Metric(t, `isthmus_slow_connects_total{told="yes"}`)
	if left == 0 || told < left {
		t.Errorf("%v attempts were withdrawn, and %v clients told", left, told)
	}
	if n := p.client().Metric(t, "isthmus_indeterminate_connects_total"); n != 0 {
		t.Errorf("%v connections were indeterminate", n)
	}
}

// Who does not hedge, or has nowhere to go, or has spent its budget, waits as before.
func TestACallThatMayNotLeaveWaits(t *testing.T) {
	for name, c := range map[string]struct {
		with   func(*nodeproxy.Config)
		pods   int
		result string // of isthmus_hedges_total; empty: it is not asked
	}{
		"it does not hedge":       {func(c *nodeproxy.Config) { c.Retry.Hedge = false }, 2, ""},
		"the budget is too small": {func(c *nodeproxy.Config) { c.Retry.BudgetBurst, c.Retry.BudgetRatio = 4, 0 }, 2, "budget"},
		"nobody is elsewhere":     {func(c *nodeproxy.Config) { c.Retry.Attempts = 1 }, 1, "nobody"},
	} {
		t.Run(name, func(t *testing.T) {
			p := hung(t, c.pods, func(n *nodeproxy.Config) {
				n.Timeouts.App = 300 * time.Millisecond
				c.with(n)
			})
			if c.result != "" { // nor can it repeat
				for range 4 {
					if got, err := meshtest.Hello(p.listen.hello); err == nil && got == "hello-1" {
						t.Error("answered")
					}
				}
			} else if longest := p.slowest(t, 12); longest < 300*time.Millisecond {
				t.Errorf("the longest took %v; want the time limit of its first attempt", longest)
			}
			if n := p.client().Metric(t, `isthmus_hedges_total{result="withdrawn"}`); n != 0 {
				t.Errorf("%v were withdrawn", n)
			}
			if c.result != "" && p.client().Metric(t, `isthmus_hedges_total{result="`+c.result+`"}`) == 0 {
				t.Errorf("none is counted as %s", c.result)
			}
			told := `isthmus_slow_connects_total{told="yes"}`
			if c.result == "" {
				told = `isthmus_slow_connects_total{told="no"}`
			}
			if p.node(1).Metric(t, told) == 0 {
				t.Errorf("%s is 0", told)
			}
		})
	}
}

// A withdrawn connect is no outcome: without the witness's own questions, an application that
// hangs would never be found where its sockets are not seen.
func TestAnApplicationThatClientsLeaveIsEjected(t *testing.T) {
	p := reported(t, 2)
	p.EachNode = func(c *nodeproxy.Config) {
		c.OutlierDetection.Listeners = false
		c.Timeouts.App = 300 * time.Millisecond
	}
	sick := p.pods[0].App(8080)
	p.pods[1].App(8080)
	p.Start()
	warm(t, p)
	if err := sick.Hang(context.Background(), 8080); err != nil {
		t.Fatal(err)
	}
	id := p.pods[0].Endpoint()
	p.untilFirst(t, p.node(1).Log, "outlier changed", "edge", "ejected", "endpoint", id, "port", 8080, "reason", "timeout", "source", "witness")
	if p.client().Metric(t, `isthmus_hedges_total{result="withdrawn"}`) == 0 {
		t.Error("none was withdrawn")
	}
}

func TestACallLeavesASlowPodOfItsOwnNetwork(t *testing.T) {
	m := meshtest.New(t)
	m.Networks("east")
	m.Service("hello", 80, 8080)
	shop := m.Pod("east", "east-1", "shop-1")
	first, second := m.Pod("east", "east-2", "hello-1", "hello"), m.Pod("east", "east-3", "hello-2", "hello")
	at := shop.Outbound(hello)
	sick := first.App(8080)
	second.App(8080)
	m.EachNode = func(c *nodeproxy.Config) {
		c.OutlierDetection.Mode = health.ModeOff
		c.OutlierDetection.Listeners = false
	}
	m.Start()
	if err := sick.Hang(context.Background(), 8080); err != nil {
		t.Fatal(err)
	}
	for i := range 8 {
		began := time.Now()
		if got, err := meshtest.Hello(at); err != nil || got != "hello-2" || time.Since(began) > time.Second {
			t.Fatalf("connection %d: %q, %v after %v", i, got, err, time.Since(began))
		}
	}
	m.Process("node proxy east-1").Log.Await(t, "connection", "direction", "outbound", "hedges", 1, "workload", second.UID)
}
