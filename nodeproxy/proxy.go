package nodeproxy

import (
	"context"
	"fmt"
	"net"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/rs/zerolog"
	"github.com/spiffe/go-spiffe/v2/spiffeid"
	"golang.org/x/sync/errgroup"

	"github.com/isthmus-mesh/isthmus/discovery"
	"github.com/isthmus-mesh/isthmus/discovery/file"
	"github.com/isthmus-mesh/isthmus/federation"
	"github.com/isthmus-mesh/isthmus/federation/peer"
	"github.com/isthmus-mesh/isthmus/hbone"
	"github.com/isthmus-mesh/isthmus/identity"
	"github.com/isthmus-mesh/isthmus/internal/admin"
	"github.com/isthmus-mesh/isthmus/internal/reprobe"
	"github.com/isthmus-mesh/isthmus/mesh"
)

// Proxy is one process's node proxy. Build it with New, then Run it once.
type Proxy struct {
	cfg      Config
	log      zerolog.Logger
	self     spiffeid.ID
	store    *discovery.Store
	watcher  *file.Watcher
	ids      *identity.Manager
	ledger   *peer.Ledger
	stream   *peer.HealthClient // nil when federation.health is off
	pool     *hbone.Pool
	witness  *witness
	view     *view
	budget   *budget
	metrics  *Metrics
	registry *prometheus.Registry
	admin    net.Listener

	// data is the context of every connection: it outlives the listeners while
	// the process drains.
	data context.Context
	stop context.CancelFunc

	gatewayProbes *reprobe.Prober[string]
	draining      atomic.Bool
	ready         atomic.Bool

	mu        sync.Mutex
	outbounds []*outbound
	inbounds  map[string]*inbound // by workload UID
	running   sync.WaitGroup      // accept loops and what they started
}

var gatewaySchedule = reprobe.Schedule{First: 250 * time.Millisecond, Limit: 2 * time.Second, Timeout: 3 * time.Second}

// New reads discovery, opens the identity source and binds every listener, so
// that whatever cannot work is an error here.
func New(cfg Config, log zerolog.Logger) (*Proxy, error) {
	p := &Proxy{cfg: cfg, log: log, store: &discovery.Store{}, registry: prometheus.NewRegistry(), budget: newBudget(cfg.Retry), inbounds: map[string]*inbound{}}
	p.data, p.stop = context.WithCancel(context.Background())
	p.metrics = NewMetrics(p.registry)
	p.ledger = peer.NewLedger(federation.DefaultTTL)
	var err error
	if p.self, err = cfg.SPIFFEID(); err != nil {
		return nil, err
	}
	if p.watcher, err = file.Open(cfg.Discovery.File, p.store); err != nil {
		return nil, err
	}
	if p.ids, err = cfg.Identity.Open(log); err != nil {
		return nil, err
	}
	p.registry.MustRegister(identity.NewMetrics(p.ids))
	p.pool = hbone.NewPool(hbone.PoolConfig{})
	p.gatewayProbes = reprobe.New[string](p.data, gatewaySchedule)
	p.view = newView(cfg, p.ledger.Summary, p.probeGateway, log, p.metrics)
	p.watcher.Log = log
	p.witness = newWitness(p.data, cfg, p.report, log)
	if cfg.Federation.Health {
		p.stream = peer.NewHealthClient(peer.HealthClientConfig{
			Node: cfg.Node, Network: cfg.Network, Incarnation: uint64(time.Now().UnixNano()), Self: p.self, Identity: p.ids, Ledger: p.ledger,
			Gateways: func() []*mesh.Gateway { return p.store.Current().Gateways(cfg.Network) },
			Current:  p.witness.current, Log: log, Metrics: peer.NewMetrics(p.registry),
		})
	}
	if err := p.listen(); err != nil {
		p.closeListeners()
		return nil, err
	}
	return p, nil
}

func (p *Proxy) listen() (err error) {
	if p.admin, err = admin.Listen(p.cfg.Admin); err != nil {
		return err
	}
	for i, o := range p.cfg.Outbound {
		l, err := p.listenOutbound(o.Listen, fmt.Sprintf("outbound[%d].listen", i), p.static(o))
		if err != nil {
			return err
		}
		p.outbounds = append(p.outbounds, l)
	}
	for i, s := range p.cfg.Socks {
		l, err := p.listenOutbound(s.Listen, fmt.Sprintf("socks[%d].listen", i), p.socks(s))
		if err != nil {
			return err
		}
		p.outbounds = append(p.outbounds, l)
	}
	for _, w := range p.locals() {
		in, err := p.listenInbound(w)
		if err != nil {
			return err
		}
		p.inbounds[w.UID] = in
	}
	return nil
}

