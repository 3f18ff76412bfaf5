package nodeproxy

import (
	"context"
	"slices"
	"sync"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/isthmus-mesh/isthmus/discovery/file"
	"github.com/isthmus-mesh/isthmus/internal/admin"
	"github.com/isthmus-mesh/isthmus/internal/lines"
	"github.com/isthmus-mesh/isthmus/nodeproxy/pods"
)

// Run serves until ctx ends, then drains for at most timeouts.drain.
func (p *Proxy) Run(ctx context.Context) error {
	p.mu.Lock()
	for _, in := range p.inbounds {
		p.running.Go(func() { in.run(p.data) })
	}
	p.mu.Unlock()
	for _, o := range p.outbounds {
		p.running.Go(func() { o.run(p.data) })
	}
	p.witness.sockets.start()
	p.watchListeners()
	p.gateways.revise(p.store.Current(), p.cfg.Network, time.Now())
	p.ids.Require(p.identities()...)
	server := &admin.Server{Pending: p.pending, Details: p.details, State: p.dump, Registry: p.registry, More: slices.Concat(p.watcher.Endpoints(), p.diagnose.Endpoints(), p.Endpoints())}
	background, bctx := errgroup.WithContext(p.data)
	background.Go(func() error { p.watcher.Run(bctx); return nil })
	background.Go(func() error {
		p.watcher.Warn(bctx, file.PolicyInVain, func() []string { return p.warnings(p.store.Current()) })
		return nil
	})
	background.Go(func() error {
		p.watcher.Warn(bctx, file.LeadsNowhere, func() []string { return p.unrouted(p.store.Current()) })
		return nil
	})
	background.Go(func() error { return p.ids.Run(bctx) })
	background.Go(func() error { p.follow(bctx); return nil })
	background.Go(func() error { p.load.Run(bctx); return nil })
	background.Go(func() error { p.cfg.Memory.Run(bctx); return nil })
	background.Go(func() error { p.towards.Run(bctx); return nil })
	if p.cfg.Lines.Has(lines.Auto) {
		background.Go(func() error { p.transports.run(bctx, p.gatewaySessions); return nil })
	}
	background.Go(func() error { p.clients.Run(bctx); return nil })
	background.Go(func() error { return server.Run(bctx, p.admin) })
	background.Go(func() error { return server.RunOperations(bctx, p.operations) })
	if p.cfg.Capture.Scope == pods.ScopeRelease {
		background.Go(func() error { pods.Release(bctx, p.podOptions(), p.log); return nil })
	}
	if p.pods != nil {
		background.Go(func() error { p.pods.Run(bctx); return nil })
	}
	if p.stream != nil {
		background.Go(func() error { return p.stream.Run(bctx) })
		background.Go(func() error { p.listenServices(bctx); return nil })
		background.Go(func() error { p.followLinks(bctx); return nil })
		background.Go(func() error { p.own.run(bctx); return nil })
		background.Go(func() error { p.watchDirect(bctx); return nil })
		if p.names != nil {
			background.Go(func() error { p.names.Run(bctx); return nil })
		}
	}
	starting, stop := context.WithCancel(bctx)
	defer context.AfterFunc(ctx, stop)()
	if p.plugins != nil {
		background.Go(func() error { p.pods.AnswerPlugins(starting, p.plugins); return nil })
	}
	p.settle(ctx)
	background.Go(func() error { p.announce(starting, server); return nil })
	select {
	case <-ctx.Done():
	case <-bctx.Done(): // a part failed; Wait below says which
	}
	p.drain()
	p.stop()
	p.running.Wait()
	p.gatewayProbes.Wait()
	p.paths.checks.Wait()
	p.podProbes.Wait()
	err := background.Wait()
	p.pods.Close()
	p.witness.sockets.wait() // nobody watches more of them
	p.witness.prober.Wait()  // last: all of these may have an application asked
	if ctx.Err() != nil {
		err = nil
	}
	p.log.Info().Msg("stopped")
	return err
}

// settleLimit is how long a new node proxy waits for a gateway of its own
// network before it calls itself ready without one.
const settleLimit = 2 * time.Second

func (p *Proxy) settle(ctx context.Context) {
	limit := time.Now().Add(settleLimit)
	if !p.own.await(ctx) {
		return
	}
	if after := time.Now().Add(settleLimit / 4); p.own != nil && p.own.leader() != "" && after.After(limit) {
		limit = after // who has just told everything answers for what listeners lead to
	}
	for p.stream != nil && !p.stream.Settled() && len(p.store.Current().Gateways(p.cfg.Network)) > 0 {
		if time.Now().After(limit) {
			p.log.Warn().Msg("starting without a health stream: no gateway of this network has accepted one")
			break
		}
		if !pause(ctx, 10*time.Millisecond) {
			return
		}
	}
	p.ready.Store(true)
}

// announce takes over shared listeners and logs when the process becomes ready. If that takes long, it logs what is
// missing.
func (p *Proxy) announce(ctx context.Context, s *admin.Server) {
	if s.AwaitReady(ctx, func(pending []string) { p.log.Warn().Strs("pending", pending).Msg("started, not ready") }) {
		p.takeOverAll()
		p.log.Info().Str("node", p.cfg.Node).Str("network", p.cfg.Network).Int("workloads", len(p.locals())).Msg("ready")
	}
}

// drain stops accepting, tells peers to go elsewhere, and waits for what is
// open, in both directions at once and for at most timeouts.drain.
func (p *Proxy) drain() {
	p.log.Info().Msg("draining")
	ctx, cancel := context.WithTimeout(p.data, p.cfg.Timeouts.Drain)
	defer cancel()
	var wg sync.WaitGroup
	p.mu.Lock()
	p.draining.Store(true) // with mu held: no listener is opened after this
	for _, in := range p.inbounds {
		wg.Go(func() {
			handOver(in.listener)
			in.drain(ctx)
		})
	}
	p.mu.Unlock()
	for _, o := range p.outbounds {
		wg.Go(func() {
			handOver(o.listener)
			o.drain(ctx)
		})
	}
	wg.Go(func() { p.pods.Drain(ctx) })
	if p.stream != nil {
		p.stream.Drain() // while open connections end, what happens to the pods is still said
	}
	wg.Wait()
	p.kept.Close()
	p.pool.Close()
	p.pool.Wait(ctx) // what applications sent last may still be on its way
}
