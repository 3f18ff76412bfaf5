package gateway_test

import (
	"fmt"
	"testing"

	"github.com/isthmus-mesh/isthmus/gateway"
	"github.com/isthmus-mesh/isthmus/internal/meshtest"
)

// Two processes of a gateway that start at the same time: one of them has all health
// streams in the end. Otherwise each hears a part of the nodes only, and chooses pods that
// the others' witnesses call sick, for as long as both live.
func TestOneOfTwoProcessesThatStartTogetherHearsEveryNode(t *testing.T) {
	const nodes = 8
	s := newSite(t, nodes)
	for _, p := range s.pods {
		p.Serve(meshtest.HBONEPort, echo)
	}
	reuse := func(c *gateway.Config) { c.ReusePort = true }
	s.Write()
	both := []*meshtest.Process{s.StartGateway("west", "gw-1", reuse), s.StartGateway("west", "gw-1", reuse)}
	for i := range nodes {
		node := fmt.Sprintf("west-%d", i+1)
		s.report(t, s.NodeID("west", node), node, sick(s.pods[i], 8080))
	}
	for _, p := range both {
		p.AwaitReady(t)
	}
	knows := func(p *meshtest.Process) (n int) {
		for _, r := range p.Rows(t, "reports") {
			if f := r["fact"].(map[string]any); r["believed"] == true && r["attached"] == true && f["state"] != "healthy" {
				n++
			}
		}
		return n
	}
	meshtest.Eventually(t, "one of the two processes has the word of every node", func() bool {
		return max(knows(both[0]), knows(both[1])) == nodes
	})
}
