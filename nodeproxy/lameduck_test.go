package nodeproxy_test

import (
	"strings"
	"testing"
	"time"

	"github.com/isthmus-mesh/isthmus/gateway"
	"github.com/isthmus-mesh/isthmus/internal/meshtest"
)

// servingOn asks something of a gateway while it serves on: with twice the time when it was
// over before all was asked, as on a machine that is busy.
func servingOn(t *testing.T, ask func(t *testing.T, lameDuck time.Duration) (overBefore bool)) {
	for d, again := 4*time.Second, true; again; d *= 2 {
		if d > time.Minute {
			t.Fatalf("a lame duck time of %v is over before all is asked", d/2)
		}
		t.Run(d.String(), func(t *testing.T) {
			again = false // also where it fails at once
			again = ask(t, d) && !t.Failed()
		})
	}
}

// drainsAfter waits for the end of a gateway that was told to stop, and fails the test when
// it has not served on as long as it should.
func drainsAfter(t *testing.T, gw *meshtest.Process, told time.Time, lameDuck time.Duration) {
	t.Helper()
	gw.Log.Await(t, "draining")
	took := time.Since(told)
	<-gw.Ended()
	if n := len(gw.Log.Find("draining")); took < lameDuck || n != 1 {
		t.Errorf("it drains after %v, and says so %d times; want no less than %v, and once", took, n, lameDuck)
	}
}

// The only gateway of a network was told to stop. Until it drains there is nobody else to
// go to: it is ready, and new connections are made through it as before, on the sessions
// that there are and on new ones. That it leaves is known meanwhile.
func TestAGatewayServesOnBeforeItDrains(t *testing.T) {
	servingOn(t, func(t *testing.T, lameDuck time.Duration) (overBefore bool) {
		p := newPair(t, 1)
		p.Gateway("east", "gw-1") // from which the client hears of west
		p.EachGateway = func(c *gateway.Config) { c.Timeouts.LameDuck = lameDuck }
		p.pods[0].App(8080)
		p.Start()
		gw := p.Process("gateway west/gw-1")
		flow := meshtest.Flow(t, p.listen.hello, 3)
		flow.AwaitMore(t, 20)
		told := time.Now()
		gw.Cancel()
		defer drainsAfter(t, gw, told, lameDuck)
		gw.Log.Await(t, "told to stop, serving on")
		drains := func() bool { return len(gw.Log.Find("draining")) > 0 }
		knows, asked := false, flow.Count()
		meshtest.Eventually(t, "the client's node proxy knows that it leaves, and goes there", func() bool {
			if _, state := p.client().Get(t, "/state"); !knows && strings.Contains(state, `"draining": true`) { // followedServices[].networks[].instances[]
				knows, asked = true, flow.Count()
			}
			return knows && flow.Count() >= asked+20 || drains()
		})
		session, err := p.Session(p.shop.Identity(), p.GatewayAt("west", "gw-1"), p.ID("isthmus-system/gateway-west"))
		if err == nil {
			session.Close(nil)
		}
		status, _ := gw.Get(t, "/healthz/ready")
		state := gw.State(t)
		_, failed := flow.Stop()
		if drains() {
			return true
		}
		if err != nil {
			t.Errorf("a new session: %v", err)
		}
		if len(failed) > 0 {
			t.Errorf("%d connections failed, the first: %v", len(failed), failed[0])
		}
		if status != 200 || state["lameDuck"] != true || state["draining"] != false {
			t.Errorf("ready: %d, lame duck: %v, draining: %v; want 200, true, false", status, state["lameDuck"], state["draining"])
		}
		return false
	})
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
