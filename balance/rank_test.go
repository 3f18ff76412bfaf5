package balance

import (
	"testing"

	"github.com/isthmus-mesh/isthmus/mesh"
)

var here = at("west", "r1", "z1", "s1", "n1")

func at(network, region, zone, subzone, node string) Place {
	return Place{Network: network, Node: node, Locality: mesh.Locality{Region: region, Zone: zone, Subzone: subzone}}
}

// The buckets of every traffic distribution, as Istio's documentation and
// ztunnel's code give them.
func TestRankBuckets(t *testing.T) {
	cases := []struct {
		mode mesh.Distribution
		dst  Place
		want int
	}{
		{mesh.Any, here, 0},
		{mesh.Any, at("east", "", "", "", ""), 0},

		{mesh.PreferNetwork, here, 1},
		{mesh.PreferNetwork, at("west", "r9", "z9", "", ""), 1},
		{mesh.PreferNetwork, at("east", "r1", "z1", "s1", "n1"), 0},
		{"", here, 1},
		{"", at("east", "r1", "", "", ""), 0},
		{"nonsense", here, 1},

		{mesh.PreferRegion, here, 3},
		{mesh.PreferRegion, at("west", "r9", "z1", "s1", "n1"), 2},
		{mesh.PreferRegion, at("east", "r1", "z9", "", ""), 1},
		{mesh.PreferRegion, at("east", "r9", "z1", "", ""), 0},

		{mesh.RegionFirst, here, 1},
		{mesh.RegionFirst, at("east", "r1", "z9", "", ""), 1},
		{mesh.RegionFirst, at("west", "r9", "z1", "s1", "n1"), 0},
		{mesh.RegionFirst, at("west", "", "", "", ""), 0},

		{mesh.PreferSameZone, at("west", "r1", "z1", "s9", "n9"), 5},
		{mesh.PreferSameZone, at("west", "r1", "z9", "s1", "n1"), 4},
		{mesh.PreferSameZone, at("west", "r9", "z1", "s1", "n1"), 3},
		{mesh.PreferSameZone, at("east", "r1", "z1", "s1", "n1"), 2},
		{mesh.PreferSameZone, at("east", "r1", "z9", "", ""), 1},
		{mesh.PreferSameZone, at("east", "r9", "z1", "", ""), 0},
		{mesh.PreferClose, at("west", "r1", "z1", "", ""), 5},
		{mesh.PreferClose, at("east", "r1", "z1", "", ""), 2},

		{mesh.PreferSameNode, here, 9},
		{mesh.PreferSameNode, at("west", "r1", "z1", "s1", "n9"), 8},
		{mesh.PreferSameNode, at("west", "r1", "z1", "s9", "n1"), 7},
		{mesh.PreferSameNode, at("west", "r1", "z9", "s1", "n1"), 6},
		{mesh.PreferSameNode, at("west", "r9", "z1", "s1", "n1"), 5},
		{mesh.PreferSameNode, at("east", "r1", "z1", "s1", "n1"), 4},
		{mesh.PreferSameNode, at("east", "r1", "z1", "s1", ""), 3},
		{mesh.PreferSameNode, at("east", "r1", "z1", "", ""), 2},
		{mesh.PreferSameNode, at("east", "r1", "", "", ""), 1},
		{mesh.PreferSameNode, at("east", "", "", "", ""), 0},
	}
	for _, c := range cases {
		if got, ok := Rank(c.mode, here, c.dst); !ok || got != c.want {
			t.Errorf("%s: rank of %+v = %d, %t; want %d", c.mode, c.dst, got, ok, c.want)
		}
	}
}

func TestStrictNodeLeavesOutEverybodyElse(t *testing.T) {
	cases := map[Place]bool{
		here:                               true,
		at("west", "r9", "z9", "s9", "n1"): true,
		at("west", "r1", "z1", "s1", "n2"): false,
		at("west", "r1", "z1", "s1", ""):   false,
		at("east", "r1", "z1", "s1", "n1"): false,
		at("east", "r1", "z1", "s1", ""):   false,
	}
	for dst, want := range cases {
		if _, ok := Rank(mesh.StrictNode, here, dst); ok != want {
			t.Errorf("%+v is a candidate: %t, want %t", dst, ok, want)
		}
	}
	unplaced := at("west", "", "", "", "")
	if _, ok := Rank(mesh.StrictNode, unplaced, unplaced); ok {
		t.Error("a source on an unknown node has no endpoint on its node")
	}
}

// A rule may also begin with another scope than the network: then only the
// matching prefix counts.
func TestRankWithoutNetworkIsThePrefix(t *testing.T) {
	r := Rule{Scopes: []Scope{Region, Network, Zone}}
	for dst, want := range map[Place]int{
		here: 3, at("east", "r1", "z1", "", ""): 1, at("west", "r9", "z1", "", ""): 0, at("west", "r1", "z9", "", ""): 2,
	} {
		if got, ok := r.Rank(here, dst); !ok || got != want {
			t.Errorf("rank of %+v = %d, %t; want %d", dst, got, ok, want)
		}
	}
	strict := Rule{Scopes: []Scope{Node}, Strict: true}
	if _, ok := strict.Rank(here, at("east", "", "", "", "n1")); !ok {
		t.Error("the strict rule on the node alone must not look at the network")
	}
	if _, ok := strict.Rank(here, at("west", "", "", "", "n2")); ok {
		t.Error("the strict rule on the node must refuse another node")
	}
}

func TestUnknownPartsNeverMatch(t *testing.T) {
	nowhere := at("west", "", "", "", "")
	if got, _ := Rank(mesh.PreferSameNode, nowhere, nowhere); got != 5 {
		t.Errorf("two places without locality on one network: rank %d, want 5 (network only)", got)
	}
}

func TestEveryDistributionHasARule(t *testing.T) {
	known := []mesh.Distribution{mesh.PreferNetwork, mesh.PreferClose, mesh.PreferSameZone, mesh.PreferSameNode, mesh.PreferRegion, mesh.RegionFirst, mesh.Any, mesh.StrictNode}
	if len(known) != len(rules) {
		t.Errorf("%d names, %d rules", len(known), len(rules))
	}
	for _, d := range known {
		if _, ok := rules[d]; !ok {
			t.Errorf("%s has no rule", d)
		}
	}
}
