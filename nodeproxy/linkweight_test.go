package nodeproxy

import (
	"fmt"
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

// The greatest weight that a link lets a network have holds whatever its gateways say of
// its health.
func TestHealthWeighsNoMoreThanTheLinkLets(t *testing.T) {
	w := newToldWorld(t, ", maxCapacity: 10")
	capacity := uint32(10)
	w.take(
		discovery.Change{Key: discovery.Key{Kind: discovery.KindNetwork, Name: "north"}, Record: discovery.Network{Name: "north"}},
		discovery.Change{Key: discovery.Key{Kind: discovery.KindGateway, Name: "north/gw-1"}, Record: discovery.Gateway{Name: "gw-1", Network: "north", Address: netip.MustParseAddrPort("10.9.9.9:15008")}},
		discovery.Change{Key: discovery.Key{Kind: discovery.KindShare, Name: "north/shop"}, Record: discovery.Share{Network: "north", Name: "shop", Ports: []discovery.SharePort{{Port: 80}}, Identities: []string{accountIn("default", "shop").String()}, Capacity: &capacity}},
		discovery.Change{Key: discovery.Key{Kind: discovery.KindWorkload, Name: "client"}, Record: discovery.Workload{UID: "client", Network: "east", Node: "east-1", Addresses: []netip.Addr{netip.MustParseAddr("10.0.0.9")}}},
	)
	w.proven.offer(shopName, shopExport(nil))
	w.update(shopName)
	type said struct {
		groups   int // of gateways that reach different pods
		pods     uint32
		capacity uint32
	}
	for _, says := range []said{{}, {1, 10, 1000}, {1, 10, record.MaxCapacity}, {1, record.MaxEndpoints, 0}, {64, 10, 1000}, {64, 1, 1}} {
		known := func(network, _ string) (healthstream.Known, bool) {
			x := said{1, 10, 10}
			if network == "west" {
				x = says
			}
			k := healthstream.Known{Summaries: map[uint16]federation.SummaryFact{80: {Service: shopName, Port: 80}}}
			for i := range x.groups {
				h := record.Health{Ready: x.pods, Healthy: x.pods, ReadyCapacity: x.capacity, HealthyCapacity: x.capacity}
				k.Deliveries = append(k.Deliveries, healthstream.Delivery{Instance: record.Instance{byte(i)}, Gateway: fmt.Sprint("gw-", i+1), Group: fmt.Sprint(i), Live: true, Health: map[uint16]record.Health{80: h}})
			}
			return k, x.groups > 0 && network != "east"
		}
		w.proven.gateways["west"] = nil
		for i := range max(1, says.groups) {
			w.proven.gateways["west"] = append(w.proven.gateways["west"], gatewayAt(fmt.Sprint("gw-", i+1), byte(i+1), true, false))
		}
		cfg := DefaultConfig()
		cfg.Network, cfg.Node = "east", "east-1"
		v := newView(cfg, known, func(string) {}, zerolog.Nop(), NewMetrics(prometheus.NewRegistry()))
		v.most = w.file.Most
		link := func(bound int) {
			w.link(t, fmt.Sprint(", maxCapacity: ", bound))
			if _, err := w.file.Reread(); err != nil {
				t.Fatal(err)
			}
			w.updateAll([]healthstream.Change{{Service: shopName, Network: "west"}})
			v.relinked(w.snap, time.Now())
		}
		for _, c := range []struct{ bound, least, most int }{{10, 450, 550}, {30, 700, 800}} { // by the second, when the link has changed
			link(c.bound)
			d, err := v.Resolve(w.snap, route.Flow{Source: w.snap.Workload("client"), Host: shopName, Port: 80}, time.Now())
			if err != nil {
				t.Fatal(err)
			}
			west := 0
			for range 1000 {
				c, f := v.choose(d, tried{}, nil, time.Now())
				if f != nil {
					t.Fatal(f.err)
				}
				if c.Share.Network == "west" {
					west++
				}
				v.done(&c)
			}
			if west < c.least || west > c.most {
				t.Errorf("west says %+v: %d of 1000 connections go there; want %d to %d, as the link bounds it at %d and north has 10", says, west, c.least, c.most, c.bound)
			}
		}
	}
}

// Shares are rounded up as well as down, and to no more than the link lets.
func TestRoundingLeavesALinksGreatestWeight(t *testing.T) {
	for _, most := range []uint32{1, 16, 17, 31, 100, 1000} {
		w := newToldWorld(t, fmt.Sprintf(", maxCapacity: %d", most))
		w.proven.offer(shopName, shopExport(func(e *record.Export) { e.Capacity = record.MaxCapacity }))
		w.update(shopName)
		if s, ok := w.share(shopName); !ok || s.Capacity > most || s.Capacity < most-most/8 {
			t.Errorf("maxCapacity %d: the share weighs %d; want as much, or as little less as rounding takes", most, s.Capacity)
		}
	}
}
