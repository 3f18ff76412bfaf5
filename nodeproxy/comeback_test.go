package nodeproxy_test

import (
	"fmt"
	"io"
	"testing"

	"github.com/isthmus-mesh/isthmus/gateway"
	"github.com/isthmus-mesh/isthmus/internal/meshtest"
)

// awaitWord waits until the client's node proxy has been told of instances of west's
// gateways, and that they drain or that they do not.
func awaitWord(t *testing.T, p *pair, draining bool) {
	t.Helper()
	meshtest.Eventually(t, fmt.Sprintf("the word of west, draining %v", draining), func() bool {
		for _, s := range p.client().Rows(t, "followedServices") {
			networks, _ := s["networks"].([]any)
			for _, n := range networks {
				n, _ := n.(map[string]any)
				instances, _ := n["instances"].([]any)
				if n["network"] != "west" || len(instances) == 0 {
					continue
				}
				for _, i := range instances {
					if i, _ := i.(map[string]any); i["draining"] != draining {
						return false
					}
				}
				return true
			}
		}
		return false
	})
}

// The only gateway of a network stops in order, so that "it drains" is its last word,
// and comes back: connections reach it at once, whether its new word has come or cannot
// come, because the client's own gateway is away.
func TestAGatewayThatStoppedInOrderIsUsedWhenItIsBack(t *testing.T) {
	for name, away := range map[string]bool{"its word arrives": false, "its word cannot arrive": true} {
		t.Run(name, func(t *testing.T) {
			p := newPair(t, 1)
			p.Gateway("east", "gw-e")
			p.pods[0].App(8080)
			p.Start()
			if got, err := meshtest.Hello(p.listen.hello); err != nil || got != "hello-1" {
				t.Fatalf("before: %q, %v; want hello-1", got, err)
			}
			awaitWord(t, p, false) // who leaves before the others know it says nothing
			p.Process("gateway west/gw-1").Stop(t)
			awaitWord(t, p, true)
			if away {
				p.Process("gateway east/gw-e").Stop(t)
			}
			p.StartGateway("west", "gw-1").AwaitReady(t)
			if got, err := meshtest.Hello(p.listen.hello); err != nil || got != "hello-1" {
				t.Errorf("the first connection after it is back: %q, %v; want hello-1", got, err)
			}
		})
	}
}

// A gateway is replaced: the old process drains beside the new one on the same address,
// under traffic and with a connection that stays.
func TestAGatewayThatIsReplacedIsUsedThroughout(t *testing.T) {
	p := newPair(t, 1)
	p.EachGateway = func(c *gateway.Config) { c.ReusePort = true }
	p.Gateway("east", "gw-e")
	p.pods[0].App(8080)
	p.Start()
	old := p.Process("gateway west/gw-1")
	stays, err := meshtest.Dial(p.listen.hello)
	if err != nil {
		t.Fatal(err)
	}
	defer stays.Close()
	if _, err := meshtest.Ask(stays, "1"); err != nil {
		t.Fatal(err)
	}
	flow := meshtest.Flow(t, p.listen.hello, 4)
	flow.AwaitMore(t, 40)
	fresh := p.StartGateway("west", "gw-1")
	fresh.AwaitReady(t)
	old.Cancel()
	old.Log.Await(t, "draining")
	flow.AwaitMore(t, 40)
	if _, err := meshtest.Ask(stays, "2"); err != nil {
		t.Errorf("the connection that stays: %v", err)
	}
	stays.CloseWrite()
	io.Copy(io.Discard, stays)
	<-old.Ended()
	flow.AwaitMore(t, 40)
	if _, failed := flow.Stop(); len(failed) > 0 {
		t.Errorf("%d connections failed, the first: %v", len(failed), failed[0])
	}
}
