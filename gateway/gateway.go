package gateway

import (
	"context"
	"errors"
	"fmt"
	"net"
	"slices"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/rs/zerolog"
	"golang.org/x/sync/errgroup"

	"github.com/isthmus-mesh/isthmus/discovery"
	"github.com/isthmus-mesh/isthmus/discovery/excerpt"
	"github.com/isthmus-mesh/isthmus/discovery/file"
	"github.com/isthmus-mesh/isthmus/discovery/kube"
	"github.com/isthmus-mesh/isthmus/discovery/kube/boundtoken"
	"github.com/isthmus-mesh/isthmus/discovery/kube/imported"
	"github.com/isthmus-mesh/isthmus/federation/gossip"
	"github.com/isthmus-mesh/isthmus/federation/healthstream"
	"github.com/isthmus-mesh/isthmus/hbone"
	"github.com/isthmus-mesh/isthmus/hbone/quic"
	"github.com/isthmus-mesh/isthmus/identity"
	"github.com/isthmus-mesh/isthmus/internal/admin"
	"github.com/isthmus-mesh/isthmus/internal/admission"
	"github.com/isthmus-mesh/isthmus/internal/diagnose"
	"github.com/isthmus-mesh/isthmus/internal/logging"
	"github.com/isthmus-mesh/isthmus/internal/overload"
	"github.com/isthmus-mesh/isthmus/internal/reprobe"
	"github.com/isthmus-mesh/isthmus/internal/resolve"
	"github.com/isthmus-mesh/isthmus/internal/retrybudget"
	"github.com/isthmus-mesh/isthmus/internal/tcp"
	"github.com/isthmus-mesh/isthmus/mesh"
)

// Gateway is one process's gateway. Build it with New, then Run it once.
type Gateway struct {
	cfg        Config
	log        zerolog.Logger
	store      *discovery.Store
	watcher    *file.Watcher
	kube       *kube.Source         // nil without discovery.kube
	imported   *imported.Source     // likewise
	tokens     *boundtoken.Reviewer // of node proxies; nil without discovery.kube
	diagnose   *diagnose.Diagnosis
	ids        *identity.Manager
	self       *mesh.Gateway      // as discovery described it at start
	fed        *gossip.Federation // nil when federation.health is off
	doors      *doors
	nodes      *healthstream.Server // nil when federation.health is off
	excerpts   *excerpt.Index       // what nodes are told of discovery; nil when federation.health is off
	backends   *backends
	deliveries *deliveries
	budget     *retrybudget.Budget // of repeats, by service
	moves      *retrybudget.Budget // of connections that may be moved, by the identity of the client
	doubts     *retrybudget.Budget // of pods that connections may keep others away from, likewise
	load       *overload.Limiter
	admit      func(string) (overload.Work, error)                  // of tunnels whose clients come again: load's TryAdmit
	hold       func(context.Context, string) (overload.Work, error) // of the others: load's AdmitOnce
	clients    *admission.Guard
	inner      *innerHandshakes
	tunnels    tunnels
	metrics    *Metrics
	refusals   *identity.Refusals
	failures   logging.PeerLimits  // of warnings, by client and trace
	lines      *logging.PeerLimits // of lines that a peer can trigger, by peer
	edges      logging.PeerLimits  // of lines about ports, by node and port
	registry   *prometheus.Registry
	listener   *net.TCPListener
	quic       *quic.Listener // nil without lines.transport
	line       tcp.Line       // of connections that other networks open, and of path checks; set by Listen
	sinking    sync.Mutex     // held while another gateway measures throughput to this one
	admin      net.Listener
	operations net.Listener // nil without operations.address

	background     context.Context // what outlives the listeners during drain
	stop           context.CancelFunc
	lame, draining atomic.Bool // told to stop: serves still; or finishes what is open
	introduction   introduction
	handover       *handover
	settled        chan struct{} // closed when this gateway knows what its nodes know
	conns          sync.WaitGroup
	sessions       hbone.Group
}

// Registry holds the metrics of this gateway.
func (g *Gateway) Registry() *prometheus.Registry { return g.registry }

// hopSchedule is that of probes of pods' node proxies: they stay on the own
// network, so they may be frequent.
var hopSchedule = reprobe.Schedule{First: 100 * time.Millisecond, Limit: 500 * time.Millisecond, Timeout: time.Second}

