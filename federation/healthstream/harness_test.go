package healthstream

import (
	"cmp"
	"context"
	"crypto/tls"
	"fmt"
	"maps"
	"net"
	"net/netip"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/testutil"
	"github.com/rs/zerolog"
	"github.com/spiffe/go-spiffe/v2/spiffeid"

	"github.com/isthmus-mesh/isthmus/federation"
	"github.com/isthmus-mesh/isthmus/federation/peer"
	"github.com/isthmus-mesh/isthmus/federation/record"
	"github.com/isthmus-mesh/isthmus/identity"
	"github.com/isthmus-mesh/isthmus/internal/link"
	"github.com/isthmus-mesh/isthmus/internal/meshtest/trust"
	"github.com/isthmus-mesh/isthmus/internal/simnet"
	"github.com/isthmus-mesh/isthmus/mesh"
)

const service = "shop.default.svc.cluster.local"

// world is a network's gateways and node proxies in virtual time: a simulated
// network, discovery as the test wants it.
type world struct {
	t        testing.TB
	identity *identity.Manager
	network  simnet.Network
	wg       sync.WaitGroup
	stops    []func()
	bytes    atomic.Int64 // that node proxies have sent and received, TLS included

	mu       sync.Mutex
	gateways []*mesh.Gateway
	places   map[mesh.EndpointID]string // node of each endpoint that is listed
	conns    map[string][]net.Conn      // of each node proxy, by its name
}

// inBubble runs test in virtual time, in a world that is stopped at its end.
func inBubble(t *testing.T, test func(w *world)) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t)
		defer w.stop()
		test(w)
	})
}

func newWorld(t testing.TB) *world {
	w := &world{t: t, identity: trust.NewManager(t), places: map[mesh.EndpointID]string{}, conns: map[string][]net.Conn{}}
	w.network.Options.Delay = time.Millisecond
	return w
}

// stop ends what the world has started, in the bubble, and waits for it.
func (w *world) stop() {
	for _, stop := range w.stops {
		stop()
	}
	w.wg.Wait()
}

// list makes discovery place endpoints on node; an empty node lists them no more.
func (w *world) list(node string, ids ...mesh.EndpointID) {
	w.mu.Lock()
	defer w.mu.Unlock()
	for _, id := range ids {
		if w.places[id] = node; node == "" {
			delete(w.places, id)
		}
	}
}

func (w *world) place(id mesh.EndpointID) (string, bool) {
	w.mu.Lock()
	defer w.mu.Unlock()
	node, ok := w.places[id]
	return node, ok
}

func (w *world) all() []*mesh.Gateway {
	w.mu.Lock()
	defer w.mu.Unlock()
	return slices.Clone(w.gateways)
}

// site is a gateway process in small. What it tells of service is what it believes
// of the endpoints of its own network, and what the test makes it know of others.
type site struct {
	*mesh.Gateway
	world    *world
	listener net.Listener
	metrics  *peer.Metrics
	health   *Server
	instance record.Instance
	cancel   context.CancelFunc

	mu     sync.Mutex
	out    map[Target]bool // of its own network, by OnEdge
	edges  []Edge
	left   []string
	others map[string][]Share // by service
	serial uint64
}

// gateway adds a gateway of network west and starts it.
func (w *world) gateway(name string, change func(*ServerConfig)) *site {
	g := &mesh.Gateway{Name: name, Network: "west", Identity: trust.Workload("gateway-west")}
	w.mu.Lock()
	g.Address = netip.AddrPortFrom(netip.AddrFrom4([4]byte{10, 0, 0, byte(len(w.gateways) + 1)}), 15008)
	w.gateways = append(w.gateways, g)
	w.mu.Unlock()
	return w.start(g, change)
}

var instances atomic.Uint64

