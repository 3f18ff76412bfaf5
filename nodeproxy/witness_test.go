package nodeproxy_test

import (
	"context"
	"io"
	"net"
	"testing"
	"time"

	"github.com/isthmus-mesh/isthmus/internal/meshtest"
	"github.com/isthmus-mesh/isthmus/nodeproxy"
)

// soon is what "at once" may take on a shared machine; the base backoff of the
// breaker, 60 s, is far from it.
const soon = 15 * time.Second

// reported is a pair with two gateways, and one on east, so that what happens
// on west is heard of on east.
func reported(t testing.TB, pods int) *pair {
	p := newPair(t, pods)
	p.Gateway("west", "gw-2")
	p.Gateway("east", "gw-1")
	return p
}

// untilFirst says hello until the log has the line.
func (p *pair) untilFirst(t testing.TB, l *meshtest.Log, message string, pairs ...any) meshtest.Line {
	t.Helper()
	meshtest.Eventually(t, message, func() bool {
		if _, err := meshtest.Hello(p.listen.hello); err != nil {
			t.Errorf("a client saw %v", err)
		}
		return len(l.Find(message, pairs...)) > 0
	})
	return l.Find(message, pairs...)[0]
}

func TestOneRefusedConnectionEjectsOnePortEverywhere(t *testing.T) {
	p := reported(t, 2)
	p.EachNode = func(c *nodeproxy.Config) { c.OutlierDetection.Listeners = false } // or nobody is refused
	sick := p.pods[0].App(8080, 8081)
	p.pods[1].App(8080, 8081)
	p.Start()
	id := p.pods[0].Endpoint()
	if err := sick.Refuse(context.Background(), 8080); err != nil {
		t.Fatal(err)
	}
	first := p.untilFirst(t, p.node(1).Log, "connection", "direction", "inbound", "endpoint", id, "target", 8080, "result", "refused")

	edge := []any{"edge", "ejected", "scope", "endpoint", "endpoint", id, "port", 8080, "workload", p.pods[0].UID}
	witnessed := p.node(1).Log.Await(t, "outlier changed", append(edge, "source", "witness", "reason", "refused")...)
	if took := witnessed.Time().Sub(first.Time()); took > soon {
		t.Errorf("ejected %v after the first refusal; the probe is due at once", took)
	}
	for _, gw := range []string{"gateway west/gw-1", "gateway west/gw-2"} {
		line := p.Process(gw).Log.Await(t, "outlier changed", append(edge, "source", "report")...)
		if took := line.Time().Sub(first.Time()); took > soon {
			t.Errorf("%s leaves it out %v after the first refusal", gw, took)
		}
		row := p.Process(gw).Row(t, "pods", "workload", p.pods[0].UID)
		if ports, _ := row["ports"].(map[string]any); ports["8080"].(map[string]any)["witness"] != "ejected" || ports["8081"].(map[string]any)["witness"] == "ejected" || row.Text("hop") != "healthy" {
			t.Errorf("%s believes %v; want port 8080 ejected and nothing else", gw, row)
		}
	}
	p.client().Log.Await(t, "known", "network", "west", "port", 80, "healthy", 1, "ready", 2, "exceptions", []any{id.String()})

	for i := range 30 {
		if got, err := meshtest.Hello(p.listen.hello); err != nil || got != "hello-2" {
			t.Fatalf("connection %d to port 80: %q, %v; want hello-2", i, got, err)
		}
	}
	if n := len(p.node(1).Log.Find("connection", "direction", "inbound", "endpoint", id, "target", 8080, "result", "refused")); n != 1 {
		t.Errorf("%d users' connections met the refusing port; want the first alone", n)
	}
	answered := map[string]int{}
	for range 30 {
		got, err := meshtest.Hello(p.listen.other)
		if err != nil {
			t.Fatal(err)
		}
		answered[got]++
	}
	if answered["hello-1"] < 8 || answered["hello-2"] < 8 {
		t.Errorf("the other port of both pods answered %v of 30; want about half each", answered)
	}
	for _, proc := range []*meshtest.Process{p.client(), p.node(1), p.node(2)} {
		for _, l := range proc.Log.Find("outlier changed") {
			if !l.Has("endpoint", id, "port", 8080) {
				t.Errorf("%s: collateral damage: %v", proc.Name, l)
			}
		}
	}

	healed := time.Now()
	if err := sick.Heal(context.Background(), 8080); err != nil {
		t.Fatal(err)
	}
	for _, proc := range []*meshtest.Process{p.node(1), p.Process("gateway west/gw-1"), p.Process("gateway west/gw-2")} {
		line := proc.Log.Await(t, "outlier changed", "edge", "readmitted", "scope", "endpoint", "endpoint", id, "port", 8080)
		if took := line.Time().Sub(healed); took > soon {
			t.Errorf("%s readmits %v after the heal", proc.Name, took)
		}
	}
	meshtest.Eventually(t, "the healed pod answers again", func() bool {
		got, err := meshtest.Hello(p.listen.hello)
		if err != nil {
			t.Errorf("after the heal: %v", err)
		}
		return got == "hello-1"
	})
	p.client().Log.Await(t, "known", "network", "west", "port", 80, "healthy", 2, "ready", 2, "exceptions", []any{})
}

