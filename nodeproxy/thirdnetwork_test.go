package nodeproxy

import (
	"crypto/rand"
	"fmt"
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

// Two networks are linked. Whatever one of them proves to export of a service, and where
// it says its gateways are, clients reach the other one's share as if it were alone.
func TestALinkedNetworkTakesNothingFromAnother(t *testing.T) {
	own := healthstream.Gateway{Name: "gw-1", Instance: record.Instance{9}, Live: true, Body: &record.Network{Gateway: "gw-1", Addresses: []record.Address{{Host: "10.66.0.1", Port: 15008}}}}
	same := gatewayAt("gw-1", 1, true, false)
	older := func(change func(*record.Export)) *record.Export {
		return shopExport(func(e *record.Export) {
			e.Created = 1
			if change != nil {
				change(e)
			}
		})
	}
	for name, evil := range map[string]struct {
		gateway healthstream.Gateway
		export  *record.Export
	}{
		"as west does":                     {own, shopExport(nil)},
		"another port":                     {own, shopExport(func(e *record.Export) { e.Ports = []record.Port{{Port: 9}} })},
		"by an alias alone, and older":     {own, older(func(e *record.Export) { e.Scope = record.ScopeGlobalOnly })},
		"for pods of its node alone":       {own, older(func(e *record.Export) { e.Distribution = mesh.StrictNode })},
		"at the address of west's gateway": {same, shopExport(nil)},
	} {
		t.Run(name, func(t *testing.T) {
			key, err := networkkey.Generate(rand.Reader)
			if err != nil {
				t.Fatal(err)
			}
			w := newToldWorld(t, "")
			if err := os.WriteFile(w.path, []byte("networks:\n  - {name: west, keys: ['"+testKey+"']}\n  - {name: evil, keys: ['"+key.Public().String()+"']}\n"), 0o600); err != nil {
				t.Fatal(err)
			}
			if _, err := w.file.Reread(); err != nil {
				t.Fatal(err)
			}
			w.take(discovery.Change{Key: discovery.Key{Kind: discovery.KindWorkload, Name: "client"}, Record: discovery.Workload{UID: "client", Network: "east", Node: "east-1", Addresses: []netip.Addr{netip.MustParseAddr("10.0.0.9")}}})
			w.proven.offer(shopName, shopExport(nil))
			w.proven.exports[healthstream.Change{Service: shopName, Network: "evil"}] = evil.export
			w.update(shopName)
			if got := west(w); got != "1 gateways, <nil>" {
				t.Fatalf("before evil has a gateway: west by %s", got)
			}
			w.proven.gateways["evil"] = []healthstream.Gateway{evil.gateway}
			w.update(shopName)
			if got := west(w); got != "1 gateways, <nil>" {
				t.Errorf("west by %s; want its gateway, as before", got)
			}
		})
	}
}

// west says how a client's connection to the shop may go to west.
func west(w *toldWorld) string {
	plan, err := route.Resolve(w.snap, route.Flow{Source: w.snap.Workload("client"), Host: shopName, Port: 80})
	n := 0
	if err == nil {
		for _, c := range plan.Candidates {
			if c.Network == "west" {
				n += len(c.Gateways)
			}
		}
	}
	return fmt.Sprintf("%d gateways, %v", n, err)
}