// New is Open and Listen.
func New(cfg Config, log zerolog.Logger) (*Gateway, error) {
	g, err := Open(cfg, log)
	if err == nil {
		err = g.Listen()
	}
	if err != nil {
		return nil, err
	}
	return g, nil
}

// Open reads discovery, keys and certificates. It opens no socket: gateway --check ends
// after it, and what would keep the process from starting is an error here.
func Open(cfg Config, log zerolog.Logger) (*Gateway, error) {
	g := &Gateway{cfg: cfg, log: log, failures: logging.PeerLimits{Every: time.Minute}, lines: logging.ByPeer(log), edges: logging.PeerLimits{Every: edgeEvery, Log: &log}, store: &discovery.Store{}, registry: admin.NewRegistry(), settled: make(chan struct{}), handover: newHandover(),
		budget: retrybudget.New(cfg.Retry.BudgetBurst, cfg.Retry.BudgetRatio),
		moves:  retrybudget.New(cfg.Retry.share(), cfg.Retry.BudgetRatio),
		doubts: retrybudget.New(cfg.Retry.share(), cfg.Retry.BudgetRatio)}
	g.diagnose = diagnose.New(cfg.Diagnose)
	background, stop := context.WithCancelCause(context.Background())
	g.background, g.stop = background, func() { stop(fmt.Errorf("this process stopped: timeouts.drain (%v) was over", cfg.Timeouts.Drain)) }
	g.metrics = NewMetrics(g.registry)
	g.refusals = identity.NewRefusals(log)
	g.load = overload.New(g.registry)
	g.load.Memory = cfg.Memory
	cfg.Memory.Register(g.registry)
	g.admit, g.hold = g.load.TryAdmit, g.load.AdmitOnce
	g.clients = admission.NewGuard(cfg.Limits.Config, hbone.DefaultConfig().MaxUnread(), g.registry, log)
	g.inner = newInnerHandshakes(cfg.Limits.Inner, g.registry)
	var err error
	if g.watcher, err = cfg.discover(g.store, log); err != nil {
		return nil, err
	}
	g.registry.MustRegister(file.NewCollector(g.watcher))
	reviews := boundtoken.NewMetrics(g.registry)
	if cfg.Discovery.Kube.Enabled() {
		if g.imported, err = imported.Open(cfg.Discovery.Kube, cfg.VIPs, g.watcher, log); err != nil {
			return nil, err
		}
		if g.kube, err = cfg.Discovery.Kube.Open(cfg.Network, g.imported.Beside(g.watcher), log); err != nil {
			return nil, err
		}
		if err := g.reviewTokens(reviews); err != nil {
			return nil, err
		}
	}
	if cfg.Address.Service != "" {
		g.kube.SetFront(cfg.Address.Service, cfg.Address.QUICService, cfg.Name)
	}
	g.registry.MustRegister(kube.NewCollector(g.kube))
	if g.self, err = cfg.find(g.store.Current()); err != nil {
		return nil, err
	}
	if !cfg.Listen.IsValid() {
		g.cfg.Listen = g.self.Address
	}
	if a := g.cfg.Listen.Addr(); !cfg.DialFrom.IsValid() && !a.IsUnspecified() {
		g.cfg.DialFrom = a
	}
	if a := g.cfg.DialFrom; a.IsValid() && cfg.Discovery.File != "" && !g.store.Current().FromGateway(cfg.Network, a) {
		g.log.Warn().Stringer("dial_from", a).Msg("discovery does not list the address that connections to pods come from: node proxies will let other networks ask for every port of a pod; set gateways[].sources")
	}
	if g.ids, err = cfg.Identity.Open(log); err != nil {
		return nil, err
	}
	if err := g.ids.CheckTrustDomain(cfg.TrustDomain); err != nil {
		return nil, err
	}
	g.registry.MustRegister(identity.NewMetrics(g.ids))
	g.backends = newBackends(cfg.Network, cfg.OutlierDetection, g.witnessed,
		reprobe.New[mesh.EndpointID](g.background, hopSchedule), g.ask, g.listed, log, func(w *mesh.Workload) { g.deliveries.touched(time.Now(), w) })
	g.backends.late = g.late
	g.backends.nth = func() int { // one that discovery does not list is like the first
		return max(0, slices.IndexFunc(g.store.Current().Gateways(cfg.Network), func(x *mesh.Gateway) bool { return x.Name == cfg.Name }))
	}
	g.backends.count = func(edge string) { g.metrics.edges.WithLabelValues("hop", edge).Inc() }
	g.registry.MustRegister(
		prometheus.NewGaugeFunc(prometheus.GaugeOpts{Name: "isthmus_served_sessions", Help: "Sessions with clients."}, func() float64 { return float64(g.sessions.Len()) }),
		prometheus.NewGaugeFunc(prometheus.GaugeOpts{Name: "isthmus_held_bytes", Help: "Bytes received on sessions and not read yet. Connection windows are smaller by these."},
			func() float64 { return float64(g.sessions.Held()) }))
	quic.Register(g.registry)
	g.registry.MustRegister(prometheus.NewGaugeFunc(prometheus.GaugeOpts{Name: "isthmus_probes", Help: "Failed pods that are being probed."},
		func() float64 { return float64(g.backends.prober.Active()) }))
	g.deliveries = &deliveries{network: cfg.Network, store: g.store, pods: g.backends.podHealth, why: g.backends.podDetail, publish: g.publish,
		told: func(k portKey) {
			if g.nodes != nil {
				g.nodes.Changed(k.service)
			}
		}, ports: map[string]map[uint16]*delivery{}, exports: map[string]exported{}, behind: make(chan struct{}, 1)}
	g.registry.MustRegister(newCapacity(g.deliveries))
	g.doors = newDoors(cfg.Network, cfg.TrustDomain, g.store.Current, resolve.DNS(resolvConf))
	if cfg.Federation.Health {
		if err := g.federate(); err != nil {
			return nil, err
		}
	}
	return g, nil
}

