package nodeproxy_test

import (
	"net/netip"
	"reflect"
	"testing"

	"github.com/isthmus-mesh/isthmus/internal/meshtest"
	"github.com/isthmus-mesh/isthmus/internal/strictyaml"
	"github.com/isthmus-mesh/isthmus/nodeproxy"
)

// The longest durations that a configuration may have are durations to work with: no sum
// or product of them overflows.
func TestConnectionsWorkWithTheLongestTimeouts(t *testing.T) {
	m := meshtest.New(t)
	m.Networks("east", "west")
	m.Service("hello", 80, 8080)
	m.Service("near", 81, 8081)
	m.Gateway("east", "gw-1")
	m.Gateway("west", "gw-2")
	shop := m.Pod("east", "east-1", "shop-1")
	far, local := shop.Outbound(hello), shop.Outbound("near.default.svc.cluster.local:81")
	m.Pod("east", "east-2", "near-1", "near").App(8081)
	m.Pod("west", "west-1", "hello-1", "hello").App(8080)
	m.EachNode = func(c *nodeproxy.Config) {
		for _, d := range reflect.ValueOf(&c.Timeouts).Elem().Fields() {
			d.SetInt(int64(strictyaml.MaxDuration))
		}
		c.Timeouts.App--
		c.Timeouts.Drain = nodeproxy.DefaultConfig().Timeouts.Drain // the test ends
		c.Retry.Deadline, c.Federation.Idle = strictyaml.MaxDuration, strictyaml.MaxDuration
		if _, err := c.Validate(); err != nil {
			t.Error(err)
		}
	}
	m.Start()
	for range 3 {
		for _, to := range []netip.AddrPort{far, local} {
			if _, err := meshtest.Hello(to); err != nil {
				t.Error(err)
			}
		}
	}
}
