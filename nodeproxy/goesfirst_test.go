package nodeproxy

import (
	"crypto/rand"
	"net/netip"
	"os"
	"testing"

	"github.com/isthmus-mesh/isthmus/discovery"
	"github.com/isthmus-mesh/isthmus/federation/healthstream"
	"github.com/isthmus-mesh/isthmus/federation/networkkey"
	"github.com/isthmus-mesh/isthmus/federation/record"
	"github.com/isthmus-mesh/isthmus/mesh"
	"github.com/isthmus-mesh/isthmus/route"
)

// A network that says that it has the service for longest, that who is close goes first,
// and that its gateway stands beside each client, does not so get all connections.
func TestALinkedNetworkDoesNotDecideThatItGoesFirst(t *testing.T) {
	here := mesh.Locality{Region: "eu", Zone: "eu-1"}
	key, err := networkkey.Generate(rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	w := newToldWorld(t, "")
	if err := os.WriteFile(w.path, []byte("networks:\n  - {name: west, keys: ['"+testKey+"']}\n  - {name: evil, keys: ['"+key.Public().String()+"'], maxCapacity: 1}\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	if _, err := w.file.Reread(); err != nil {
		t.Fatal(err)
	}
	w.take(discovery.Change{Key: discovery.Key{Kind: discovery.KindWorkload, Name: "client"}, Record: discovery.Workload{UID: "client", Network: "east", Node: "east-1", Locality: discovery.Locality(here), Addresses: []netip.Addr{netip.MustParseAddr("10.0.0.9")}}})
	w.proven.offer(shopName, shopExport(nil))
	w.proven.exports[healthstream.Change{Service: shopName, Network: "evil"}] = shopExport(func(e *record.Export) { e.Created, e.Distribution = 1, mesh.PreferClose })
	w.proven.gateways["evil"] = []healthstream.Gateway{{Name: "gw-1", Instance: record.Instance{9}, Live: true,
		Body: &record.Network{Gateway: "gw-1", Locality: here, Addresses: []record.Address{{Host: "10.66.0.1", Port: 15008}}}}}
	w.update(shopName)
	plan, err := route.Resolve(w.snap, route.Flow{Source: w.snap.Workload("client"), Host: shopName, Port: 80})
	if err != nil {
		t.Fatal(err)
	}
	rank := map[string]int{}
	for _, c := range plan.Candidates {
		rank[c.Network] = c.Rank
	}
	if rank["evil"] > rank["west"] {
		t.Errorf("ranks %v: as long as evil is well, none of the connections goes to west, whose export says %s, although the link bounds evil's weight at 1", rank, mesh.PreferNetwork)
	}
}
