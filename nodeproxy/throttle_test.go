package nodeproxy_test

import (
	"sync"
	"sync/atomic"
	"testing"

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
	m := meshtest.New(t)
	m.Networks("east")
	m.Service("hello", 80, 8080)
	rude := m.Pod("east", "east-1", "rude-1").Outbound(hello)
	shop := m.Pod("east", "east-1", "shop-1").Outbound(hello)
	m.Pod("east", "east-2", "hello-1", "hello").App(8080)
	m.EachNode = func(c *nodeproxy.Config) {
		if c.Node == "east-2" {
			c.Limits.Identity.StreamsPerSecond = 40
		}
	}
	m.Start()
	var all sync.WaitGroup
	var stop atomic.Bool
	for range 4 {
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
	const n = 40
	for range n {
		if _, err := meshtest.Hello(shop); err != nil {
			failed++
		}
	}
	stop.Store(true)
	all.Wait()
	if failed > 0 {
		t.Errorf("%d of %d connections of an identity within its limit failed beside one that is not", failed, n)
	}
}
