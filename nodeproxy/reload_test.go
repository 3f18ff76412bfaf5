package nodeproxy_test

import (
	"fmt"
	"os"
	"testing"
	"time"

	"github.com/isthmus-mesh/isthmus/discovery"
	"github.com/isthmus-mesh/isthmus/internal/meshtest"
)

// known waits until every process has taken in the discovery file as it is now.
func known(t *testing.T, m *meshtest.Mesh, processes ...*meshtest.Process) {
	t.Helper()
	before := make([]int, len(processes))
	for i, p := range processes {
		before[i] = len(p.Log.Find("discovery changed"))
	}
	m.Write()
	for i, p := range processes {
		meshtest.Eventually(t, p.Name+" takes in the new discovery file", func() bool { return len(p.Log.Find("discovery changed")) > before[i] })
	}
}

func (p *pair) all() []*meshtest.Process {
	out := []*meshtest.Process{p.client(), p.Process("gateway west/gw-1")}
	for i := range p.pods {
		if n := p.node(i + 1); n != nil {
			out = append(out, n)
		}
	}
	return out
}

// awaitNone waits until no more connections go to a pod, by the word of its gateways.
func awaitNone(t *testing.T, flow *meshtest.Traffic, pod string) {
	t.Helper()
	meshtest.Eventually(t, "no more connections go to "+pod, func() bool {
		flow.AwaitMore(t, 8) // what had chosen it before has ended
		before := flow.Answered(pod)
		flow.AwaitMore(t, 60)
		return flow.Answered(pod) == before
	})
}

func TestPodsComeAndGoUnderTrafficWithoutAFailure(t *testing.T) {
	p := newPair(t, 2)
	p.Gateway("east", "gw-1") // which passes on what west says of its pods
	p.pods[0].App(8080)
	leaving := p.pods[1].App(8080)
	p.Start()
	begun, flow := time.Now(), meshtest.Flow(t, p.listen.hello, 4)
	stage := func(what string) {
		t.Logf("%v: %s, %d exchanges, the slowest %v", time.Since(begun).Round(time.Millisecond), what, flow.Count(), flow.Slowest())
	}
	flow.AwaitMore(t, 40)

	stage("running")
	added := p.Pod("west", "west-1", "hello-3", "hello")
	added.App(8080)
	known(t, p.Mesh, p.all()...)
	stage("a pod more is known")
	meshtest.Eventually(t, "the new pod answers", func() bool { return flow.Answered("hello-3") > 0 })
	stage("it answers")

	p.pods[1].Edit(func(w *discovery.Workload) { w.State = "terminating" })
	known(t, p.Mesh, p.all()...)
	awaitNone(t, flow, "hello-2") // the gateways say so
	leaving.Close()
	stage("one terminates")

	p.pods[1].Remove()
	known(t, p.Mesh, p.all()...)
	flow.AwaitMore(t, 40)
	stage("it is gone")
	added.Edit(func(w *discovery.Workload) { no := false; w.Ready = &no })
	known(t, p.Mesh, p.all()...)
	awaitNone(t, flow, "hello-3")
	if _, failed := flow.Stop(); len(failed) > 0 {
		t.Errorf("%d connections failed, the first: %v", len(failed), failed[0])
	}
}

func TestPodsOfTheOwnNetworkComeAndGoUnderTrafficWithoutAFailure(t *testing.T) {
	m := meshtest.New(t)
	m.Networks("east")
	m.Service("hello", 80, 8080)
	shop := m.Pod("east", "east-1", "shop-1")
	stays, leaves := m.Pod("east", "east-2", "hello-1", "hello"), m.Pod("east", "east-2", "hello-2", "hello")
	at := shop.Outbound(hello)
	stays.App(8080)
	leaving := leaves.App(8080)
	m.Start()
	flow := meshtest.Flow(t, at, 4)
	meshtest.Eventually(t, "both answer", func() bool { return flow.Answered("hello-1") > 5 && flow.Answered("hello-2") > 5 })
	leaves.Edit(func(w *discovery.Workload) { w.State = "terminating" })
	known(t, m, m.Process("node proxy east-1"), m.Process("node proxy east-2"))
	flow.AwaitMore(t, 8)
	gone := flow.Answered("hello-2")
	flow.AwaitMore(t, 40)
	if n := flow.Answered("hello-2"); n != gone {
		t.Errorf("the terminating pod got %d new connections", n-gone)
	}
	leaving.Close()
	leaves.Remove()
	known(t, m, m.Process("node proxy east-1"), m.Process("node proxy east-2"))
	flow.AwaitMore(t, 40)
	if _, failed := flow.Stop(); len(failed) > 0 {
		t.Errorf("%d connections failed, the first: %v", len(failed), failed[0])
	}
}

