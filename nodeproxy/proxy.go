package nodeproxy

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"net"
	"net/netip"
	"sync"
	"sync/atomic"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/rs/zerolog"
	"github.com/spiffe/go-spiffe/v2/spiffeid"

	"github.com/isthmus-mesh/isthmus/discovery"
	"github.com/isthmus-mesh/isthmus/discovery/file"
	"github.com/isthmus-mesh/isthmus/federation/healthstream"
	"github.com/isthmus-mesh/isthmus/federation/links"
	"github.com/isthmus-mesh/isthmus/federation/peer"
	"github.com/isthmus-mesh/isthmus/hbone"
	"github.com/isthmus-mesh/isthmus/hbone/pool"
	"github.com/isthmus-mesh/isthmus/hbone/quic"
	"github.com/isthmus-mesh/isthmus/health"
	"github.com/isthmus-mesh/isthmus/identity"
	"github.com/isthmus-mesh/isthmus/internal/admin"
	"github.com/isthmus-mesh/isthmus/internal/admission"
	"github.com/isthmus-mesh/isthmus/internal/diagnose"
	"github.com/isthmus-mesh/isthmus/internal/lines"
	"github.com/isthmus-mesh/isthmus/internal/logging"
	"github.com/isthmus-mesh/isthmus/internal/overload"
	"github.com/isthmus-mesh/isthmus/internal/reprobe"
	"github.com/isthmus-mesh/isthmus/internal/resolve"
	"github.com/isthmus-mesh/isthmus/internal/retrybudget"
	"github.com/isthmus-mesh/isthmus/mesh"
	"github.com/isthmus-mesh/isthmus/nodeproxy/cnisocket"
	"github.com/isthmus-mesh/isthmus/nodeproxy/names"
	"github.com/isthmus-mesh/isthmus/nodeproxy/picker"
	"github.com/isthmus-mesh/isthmus/nodeproxy/pods"
	"github.com/isthmus-mesh/isthmus/nodeproxy/warm"
)

// Proxy is one process's node proxy. Build it with New, then Run it once.
type Proxy struct {
	cfg        Config
	domain     string // of the cluster's names; see Config.domain
	log        zerolog.Logger
	self       spiffeid.ID
	store      *discovery.Store
	watcher    *file.Watcher
	own        *ownNetwork // what gateways tell of it; nil where a file says so
	ids        *identity.Manager
	stream     *healthstream.Client // nil when federation.health is off
	askedAll   sync.Once
	lines      knownLines
	links      *links.File       // to other networks; nil without federation.networks
	shares     *toldShares       // what these have proven to offer
	names      *resolve.Resolver // of the hosts of their gateways; nil without links
	asking     askedNames        // names that discovery did not know
	direct     directAddresses   // that captured pods reach without the mesh
	pool       *pool.Pool
	kept       *warm.Keeper // of sessions with pods of other networks
	answers    sync.Map     // *hbone.Session of kept → warmset.Answer
	onesMu     sync.Mutex
	ones       map[warm.Session]*oneEndpoint // of the sessions in answers, and of dials
	witness    *witness
	view       *view
	budget     *retrybudget.Budget
	load       *overload.Limiter
	admit      func(string) (overload.Work, error)                  // of connections that others open to pods of this node, if they come again: load's TryAdmit
	hold       func(context.Context, string) (overload.Work, error) // if they do not: load's AdmitOnce
	crowded    func(coming int) bool                                // may no more connections of local applications even wait? load's Refuse
	towards    *overload.Destinations
	throttle   overload.Throttle          // of what others refuse for overload: by sharedKey, as towards, and by identity
	late       func(since time.Time) bool // may what did not come since then be our own doing?
	gateways   gatewaySources
	replicas   replicas
	plugins    *cnisocket.Server // nil: none is answered
	pods       *pods.Set         // nil: applications connect to listeners, and tunnels to pods' addresses here
	refusals   *identity.Refusals
	clients    *admission.Guard
	peerLines  *logging.PeerLimits // of lines that a peer can trigger, by peer
	strays     logging.PeerLimits  // of warnings about gateways that discovery does not list, by address
	metrics    *Metrics
	dns        *names.Metrics // of what pods ask of DNS
	registry   *prometheus.Registry
	admin      net.Listener
	operations net.Listener // nil without operations.address
	session    hbone.Config // what all sessions are made from
	diagnose   *diagnose.Diagnosis
	dialHop    dialTCP // to pods and gateways
	bulk       bulkHistory
	line       *line // of connections to gateways; nil: they are set up as others
	transports *transports
	// started is told of each client session; nil outside tests.
	started func(*hbone.Session)

	// data is the context of every connection: it outlives the listeners while
	// the process drains.
	data context.Context
	stop context.CancelFunc

	gatewayProbes *reprobe.Prober[string]
	podProbes     *reprobe.Prober[probedPod] // of node proxies of pods of the own network
	paths         *paths                     // to gateways
	draining      atomic.Bool
	ready         atomic.Bool

	mu        sync.Mutex
	outbounds []*outbound
	inbounds  map[string]*inbound // by workload UID
	policed   map[*permits]int    // by how many that run: inbounds, and what serves plain text; those that are drained among them
	running   sync.WaitGroup      // accept loops and what they started
}

