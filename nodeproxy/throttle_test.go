package nodeproxy_test

import (
	"context"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/isthmus-mesh/isthmus/health"
	"github.com/isthmus-mesh/isthmus/internal/meshtest"
	"github.com/isthmus-mesh/isthmus/nodeproxy"
)

// One of two pods refuses nearly everything for overload and the other has room for
// everybody: each connection is repeated there, and none is held back.
func TestOnePodThatIsOverloadedCostsNoConnection(t *testing.T) {
	m := meshtest.New(t)
	m.Networks("east")
	m.Service("hello", 80, 8080)
	shop := m.Pod("east", "east-1", "shop-1")
	at := shop.Outbound(hello)
	m.Pod("east", "east-2", "hello-1", "hello").App(8080)
	m.Pod("east", "east-3", "hello-2", "hello").App(8080)
	m.EachNode = func(c *nodeproxy.Config) {
		if c.Node == "east-2" {
			c.Limits.Identity.StreamsPerSecond = 1
		}
	}
	m.Start()
	const connections, workers = 1200, 8
	var begun, failed atomic.Int64
	var all sync.WaitGroup
	for range workers {
		all.Go(func() {
			for begun.Add(1) <= connections {
				if _, err := meshtest.Hello(at); err != nil {
					failed.Add(1)
				}
			}
		})
	}
	all.Wait()
	client := m.Process("node proxy east-1")
	if n := client.Metric(t, `isthmus_connect_retries_total{reason="overload"}`); n < 100 {
		t.Errorf("%v connections were repeated after overload; want at least 100, or this shows nothing", n)
	}
	if n := failed.Load(); n > 0 {
		t.Errorf("%d of %d connections failed", n, connections)
	}
}

// One identity is over its own limit at a pod's node proxy, and asks for ever more. A pod of
// another identity on the same node is far below it: all of its connections are served.
func TestWhoIsOverALimitOfItsOwnHoldsNobodyElseBack(t *testing.T) {
	const limit = 15 // a second, and at once: so low that also a busy machine goes beyond it
	m := meshtest.New(t)
	m.Networks("east")
	m.Service("hello", 80, 8080)
	rude := m.Pod("east", "east-1", "rude-1").Outbound(hello)
	shop := m.Pod("east", "east-1", "shop-1").Outbound(hello)
	m.Pod("east", "east-2", "hello-1", "hello").App(8080)
	m.EachNode = func(c *nodeproxy.Config) {
		if c.Node == "east-2" {
			c.Limits.Identity.StreamsPerSecond = limit
		}
	}
	m.Start()
	var all sync.WaitGroup
	var stop atomic.Bool
	for range 16 {
		all.Go(func() {
			for !stop.Load() {
				meshtest.Hello(rude)
			}
		})
	}
	client := m.Process("node proxy east-1")
	meshtest.Eventually(t, "connections are held back", func() bool {
		return len(client.Log.Find("connection", "result", "overload", "attempts", 0, "source", "east/default/rude-1")) > 20
	})
	failed := 0
	for range limit {
		if _, err := meshtest.Hello(shop); err != nil {
			failed++
		}
	}
	stop.Store(true)
	all.Wait()
	if failed > 0 {
		t.Errorf("%d of %d connections of an identity within its limit failed beside one that is not", failed, limit)
	}
}

// The repeats that one identity has spent, here by being over a limit of its own, others
// still have: one of two pods refuses connections, and none of theirs fails.
func TestTheRepeatsOfAnIdentityAreItsOwn(t *testing.T) {
	m := meshtest.New(t)
	m.Networks("east")
	m.Service("hello", 80, 8080)
	rude := m.Pod("east", "east-1", "rude-1").Outbound(hello)
	shop := m.Pod("east", "east-1", "shop-1").Outbound(hello)
	one := m.Pod("east", "east-2", "hello-1", "hello").App(8080)
	m.Pod("east", "east-3", "hello-2", "hello").App(8080)
	const streams = 5
	m.EachNode = func(c *nodeproxy.Config) {
		c.OutlierDetection.Mode = health.ModeOff // nobody is left out: repeats alone help
		c.Federation.Health = false
		c.Retry.BudgetBurst, c.Retry.BudgetRatio = 20, 0
		if c.Node != "east-1" {
			c.Limits.Identity.Streams = streams
		}
	}
	m.Start()
	for range 2 * streams { // all that it may have, of either pod
		c, err := meshtest.Dial(rude)
		if err != nil {
			t.Fatal(err)
		}
		defer c.Close()
	}
	client := m.Process("node proxy east-1")
	meshtest.Eventually(t, "the repeats of one identity are spent", func() bool {
		meshtest.Hello(rude)
		return client.Metric(t, "isthmus_retry_budget_exhausted_total") > 0
	})
	if err := one.Refuse(context.Background(), 8080); err != nil {
		t.Fatal(err)
	}
	failed, why := 0, error(nil)
	const n = 16
	for range n {
		if _, err := meshtest.Hello(shop); err != nil {
			failed++
			why = err
		}
	}
	if failed > 0 {
		t.Errorf("%d of %d connections failed though one of two pods serves: %v", failed, n, why)
	}
}
