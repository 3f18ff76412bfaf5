//go:build linux

package main

import (
	"net/netip"
	"slices"

	"github.com/isthmus-mesh/isthmus/internal/netspace"
)

// variant is one way from a load generator to an application.
type variant struct {
	Name  string
	roles []role // proxies on the way, from the client
	app   *netspace.Process
	load  *netspace.Process

	target target
	other  *variant // the other way of the same client proxy; nil when there is none
}

// variantNames are all there can be, in the order of a round. The last two need
// a stock proxy.
var variantNames = []string{"direct", "relay", "single", "double", "zt-single", "zt-double"}

// role is a proxy and what its figures are called.
type role struct {
	Name    string
	process *netspace.Process
}

// entry is how connections get into client proxies.
type entry string

const (
	// byRedirect sends connections to virtual addresses to a port of the client
	// proxy, as on a real node: of a stock one to 15001, of ours to a listener
	// with a fixed destination. Nothing is said between application and proxy.
	byRedirect entry = "redirect"
	// bySOCKS costs both kinds two exchanges. Ours answers the second when the far
	// application has accepted, a stock one at once.
	bySOCKS entry = "socks"
	// byListener is the listener of ours without redirection. A stock proxy has
	// none; it is then still asked by SOCKS5, and the comparison is unfair to it.
	byListener entry = "listener"
)

func (w *world) makeVariants(entry entry) []*variant {
	direct := target{Address: w.servers[ours].at(appPort)}
	relay := target{Address: w.gateway.at(relayPort)}
	all := []*variant{
		w.newVariant("direct", ours, direct),
		w.newVariant("relay", ours, relay, "relay"),
		w.newVariant("single", ours, w.enter(entry, ours, "near"), "client-ours", "server-ours"),
		w.newVariant("double", ours, w.enter(entry, ours, "far"), "client-ours", "gateway", "server-ours"),
	}
	if slices.Contains(w.kinds, stock) {
		all = append(all,
			w.newVariant("zt-single", stock, w.enter(entry, stock, "near"), "client-stock", "server-stock"),
			w.newVariant("zt-double", stock, w.enter(entry, stock, "far"), "client-stock", "gateway", "server-stock"))
	}
	for _, v := range all {
		for _, o := range all {
			if o != v && len(v.roles) > 0 && len(o.roles) > 0 && o.roles[0] == v.roles[0] {
				v.other = o
			}
		}
	}
	return all
}

func (w *world) newVariant(name, kind string, to target, proxies ...string) *variant {
	v := &variant{Name: name, app: w.apps[kind], load: w.loads[kind], target: to}
	for _, p := range proxies {
		v.roles = append(v.roles, role{roleName(p), w.proxies[p]})
	}
	return v
}

// roleName is the same for both kinds.
func roleName(proxy string) string {
	for _, name := range []string{"client", "server"} {
		for _, kind := range []string{ours, stock} {
			if proxy == name+"-"+kind {
				return name
			}
		}
	}
	return proxy
}

// enter is the target that reaches a service of a kind's server.
func (w *world) enter(entry entry, kind, side string) target {
	client := w.clients[kind]
	if entry == byListener && kind == ours {
		return target{Address: client.local(map[string]uint16{"near": nearPort, "far": farPort}[side])}
	}
	if entry == byRedirect {
		return target{Address: netip.AddrPortFrom(vip(side, kind), 80)}
	}
	return target{Address: netip.AddrPortFrom(vip(side, kind), 80), SOCKS: client.local(socksPort)}
}