// gatewaySchedule is that of probes of gateways, which cost either end a TLS handshake:
// in the first minute one a second and a half, later they come as the failure lasts, and
// of all gateways together at most a hundred a second.
var gatewaySchedule = reprobe.Schedule{First: 250 * time.Millisecond, Limit: 2 * time.Second, Bound: 30 * time.Second, Least: time.Second,
	Timeout: 3 * time.Second, Spacing: 20 * time.Millisecond, Concurrent: 16}

// resolvConf names the DNS servers of this machine.
const resolvConf = "/etc/resolv.conf"

// Registry holds the metrics of this node proxy.
func (p *Proxy) Registry() *prometheus.Registry { return p.registry }

// New is Open and Listen.
func New(cfg Config, log zerolog.Logger) (*Proxy, error) {
	p, err := Open(cfg, log)
	if err == nil {
		err = p.Listen()
	}
	if err != nil {
		return nil, err
	}
	return p, nil
}

// Open reads discovery, keys and certificates. It opens no socket: nodeproxy --check ends
// after it, and what would keep the process from starting is an error here.
func Open(cfg Config, log zerolog.Logger) (*Proxy, error) {
	p := newProxy(cfg, log)
	var err error
	if p.self, err = cfg.SPIFFEID(); err != nil {
		return nil, err
	}
	if p.watcher, err = p.discover(); err != nil {
		return nil, err
	}
	if p.ids, err = cfg.Identity.Open(log); err != nil {
		return nil, err
	}
	if err := p.ids.CheckTrustDomain(cfg.TrustDomain); err != nil {
		return nil, err
	}
	p.line = newLine(cfg.Lines.Open(log))
	p.registry.MustRegister(identity.NewMetrics(p.ids))
	p.registry.MustRegister(file.NewCollector(p.watcher), newToldCollector(p.own), lineCollector{p.measured})
	p.witness = newWitness(p.data, cfg, p.declared, dialKernel(0), p.changed, log)
	p.witness.late = p.late
	p.witness.from = func(uid string, client netip.Addr, otherwise dialTCP) dialTCP {
		return p.pods.ToApplication(uid, client, otherwise)
	}
	if p.witness.on && cfg.OutlierDetection.Listeners {
		p.witness.sockets = newListeners(p.data, openSockets, p.witness, p.registry, log)
	}
	p.registry.MustRegister(
		prometheus.NewGaugeFunc(prometheus.GaugeOpts{Name: "isthmus_served_sessions", Help: "Sessions with clients."},
			func() float64 { return p.served((*hbone.Group).Len) }),
		prometheus.NewGaugeFunc(prometheus.GaugeOpts{Name: "isthmus_held_bytes", Help: "Bytes received on sessions and not read yet. Connection windows are smaller by these."},
			func() float64 { return float64(p.pool.Stats().Held) + p.served((*hbone.Group).Held) }))
	quic.Register(p.registry)
	p.registry.MustRegister(prometheus.NewGaugeFunc(prometheus.GaugeOpts{Name: "isthmus_probes", Help: "Failed targets that are being probed: local applications, gateways, and node proxies of the own network's pods."},
		func() float64 {
			return float64(p.witness.prober.Active() + p.gatewayProbes.Active() + p.podProbes.Active())
		}))
	if cfg.Federation.Networks != "" {
		if p.links, err = links.Open(cfg.Federation.Networks, cfg.Network); err != nil {
			return nil, err
		}
		p.ids.Believe(p.links.Roots())
		p.view.most = p.links.Most
	}
	if cfg.Federation.Health {
		p.stream = healthstream.NewClient(healthstream.ClientConfig{
			Node: cfg.Node, Network: cfg.Network, Self: p.self, Identity: p.ids, Token: cfg.Federation.token(log),
			Gateways: p.ownGateways,
			Lists:    func(network string) bool { return p.links.Has(network) || p.store.Current().HasNetwork(network) },
			Known:    p.links.Known(),
			Facts:    p.witness, OnAsk: p.asked, Idle: cfg.Federation.Idle, Log: log, Metrics: peer.NewNodeMetrics(p.registry),
			Excerpts: p.ownExcerpts(),
		})
		p.shares = newToldShares(p.cfg.Network, p.store.Current, p.links, p.stream, func(c ...discovery.Change) { p.watcher.Apply(c...) }, log)
		if p.shares != nil {
			p.names = resolve.New(resolve.DNS(resolvConf), p.shares.relocated)
			p.shares.resolveBy(p.names)
			p.shares.usesQUIC = func(network string) bool { return cfg.Lines.TransportTo(network) != lines.TCP }
		}
		p.pin(p.store.Current())
	}
	return p, nil
}

