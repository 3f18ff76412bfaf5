package balance

import "github.com/isthmus-mesh/isthmus/mesh"

// Place is where the source or a candidate of a connection is. Of another
// network's share of a service it is the place of a gateway, without a node.
type Place struct {
	Network  string
	Node     string
	Locality mesh.Locality
}

// Scope is one thing that two places may have in common.
type Scope uint8

const (
	Network Scope = iota
	Region
	Zone
	Subzone
	Node
)

// Rule is how one traffic distribution ranks places.
type Rule struct {
	Scopes []Scope // from the first that must match to the last
	Strict bool    // whoever does not match all of them is no candidate
}

// rules is the whole difference between traffic distributions. A corrected
// meaning is a changed line.
var rules = map[mesh.Distribution]Rule{
	mesh.Any:           {},
	mesh.PreferNetwork: {Scopes: []Scope{Network}},
	mesh.PreferRegion:  {Scopes: []Scope{Network, Region}},
	// What Solo's PreferRegion does is known by its name alone: this is the other
	// reading, the region before the network.
	mesh.RegionFirst:    {Scopes: []Scope{Region}},
	mesh.PreferClose:    {Scopes: []Scope{Network, Region, Zone}},
	mesh.PreferSameZone: {Scopes: []Scope{Network, Region, Zone}},
	mesh.PreferSameNode: {Scopes: []Scope{Network, Region, Zone, Subzone, Node}},
	// Istio says NODE alone; two networks may have nodes of the same name.
	mesh.StrictNode: {Scopes: []Scope{Network, Node}, Strict: true},
}

// RuleOf returns the rule of d, which nobody may change; that of PreferNetwork
// if d is empty or unknown.
func RuleOf(d mesh.Distribution) Rule {
	if r, ok := rules[d]; ok {
		return r
	}
	return rules[mesh.PreferNetwork]
}

// Rank returns the bucket of a candidate at dst for a connection from src: see
// Rule.Rank.
func Rank(d mesh.Distribution, src, dst Place) (rank int, ok bool) { return RuleOf(d).Rank(src, dst) }

// Rank returns the bucket of a candidate at dst for a connection from src,
// higher being preferred: the number of scopes that match in a row. If the
// first scope is Network, a mismatch there does not stop the count, and a match
// outranks everything on other networks (ztunnel since its change 1980 of July
// 2026). ok is false if the rule is strict and a scope does not match.
func (r Rule) Rank(src, dst Place) (rank int, ok bool) {
	scopes := r.Scopes
	if len(scopes) == 0 {
		return 0, true
	}
	if scopes[0] == Network {
		scopes = scopes[1:]
	}
	k := prefix(scopes, src, dst)
	switch {
	case r.Scopes[0] != Network:
		return k, !r.Strict || k == len(scopes)
	case src.Network != dst.Network:
		return k, !r.Strict
	}
	return 1 + k + len(scopes), !r.Strict || k == len(scopes)
}

// prefix counts the leading scopes in which a and b match.
func prefix(scopes []Scope, a, b Place) int {
	for i, s := range scopes {
		if !matches(s, a, b) {
			return i
		}
	}
	return len(scopes)
}

func matches(s Scope, a, b Place) bool {
	same := func(x, y string) bool { return x != "" && x == y }
	switch s {
	case Network:
		return a.Network == b.Network
	case Region:
		return same(a.Locality.Region, b.Locality.Region)
	case Zone:
		return same(a.Locality.Zone, b.Locality.Zone)
	case Subzone:
		return same(a.Locality.Subzone, b.Locality.Subzone)
	case Node:
		return same(a.Node, b.Node)
	}
	return false
}
