package nodeproxy

import (
	"net/netip"

	"github.com/isthmus-mesh/isthmus/hbone/pool"
	"github.com/isthmus-mesh/isthmus/nodeproxy/pods"
)

// podOptions are how the local pods are captured.
func (p *Proxy) podOptions() pods.Options {
	return pods.Options{Config: p.cfg.Capture, Node: p.cfg.Node, Network: p.cfg.Network, TrustDomain: p.cfg.TrustDomain, Drain: p.cfg.Timeouts.Drain, SlowConnect: slowConnect}
}

// podParent is what the local pods that are captured have of this node proxy.
func (p *Proxy) podParent() pods.Parent {
	return pods.Parent{
		Log: p.log, Store: p.store, Data: p.data, Go: p.running.Go,
		Locals: p.locals, Draining: p.draining.Load,
		Gateways: func() bool { return p.own != nil }, // New sets that, and the pool, later
		Told:     func() bool { return p.own.told() },
		Announce: func(uid string, addresses []netip.Addr) { p.own.announce(uid, addresses) },
		Forget:   func(uid string) { p.own.forget(uid) },
		Changed:  p.watchListeners,
		Retire:   func(uid string) { p.pool.Retire(func(k pool.Key) bool { return k.From == uid }) },
		Names:    p.namesOf,
		Plain:    p.plainPolicies,
		Serve:    p.serveCaptured,
	}
}
