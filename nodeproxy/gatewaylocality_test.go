package nodeproxy

import (
	"crypto/rand"
	"net/netip"
	"os"
	"testing"

	"github.com/isthmus-mesh/isthmus/balance"
	"github.com/isthmus-mesh/isthmus/discovery"
	"github.com/isthmus-mesh/isthmus/federation/healthstream"
	"github.com/isthmus-mesh/isthmus/federation/networkkey"
	"github.com/isthmus-mesh/isthmus/federation/record"
	"github.com/isthmus-mesh/isthmus/mesh"
	"github.com/isthmus-mesh/isthmus/route"
)

// The locality that gateways advertise ranks their networks for every traffic distribution: the
// nearest gateway of a network counts.
func TestAdvertisedGatewayLocalityRanksNetworks(t *testing.T) {
	client := mesh.Locality{Region: "eu", Zone: "eu-1", Subzone: "rack-1"}
	places := []mesh.Locality{client, {Region: "eu", Zone: "eu-1"}, {Region: "eu", Zone: "eu-2"}, {Region: "us", Zone: "eu-1"}, {}}
	key, err := networkkey.Generate(rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	w := newToldWorld(t, "")
	if err := os.WriteFile(w.path, []byte("networks:\n  - {name: west, keys: ['"+testKey+"']}\n  - {name: north, keys: ['"+key.Public().String()+"']}\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	if _, err := w.file.Reread(); err != nil {
		t.Fatal(err)
	}
	w.take(discovery.Change{Key: discovery.Key{Kind: discovery.KindWorkload, Name: "client"}, Record: discovery.Workload{UID: "client", Network: "east", Node: "east-1", Locality: discovery.Locality(client), Addresses: []netip.Addr{netip.MustParseAddr("10.0.0.9")}}})
	at := func(name string, last byte, l mesh.Locality) healthstream.Gateway {
		g := gatewayAt(name, last, true, false)
		g.Body.Locality = l
		return g
	}
	for _, d := range []mesh.Distribution{mesh.PreferNetwork, mesh.PreferClose, mesh.PreferSameZone, mesh.PreferSameNode, mesh.PreferRegion, mesh.RegionFirst, mesh.Any} {
		export := shopExport(func(e *record.Export) { e.Distribution = d })
		w.proven.offer(shopName, export)
		w.proven.exports[healthstream.Change{Service: shopName, Network: "north"}] = export
		for _, west := range places {
			for _, far := range places {
				for _, near := range places {
					w.proven.gateways["west"] = []healthstream.Gateway{at("gw-1", 1, west)}
					w.proven.gateways["north"] = []healthstream.Gateway{at("gw-1", 2, far), at("gw-2", 3, near)}
					w.updateAll([]healthstream.Change{{Service: shopName, Network: "west"}, {Service: shopName, Network: "north"}})
					plan, err := route.Resolve(w.snap, route.Flow{Source: w.snap.Workload("client"), Host: shopName, Port: 80})
					if err != nil {
						t.Fatal(err)
					}
					rank := func(network string, l mesh.Locality) int {
						r, _ := balance.Rank(d, balance.Place{Network: "east", Node: "east-1", Locality: client}, balance.Place{Network: network, Locality: l})
						return r
					}
					want := map[string]int{"west": rank("west", west), "north": max(rank("north", far), rank("north", near))}
					for _, c := range plan.Candidates {
						if c.Rank != want[c.Network] {
							t.Fatalf("%s: gateways of west at %v, of north at %v and %v: %s has rank %d; want %d", d, west, far, near, c.Network, c.Rank, want[c.Network])
						}
					}
					if len(plan.Candidates) != 2 {
						t.Fatalf("%s: %d candidates; want west and north", d, len(plan.Candidates))
					}
				}
			}
		}
	}
}
