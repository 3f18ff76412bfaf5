package excerpt

import (
	"cmp"
	"net/netip"
	"slices"
	"time"

	"github.com/isthmus-mesh/isthmus/discovery"
)

func networkThing(n discovery.Network) thing { return thing{discovery.KindNetwork, n.Name} }

func gatewayThing(g discovery.Gateway) thing { return thing{discovery.KindGateway, gatewayKey(g).Name} }

// takeBase takes which networks and gateways there are. What another gateway than the last does
// not list is kept in doubt, and until then also if it says so once more; unless
// one that it lists has its address.
func (h *Held) takeBase(b base, another bool, until time.Time) {
	listed := map[thing]bool{}
	at := map[netip.AddrPort]bool{}
	for _, n := range b.networks {
		listed[networkThing(n)] = true
	}
	for _, g := range b.gateways {
		listed[gatewayThing(g)] = true
		at[instanceOf(g)] = true
	}
	kept := func(x thing) bool {
		_, doubted := h.doubted[x]
		return !listed[x] && (another || doubted)
	}
	var networks []discovery.Network
	var gateways []discovery.Gateway
	for _, n := range h.base.networks {
		if kept(networkThing(n)) && len(b.networks)+len(networks) < maxListed {
			networks = append(networks, n)
		}
	}
	for _, g := range h.base.gateways {
		if kept(gatewayThing(g)) && !at[instanceOf(g)] && len(b.gateways)+len(gateways) < maxListed {
			gateways = append(gateways, g)
		}
	}
	was := h.base
	b.networks, b.gateways = slices.Concat(b.networks, networks), slices.Concat(b.gateways, gateways)
	h.setBase(b)
	stays := map[thing]bool{}
	for _, n := range networks {
		stays[networkThing(n)] = true
	}
	for _, g := range gateways {
		stays[gatewayThing(g)] = true
	}
	for _, n := range was.networks {
		h.judge(networkThing(n), stays[networkThing(n)], another, until)
	}
	for _, g := range was.gateways {
		h.judge(gatewayThing(g), stays[gatewayThing(g)], another, until)
	}
}

// judge begins doubt of what stays without being listed, and ends that of all else.
func (h *Held) judge(x thing, stays, another bool, until time.Time) {
	switch {
	case !stays:
		h.trust(x)
	case another:
		h.doubt(x, until)
	}
}

// instanceOf is where g itself is reached, also if others share its address.
func instanceOf(g discovery.Gateway) netip.AddrPort { return cmp.Or(g.FederationAddress, g.Address) }

// dropFromBase ends a network or a gateway.
func (h *Held) dropFromBase(x thing) {
	b := h.base
	b.networks = slices.DeleteFunc(slices.Clone(b.networks), func(n discovery.Network) bool { return networkThing(n) == x })
	b.gateways = slices.DeleteFunc(slices.Clone(b.gateways), func(g discovery.Gateway) bool { return gatewayThing(g) == x })
	h.setBase(b)
}

func (h *Held) setBase(b base) {
	for _, old := range []base{h.base, b} {
		for _, n := range old.networks {
			h.touch(networkKey(n.Name))
		}
		for _, g := range old.gateways {
			h.touch(gatewayKey(g))
		}
	}
	if b.root != h.base.root {
		h.touch(discovery.RootNamespaceKey())
	}
	h.bytes += b.cost() - h.base.cost()
	h.base = b
}
