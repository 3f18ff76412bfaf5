package nodeproxy

import (
	"context"
	"net"
	"strings"
	"time"

	"github.com/isthmus-mesh/isthmus/hbone/pool"
	"github.com/isthmus-mesh/isthmus/mesh"
	"github.com/isthmus-mesh/isthmus/nodeproxy/picker"
	"github.com/isthmus-mesh/isthmus/nodeproxy/warm"
)

// follow reacts to new snapshots.
func (p *Proxy) follow(ctx context.Context) {
	sub := p.store.Subscribe()
	defer sub.Close()
	again := time.NewTimer(0) // for what could not be served; see below
	again.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-sub.C():
		case <-again.C:
		}
		if !p.rediscover(ctx) {
			again.Reset(listenAgain)
		}
	}
}

// listenAgain is the pause before another try to listen for a local workload
// whose address was taken.
const listenAgain = time.Second

// rediscover brings listeners, sessions and beliefs in line with the current
// snapshot. served is false if a local workload has no listener yet.
func (p *Proxy) rediscover(ctx context.Context) (served bool) {
	defer p.watchListeners()
	p.repolice()
	snap := p.store.Current()
	p.pool.Retire(func(k pool.Key) bool { return stale(snap, k) })
	p.view.Retain(snap, time.Now())
	p.kept.Revise(func(warm.Key) bool { return true })
	p.ids.Require(p.identities()...)
	p.gatewayProbes.Retain(func(key string) bool { return picker.Gateway(snap, key) != nil })
	p.paths.retain(func(key string) bool { return picker.Gateway(snap, key) != nil })
	p.podProbes.Retain(func(x probedPod) bool { return podToAsk(snap, p.cfg.Network, x.endpoint) != nil })
	p.replicas.retain(snap)
	p.transports.retain(snap)
	p.witness.forget()
	p.witness.askOwed()
	p.pin(snap)
	p.budget.Keep(p.budgeted(snap))
	p.gateways.revise(snap, p.cfg.Network, time.Now())
	local := map[string]*mesh.Workload{}
	for _, w := range p.hosted() {
		local[w.UID] = w
	}
	for _, h := range p.pods.List() {
		serving(h).in.follow(snap.Workload(h.UID()))
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.draining.Load() {
		return true
	}
	for uid, in := range p.inbounds {
		w := local[uid]
		if w != nil && w.Addresses[0].String() == hostOf(in.listener.Addr()) {
			in.follow(w)
			continue
		}
		delete(p.inbounds, uid)
		in.listener.Close() // now: another workload may have taken over its address
		p.running.Go(func() {
			dctx, cancel := context.WithTimeout(ctx, p.cfg.Timeouts.Drain)
			defer cancel()
			in.drain(dctx)
		})
	}
	served = true
	for uid, w := range local {
		if p.inbounds[uid] != nil {
			continue
		}
		in, err := p.listenInbound(w)
		if err != nil {
			p.log.Error().Err(err).Msg("cannot serve a new local workload")
			served = false
			continue
		}
		p.inbounds[uid] = in
		if p.ready.Load() {
			p.takeOver(in.listener)
		}
		p.running.Go(func() { in.run(p.data) })
	}
	return served
}

// budgeted says whether snap lists what has a retry budget, and a pod of this node that has
// it; see budgetKey.
func (p *Proxy) budgeted(snap *mesh.Snapshot) func(key string) bool {
	local := map[string]bool{}
	for _, id := range p.identities() {
		local[id.String()] = true
	}
	return func(key string) bool {
		identity, to, _ := strings.Cut(key, " ")
		host, _, _ := strings.Cut(to, ":")
		return local[identity] && (snap.Workload(to) != nil || snap.Service(host) != nil)
	}
}

// stale says whether a session must take no new stream: its pod is gone,
// terminating, or no longer at that address. A gateway that drains is not asked while another
// one serves; its session is there for when none does, and ends idle or by its GOAWAY.
func stale(snap *mesh.Snapshot, k pool.Key) bool {
	if k.From != "" && snap.Workload(k.From) == nil {
		return true
	}
	if k.Through == keptThrough {
		return false // its warm set says when
	}
	if name, ok := strings.CutPrefix(k.UID, gatewayUID); ok {
		g := picker.Gateway(snap, name)
		return g == nil || g.Address.String() != strings.TrimPrefix(k.Address, overQUIC)
	}
	w := snap.Workload(k.UID)
	if w == nil {
		return true
	}
	return w.State == mesh.Terminating || len(w.Addresses) == 0 || hostPort(w) != k.Address
}

func hostPort(w *mesh.Workload) string {
	return net.JoinHostPort(w.Addresses[0].String(), itoa(mesh.HBONEPort))
}

func hostOf(a net.Addr) string { return addrPort(a).Addr().String() }
