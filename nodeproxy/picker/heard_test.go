package picker

import (
	"testing"
	"time"

	"github.com/isthmus-mesh/isthmus/health"
)

// A way that this node proxy has seen fail is taken back when the gateway there says
// something else than then, and not when another one does.
func TestAWayThatFailedIsTakenBackByNewsOfItsGatewayAlone(t *testing.T) {
	s := layout{distribution: "Any", west: 10, gateways: 2}.snapshot(t, 1)
	since := map[string]time.Time{"gw-1": epoch.Add(-time.Hour), "gw-2": epoch.Add(-time.Hour)}
	c := defaults()
	c.Health = func(k Share) (Health, bool) {
		var g Group
		for _, name := range []string{"gw-1", "gw-2"} {
			g = append(g, Delivery{Gateway: name, Ready: 10, Healthy: 10, ReadyCapacity: 10, HealthyCapacity: 10, Said: since[name]})
		}
		return Health{Groups: []Group{g}}, k.Network == "west"
	}
	p := New(c)
	d := resolve(t, p, s, epoch)
	for range 100 {
		c, err := p.Pick(d, Tried{}, nil, epoch)
		if err != nil {
			t.Fatal(err)
		}
		if c.Gateway.Name == "gw-1" {
			p.Done(&c, Outcome{At: AtNetwork, Fault: true, Responded: true, Reason: "unreachable"}, epoch)
			continue
		}
		p.Opened(&c, epoch)
		p.Done(&c, Outcome{}, epoch)
	}
	k, now := Share{Network: "west", Service: host, Port: 80}, epoch.Add(2*time.Second)
	if list := p.Heard(k, s, now); len(list) > 0 {
		t.Errorf("edges %+v without any news", list)
	}
	since["gw-2"] = epoch.Add(time.Second)
	if list := p.Heard(k, s, now); len(list) > 0 {
		t.Errorf("gw-2 says something else, and the way by gw-1 that failed is taken back: %+v", list)
	}
	since["gw-1"] = epoch.Add(time.Second)
	if list := p.Heard(k, s, now); len(list) != 1 || list[0].Gateway != "gw-1" || list[0].Edge != health.EdgeReadmitted {
		t.Errorf("gw-1 says something else than when it failed: edges %+v; want its way taken back", list)
	}
}