func (w *world) start(g *mesh.Gateway, change func(*ServerConfig)) *site {
	w.t.Helper()
	listener, err := w.network.Listen(g.Address.String())
	if err != nil {
		w.t.Fatal(err)
	}
	s := &site{Gateway: g, world: w, listener: listener, metrics: peer.NewMetrics(prometheus.NewRegistry()), out: map[Target]bool{}, others: map[string][]Share{}}
	copy(s.instance[:], fmt.Sprintf("gateway %08d", instances.Add(1)))
	cfg := ServerConfig{
		Name: g.Name, Network: g.Network, Log: zerolog.Nop(), Metrics: s.metrics, Place: w.place, Source: s,
		Prover:   NodeIdentities{Account: trust.Workload("nodeproxy"), Network: g.Network},
		OnEdge:   s.take,
		OnDetach: func(node string) { s.mu.Lock(); s.left = append(s.left, node); s.mu.Unlock() },
	}
	if change != nil {
		change(&cfg)
	}
	s.health = NewServer(cfg)
	ctx, cancel := context.WithCancel(context.Background())
	s.cancel = cancel
	w.wg.Go(func() { s.health.Run(ctx) })
	config := w.identity.ServerTLS(s.Identity, nil, ALPN)
	w.wg.Go(func() {
		for {
			raw, err := s.listener.Accept()
			if err != nil {
				return
			}
			w.wg.Go(func() { s.serve(ctx, raw, config) })
		}
	})
	w.stops = append(w.stops, s.stop)
	return s
}

func (s *site) serve(ctx context.Context, raw net.Conn, config *tls.Config) {
	conn := tls.Server(raw, config)
	handshake, cancel := context.WithTimeout(ctx, 5*time.Second)
	defer cancel()
	if conn.HandshakeContext(handshake) != nil {
		raw.Close()
		return
	}
	id, err := identity.PeerID(conn.ConnectionState())
	if err != nil || s.health.Admit(id) != nil {
		s.health.Refuse(id, fmt.Errorf("%v %v", err, s.health.Admit(id)))
		raw.Close()
		return
	}
	s.health.Accept(ctx, conn, id)
}

func (s *site) stop() {
	s.cancel()
	s.listener.Close()
}

// take implements OnEdge as a gateway does: it derives what it tells of its own pods.
func (s *site) take(edges []Edge) {
	s.mu.Lock()
	s.edges = append(s.edges, edges...)
	for _, e := range edges {
		delete(s.out, e.Target)
		if e.Known && e.Fact.State != federation.Healthy {
			s.out[e.Target] = true
		}
	}
	s.serial++
	s.mu.Unlock()
	s.health.Changed(service)
}

// Shares implements Source.
func (s *site) Shares(name string) []Share {
	s.mu.Lock()
	defer s.mu.Unlock()
	out := slices.Clone(s.others[name])
	if name != service {
		return out
	}
	h := record.Health{Ready: 100, Healthy: 100 - uint32(len(s.out)), ReadyCapacity: 100, HealthyCapacity: 100 - uint32(len(s.out))}
	for _, t := range slices.SortedFunc(maps.Keys(s.out), compareTargets) {
		h.Exceptions = append(h.Exceptions, record.Exception{Endpoint: t.Endpoint, Cause: record.Witness})
	}
	return append(out, Share{Network: "west", Instances: []Voice{voice(s.instance, s.serial+1, name, h)}})
}

// say makes the gateway know what another network's gateway says of a service.
func (s *site) say(name string, shares ...Share) {
	s.mu.Lock()
	s.others[name] = shares
	s.mu.Unlock()
	s.health.Changed(name)
}

func voice(i record.Instance, sequence uint64, name string, h record.Health) Voice {
	e, err := record.Encode(record.HealthRecord(name, 80, h))
	if err != nil {
		panic(err)
	}
	e.Sequence = sequence
	return Voice{Instance: i, Gateway: "gw", Live: true, Entries: []record.Entry{e}}
}