func (p *Proxy) closeListeners() {
	if p.admin != nil {
		p.admin.Close()
	}
	for _, o := range p.outbounds {
		o.listener.Close()
	}
	for _, in := range p.inbounds {
		in.listener.Close()
	}
}

// locals lists the workloads of this node.
func (p *Proxy) locals() []*mesh.Workload {
	var out []*mesh.Workload
	for _, w := range p.store.Current().Workloads() {
		if w.Network == p.cfg.Network && w.Node == p.cfg.Node && len(w.Addresses) > 0 {
			out = append(out, w)
		}
	}
	return out
}

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

// follow reacts to new snapshots.
func (p *Proxy) follow(ctx context.Context) {
	changes, cancel := p.store.Subscribe()
	defer cancel()
	for {
		select {
		case <-ctx.Done():
			return
		case <-changes:
			p.rediscover(ctx)
		}
	}
}

// rediscover brings listeners, sessions and beliefs in line with a snapshot.
func (p *Proxy) rediscover(ctx context.Context) {
	snap := p.store.Current()
	p.pool.Retire(func(k hbone.PoolKey) bool { return stale(snap, k) })
	p.view.forget(snap, time.Now())
	local := map[string]*mesh.Workload{}
	known := map[mesh.EndpointID]bool{}
	for _, w := range p.locals() {
		local[w.UID] = w
		known[w.Endpoint] = true
	}
	p.witness.forget(func(id mesh.EndpointID) bool { return known[id] })
	if p.draining.Load() {
		return
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	for uid, in := range p.inbounds {
		w := local[uid]
		if w != nil && w.Addresses[0].String() == hostOf(in.listener.Addr()) {
			continue
		}
		delete(p.inbounds, uid)
		p.running.Go(func() {
			dctx, cancel := context.WithTimeout(ctx, p.cfg.Timeouts.Drain)
			defer cancel()
			in.drain(dctx)
		})
	}
	for uid, w := range local {
		if p.inbounds[uid] != nil {
			continue
		}
		in, err := p.listenInbound(w)
		if err != nil {
			p.log.Error().Err(err).Msg("cannot serve a new local workload")
			continue
		}
		p.inbounds[uid] = in
		p.running.Go(func() { in.run(p.data) })
	}
}

// stale says whether a session must take no new stream: its pod is gone,
// terminating, or no longer at that address.
func stale(snap *mesh.Snapshot, k hbone.PoolKey) bool {
	w := snap.Workload(k.UID)
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
	return net.JoinHostPort(w.Addresses[0].String(), itoa(hbonePort))
}

func hostOf(a net.Addr) string { return addrPort(a).Addr().String() }

func (p *Proxy) report(r ...federation.Record) {
	if p.stream != nil && len(r) > 0 {
		p.stream.Report(r...)
	}
}

// probeGateway asks a gateway that failed until it answers a handshake.
func (p *Proxy) probeGateway(g *mesh.Gateway) {
	ask := func(ctx context.Context) error {
		s, err := p.dialer(p.self, []spiffeid.ID{g.Identity}, g.Address)(ctx)
		if err != nil {
			return err
		}
		s.Close(nil)
		return nil
	}
	p.gatewayProbes.Watch(gatewayKey(g), ask, func(err error) bool {
		p.view.gatewayAnswered(g, err, time.Now())
		return err == nil
	})
}

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
	if !ok {
		return
	}
	s := share{k.Network, k.Service, k.Port}
	p.view.heard(s, f, age, p.store.Current(), time.Now())
	ids := make([]string, len(f.Exceptions))
	for i, id := range f.Exceptions {
		ids[i] = id.String()
	}
	p.log.Info().Str("network", k.Network).Str("service", k.Service).Uint16("port", k.Port).Uint32("healthy", f.Healthy).Uint32("ready", f.Ready).
		Bool("draining", f.Draining).Strs("exceptions", ids).Int64("age_ms", age.Milliseconds()).Msg("known")
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
