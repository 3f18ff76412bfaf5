package discovery

import (
	"net/netip"
	"testing"
	"time"

	"github.com/isthmus-mesh/isthmus/mesh"
)

// toldMesh is a mesh of own network east, beside which west and another network tell
// what is theirs.
func toldMesh(changes ...Change) *mesh.Snapshot {
	b := NewBuilder(0)
	b.Apply(Change{Key{Kind: KindNetwork, Name: "east"}, Network{Name: "east"}})
	for _, n := range []string{"evil", "west"} {
		b.Apply(Change{Key{Kind: KindNetwork, Source: Told, Name: n}, Network{Name: n}})
	}
	b.Apply(changes...)
	s, _, _ := b.Commit()
	return s
}

func toldShare(network, name string, change func(*Share)) Change {
	s := Share{Network: network, Name: name, Ports: []SharePort{{Port: 80}}, Identities: []string{"spiffe://cluster.local/ns/default/sa/" + network},
		Created: time.Date(2026, 11, 1, 0, 0, 0, 0, time.UTC)}
	if change != nil {
		change(&s)
	}
	return Change{Key{Kind: KindShare, Source: Told, Name: network + "/" + name}, s}
}

func toldGateway(network, name, address string) Change {
	return Change{Key{Kind: KindGateway, Source: Told, Name: network + "/" + name}, Gateway{Name: name, Network: network, Address: netip.MustParseAddrPort(address)}}
}

// Where a network's gateways are it says itself: another one that names the same address
// takes no gateway from it. What whoever runs the mesh has written holds.
func TestANetworkThatNamesTheAddressOfAnotherTakesNoGatewayFromIt(t *testing.T) {
	written := toldGateway("west", "gw-2", "10.2.0.2:15008")
	written.Key.Source = Written
	network := Change{Key{Kind: KindNetwork, Name: "west"}, Network{Name: "west"}}
	s := toldMesh(toldGateway("west", "gw-1", "10.2.0.1:15008"), network, written,
		toldGateway("evil", "gw-1", "10.2.0.1:15008"), toldGateway("evil", "gw-2", "10.2.0.2:15008"))
	if g := s.Gateways("west"); len(g) != 2 {
		t.Errorf("west has %d gateways, want the 2 that it has", len(g))
	}
	if g := s.Gateways("evil"); len(g) != 1 {
		t.Errorf("the other network has %d gateways, want that alone at an address that nobody has written", len(g))
	}
}
