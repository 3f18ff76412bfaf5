package nodeproxy_test

import (
	"context"
	"testing"

	"github.com/isthmus-mesh/isthmus/internal/meshtest"
)

// A pod of a stateful set refuses, is deleted, and comes back under its name on its
// node, well: it is used at once, by whoever its predecessor was left out for.
func TestAPodThatComesBackUnderItsNameIsNotLeftOutForItsPredecessor(t *testing.T) {
	p := newPair(t, 2)
	p.Gateway("east", "gw-1")
	apps := p.pods[0].App(8080, 8081)
	p.pods[1].App(8080, 8081)
	p.Start()
	gw := p.Process("gateway west/gw-1")
	if err := apps.Refuse(context.Background(), 8080); err != nil {
		t.Fatal(err)
	}
	p.untilFirst(t, p.node(1).Log, "outlier changed", "edge", "ejected", "endpoint", p.pods[0].Endpoint(), "source", "witness")
	p.client().Log.Await(t, "known", "network", "west", "port", 80, "healthy", 1, "ready", 2)
	all := p.Config.Workloads
	p.pods[0].Remove()
	p.Write()
	p.client().Log.Await(t, "known", "network", "west", "port", 80, "healthy", 1, "ready", 1)
	if err := apps.Heal(context.Background(), 8080); err != nil { // its successor
		t.Fatal(err)
	}
	meshtest.Eventually(t, "its node proxy has forgotten it", func() bool { return len(p.node(1).Rows(t, "localEndpoints")) == 0 })
	p.Config.Workloads = all
	p.Write()
	meshtest.Eventually(t, "it is used", func() bool {
		name, _ := meshtest.Hello(p.listen.hello)
		return name == "hello-1"
	})
	for _, r := range gw.Rows(t, "reports") {
		if f := r["fact"].(map[string]any); f["endpoint"] == p.pods[0].Endpoint().String() && f["state"] != "healthy" {
			t.Errorf("the gateway holds against it what was said of its predecessor: %v", r)
		}
	}
}