// east is what a gateway of another network says: so many of ten are healthy.
func east(sequence uint64, name string, healthy uint32, exceptions ...mesh.EndpointID) Share {
	h := record.Health{Ready: 10, Healthy: healthy, ReadyCapacity: 10, HealthyCapacity: healthy}
	for _, id := range exceptions {
		h.Exceptions = append(h.Exceptions, record.Exception{Endpoint: id, Cause: record.Witness})
	}
	return Share{Network: "east", Instances: []Voice{voice(record.Instance{1}, sequence, name, h)}}
}

// believed lists what the gateway holds as out, by its edges.
func (s *site) believed() []Target {
	s.mu.Lock()
	defer s.mu.Unlock()
	return slices.SortedFunc(maps.Keys(s.out), compareTargets)
}

// holds fails unless the gateway holds exactly these endpoints as out, on port 80.
func (s *site) holds(when string, ids ...mesh.EndpointID) {
	s.world.t.Helper()
	settle()
	var got []mesh.EndpointID
	for _, t := range s.believed() {
		got = append(got, t.Endpoint)
		if f, _, ok := s.health.Endpoint("west", t.Endpoint, t.Port); !ok || f.State == federation.Healthy {
			s.world.t.Errorf("%s: %s is told as out and believed to be %v, %v", when, t.Endpoint, f, ok)
		}
	}
	if !slices.Equal(got, ids) {
		s.world.t.Errorf("%s: %s holds %v as out; want %v", when, s.Name, got, ids)
	}
}

// settle gives messages under way time to arrive, and no more.
func settle() {
	time.Sleep(50 * time.Millisecond)
	synctest.Wait()
}

// node is a node proxy in small.
type node struct {
	*Client
	world  *world
	name   string
	cancel context.CancelFunc
	done   chan struct{}

	mu    sync.Mutex
	facts map[Target]Fact
	at    map[Target]time.Time
	skew  time.Duration // of its clock
	asked []Target
	every int // how often it was told that another instance was there before
	ills  map[Target]bool
	auto  bool // answers what it is asked by ills
}

func (w *world) node(name string, change func(*ClientConfig)) *node {
	n := &node{world: w, name: name, facts: map[Target]Fact{}, at: map[Target]time.Time{}, ills: map[Target]bool{}, done: make(chan struct{})}
	cfg := ClientConfig{
		Node: name, Network: "west", Self: trust.Node("west", name), Identity: w.identity, Gateways: w.all, Facts: n, OnAsk: n.ask,
		Log: zerolog.Nop(), MaxBackoff: 200 * time.Millisecond, dial: w.dialOf(name),
	}
	if change != nil {
		change(&cfg)
	}
	n.Client = NewClient(cfg)
	var ctx context.Context
	ctx, n.cancel = context.WithCancel(context.Background())
	w.wg.Go(func() {
		defer close(n.done)
		n.Run(ctx)
	})
	w.stops = append(w.stops, n.cancel)
	return n
}

// dialOf counts the bytes of a node proxy's connections and lets a test cut them.
func (w *world) dialOf(name string) link.Dial {
	return func(ctx context.Context, address string) (net.Conn, error) {
		c, err := w.network.Dial(ctx, address)
		if err != nil {
			return nil, err
		}
		w.mu.Lock()
		defer w.mu.Unlock()
		w.conns[name] = append(w.conns[name], c)
		return counted{c, &w.bytes}, nil
	}
}

type counted struct {
	net.Conn
	bytes *atomic.Int64
}

func (c counted) Read(p []byte) (int, error) {
	n, err := c.Conn.Read(p)
	c.bytes.Add(int64(n))
	return n, err
}

func (c counted) Write(p []byte) (int, error) {
	n, err := c.Conn.Write(p)
	c.bytes.Add(int64(n))
	return n, err
}

