package discovery

import "maps"

// Changes says what is different in one snapshot from an earlier one, so that
// nobody has to walk the mesh. Of a set, treat it as immutable.
type Changes struct {
	All       bool                     // everything may be; the sets may be empty then
	Workloads map[string]struct{}      // by UID: new, gone, or different
	Services  map[string]struct{}      // by hostname: itself, or one of its members
	Gateways  map[GatewayName]struct{} // new, gone, or different
	Networks  map[string]struct{}
	Policies  bool // others are in force
}

// GatewayName is a gateway's name on its network.
type GatewayName struct{ Network, Name string }

// Everything is what changes without an account of them are.
func Everything() Changes { return Changes{All: true} }

func newChanges() Changes {
	return Changes{Workloads: map[string]struct{}{}, Services: map[string]struct{}{}, Gateways: map[GatewayName]struct{}{}, Networks: map[string]struct{}{}}
}

// The following note one object, unless everything is different anyway.

func (c *Changes) workload(uid string)          { note(c, c.Workloads, uid) }
func (c *Changes) service(hostname string)      { note(c, c.Services, hostname) }
func (c *Changes) gateway(network, name string) { note(c, c.Gateways, GatewayName{network, name}) }
func (c *Changes) network(name string)          { note(c, c.Networks, name) }

func note[K comparable](c *Changes, set map[K]struct{}, k K) {
	if !c.All {
		set[k] = struct{}{}
	}
}

// Empty reports whether nothing is different.
func (c Changes) Empty() bool { return !c.All && !c.Policies && c.Len() == 0 }

// Len returns how many objects are named.
func (c Changes) Len() int {
	return len(c.Workloads) + len(c.Services) + len(c.Gateways) + len(c.Networks)
}

// maxChanges is how many objects a subscriber is told by name before that
// becomes Everything: at that size a walk costs no more.
const maxChanges = 10_000

// merge adds later to c, which the caller owns.
func (c *Changes) merge(later Changes) {
	if c.All || later.All || c.Len()+later.Len() > maxChanges {
		*c = Everything()
		return
	}
	if c.Workloads == nil {
		*c = newChanges()
	}
	c.Policies = c.Policies || later.Policies
	maps.Copy(c.Workloads, later.Workloads)
	maps.Copy(c.Services, later.Services)
	maps.Copy(c.Gateways, later.Gateways)
	maps.Copy(c.Networks, later.Networks)
}

// News is which problems came and went with a batch of changes, by object.
type News struct{ Appeared, Gone []Problem }
