package gossip

import (
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus/testutil"

	"github.com/isthmus-mesh/isthmus/federation/antientropy"
)

// For a peer that reads nothing so many bytes wait and no more, on a connection for
// packets as on one for bulk; what is dropped is counted.
func TestWhatWaitsForASlowPeerIsBounded(t *testing.T) {
	simulated(t, func(t *testing.T, w *world) {
		sites := startAll(w, "east")
		for kind, queue := range map[byte]string{kindPacket: "packets_out", kindBulk: "bulk_out"} {
			size := 60 << 10
			if kind == kindBulk {
				size = antientropy.MaxMessage
			}
			c := &conn{transport: sites[0].federation.transport, kind: kind, queue: make(chan []byte, packetQueue)}
			dropped := func() float64 { return testutil.ToFloat64(sites[0].metrics.Dropped.WithLabelValues(queue)) }
			before := dropped()
			for range 2 * packetQueue {
				c.put(make([]byte, size))
			}
			held := 0
			for n := len(c.queue); n > 0; n-- {
				held += len(c.took(<-c.queue))
			}
			if held > queueBytes || held < queueBytes/2 || dropped() == before {
				t.Errorf("%s: %d bytes wait, %.0f messages were dropped; want at most %d", queue, held, dropped()-before, queueBytes)
			}
			if n := c.waiting.Load(); n != 0 {
				t.Errorf("%s: %d bytes are counted when none wait", queue, n)
			}
			c.put(make([]byte, size))
			if len(c.queue) != 1 {
				t.Errorf("%s: with room again nothing is queued", queue)
			}
		}
		// A peer that stalls for longer than a connection lives is heard again.
		sites[1].relay.set(stall)
		sites[0].publish(3)
		time.Sleep(10 * time.Second)
		sites[1].relay.set(pass)
		eventually(t, "the peer hears what it has missed", func() bool { return sites[1].believes("east", 3) })
	})
}
