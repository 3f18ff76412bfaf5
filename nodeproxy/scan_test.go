package nodeproxy_test

import (
	"context"
	"fmt"
	"testing"

	"github.com/isthmus-mesh/isthmus/internal/meshtest"
)

// Whoever may connect to a pod may ask it for any port. That must not leave
// anything behind, at the client, beside the pod, or at a gateway.
func TestClosedPortsThatAreAskedForLeaveNothingBehind(t *testing.T) {
	m := meshtest.New(t)
	m.Networks("east")
	m.Service("hello", 80, 8080)
	m.Gateway("east", "gw-1")
	scanner, victim := m.Pod("east", "east-1", "shop-1"), m.Pod("east", "east-2", "hello-1", "hello")
	victim.App(8080)
	m.Start()
	for port := range 20 {
		if c, err := scanner.Connect(fmt.Sprintf("%s:%d", victim.Addr, 30000+port)); err == nil {
			c.Close()
			t.Fatalf("port %d is open", 30000+port)
		}
	}
	for _, name := range []string{"node proxy east-1", "node proxy east-2", "gateway east/gw-1"} {
		p := m.Process(name)
		if l := p.Log.Find("outlier changed"); len(l) > 0 {
			t.Errorf("%s: somebody's health moved: %v", name, l[0])
		}
		if n := p.Metric(t, "isthmus_probes"); n != 0 {
			t.Errorf("%s: %v series of probes", name, n)
		}
	}
	for _, r := range m.Process("gateway east/gw-1").Rows(t, "reports") {
		t.Errorf("the gateway was told %v", r)
	}
	if c, err := scanner.Connect(fmt.Sprintf("%s:8080", victim.Addr)); err != nil {
		t.Errorf("the declared port: %v", err)
	} else {
		c.Close()
	}
}

func TestNobodyAsksAPodThatIsGone(t *testing.T) {
	p := reported(t, 2)
	sick := p.pods[0].App(8080, 8081)
	p.pods[1].App(8080, 8081)
	p.Start()
	if err := sick.Refuse(context.Background(), 8080); err != nil {
		t.Fatal(err)
	}
	p.untilFirst(t, p.node(1).Log, "outlier changed", "edge", "ejected", "endpoint", p.pods[0].Endpoint())
	if n := p.node(1).Metric(t, "isthmus_probes"); n != 1 {
		t.Errorf("%v series of probes at the node of the sick pod; want 1", n)
	}
	p.pods[0].Remove()
	p.Write()
	for _, name := range []string{"node proxy west-1", "gateway west/gw-1", "gateway west/gw-2"} {
		meshtest.Eventually(t, name+" probes nobody", func() bool { return p.Process(name).Metric(t, "isthmus_probes") == 0 })
	}
}
