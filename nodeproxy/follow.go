package nodeproxy

import (
	"context"
	"net"
	"strings"
	"time"

	"github.com/isthmus-mesh/isthmus/federation"
	"github.com/isthmus-mesh/isthmus/hbone/pool"
	"github.com/isthmus-mesh/isthmus/mesh"
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
	snap := p.store.Current()
	p.pool.Retire(func(k pool.Key) bool { return stale(snap, k) })
	p.view.forget(snap, time.Now())
	p.ids.Require(p.identities()...)
	p.gatewayProbes.Retain(func(key string) bool { return gatewayNamed(snap, key) != nil })
	p.witness.forget()
	p.budget.Keep(func(key string) bool { return budgeted(snap, key) })
	p.gateways.revise(snap, p.cfg.Network, time.Now())
	local := map[string]*mesh.Workload{}
	for _, w := range p.locals() {
		local[w.UID] = w
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.draining.Load() {
		return true
	}
	for uid, in := range p.inbounds {
		w := local[uid]
		if w != nil && w.Addresses[0].String() == hostOf(in.listener.Addr()) {
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
		p.running.Go(func() { in.run(p.data) })
	}
	return served
}

// budgeted says whether snap lists what has the retry budget key; see budgetKey.
func budgeted(snap *mesh.Snapshot, key string) bool {
	host, _, _ := strings.Cut(key, ":")
	return snap.Workload(key) != nil || snap.Service(host) != nil
}

// stale says whether a session must take no new stream: its pod is gone,
// terminating, or no longer at that address.
func stale(snap *mesh.Snapshot, k pool.Key) bool {
	w := snap.Workload(k.UID)
	if k.Through != "" { // a pod of another network
		name, _, _ := strings.Cut(k.Through, " ")
		g := gatewayNamed(snap, name)
		return g == nil || g.Drained || through(g) != k.Through || w == nil || w.State == mesh.Terminating
	}
	if name, ok := strings.CutPrefix(k.UID, gatewayUID); ok {
		g := gatewayNamed(snap, name)
		return g == nil || g.Drained || g.Address.String() != k.Address
	}
	if w == nil {
		return true
	}
	return w.State == mesh.Terminating || len(w.Addresses) == 0 || hostPort(w) != k.Address
}

func hostPort(w *mesh.Workload) string {
	return net.JoinHostPort(w.Addresses[0].String(), itoa(mesh.HBONEPort))
}

func hostOf(a net.Addr) string { return addrPort(a).Addr().String() }

// listenLedger tells the view, and the log, what owners say about their
// network services.
func (p *Proxy) listenLedger(ctx context.Context) {
	sub := p.ledger.OnChange()
	defer sub.Close()
	for {
		select {
		case <-ctx.Done():
			return
		case <-sub.C():
		}
		subjects, all := sub.Take()
		if all {
			subjects = nil
			for _, r := range p.ledger.Records() {
				subjects = append(subjects, r.Key().Subject())
			}
		}
		for _, k := range subjects {
			p.known(k)
		}
	}
}

func (p *Proxy) known(k federation.Key) {
	if k.Kind != federation.KindSummary {
		return
	}
	f, age, ok := p.ledger.Summary(k.Network, k.Service, k.Port)
	if !ok { // expired: nobody has vouched for it in time, and unknown is usable
		p.log.Info().Str("network", k.Network).Str("service", k.Service).Uint16("port", k.Port).Msg("no longer known")
		return
	}
	s := share{k.Network, k.Service, k.Port}
	p.view.takeSummary(s, f, age, p.store.Current(), time.Now())
	ids := make([]string, len(f.Exceptions))
	for i, id := range f.Exceptions {
		ids[i] = id.String()
	}
	e := p.log.Info().Str("network", k.Network).Str("service", k.Service).Uint16("port", k.Port).Uint32("healthy", f.Healthy).Uint32("ready", f.Ready).
		Bool("draining", f.Draining).Strs("exceptions", ids)
	if age < federation.NoEvidence {
		e.Int64("age_ms", age.Milliseconds())
	}
	e.Msg("known")
}