// Listen binds every listener, or none.
func (p *Proxy) Listen() error {
	err := p.listen()
	if err != nil {
		p.closeListeners()
	}
	return err
}

// newProxy returns a Proxy without what New takes from the world around it.
func newProxy(cfg Config, log zerolog.Logger) *Proxy {
	domain := cfg.domain()
	cfg.Outbound = canonicalTargets(cfg.Outbound, domain)
	p := &Proxy{cfg: cfg, domain: domain, log: log, store: &discovery.Store{}, lines: newKnownLines(), registry: admin.NewRegistry(), budget: retrybudget.New(cfg.Retry.BudgetBurst, cfg.Retry.BudgetRatio), inbounds: map[string]*inbound{}, policed: map[*permits]int{}, ones: map[warm.Session]*oneEndpoint{},
		peerLines: logging.ByPeer(log), strays: logging.PeerLimits{Every: time.Minute, Log: &log}, session: hbone.DefaultConfig(), dialHop: dialKernel(hopKeepAlive)}
	p.diagnose = diagnose.New(cfg.Diagnose)
	p.diagnose.Apply(&p.session)
	data, stop := context.WithCancelCause(context.Background())
	p.data, p.stop = data, func() { stop(fmt.Errorf("this process stopped: timeouts.drain (%v) was over", cfg.Timeouts.Drain)) }
	p.metrics = NewMetrics(p.registry)
	p.dns = names.NewMetrics(p.registry)
	p.refusals = identity.NewRefusals(log)
	p.load = overload.New(p.registry)
	p.load.Memory, p.session.Memory = cfg.Memory, cfg.Memory
	cfg.Memory.Register(p.registry)
	p.admit, p.hold, p.crowded = p.load.TryAdmit, p.load.AdmitOnce, p.load.Refuse
	p.towards = overload.NewDestinations(p.load)
	p.late = func(since time.Time) bool { return p.load.Late(since) > lateLimit }
	p.pods = pods.New(p.podOptions(), p.podParent())
	p.pods.Register(p.registry)
	p.clients = admission.NewGuard(cfg.Limits, p.session.MaxUnread(), p.registry, log)
	p.pool = pool.New(pool.Config{IdleTimeout: cfg.Timeouts.Idle, Silent: p.silent})
	p.registry.MustRegister(pool.NewMetrics(p.pool))
	p.paths = newPaths(p.data, p.checkPath)
	p.transports = newTransports(log)
	p.transports.probe, p.transports.onChange = p.probeUDP, p.changeTransport
	p.registry.MustRegister(p.transports.changes, p.transports.failed)
	p.gatewayProbes = reprobe.New[string](p.data, gatewaySchedule)
	p.view = newView(cfg, p.known, p.probeGateway, log, p.metrics)
	p.view.works = p.gatewayProbes.Restart
	p.podProbes = reprobe.New[probedPod](p.data, podSchedule)
	p.view.podBack = func(id mesh.EndpointID) {
		p.podProbes.RestartAll(func(x probedPod) bool { return x.endpoint == id })
	}
	p.view.nameElsewhere = func(id mesh.EndpointID) string {
		if p.watcher == nil {
			return ""
		}
		return p.watcher.NameOf(id)
	}
	p.kept = p.newKeeper(rand.Float64, rand.Uint64)
	p.view.revise = p.kept.Revise
	p.registry.MustRegister(prometheus.NewGaugeFunc(prometheus.GaugeOpts{Name: "isthmus_warm_sets", Help: "Preconnect pools (warm sets): one for each source identity, remote service and port in use."},
		func() float64 { return float64(p.kept.Len()) }),
		prometheus.NewGaugeFunc(prometheus.GaugeOpts{Name: "isthmus_warm_sessions", Help: "Sessions in preconnect pools."},
			func() (n float64) {
				for _, s := range p.kept.Status() {
					n += float64(s.Held)
				}
				return n
			}))
	return p
}