func TestAnAddressThatAnotherPodTookOverGetsANewSession(t *testing.T) {
	m := meshtest.New(t)
	m.Networks("east")
	m.Service("hello", 80, 8080)
	shop := m.Pod("east", "east-1", "shop-1")
	pod := m.Pod("east", "east-2", "hello-1", "hello")
	at := shop.Outbound(hello)
	old := pod.App(8080)
	m.Start()
	if got, err := meshtest.Hello(at); err != nil || got != "hello-1" {
		t.Fatalf("%q, %v; want hello-1", got, err)
	}
	held, err := meshtest.Dial(at) // a connection that outlives its pod's place in discovery
	if err != nil {
		t.Fatal(err)
	}
	defer held.Close()
	if got, err := meshtest.Ask(held, "1"); err != nil || got != "hello-1" {
		t.Fatalf("%q, %v; want hello-1", got, err)
	}

	heir := *pod // the same address, service account and node
	heir.Name, heir.UID = "hello-2", "east/default/hello-2"
	pod.Edit(func(w *discovery.Workload) { w.UID, w.Name = heir.UID, heir.Name })
	node := m.Process("node proxy east-2")
	known(t, m, m.Process("node proxy east-1"), node)
	if got, err := meshtest.Ask(held, "2"); err != nil || got != "hello-1" {
		t.Errorf("the connection of before: %q, %v; want it to go on", got, err)
	}
	old.Close()
	heir.App(8080)
	meshtest.Eventually(t, "the heir answers", func() bool {
		got, err := meshtest.Hello(at)
		return err == nil && got == "hello-2"
	})
	node.Log.Await(t, "connection", "direction", "inbound", "workload", heir.UID, "endpoint", heir.Endpoint(), "result", "ok")
	if l := node.Log.Find("cannot serve a new local workload"); len(l) > 0 {
		t.Errorf("the node proxy could not take over the address: %v", l[0])
	}
}

func TestABadDiscoveryFileChangesNothing(t *testing.T) {
	p := newPair(t, 1)
	p.pods[0].App(8080)
	p.Start()
	revision := p.client().State(t)["revision"]
	good, err := os.ReadFile(p.File())
	if err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(p.File(), fmt.Appendf(good, "netwroks: []\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	for _, proc := range p.all() {
		proc.Log.Await(t, "discovery file refused, keeping the last good state", "level", "error")
	}
	if got := p.client().State(t)["revision"]; got != revision {
		t.Errorf("revision %v; want still %v", got, revision)
	}
	if got, err := meshtest.Hello(p.listen.hello); err != nil || got != "hello-1" {
		t.Errorf("%q, %v; want hello-1", got, err)
	}
}

func TestAGatewayThatDiscoveryDrainsGetsNothingNew(t *testing.T) {
	p := newPair(t, 2) // each by one gateway
	p.Gateway("west", "gw-2")
	for _, pod := range p.pods {
		pod.App(8080)
	}
	p.Start()
	flow := meshtest.Flow(t, p.listen.hello, 4)
	opened := func() float64 { return p.Process("gateway west/gw-1").Metric(t, "isthmus_tunnels_opened_total") }
	meshtest.Eventually(t, "gw-1 is used", func() bool { return opened() > 0 })
	p.Config.Gateways[0].Drained = true
	known(t, p.Mesh, p.client())
	flow.AwaitMore(t, 8)
	before := opened()
	flow.AwaitMore(t, 60)
	if after := opened(); after != before {
		t.Errorf("the drained gateway got %v new streams", after-before)
	}
	if _, failed := flow.Stop(); len(failed) > 0 {
		t.Errorf("%d connections failed, the first: %v", len(failed), failed[0])
	}
}
