package nodeproxy

import (
	"net/netip"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/rs/zerolog"

	"github.com/isthmus-mesh/isthmus/discovery"
	"github.com/isthmus-mesh/isthmus/federation"
	"github.com/isthmus-mesh/isthmus/federation/healthstream"
	"github.com/isthmus-mesh/isthmus/federation/record"
	"github.com/isthmus-mesh/isthmus/route"
)

// The last word of a network's only gateway before it fell silent was that it drains, as
// at every restart. Its successor takes connections, and the gateways cannot hear each
// other (another port, another path).
func TestThatItDrainsAsTheLastWordOfADeadInstanceDoesNotStopTraffic(t *testing.T) {
	const host = "hello.default.svc.cluster.local"
	c := discovery.DefaultConfig()
	c.Networks = []discovery.Network{{Name: "east"}, {Name: "west"}}
	c.Gateways = []discovery.Gateway{{Name: "gw-1", Network: "west", Address: netip.MustParseAddrPort("10.1.0.1:15008")}}
	c.Services = []discovery.Service{{Name: "hello", Global: true, Ports: []discovery.ServicePort{{Name: "a", Port: 80, TargetPort: 8080}}}}
	c.Workloads = []discovery.Workload{
		{UID: "shop", Network: "east", Node: "east-1", Addresses: []netip.Addr{netip.MustParseAddr("10.0.0.9")}},
		{UID: "hello-1", Network: "west", Node: "west-1", Services: []string{host}, Addresses: []netip.Addr{netip.MustParseAddr("10.1.0.9")}},
	}
	snap, problems := discovery.Build(1, c)
	if problems != nil {
		t.Fatal(problems)
	}
	for _, x := range []struct {
		name     string
		live     bool
		draining bool
	}{{"silent", false, false}, {"silent, drained", false, true}, {"live, drains", true, true}} {
		t.Run(x.name, func(t *testing.T) {
			known := func(network, _ string) (healthstream.Known, bool) {
				if network != "west" {
					return healthstream.Known{}, false
				}
				h := record.Health{Ready: 1, Healthy: 1, ReadyCapacity: 1, HealthyCapacity: 1}
				return healthstream.Known{
					Deliveries: []healthstream.Delivery{{Gateway: "gw-1", Live: x.live, Draining: x.draining, Health: map[uint16]record.Health{80: h}}},
					Summaries:  map[uint16]federation.SummaryFact{80: {Service: host, Port: 80, Ready: 1, Healthy: 1, ReadyCapacity: 1, HealthyCapacity: 1, Draining: x.draining}},
				}, true
			}
			cfg := DefaultConfig()
			cfg.Network, cfg.Node = "east", "east-1"
			v := newView(cfg, known, func(string) {}, zerolog.Nop(), NewMetrics(prometheus.NewRegistry()))
			d, err := v.Resolve(snap, route.Flow{Source: snap.Workload("shop"), Host: host, Port: 80}, time.Now())
			if err != nil {
				t.Fatal(err)
			}
			if _, f := v.choose(d, tried{}, nil, time.Now()); f != nil {
				t.Errorf("nothing is chosen, although discovery lists the gateway and it is the only way: %v", f.err)
			}
		})
	}
}
