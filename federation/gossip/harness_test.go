package gossip

import (
	"context"
	"crypto/tls"
	"fmt"
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
	"github.com/isthmus-mesh/isthmus/federation/healthstream"
	"github.com/isthmus-mesh/isthmus/federation/peer"
	"github.com/isthmus-mesh/isthmus/identity"
	"github.com/isthmus-mesh/isthmus/internal/link"
	"github.com/isthmus-mesh/isthmus/internal/simnet"
	"github.com/isthmus-mesh/isthmus/mesh"
)

const service = "shop.default.svc.cluster.local"

var trustDomain = spiffeid.RequireTrustDomainFromString("cluster.local")

func workload(name string) spiffeid.ID {
	return spiffeid.RequireFromPath(trustDomain, "/ns/isthmus-system/sa/"+name)
}

// newIdentity returns a manager that issues any identity of the trust domain.
func newIdentity(t testing.TB) *identity.Manager {
	t.Helper()
	ca, err := identity.InitCA(t.TempDir(), trustDomain)
	if err != nil {
		t.Fatal(err)
	}
	return identity.NewManager(identity.CASource{CA: ca, TTL: time.Hour}, zerolog.Nop())
}

// eventually polls until ok, with a deadline that only a bug reaches.
func eventually(t testing.TB, what string, ok func() bool) time.Duration {
	t.Helper()
	start := time.Now()
	for !ok() {
		if time.Since(start) > 30*time.Second {
			t.Fatalf("after %v still not: %s", time.Since(start).Round(time.Millisecond), what)
		}
		time.Sleep(time.Millisecond)
	}
	return time.Since(start)
}

// simulated runs f in a bubble of virtual time, in which a slow machine is not late.
func simulated(t *testing.T, f func(t *testing.T, w *world)) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		t.Cleanup(func() { time.Sleep(time.Minute) }) // last: memberlist ends when its probes have
		w := newWorld(t)
		w.network = &simnet.Network{Options: simnet.Options{Delay: time.Millisecond}}
		f(t, w)
	})
}

// world is a mesh of gateways on loopback sockets, or on a network in memory, each
// behind a relay that can be turned into a black hole.
type world struct {
	network  *simnet.Network // nil: loopback
	ports    atomic.Int32    // that were given out on it
	t        testing.TB
	identity *identity.Manager
	wg       sync.WaitGroup

	mu       sync.Mutex
	gateways []*mesh.Gateway
}

func newWorld(t testing.TB) *world {
	w := &world{t: t, identity: newIdentity(t)}
	t.Cleanup(w.wg.Wait) // last: everything else has been stopped by then
	return w
}

// listen takes a free port of an address.
func (w *world) listen(host string) net.Listener {
	w.t.Helper()
	var l net.Listener
	var err error
	if w.network != nil {
		l, err = w.network.Listen(fmt.Sprintf("%s:%d", host, 20000+w.ports.Add(1)))
	} else {
		l, err = net.Listen("tcp", host+":0")
	}
	if err != nil {
		w.t.Fatal(err)
	}
	return l
}

func (w *world) dial(ctx context.Context, address string) (net.Conn, error) {
	if w.network != nil {
		return w.network.Dial(ctx, address)
	}
	return link.TCP(ctx, address)
}

func (w *world) all() []*mesh.Gateway {
	w.mu.Lock()
	defer w.mu.Unlock()
	return slices.Clone(w.gateways)
}

// site is a gateway process in small: listener, federation, health server.
type site struct {
	*mesh.Gateway
	world      *world
	relay      *relay
	listener   net.Listener
	ledger     *peer.Ledger
	metrics    *peer.Metrics
	federation *Federation
	health     *healthstream.Server
	cancel     context.CancelFunc
	done       chan struct{}
}

func (w *world) add(network, name string) *mesh.Gateway {
	w.mu.Lock()
	defer w.mu.Unlock()
	g := &mesh.Gateway{Name: name, Network: network, Identity: workload("gateway-" + network)}
	w.gateways = append(w.gateways, g)
	return g
}

// moved replaces g by a copy that listens at address, as discovery would.
func (w *world) moved(g *mesh.Gateway, address netip.AddrPort) *mesh.Gateway {
	w.mu.Lock()
	defer w.mu.Unlock()
	i := slices.IndexFunc(w.gateways, func(o *mesh.Gateway) bool { return o.Name == g.Name && o.Network == g.Network })
	there := *g
	there.Address = address
	w.gateways[i] = &there
	return &there
}

