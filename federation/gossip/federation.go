package gossip

import (
	"context"
	"errors"
	"fmt"
	"log"
	"net"
	"net/netip"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/hashicorp/memberlist"
	"github.com/rs/zerolog"
	"github.com/spiffe/go-spiffe/v2/spiffeid"

	"github.com/isthmus-mesh/isthmus/federation"
	"github.com/isthmus-mesh/isthmus/federation/peer"
	"github.com/isthmus-mesh/isthmus/internal/link"
	"github.com/isthmus-mesh/isthmus/internal/logging"
	"github.com/isthmus-mesh/isthmus/mesh"
)

// Config is what a gateway needs to be a member. Name, Network,
// Self, Incarnation, Identity, Peers, Advertise and Ledger are required.
type Config struct {
	Name        string // of the gateway; the member is called network/name
	Network     string
	Self        spiffeid.ID
	Incarnation uint64 // grows with every start
	Identity    Identity
	// Peers returns the gateways of all networks but this one itself. It is
	// asked for every packet and must be quick: a read of a snapshot.
	Peers func() []*mesh.Gateway
	// Advertise is where others are told to dial: the listener's address, or
	// that of something which relays to it.
	Advertise netip.AddrPort
	Ledger    *peer.Ledger
	Log       zerolog.Logger
	Metrics   *peer.Metrics

	GossipInterval   time.Duration // default 100 ms
	PushPullInterval time.Duration // between exchanges of full state; default 10 s
	RefreshInterval  time.Duration // between repeats of what is not the default; default 10 s
	ProbeInterval    time.Duration // between probes of members; default 1 s
	SyncWait         time.Duration // until Synced gives up waiting; default 3 s
	MaxRecords       int           // published by this gateway; default that of federation.DefaultLimits

	timing timing    // tests shorten it
	dial   link.Dial // tests have a network of their own
}

func (c *Config) setDefaults() {
	c.GossipInterval = orDefault(c.GossipInterval, 100*time.Millisecond)
	c.PushPullInterval = orDefault(c.PushPullInterval, 10*time.Second)
	c.RefreshInterval = orDefault(c.RefreshInterval, 10*time.Second)
	c.ProbeInterval = orDefault(c.ProbeInterval, time.Second)
	c.SyncWait = orDefault(c.SyncWait, 3*time.Second)
	c.MaxRecords = orDefault(c.MaxRecords, federation.DefaultLimits.PerOrigin)
	c.Metrics = c.Metrics.OrDiscard()
	if c.timing == (timing{}) {
		c.timing = defaultTiming
	}
	if c.dial == nil {
		c.dial = link.TCP
	}
}

func orDefault[T ~int | ~int64](v, d T) T {
	if v <= 0 {
		return d
	}
	return v
}

// Federation is a gateway's membership. It is safe for concurrent use.
type Federation struct {
	cfg       Config
	name      string // of the member
	transport *transport
	journal   *journal
	archive   *archive
	verifier  verifier
	own       ownState
	once      logging.Once
	inbox     chan message
	states    chan message
	repair    chan string // names of peers to exchange full state with
	list      atomic.Pointer[memberlist.Memberlist]
	queue     *memberlist.TransmitLimitedQueue

	syncOnce sync.Once
	synced   chan struct{}
}

// New checks cfg and returns a member that does nothing until Run.
// Connections may be handed to Accept and records to Publish before.
func New(cfg Config) (*Federation, error) {
	switch {
	case cfg.Name == "" || cfg.Network == "":
		return nil, fmt.Errorf("federation: name %q and network %q must both be set", cfg.Name, cfg.Network)
	case cfg.Self.IsZero():
		return nil, errors.New("federation: self: the gateway's SPIFFE ID must be set")
	case cfg.Identity == nil || cfg.Peers == nil || cfg.Ledger == nil:
		return nil, errors.New("federation: identity, peers and ledger must be set")
	case !cfg.Advertise.IsValid() || cfg.Advertise.Port() == 0:
		return nil, fmt.Errorf("federation: advertise %q: want an ip:port at which other gateways reach this one", cfg.Advertise)
	}
	cfg.setDefaults()
	name := federation.OriginName(cfg.Network, cfg.Name)
	f := &Federation{
		cfg:     cfg,
		name:    name,
		journal: newJournal(cfg.Network, federation.Origin{Name: name, Incarnation: cfg.Incarnation}, cfg.MaxRecords),
		archive: newArchive(),
		once:    logging.Once{Log: cfg.Log},
		inbox:   make(chan message, 256),
		states:  make(chan message, 4),
		repair:  make(chan string, 64),
		synced:  make(chan struct{}),
	}
	f.transport = newTransport(cfg)
	f.transport.repaired = func(g *mesh.Gateway) {
		select {
		case f.repair <- federation.OriginName(g.Network, g.Name):
		default: // the next periodic exchange repairs it
		}
	}
	f.queue = &memberlist.TransmitLimitedQueue{RetransmitMult: 3, NumNodes: f.size}
	return f, nil
}