// served adds up what the sessions of all local workloads' clients are.
func (p *Proxy) served(what func(*hbone.Group) int) (n float64) {
	for _, in := range p.allInbounds() {
		n += float64(what(&in.sessions))
	}
	return n
}

func (p *Proxy) listen() (err error) {
	if p.admin, err = admin.Listen(p.cfg.Admin); err != nil {
		return err
	}
	if p.operations, err = admin.ListenOperations(p.cfg.Operations); err != nil {
		return err
	}
	if p.pods != nil && p.cfg.Capture.CNISocket != "" {
		if p.plugins, err = cnisocket.Listen(p.cfg.Capture.CNISocket, p.pods.Plugins(), func(err error) {
			p.log.Warn().Err(err).Msg("a request at capture.cniSocket is not answered")
		}); err != nil {
			return fmt.Errorf("capture.cniSocket: %w: mount a directory of the node that this process may write", err)
		}
	}
	for i, o := range p.cfg.Outbound {
		l, err := p.listenOutbound(o.Listen, fmt.Sprintf("outbound[%d].listen", i), p.holder("outbound", o.Workload), p.static(o))
		if err != nil {
			return err
		}
		l.refuse = p.refusal(o)
		p.outbounds = append(p.outbounds, l)
	}
	for i, s := range p.cfg.Socks {
		l, err := p.listenOutbound(s.Listen, fmt.Sprintf("socks[%d].listen", i), p.holder("socks", s.Workload), p.socks(s))
		if err != nil {
			return err
		}
		l.refuse = p.refusalOfAll(s.Workload)
		p.outbounds = append(p.outbounds, l)
	}
	for _, w := range p.hosted() {
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
	if p.operations != nil {
		p.operations.Close()
	}
	if p.plugins != nil {
		p.plugins.Close()
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
	for _, w := range p.store.Current().OnNode(p.cfg.Network, p.cfg.Node) {
		if len(w.Addresses) > 0 && !w.Plain {
			out = append(out, w)
		}
	}
	return out
}

// hosted lists those whose addresses are this machine's own: none if they are, or were, captured, each
// in its network namespace.
func (p *Proxy) hosted() []*mesh.Workload {
	if p.pods != nil || p.cfg.Capture.Scope == pods.ScopeRelease {
		return nil
	}
	return p.locals()
}

func (p *Proxy) changed(targets ...healthstream.Target) {
	if p.stream != nil {
		p.stream.Changed(targets...)
	}
}

// declared implements the function type of that name.
func (p *Proxy) declared(k health.Key) *mesh.Workload {
	snap := p.store.Current()
	w := snap.WorkloadByEndpoint(k.Endpoint)
	if w == nil || w.Network != p.cfg.Network || w.Node != p.cfg.Node || len(w.Addresses) == 0 || !snap.Declares(w.UID, k.Port) {
		return nil
	}
	return w
}

// probeGateway asks a gateway that failed until it answers a handshake or
// discovery lists it no more.
func (p *Proxy) probeGateway(key string) {
	var started time.Time
	ask := func(ctx context.Context) error {
		g := picker.Gateway(p.store.Current(), key)
		if g == nil {
			return errUndeclared
		}
		started = time.Now()
		over := lines.TCP
		if p.cfg.Lines.TransportTo(g.Network) == lines.QUIC {
			over = lines.QUIC
		}
		dial := p.gatewayDialer(origin{id: p.self}, g, over, nil)
		s, err := dial(ctx)
		for range len(replicasOf(p.store.Current(), g)) - 1 { // each has its turn
			if isElsewhere(err) && ctx.Err() == nil {
				s, err = dial(ctx)
			}
		}
		if err != nil {
			return err
		}
		defer s.Close(nil)
		return s.AwaitSettings(ctx)
	}
	p.gatewayProbes.Watch(key, ask, func(err error) bool {
		if errors.Is(err, errUndeclared) {
			return picker.Gateway(p.store.Current(), key) == nil
		}
		if isTimeout(err) && p.late(started) {
			return false // asked again: what took so long may have been us
		}
		if handshake, ok := errors.AsType[*handshakeError](err); ok && isTimeout(handshake) {
			p.paths.suspect(key) // TCP has connected
		}
		back, by := p.view.gatewayAnswered(key, err, time.Now())
		if !by.IsZero() {
			p.gatewayProbes.By(key, by)
		}
		return back
	})
}