// relays gives every gateway its relay; call it before the first start.
func (w *world) relays() map[*mesh.Gateway]*relay {
	relays := map[*mesh.Gateway]*relay{}
	for i, g := range w.all() {
		r := w.newRelay(fmt.Sprintf("127.0.0.%d", 100+i))
		relays[g] = r
		g.Federation = netip.MustParseAddrPort(r.listener.Addr().String())
	}
	return relays
}

func (w *world) start(g *mesh.Gateway, r *relay, incarnation uint64, change func(*Config)) *site {
	w.t.Helper()
	listener := w.listen("127.0.0.1")
	r.target.Store(listener.Addr().String())
	g = w.moved(g, netip.MustParseAddrPort(listener.Addr().String()))
	s := &site{
		listener: listener,
		Gateway:  g, world: w, relay: r, ledger: peer.NewLedger(0), metrics: peer.NewMetrics(prometheus.NewRegistry()),
		done: make(chan struct{}),
	}
	peers := func() []*mesh.Gateway {
		return slices.DeleteFunc(w.all(), func(o *mesh.Gateway) bool { return o.Name == g.Name && o.Network == g.Network })
	}
	fc := Config{
		Name: g.Name, Network: g.Network, Self: g.Identity, Incarnation: incarnation, Identity: w.identity,
		Peers: peers, Advertise: g.Federation, Ledger: s.ledger, Log: zerolog.Nop(), Metrics: s.metrics,
		dial:           w.dial,
		GossipInterval: 20 * time.Millisecond, PushPullInterval: 500 * time.Millisecond, ProbeInterval: 200 * time.Millisecond,
		timing: timing{dial: 500 * time.Millisecond, ping: 100 * time.Millisecond, silence: 500 * time.Millisecond, maxBackoff: 100 * time.Millisecond, stale: 200 * time.Millisecond},
	}
	hc := healthstream.ServerConfig{
		Name: g.Name, Network: g.Network, Ledger: s.ledger, Log: zerolog.Nop(), Metrics: s.metrics,
		Authorize: func(peer spiffeid.ID, node string) error {
			if peer != workload("nodeproxy") {
				return fmt.Errorf("%q may not attach as %q", peer, node)
			}
			return nil
		},
	}
	if change != nil {
		change(&fc)
	}
	var err error
	if s.federation, err = New(fc); err != nil {
		w.t.Fatal(err)
	}
	s.health = healthstream.NewServer(hc)
	ctx, cancel := context.WithCancel(context.Background())
	s.cancel = cancel
	s.listen(ctx)
	w.wg.Go(func() {
		defer close(s.done)
		if err := s.federation.Run(ctx); err != nil {
			w.t.Error(err)
		}
	})
	w.t.Cleanup(s.stop)
	return s
}

func (s *site) listen(ctx context.Context) {
	config := s.world.identity.ServerTLS(s.Identity, nil, ALPN, healthstream.ALPN)
	s.world.wg.Go(func() {
		for {
			raw, err := s.listener.Accept()
			if err != nil {
				return
			}
			s.world.wg.Go(func() { s.serve(ctx, raw, config) })
		}
	})
}

func (s *site) serve(ctx context.Context, raw net.Conn, config *tls.Config) {
	conn := tls.Server(raw, config)
	handshake, cancel := context.WithTimeout(ctx, 5*time.Second)
	defer cancel()
	if conn.HandshakeContext(handshake) != nil {
		raw.Close()
		return
	}
	peer, err := identity.PeerID(conn.ConnectionState())
	if err != nil {
		raw.Close()
		return
	}
	if conn.ConnectionState().NegotiatedProtocol == healthstream.ALPN {
		s.health.Accept(ctx, conn, peer)
		return
	}
	s.federation.Accept(conn, peer)
}

// stop is a farewell; kill is what the others see of a kill -9.
func (s *site) stop() {
	s.cancel()
	s.listener.Close()
	<-s.done
}

func (s *site) kill() {
	s.relay.set(swallow)
	s.stop()
}

func (s *site) publish(healthy uint32) { s.publishAged(healthy, 0) }

