package nodeproxy

import (
	"context"
	"sync"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/isthmus-mesh/isthmus/internal/admin"
)

// Run serves until ctx ends, then drains for at most timeouts.drain.
func (p *Proxy) Run(ctx context.Context) error {
	server := &admin.Server{Pending: p.pending, State: p.dump, Registry: p.registry}
	background, bctx := errgroup.WithContext(p.data)
	background.Go(func() error { p.watcher.Run(bctx); return nil })
	background.Go(func() error { return p.ids.Run(bctx) })
	background.Go(func() error { p.follow(bctx); return nil })
	background.Go(func() error { return server.Run(bctx, p.admin) })
	if p.stream != nil {
		background.Go(func() error { return p.stream.Run(bctx) })
		background.Go(func() error { p.listenLedger(bctx); return nil })
	}
	for _, in := range p.inbounds {
		p.running.Go(func() { in.run(p.data) })
	}
	for _, o := range p.outbounds {
		p.running.Go(func() { o.run(p.data) })
	}
	p.settle(ctx)
	select {
	case <-ctx.Done():
	case <-bctx.Done(): // a part failed; Wait below says which
	}
	p.drain()
	p.stop()
	p.running.Wait()
	for _, o := range p.outbounds {
		o.conns.Wait()
	}
	for _, in := range p.inbounds {
		in.conns.Wait()
	}
	p.gatewayProbes.Wait()
	p.witness.prober.Wait()
	err := background.Wait()
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
	for p.stream != nil && p.stream.Attached() == 0 && len(p.store.Current().Gateways(p.cfg.Network)) > 0 {
		if time.Now().After(limit) {
			p.log.Warn().Msg("starting without a health stream: no gateway of this network answers")
			break
		}
		if !pause(ctx, 10*time.Millisecond) {
			return
		}
	}
	p.ready.Store(true)
	p.log.Info().Str("node", p.cfg.Node).Str("network", p.cfg.Network).Int("workloads", len(p.locals())).Msg("ready")
}

func (p *Proxy) drain() {
	p.draining.Store(true)
	p.log.Info().Msg("draining")
	ctx, cancel := context.WithTimeout(p.data, p.cfg.Timeouts.Drain)
	defer cancel()
	for _, o := range p.outbounds {
		o.listener.Close()
	}
	p.mu.Lock()
	inbounds := make([]*inbound, 0, len(p.inbounds))
	for _, in := range p.inbounds {
		inbounds = append(inbounds, in)
	}
	p.mu.Unlock()
	var wg sync.WaitGroup
	for _, in := range inbounds {
		wg.Go(func() { in.drain(ctx) })
	}
	wg.Wait()
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		for _, o := range p.outbounds {
			o.conns.Wait()
		}
	}()
	select {
	case <-ended:
	case <-ctx.Done():
		p.stop()
		<-ended
	}
	p.pool.Close()
}

func (p *Proxy) pending() []string {
	switch {
	case p.draining.Load():
		return []string{"draining"}
	case !p.ready.Load():
		return []string{"federation"}
	}
	return nil
}
