package health

import (
	"bytes"
	"cmp"
	"slices"

	"github.com/isthmus-mesh/isthmus/federation/ledger"
	"github.com/isthmus-mesh/isthmus/federation/record"
	"github.com/isthmus-mesh/isthmus/mesh"
)

// FromMerge returns the part of a network. merged is the result of ledger.Merge over its gateway
// instances; without any the health is unknown. silent are gateways that are alive and report no
// health of the port. maxWeight is the bound of the link.
//
// Of the instances of one gateway the preferred one counts, as in a hand-over. Ejected endpoints
// beyond MaxEjected are counted. Faults are named first, then the newest.
func FromMerge(network string, merged ledger.Health, silent []Gateway, maxWeight uint32) Network {
	n := Network{Name: network, State: Unknown, MaxWeight: maxWeight, Further: merged.Unnamed,
		Counts: counts(merged.Ready, merged.Healthy, merged.ReadyCapacity, merged.HealthyCapacity)}
	best := map[string]ledger.Delivery{}
	for _, d := range merged.Deliveries {
		if n.State != Current {
			n.State = Stale
		}
		if d.Live {
			n.State = Current
		}
		if b, has := best[d.Gateway]; !has || prefer(d, b) > 0 {
			best[d.Gateway] = d
		}
	}
	for _, d := range best {
		n.Gateways = append(n.Gateways, gatewayOf(d))
	}
	for _, g := range silent {
		if _, reports := best[g.Name]; !reports {
			g.Unknown = true
			n.Gateways = append(n.Gateways, g)
		}
	}
	slices.SortFunc(n.Gateways, func(a, b Gateway) int { return cmp.Compare(a.Name, b.Name) })
	n.Gateways = slices.CompactFunc(n.Gateways, func(a, b Gateway) bool { return a.Name == b.Name })
	n.Gateways = n.Gateways[:min(len(n.Gateways), MaxGateways)]
	n.eject(merged.Exceptions)
	return n
}

// eject names the endpoints of list.
func (n *Network) eject(list []record.Exception) {
	all := map[mesh.EndpointID]Ejected{}
	for _, x := range list {
		e := Ejected{x.Endpoint, x.Cause, shown(x.Detail)}
		old, twice := all[e.Endpoint]
		if !twice || e.Fault() && !old.Fault() || e.Fault() == old.Fault() && less(e, old) {
			all[e.Endpoint] = e
		}
	}
	for _, e := range all {
		n.Ejected = append(n.Ejected, e)
	}
	slices.SortFunc(n.Ejected, func(a, b Ejected) int {
		return cmp.Or(cmp.Compare(fault(b), fault(a)), cmp.Compare(b.Since, a.Since), cmp.Compare(a.Endpoint, b.Endpoint))
	})
	if more := len(n.Ejected) - MaxEjected; more > 0 {
		n.Ejected = n.Ejected[:MaxEjected]
		n.Further += uint32(more)
	}
	n.Further = min(n.Further, record.MaxEndpoints)
	slices.SortFunc(n.Ejected, func(a, b Ejected) int { return cmp.Compare(a.Endpoint, b.Endpoint) })
}

// less orders reports on one endpoint, so that the result does not depend on the order of gateways.
func less(a, b Ejected) bool {
	return cmp.Or(cmp.Compare(b.Since, a.Since), cmp.Compare(a.Cause, b.Cause), cmp.Compare(a.Reason, b.Reason), cmp.Compare(a.Witness, b.Witness)) < 0
}

func fault(e Ejected) int {
	if e.Fault() {
		return 1
	}
	return 0
}

// shown returns what of d may be displayed.
func shown(d record.Detail) record.Detail {
	if !validName(d.Reason) || len(d.Reason) > maxReason {
		d.Reason = ""
	}
	if !validName(d.Witness) {
		d.Witness = ""
	}
	d.Since = max(0, d.Since)
	return d
}

// counts raises capacities to the numbers: an instance of another version may not send them.
func counts(ready, healthy, readyCapacity, healthyCapacity uint32) Counts {
	c := Counts{Ready: ready, Healthy: min(healthy, ready), ReadyCapacity: max(readyCapacity, ready)}
	c.HealthyCapacity = min(max(healthyCapacity, c.Healthy), c.ReadyCapacity)
	return c
}

func gatewayOf(d ledger.Delivery) Gateway {
	h := d.Health
	g := Gateway{Name: d.Gateway, Instance: ShortInstance(d.Instance), Group: d.Group, Draining: d.Draining, Stale: !d.Live, Counts: counts(h.Ready, h.Healthy, h.ReadyCapacity, h.HealthyCapacity)}
	for _, x := range h.Exceptions {
		if x.Cause == record.Hop {
			g.Unreachable = append(g.Unreachable, x.Endpoint)
		}
	}
	slices.Sort(g.Unreachable)
	g.Unreachable = slices.Compact(g.Unreachable)
	return g
}

// prefer is positive if a is preferred to b: one that is alive, then one that does not drain, then more
// healthy and more ready capacity, then the greater instance.
func prefer(a, b ledger.Delivery) int {
	return cmp.Or(
		compareBool(a.Live, b.Live),
		compareBool(b.Draining, a.Draining),
		cmp.Compare(a.Health.HealthyCapacity, b.Health.HealthyCapacity),
		cmp.Compare(a.Health.ReadyCapacity, b.Health.ReadyCapacity),
		bytes.Compare(a.Instance[:], b.Instance[:]))
}

func compareBool(a, b bool) int {
	switch {
	case a == b:
		return 0
	case a:
		return 1
	}
	return -1
}