// Listen binds every listener, or none.
func (g *Gateway) Listen() (err error) {
	if g.cfg.ReusePort {
		prepareHandover(g.log)
	}
	g.line = g.cfg.Lines.Open(g.log)
	if g.listener, err = listen(g.cfg.Listen, g.cfg.ReusePort, g.line.Control); err != nil {
		return fmt.Errorf("listen: %w: %s", err, listenRemedy(err))
	}
	if err = g.listenQUIC(); err != nil {
		g.listener.Close()
		return err
	}
	if g.admin, err = admin.Listen(g.cfg.Admin); err != nil {
		g.closeListeners()
		return err
	}
	if g.operations, err = admin.ListenOperations(g.cfg.Operations); err != nil {
		g.closeListeners()
		g.admin.Close()
		return err
	}
	return nil
}

func (g *Gateway) closeListeners() {
	g.listener.Close()
	if g.quic != nil {
		g.quic.Close()
	}
}

// discover loads what discovery says into store. Of other networks nothing is chosen, so
// their workloads are not kept: their gateways are, and what their services come to.
func (c *Config) discover(store *discovery.Store, log zerolog.Logger) (*file.Watcher, error) {
	if c.Discovery.File == "" {
		return file.Without(c.Network, c.TrustDomain, store, log), nil
	}
	return c.Discovery.OpenFor(c.Network, store, log)
}

// listed returns the pod of this network with this endpoint ID, nil if discovery
// no longer lists it.
func (g *Gateway) listed(id mesh.EndpointID) *mesh.Workload {
	w := g.store.Current().WorkloadByEndpoint(id)
	if w == nil || w.Network != g.cfg.Network {
		return nil
	}
	return w
}

// listenRemedy is what to do where a gateway cannot listen.
func listenRemedy(err error) string {
	if errors.Is(err, syscall.EADDRNOTAVAIL) {
		return "no interface here has that address (yet): correct gateways[].address in discovery, or set listen to the address that this machine has"
	}
	return "is another gateway running on that address?"
}

// Check reports what the gateway would wait for after its start: its certificate.
func (g *Gateway) Check() error { return g.ids.Check(g.self.Identity) }

