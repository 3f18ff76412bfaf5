package nodeproxy_test

import (
	"strings"
	"testing"
	"time"

	"github.com/isthmus-mesh/isthmus/gateway"
	"github.com/isthmus-mesh/isthmus/internal/meshtest"
	"github.com/isthmus-mesh/isthmus/nodeproxy"
)

// The only gateway of a network that is known by its link alone is told to stop: it serves
// on for its lame duck time, and nobody is turned away because it has said so.
func TestTheOnlyGatewayIsUsedWhileItServesOn(t *testing.T) {
	servingOn(t, func(t *testing.T, lameDuck time.Duration) (overBefore bool) {
		m := meshtest.New(t)
		m.Networks("east", "west")
		m.Gateway("east", "gw-1")
		m.Gateway("west", "gw-1")
		host := m.Service("hello", 80, 8080)
		client := m.Pod("east", "east-1", "client-1")
		m.Pod("west", "west-1", "hello-1", "hello").App(8080)
		at := client.Outbound(host + ":80")
		files := map[string]string{"east": m.WriteOwn("east"), "west": m.WriteOwn("west")}
		m.EachGateway = func(c *gateway.Config) {
			c.Discovery.File, c.Federation.Networks = files[c.Network], m.LinkFile(c.Network)
			c.Timeouts.Drain, c.Timeouts.LameDuck = time.Second, lameDuck
		}
		m.EachNode = func(c *nodeproxy.Config) {
			c.Discovery.File, c.Federation.Networks = files[c.Network], m.LinkFile(c.Network)
		}
		m.Start()
		meshtest.Eventually(t, "the service answers", func() bool { _, err := meshtest.Hello(at); return err == nil })
		gw := m.Process("gateway west/gw-1")
		told := time.Now()
		gw.Cancel()
		defer drainsAfter(t, gw, told, lameDuck)
		gw.Log.Await(t, "told to stop, serving on")
		drains := func() bool { return len(gw.Log.Find("draining")) > 0 }
		known, n := 0, 0
		meshtest.Eventually(t, "it is known to leave, and 50 connections after that", func() bool {
			n++
			if _, err := meshtest.Hello(at); err != nil && !drains() {
				t.Fatalf("connection %d fails while the gateway serves on: %v", n, err)
			}
			if _, state := m.Process("node proxy east-1").Get(t, "/state"); strings.Contains(state, `"draining": true`) {
				known++
			}
			return known > 50 || drains()
		})
		status, _ := gw.Get(t, "/healthz/ready")
		if drains() {
			return true
		}
		if status != 200 {
			t.Errorf("the gateway is not ready (%d) while it serves on", status)
		}
		return false
	})
}