// Accept takes over a connection on which the peer has proved its identity
// and has asked for [ALPN]. It returns at once.
func (f *Federation) Accept(conn net.Conn, id spiffeid.ID) { f.transport.accept(conn, id) }

// Publish makes records this gateway's word: network, origin, sequence and
// silence are set here; Age is the evidence's, as of now. They are in the
// ledger when Publish returns, and are then sent at once: to all members if
// they are few, else to some, which pass them on. It does not wait for that.
func (f *Federation) Publish(records ...federation.Record) {
	stamped, refused := f.journal.put(records, time.Now())
	if refused > 0 {
		f.cfg.Metrics.Rejected.WithLabelValues("own").Add(float64(refused))
	}
	f.cfg.Ledger.MergeAll(stamped)
	f.cfg.Metrics.Edges.Add(float64(len(stamped)))
}

// Withdraw stops publishing the subjects, for services that are gone. What
// others hold of them fades within the TTL.
func (f *Federation) Withdraw(subjects ...federation.Key) { f.journal.forget(subjects) }

// Members returns the names (network/name) of the members that are alive, this
// one included, sorted.
func (f *Federation) Members() []string {
	list := f.list.Load()
	if list == nil {
		return nil
	}
	var names []string
	for _, n := range list.Members() {
		names = append(names, n.Name)
	}
	slices.Sort(names)
	return names
}

func (f *Federation) size() int {
	if list := f.list.Load(); list != nil {
		return list.NumMembers()
	}
	return 1
}

// Synced is closed after the first exchange of full state with a peer, or when
// there was nobody to exchange it with for a bounded time.
func (f *Federation) Synced() <-chan struct{} { return f.synced }

func (f *Federation) setSynced() { f.syncOnce.Do(func() { close(f.synced) }) }

// Run is the member's life: it joins, publishes, and looks for lost peers
// until ctx ends; then it leaves the members and returns. It may be called once.
func (f *Federation) Run(ctx context.Context) error {
	list, err := memberlist.Create(f.memberlistConfig())
	if err != nil {
		f.transport.Shutdown()
		return fmt.Errorf("federation: start member %q: %w", f.name, err)
	}
	f.list.Store(list)
	var wg sync.WaitGroup
	wg.Go(func() { f.receive(ctx) })
	wg.Go(func() { f.publish(ctx) })
	wg.Go(func() { f.join(ctx) })
	wg.Go(func() { f.keepHouse(ctx) })
	<-ctx.Done()
	f.flush()
	if err := list.Leave(700 * time.Millisecond); err != nil {
		f.cfg.Log.Debug().Err(err).Msg("federation left without telling the members")
	}
	err = list.Shutdown()
	wg.Wait()
	if err != nil {
		return fmt.Errorf("federation: stop member %q: %w", f.name, err)
	}
	return nil
}

// flush sends what was published before the end: often it says so.
func (f *Federation) flush() {
	ctx, cancel := context.WithTimeout(context.Background(), 200*time.Millisecond)
	defer cancel()
	if err := f.send(ctx); err != nil {
		f.cfg.Log.Debug().Err(err).Msg("last federation records not sent")
	}
}

func (f *Federation) memberlistConfig() *memberlist.Config {
	c := memberlist.DefaultLANConfig()
	c.Name = f.name
	c.Transport = f.transport
	c.AdvertiseAddr, c.AdvertisePort = f.cfg.Advertise.Addr().String(), int(f.cfg.Advertise.Port())
	c.BindPort = c.AdvertisePort
	c.Delegate = (*delegate)(f)
	c.Alive = (*delegate)(f)
	c.Events = (*delegate)(f)
	c.Logger = log.New(&logWriter{f.cfg.Log}, "", 0)
	c.GossipInterval = f.cfg.GossipInterval
	c.PushPullInterval = 0 // the joiner does it: memberlist's gets rarer in large federations, the TTL does not
	c.ProbeInterval = f.cfg.ProbeInterval
	c.ProbeTimeout = f.cfg.ProbeInterval * 4 / 5
	c.TCPTimeout = 5 * time.Second
	c.SuspicionMult = 3
	// A gateway that no member answers must not doubt itself for minutes: its own
	// belief about others is what it is asked for.
	c.SuspicionMaxTimeoutMult = 2
	c.AwarenessMaxMultiplier = 2
	c.RetransmitMult = 3
	c.DisableTcpPings = true // packets are on TCP already
	c.EnableCompression = false
	c.UDPBufferSize = 48 << 10
	// A gateway that comes back elsewhere is the same gateway.
	c.DeadNodeReclaimTime = time.Millisecond
	return c
}

// logWriter gives memberlist's log to ours, at debug.
type logWriter struct{ log zerolog.Logger }

func (w *logWriter) Write(p []byte) (int, error) {
	w.log.Debug().Str("detail", string(trimNewline(p))).Msg("memberlist")
	return len(p), nil
}

func trimNewline(p []byte) []byte {
	if n := len(p); n > 0 && p[n-1] == '\n' {
		return p[:n-1]
	}
	return p
}