// Run serves until ctx ends, and then for timeouts.lameDuck as before, and then drains for
// at most timeouts.drain. It returns the first error that ended it early.
func (g *Gateway) Run(ctx context.Context) error {
	g.ids.Require(g.self.Identity)
	server := &admin.Server{Pending: g.pending, Details: g.details, State: g.dump, Registry: g.registry, More: slices.Concat(g.watcher.Endpoints(), g.diagnose.Endpoints(), g.Endpoints())}
	background, bctx := errgroup.WithContext(g.background)
	background.Go(func() error { g.watcher.Run(bctx); return nil })
	if g.kube != nil {
		background.Go(func() error { g.kube.Run(bctx); return nil })
		background.Go(func() error { g.imported.Run(bctx); return nil })
		background.Go(func() error { return g.tokens.Run(bctx) })
	}
	background.Go(func() error {
		g.watcher.Warn(bctx, file.PolicyInVain, func() []string { return g.warnings(g.store.Current()) })
		return nil
	})
	background.Go(func() error {
		g.watcher.Warn(bctx, file.LeadsNowhere, func() []string { return discovery.OnLoopback(g.store.Current(), "") })
		return nil
	})
	background.Go(func() error { return g.ids.Run(bctx) })
	sub := g.store.Subscribe() // now: what changes before the first summaries must not be lost
	background.Go(func() error { g.follow(bctx, sub); return nil })
	background.Go(func() error { g.deliveries.keepUp(bctx); return nil })
	background.Go(func() error { g.load.Run(bctx); return nil })
	background.Go(func() error { g.cfg.Memory.Run(bctx); return nil })
	background.Go(func() error { g.clients.Run(bctx); return nil })
	background.Go(func() error { return server.Run(bctx, g.admin) })
	background.Go(func() error { return server.RunOperations(bctx, g.operations) })
	if g.fed != nil {
		background.Go(func() error { return g.fed.Run(bctx) })
		background.Go(func() error { return g.nodes.Run(bctx) })
		background.Go(func() error { g.tellFollowers(bctx); return nil })
		excerpts := g.store.Subscribe()
		g.excerpts.Revise(g.store.Current(), discovery.Everything()) // since New
		background.Go(func() error { g.tellExcerpts(bctx, excerpts); return nil })
		heard := g.fed.Subscribe()
		background.Go(func() error { defer heard.Close(); g.doors.run(bctx, heard, g.tcpAddresses); return nil })
	}
	front, fctx := errgroup.WithContext(ctx)
	accepting, stopAccepting := context.WithCancel(g.background)
	defer stopAccepting()
	accepted := make(chan struct{}) // closed when no connection can come any more
	front.Go(func() error { defer close(accepted); return g.accept(accepting) })
	starting, stop := context.WithCancel(bctx)
	defer context.AfterFunc(fctx, stop)()
	front.Go(func() error { g.settle(fctx); g.announce(starting, server); return nil })
	select {
	case <-fctx.Done(): // told to stop, or the listener failed
	case <-bctx.Done(): // a part failed; Wait below says which
	}
	if ctx.Err() != nil {
		g.serveOn(accepted, bctx.Done())
	}
	stopAccepting()
	<-accepted
	g.drain()
	g.stop()
	err := errors.Join(front.Wait(), background.Wait())
	g.conns.Wait()
	if g.quic != nil {
		g.quic.Shutdown()
	}
	g.backends.prober.Wait()
	if ctx.Err() != nil {
		err = nil
	}
	g.log.Info().Msg("stopped")
	return err
}

// settleLimit is how long a new gateway waits for its nodes to report and for
// a first word from other gateways before it publishes anything and calls itself ready.
const settleLimit = 3 * time.Second

// settle waits until this gateway knows its cluster, and then, bounded, until it knows
// what its siblings know.
func (g *Gateway) settle(ctx context.Context) {
	if g.kube != nil {
		select {
		case <-ctx.Done():
			return
		case <-g.kube.Synced():
		}
	}
	if g.fed != nil {
		if g.cfg.ReusePort {
			g.succeed(ctx)
		}
		limit := time.NewTimer(settleLimit)
		defer limit.Stop()
		tick := time.NewTicker(20 * time.Millisecond)
		defer tick.Stop()
		for synced := g.fed.Synced(); synced != nil || len(g.unattached()) > 0; {
			select {
			case <-ctx.Done():
				return
			case <-synced:
				synced = nil
			case <-tick.C:
			case <-limit.C:
				g.log.Warn().Strs("nodes", g.nodes.Nodes()).Strs("members", g.fed.Members()).Strs("missing_nodes", g.unattached()).Strs("missing_gateways", g.unjoined()).Msg("starting before all nodes and gateways connected")
				g.start()
				return
			}
		}
	}
	g.start()
}

