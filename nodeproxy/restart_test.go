package nodeproxy_test

import (
	"context"
	"testing"

	"github.com/isthmus-mesh/isthmus/drill/demoapp"
	"github.com/isthmus-mesh/isthmus/internal/meshtest"
	"github.com/isthmus-mesh/isthmus/nodeproxy"
)

// A node proxy restarts while one of its pods heals, one falls ill and one goes away.
// Nobody connects to them: what it is asked, and asks, is what tells the truth to the
// clients of another network.
func TestTheTruthIsKnownSoonAfterARestart(t *testing.T) {
	p := newPair(t, 0)
	p.Gateway("west", "gw-2")
	p.Gateway("east", "gw-1")
	var apps []*demoapp.App
	for _, name := range []string{"heals", "falls-ill", "goes", "well"} {
		pod := p.Pod("west", "west-1", name, "hello")
		p.pods, apps = append(p.pods, pod), append(apps, pod.App(8080, 8081))
	}
	p.pods = append(p.pods, p.Pod("west", "west-2", "beside", "hello"))
	p.pods[4].App(8080, 8081)
	p.Start()
	ctx := context.Background()
	out := func(i int) any { return p.pods[i].Endpoint().String() }
	for _, i := range []int{0, 2} {
		if err := apps[i].Refuse(ctx, 8080); err != nil {
			t.Fatal(err)
		}
		p.untilFirst(t, p.node(1).Log, "outlier changed", "edge", "ejected", "endpoint", p.pods[i].Endpoint(), "source", "witness")
	}
	p.client().Log.Await(t, "known", "network", "west", "port", 80, "healthy", 3, "ready", 5)

	p.node(1).Stop(t)
	if err := apps[0].Heal(ctx, 8080); err != nil {
		t.Fatal(err)
	}
	if err := apps[1].Refuse(ctx, 8080); err != nil {
		t.Fatal(err)
	}
	p.pods[2].Remove()
	p.Write()
	again := p.StartNode("west", "west-1", func(c *nodeproxy.Config) { c.Socks = nil }) // one was of the pod that is gone
	attached := again.Log.Await(t, "health stream attached", "resumed", true)
	told := p.client().Log.Await(t, "known", "network", "west", "port", 80, "healthy", 3, "ready", 4, "exceptions", []any{out(1)})
	took := told.Time().Sub(attached.Time())
	t.Logf("known at a client of the other network %v after it was attached again", took)
	if took > soon {
		t.Errorf("the truth took %v", took)
	}
	for _, gw := range []string{"gateway west/gw-1", "gateway west/gw-2"} {
		meshtest.Eventually(t, gw+" believes the same", func() bool {
			var sick []any
			for _, r := range p.Process(gw).Rows(t, "reports") {
				if f := r["fact"].(map[string]any); r["believed"] == true && f["state"] != "healthy" {
					sick = append(sick, f["endpoint"])
				}
			}
			return len(sick) == 1 && sick[0] == out(1)
		})
	}
}