func TestAnApplicationThatHangsIsEjectedAndItsUsersAreMoved(t *testing.T) {
	p := reported(t, 2)
	p.EachNode = func(c *nodeproxy.Config) { c.Timeouts.App = 300 * time.Millisecond }
	sick := p.pods[0].App(8080)
	p.pods[1].App(8080)
	p.Start()
	if err := sick.Hang(context.Background(), 8080); err != nil {
		t.Fatal(err)
	}
	p.untilFirst(t, p.node(1).Log, "outlier changed", "edge", "ejected", "endpoint", p.pods[0].Endpoint(), "port", 8080, "reason", "timeout", "source", "witness")
	p.Process("gateway west/gw-1").Log.Await(t, "outlier changed", "edge", "ejected", "endpoint", p.pods[0].Endpoint())
	p.Process("gateway west/gw-2").Log.Await(t, "outlier changed", "edge", "ejected", "endpoint", p.pods[0].Endpoint())
	for range 10 {
		if got, err := meshtest.Hello(p.listen.hello); err != nil || got != "hello-2" {
			t.Fatalf("%q, %v; want hello-2", got, err)
		}
	}
	if err := sick.Heal(context.Background(), 8080); err != nil {
		t.Fatal(err)
	}
	p.node(1).Log.Await(t, "outlier changed", "edge", "readmitted", "endpoint", p.pods[0].Endpoint())
}

func TestAnApplicationThatAcceptsAndSaysNothingIsNotJudged(t *testing.T) {
	p := reported(t, 1)
	accepted := make(chan struct{}, 16)
	p.pods[0].Serve(8080, func(c *net.TCPConn) {
		accepted <- struct{}{}
		io.Copy(io.Discard, c)
	})
	p.Start()
	for range 5 {
		c, err := meshtest.Dial(p.listen.hello)
		if err != nil {
			t.Fatal(err)
		}
		io.WriteString(c, "hello?\n")
		<-accepted
		c.SetReadDeadline(time.Now().Add(50 * time.Millisecond))
		if _, err := c.Read(make([]byte, 1)); err == nil {
			t.Error("the silent application spoke")
		}
		c.SetLinger(0) // the user gives up
		c.Close()
	}
	meshtest.Eventually(t, "5 connections in the client's log", func() bool {
		return len(p.client().Log.Find("connection", "direction", "outbound")) == 5
	})
	for _, name := range []string{"node proxy east-1", "node proxy west-1", "gateway west/gw-1", "gateway west/gw-2"} {
		if l := p.Process(name).Log.Find("outlier changed"); len(l) > 0 {
			t.Errorf("%s judged it: %v", name, l[0])
		}
	}
}

func TestAPodOfTheOwnNetworkIsEjectedAndReadmittedToo(t *testing.T) {
	m := meshtest.New(t)
	m.Networks("east")
	m.Service("hello", 80, 8080)
	m.Gateway("east", "gw-1")
	shop := m.Pod("east", "east-1", "shop-1")
	first, second := m.Pod("east", "east-2", "hello-1", "hello"), m.Pod("east", "east-3", "hello-2", "hello")
	at := shop.Outbound(hello)
	sick := first.App(8080)
	second.App(8080)
	m.Start()
	if err := sick.Refuse(context.Background(), 8080); err != nil {
		t.Fatal(err)
	}
	meshtest.Eventually(t, "ejected by its witness", func() bool {
		if _, err := meshtest.Hello(at); err != nil {
			t.Errorf("a client saw %v", err)
		}
		return len(m.Process("node proxy east-2").Log.Find("outlier changed", "edge", "ejected", "endpoint", first.Endpoint())) > 0
	})
	m.Process("node proxy east-1").Log.Await(t, "known", "network", "east", "port", 80, "healthy", 1)
	if err := sick.Heal(context.Background(), 8080); err != nil {
		t.Fatal(err)
	}
	meshtest.Eventually(t, "the healed pod answers again", func() bool {
		got, err := meshtest.Hello(at)
		if err != nil {
			t.Errorf("after the heal: %v", err)
		}
		return got == "hello-1"
	})
}