func (g *Gateway) start() {
	g.introduce()
	g.deliveries.start(time.Now())
	if g.fed != nil {
		g.fed.Synchronise()
	}
	close(g.settled)
}

// announce logs that the process is ready when its probe says so, and before that,
// if it takes long, why it is not.
func (g *Gateway) announce(ctx context.Context, s *admin.Server) {
	if s.AwaitReady(ctx, func(pending []string) { g.log.Warn().Strs("pending", pending).Msg("started, not ready") }) {
		e := g.log.Info().Str("listen", g.cfg.Listen.String()).Str("network", g.cfg.Network)
		if g.quic != nil {
			e.Stringer("quic", g.quic.Addr())
		}
		e.Msg("ready")
	}
}

// unattached lists the nodes with ready pods of this network whose node proxy has no
// health stream open, or has not said all on it yet.
func (g *Gateway) unattached() (out []string) {
	attached := map[string]bool{}
	for _, n := range g.nodes.Heard() {
		attached[n] = true
	}
	snap := g.store.Current()
	ready := func(w *mesh.Workload) bool { return w.State == mesh.Ready && !w.Plain }
	for _, n := range snap.Nodes(g.cfg.Network) {
		if !attached[n] && slices.ContainsFunc(snap.OnNode(g.cfg.Network, n), ready) {
			out = append(out, n)
		}
	}
	return out
}

// unjoined lists the gateways of discovery, as network/name, of which no instance is a
// member that is believed.
func (g *Gateway) unjoined() (out []string) {
	members, snap := g.fed.Members(), g.store.Current()
	for _, n := range snap.GatewayNetworks() {
		for _, gw := range snap.Gateways(n) {
			if name := n + "/" + gw.Name; !slices.Contains(members, name) && (n != g.cfg.Network || gw.Name != g.cfg.Name) {
				out = append(out, name)
			}
		}
	}
	return out
}

// keepEvery is how often what time alone has ended is looked for.
const keepEvery = 5 * time.Second

// follow reacts to new snapshots; it ends sub.
func (g *Gateway) follow(ctx context.Context, sub *discovery.Subscription) {
	defer sub.Close()
	tick := time.NewTicker(keepEvery)
	defer tick.Stop()
	var moved <-chan struct{} // the address for other networks has
	if g.kube != nil {
		moved = g.kube.FrontChanged()
	}
	for {
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
			g.deliveries.expire(time.Now())
			g.reintroduce()
			g.moves.Keep(func(string) bool { return false })
			g.doubts.Keep(func(string) bool { return false })
		case <-moved:
			g.reintroduce()
		case <-sub.C():
			_, changes := sub.Take()
			g.rediscover(changes, time.Now())
		}
	}
}

// affected returns whether changes name the pod of an endpoint, or a service of it.
func (g *Gateway) affected(snap *mesh.Snapshot, changes discovery.Changes) func(mesh.EndpointID) bool {
	return func(id mesh.EndpointID) bool {
		if changes.All {
			return true
		}
		w := snap.WorkloadByEndpoint(id)
		if w == nil {
			return false // its return will be a change
		}
		_, pod := changes.Workloads[w.UID]
		return pod || slices.ContainsFunc(snap.ServicesOf(w.UID), func(svc *mesh.Service) bool {
			_, service := changes.Services[svc.Hostname]
			return service
		})
	}
}

// rediscover brings what is remembered in line with the current snapshot, in which
// changes are new.
func (g *Gateway) rediscover(changes discovery.Changes, now time.Time) {
	snap := g.store.Current()
	g.tunnels.revised(g.cfg.Network, snap, changes)
	g.backends.forget(snap, now)
	if g.nodes != nil {
		g.nodes.Relocate(g.affected(snap, changes))
	}
	g.budget.Keep(func(service string) bool { return snap.Service(service) != nil })
	g.reintroduce()
	g.deliveries.revised(changes, now)
}
