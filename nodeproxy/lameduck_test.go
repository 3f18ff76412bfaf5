package nodeproxy_test

import (
	"strings"
	"testing"
	"time"

	"github.com/isthmus-mesh/isthmus/gateway"
	"github.com/isthmus-mesh/isthmus/internal/meshtest"
)

// The only gateway of a network was told to stop. Until it drains there is nobody else to
// go to: it is ready, and new connections are made through it as before, on the sessions
// that there are and on new ones. That it leaves is known meanwhile.
func TestAGatewayServesOnBeforeItDrains(t *testing.T) {
	p := newPair(t, 1)
	p.Gateway("east", "gw-1") // from which the client hears of west
	const lameDuck = 4 * time.Second
	p.EachGateway = func(c *gateway.Config) { c.Timeouts.LameDuck = lameDuck }
	p.pods[0].App(8080)
	p.Start()
	gw := p.Process("gateway west/gw-1")
	flow := meshtest.Flow(t, p.listen.hello, 3)
	flow.AwaitMore(t, 20)
	told := time.Now()
	gw.Cancel()
	gw.Log.Await(t, "told to stop, serving on")
	meshtest.Eventually(t, "the client's node proxy knows that it leaves", func() bool {
		_, state := p.client().Get(t, "/state")
		return strings.Contains(state, `"draining": true`) // followedServices[].networks[].instances[]
	})
	flow.AwaitMore(t, 20)
	session, err := p.Session(p.shop.Identity(), p.GatewayAt("west", "gw-1"), p.ID("isthmus-system/gateway-west"))
	if err != nil {
		t.Errorf("a new session: %v", err)
	} else {
		session.Close(nil)
	}
	status, _ := gw.Get(t, "/healthz/ready")
	state := gw.State(t)
	if _, failed := flow.Stop(); len(failed) > 0 {
		t.Errorf("%d connections failed, the first: %v", len(failed), failed[0])
	}
	if len(gw.Log.Find("draining")) > 0 {
		t.Skipf("the machine is too busy: %v were over before all was asked", lameDuck)
	}
	if status != 200 || state["lameDuck"] != true || state["draining"] != false {
		t.Errorf("ready: %d, lame duck: %v, draining: %v; want 200, true, false", status, state["lameDuck"], state["draining"])
	}
	<-gw.Ended()
	if took := time.Since(told); took < lameDuck || len(gw.Log.Find("draining")) != 1 {
		t.Errorf("stopped after %v; want no less than %v, and then a drain", took, lameDuck)
	}
}

// One gateway after the other is replaced, under traffic.
func TestARollingRestartOfGatewaysFailsNothing(t *testing.T) {
	p := newPair(t, 2)
	p.Gateway("west", "gw-2")
	p.EachGateway = func(c *gateway.Config) { c.Timeouts.LameDuck = 500 * time.Millisecond }
	for _, pod := range p.pods {
		pod.App(8080)
	}
	p.Start()
	flow := meshtest.Flow(t, p.listen.hello, 6)
	flow.AwaitMore(t, 60)
	for _, name := range []string{"gw-1", "gw-2"} {
		p.Process("gateway west/" + name).Stop(t)
		flow.AwaitMore(t, 60)
		p.StartGateway("west", name).AwaitReady(t)
		flow.AwaitMore(t, 60)
	}
	if _, failed := flow.Stop(); len(failed) > 0 {
		t.Errorf("%d connections failed, the first: %v", len(failed), failed[0])
	}
}
