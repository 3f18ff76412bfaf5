package nodeproxy_test

import (
	"testing"

	"github.com/isthmus-mesh/isthmus/gateway"
	"github.com/isthmus-mesh/isthmus/hbone"
	"github.com/isthmus-mesh/isthmus/internal/meshtest"
)

// An identity that may have no more sessions at one of two gateways goes by the other.
// That moves nobody's health: pods of other identities on its node use both as before.
func TestTheLimitOfOneIdentityIsNotItsGatewaysFault(t *testing.T) {
	p := newPair(t, 2)
	p.Gateway("west", "gw-2")
	rude := p.Pod("east", "east-1", "rude-1")
	to := rude.Outbound(hello)
	for _, pod := range p.pods {
		pod.App(8080)
	}
	p.EachGateway = func(c *gateway.Config) {
		if c.Name == "gw-1" {
			c.Limits.Identity.Sessions = 1
		}
	}
	p.Start()
	first := p.Process("gateway west/gw-1")
	first.AwaitReady(t)
	p.Process("gateway west/gw-2").AwaitReady(t)
	taken, err := p.Session(rude.Identity(), p.GatewayAt("west", "gw-1"), p.ID("isthmus-system/gateway-west"))
	if err != nil {
		t.Fatal(err)
	}
	defer taken.Close(nil)
	if _, _, err := taken.Open(t.Context(), &hbone.Request{Authority: hello}); err != nil {
		t.Fatal(err)
	}
	meshtest.Eventually(t, "its sessions are refused there", func() bool {
		if _, err := meshtest.Hello(to); err != nil {
			t.Fatalf("a connection failed though the other gateway has room: %v", err)
		}
		return first.Metric(t, `isthmus_admission_refused_total{limit="sessions",scope="identity"}`) >= 3
	})
	for range 40 {
		if _, err := meshtest.Hello(p.listen.hello); err != nil {
			t.Errorf("a connection of another identity: %v", err)
		}
	}
	if n := first.Metric(t, `isthmus_tunnels_opened_total`); n < 2 {
		t.Errorf("gw-1 was asked for %v tunnels; want some of the other identity", n)
	}
	if row := p.client().Row(t, "gateways", "name", "gw-1"); !row.Has("health", 1) {
		t.Errorf("the client's node proxy believes %v of gw-1; want full health", row)
	}
	if l := p.client().Log.Find("outlier changed"); len(l) > 0 {
		t.Errorf("the limit of one identity moved somebody's health: %v", l[0])
	}
}