func (s *site) publishAged(healthy uint32, age time.Duration) {
	s.federation.Publish(federation.Record{Age: age, Summary: &federation.SummaryFact{
		Service: service, Port: 80, Ready: 10, Healthy: healthy, ReadyCapacity: 10, HealthyCapacity: healthy,
	}})
}

// believes says whether s holds a summary of network with this many healthy.
func (s *site) believes(network string, healthy uint32) bool {
	return believes(s.ledger, network, healthy)
}

func believes(l *peer.Ledger, network string, healthy uint32) bool {
	fact, _, ok := l.Summary(network, service, 80)
	return ok && fact.Healthy == healthy
}

// remote is a summary of another network, as if east's gateway had sent it.
func remote(sequence uint64, name string, healthy uint32) federation.Record {
	return federation.Record{
		Network: "east", Origin: federation.Origin{Name: "east/gw-1", Incarnation: 1}, Sequence: sequence,
		Summary: &federation.SummaryFact{Service: name, Port: 80, Ready: 10, Healthy: healthy, ReadyCapacity: 10, HealthyCapacity: healthy},
	}
}

func rejected(m *peer.Metrics, reason string) int {
	return int(testutil.ToFloat64(m.Rejected.WithLabelValues(reason)))
}

// startAll makes networks of two gateways each and waits until all are members.
func startAll(w *world, networks ...string) (*world, []*site) {
	for _, n := range networks {
		w.add(n, "gw-1")
		w.add(n, "gw-2")
	}
	relays := w.relays()
	var sites []*site
	for _, g := range w.all() {
		sites = append(sites, w.start(g, relays[g], 1, nil))
	}
	eventuallyMembers(w.t, sites)
	return w, sites
}

func eventuallyMembers(t testing.TB, sites []*site) time.Duration {
	t.Helper()
	return eventually(t, "all gateways are members for all", func() bool {
		for _, s := range sites {
			if len(s.federation.Members()) != len(sites) {
				return false
			}
		}
		return true
	})
}

// relay passes TCP connections on to target, unless it is a black hole:
// connections stay open and new ones are accepted, but nothing passes.
type relay struct {
	dial     link.Dial
	listener net.Listener
	target   atomic.Value
	wg       sync.WaitGroup

	mu      sync.Mutex
	changed *sync.Cond
	mode    relayMode
	conns   map[net.Conn]struct{}
	closed  bool
}

type relayMode int

const (
	pass    relayMode = iota
	stall             // bytes wait, and arrive when the hole closes
	swallow           // bytes are lost
)

func (w *world) newRelay(host string) *relay {
	r := &relay{dial: w.dial, listener: w.listen(host), conns: map[net.Conn]struct{}{}}
	r.changed = sync.NewCond(&r.mu)
	r.wg.Go(r.accept)
	w.t.Cleanup(r.close)
	return r
}

func (r *relay) set(m relayMode) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.mode = m
	r.changed.Broadcast()
}

// wait blocks while the relay stalls; it returns whether bytes are to pass.
func (r *relay) wait() bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	for r.mode == stall && !r.closed {
		r.changed.Wait()
	}
	return r.mode == pass
}

func (r *relay) hold(c net.Conn) bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.closed {
		c.Close()
		return false
	}
	r.conns[c] = struct{}{}
	return true
}

func (r *relay) accept() {
	for {
		in, err := r.listener.Accept()
		if err != nil {
			return
		}
		if !r.hold(in) {
			return
		}
		r.wg.Go(func() {
			defer in.Close()
			r.wait()
			target, _ := r.target.Load().(string)
			out, err := r.dial(context.Background(), target)
			if err != nil || !r.hold(out) {
				return
			}
			r.wg.Go(func() { r.pump(in, out) })
			r.pump(out, in)
		})
	}
}

func (r *relay) pump(dst, src net.Conn) {
	defer dst.Close()
	defer src.Close()
	buf := make([]byte, 32<<10)
	for {
		n, err := src.Read(buf)
		if r.wait() && n > 0 {
			if _, err := dst.Write(buf[:n]); err != nil {
				return
			}
		}
		if err != nil {
			return
		}
	}
}

func (r *relay) close() {
	r.mu.Lock()
	r.closed = true
	r.changed.Broadcast()
	for c := range r.conns {
		c.Close()
	}
	r.mu.Unlock()
	r.listener.Close()
	r.wg.Wait()
}
