package nodeproxy

import (
	"net/netip"
	"slices"
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

// A gateway was started again with federation.group, which it did not have: its last word
// without one was that it drains. What counts is what it says now, in whichever order the
// two instances are told.
func TestAGatewayThatIsGivenAGroupIsJudgedByWhatItSaysNow(t *testing.T) {
	const host = "hello.default.svc.cluster.local"
	c := discovery.DefaultConfig()
	c.Services = []discovery.Service{{Name: "hello", Global: true, Ports: []discovery.ServicePort{{Name: "a", Port: 80, TargetPort: 8080}}}}
	c.Networks = []discovery.Network{{Name: "east"}}
	c.Workloads = []discovery.Workload{{UID: "shop", Network: "east", Node: "east-1", Addresses: []netip.Addr{netip.MustParseAddr("10.0.0.9")}}}
	for i, n := range []string{"north", "west"} {
		at := func(last byte) netip.Addr { return netip.AddrFrom4([4]byte{10, byte(i + 1), 0, last}) }
		c.Networks = append(c.Networks, discovery.Network{Name: n})
		c.Gateways = append(c.Gateways, discovery.Gateway{Name: "gw-1", Network: n, Address: netip.AddrPortFrom(at(1), 15008)})
		c.Workloads = append(c.Workloads, discovery.Workload{UID: n, Network: n, Node: "node", Services: []string{host}, Addresses: []netip.Addr{at(9)}})
	}
	snap, problems := discovery.Build(1, c)
	if problems != nil {
		t.Fatal(problems)
	}
	h := map[uint16]record.Health{80: {Ready: 1, Healthy: 1, ReadyCapacity: 1, HealthyCapacity: 1}}
	now := healthstream.Delivery{Gateway: "gw-1", Group: "zone-a", Live: true, Health: h}
	for name, before := range map[string]healthstream.Delivery{
		"as it was started again, without a change": {Gateway: "gw-1", Group: "zone-a", Draining: true, Health: h},
		"given a group": {Gateway: "gw-1", Draining: true, Health: h},
	} {
		for _, said := range [][]healthstream.Delivery{{before, now}, {now, before}} {
			known := func(network, _ string) (healthstream.Known, bool) {
				list := said
				if network != "west" {
					list = []healthstream.Delivery{now}
				}
				sum, _ := healthstream.HealthOf(list, 80)
				return healthstream.Known{Deliveries: slices.Clone(list), Summaries: map[uint16]federation.SummaryFact{80: {Service: host, Port: 80, Ready: sum.Ready, Healthy: sum.Healthy,
					ReadyCapacity: sum.ReadyCapacity, HealthyCapacity: sum.HealthyCapacity}}}, network != "east"
			}
			cfg := DefaultConfig()
			cfg.Network, cfg.Node = "east", "east-1"
			v := newView(cfg, known, func(string) {}, zerolog.Nop(), NewMetrics(prometheus.NewRegistry()))
			d, err := v.Resolve(snap, route.Flow{Source: snap.Workload("shop"), Host: host, Port: 80}, time.Now())
			if err != nil {
				t.Fatal(err)
			}
			west := 0
			for range 1000 {
				choice, f := v.choose(d, tried{}, nil, time.Now())
				if f != nil {
					t.Fatal(f.err)
				}
				if choice.Share.Network == "west" {
					west++
				}
			}
			if west < 450 || west > 550 {
				t.Errorf("%s, said first: group %q: %d of 1000 connections go to west, want about 500: both networks have one gateway that takes them, and one pod", name, said[0].Group, west)
			}
		}
	}
}
