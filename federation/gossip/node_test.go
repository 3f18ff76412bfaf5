package gossip

import (
	"context"
	"testing"

	"github.com/rs/zerolog"

	"github.com/isthmus-mesh/isthmus/federation/healthstream"
	"github.com/isthmus-mesh/isthmus/federation/peer"
	"github.com/isthmus-mesh/isthmus/mesh"
)

// The way of a summary from end to end: from a gateway of another network by
// gossip to the gateways of the node's own, and from each of them to the node.
func TestSummaryReachesNodesThroughEitherGateway(t *testing.T) {
	w, sites := startAll(newWorld(t), "west", "east")
	ledger := peer.NewLedger(0)
	n := healthstream.NewClient(healthstream.ClientConfig{
		Node: "node-1", Network: "west", Incarnation: 1, Self: workload("nodeproxy"), Identity: w.identity,
		Gateways: func() []*mesh.Gateway { return w.all()[:2] }, Ledger: ledger, Log: zerolog.Nop(),
	})
	ctx, cancel := context.WithCancel(context.Background())
	w.wg.Go(func() { n.Run(ctx) })
	t.Cleanup(cancel)
	eventually(t, "attached to both", func() bool { return n.Attached() == 2 })
	sites[2].publish(5)
	eventually(t, "the node knows what east says", func() bool { return believes(ledger, "east", 5) })
	sites[0].stop()
	eventually(t, "one stream is left", func() bool { return n.Attached() == 1 })
	sites[2].publish(4)
	eventually(t, "the other gateway is enough", func() bool { return believes(ledger, "east", 4) })
}