// cut ends the connections of a node proxy.
func (w *world) cut(name string) {
	w.mu.Lock()
	conns := w.conns[name]
	w.conns[name] = nil
	w.mu.Unlock()
	for _, c := range conns {
		c.Close()
	}
}

func (n *node) alive() bool {
	select {
	case <-n.done:
		return false
	default:
		return true
	}
}

// kill stops the process and waits for its end.
func (n *node) kill() {
	n.cancel()
	<-n.done
}

func (n *node) All() (out []Fact) {
	n.mu.Lock()
	defer n.mu.Unlock()
	for t := range n.facts {
		out = append(out, n.factOf(t))
	}
	return out
}

func (n *node) Fact(t Target) (Fact, bool) {
	n.mu.Lock()
	defer n.mu.Unlock()
	_, ok := n.facts[t]
	return n.factOf(t), ok
}

// factOf has an age by the node's clock; the caller holds mu.
func (n *node) factOf(t Target) Fact {
	f := n.facts[t]
	f.Age = time.Since(n.at[t]) + n.skew
	return f
}

// observe notes and reports the state of an endpoint's port 80.
func (n *node) observe(id mesh.EndpointID, state federation.FactState) {
	t := Target{id, 80}
	n.mu.Lock()
	n.facts[t] = Fact{EndpointFact: federation.EndpointFact{Endpoint: id, Port: 80, State: state, Reason: "refused"}}
	n.at[t] = time.Now()
	n.ills[t] = state != federation.Healthy
	n.mu.Unlock()
	n.Changed(t)
}

func (n *node) ask(targets []Target, everything bool) {
	n.mu.Lock()
	n.asked = append(n.asked, targets...)
	if everything {
		n.every++
	}
	auto := n.auto
	ills := maps.Clone(n.ills)
	n.mu.Unlock()
	if !auto {
		return
	}
	if everything { // and finds what fell ill while nobody was here
		for t, sick := range ills {
			if sick {
				targets = append(targets, t)
			}
		}
	}
	for _, t := range targets {
		if _, ok := n.world.place(t.Endpoint); ok {
			state := federation.Healthy
			if ills[t] {
				state = federation.Ejected
			}
			n.observe(t.Endpoint, state)
		}
	}
}

func (n *node) takeAsked() []Target {
	n.mu.Lock()
	defer n.mu.Unlock()
	out := slices.Clone(n.asked)
	n.asked = nil
	slices.SortFunc(out, compareTargets)
	return out
}

// attached waits until n has so many streams.
func (n *node) attached(want int) {
	n.world.t.Helper()
	for range 10_000 {
		if n.Attached() == want {
			settle()
			return
		}
		time.Sleep(10 * time.Millisecond)
	}
	n.world.t.Fatalf("%s is attached to %d gateways; want %d", n.name, n.Attached(), want)
}

// knows fails unless n knows so many healthy of service at network.
func (n *node) knows(when, network string, want uint32) {
	n.world.t.Helper()
	settle()
	if f, ok := n.Summary(network, service, 80); !ok || f.Healthy != want {
		n.world.t.Errorf("%s: %s knows %+v, %v of %s; want %d healthy", when, n.name, f, ok, network, want)
	}
}

func rejected(m *peer.Metrics, reason string) int {
	return int(testutil.ToFloat64(m.Rejected.WithLabelValues(reason)))
}

func targets(ids ...mesh.EndpointID) []Target {
	var out []Target
	for _, id := range ids {
		out = append(out, Target{id, 80})
	}
	slices.SortFunc(out, func(a, b Target) int { return cmp.Compare(a.Endpoint, b.Endpoint) })
	return out
}

// raw attaches to s without a client.
func (w *world) raw(s *site, as spiffeid.ID) (*tls.Conn, error) {
	return w.dialOf("raw").TLS(context.Background(), w.identity, as, s.Identity, s.Address.String(), ALPN, 5*time.Second)
}

func counter(c prometheus.Collector) float64 { return testutil.ToFloat64(c) }
