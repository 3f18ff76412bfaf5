package gossip

import (
	"context"
	"crypto/rand"
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

	"github.com/isthmus-mesh/isthmus/federation/ledger"
	"github.com/isthmus-mesh/isthmus/federation/networkkey"
	"github.com/isthmus-mesh/isthmus/federation/peer"
	"github.com/isthmus-mesh/isthmus/federation/record"
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

// eventually polls until ok, with a deadline that only a bug reaches.
func eventually(t testing.TB, what string, ok func() bool) time.Duration {
	t.Helper()
	start := time.Now()
	for !ok() {
		if time.Since(start) > 100*time.Second {
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
		t.Cleanup(func() { time.Sleep(2 * probeInterval) }) // last: memberlist's last probe has ended then
		w := newWorld(t)
		w.network = &simnet.Network{Options: simnet.Options{Delay: time.Millisecond}}
		f(t, w)
	})
}

// world is gateways on loopback sockets, or on a network in memory, each
// behind a relay that can be turned into a black hole.
type world struct {
	network  *simnet.Network // nil: loopback
	ports    atomic.Int32    // that were given out on it
	t        testing.TB
	identity *identity.Manager
	wg       sync.WaitGroup

	mu       sync.Mutex
	gateways []*mesh.Gateway
	keys     map[string]networkkey.Private
	known    networkkey.Known // replaced, never changed
}

func newWorld(t testing.TB) *world {
	t.Helper()
	w := &world{t: t, keys: map[string]networkkey.Private{}, known: networkkey.Known{}}
	w.lasting(time.Hour)
	t.Cleanup(w.wg.Wait) // last: everything else has been stopped by then
	return w
}

// lasting gives w a certificate authority whose SVIDs last for so long; call it before the
// first start.
func (w *world) lasting(ttl time.Duration) {
	w.t.Helper()
	ca, err := identity.InitCA(w.t.TempDir(), trustDomain)
	if err != nil {
		w.t.Fatal(err)
	}
	w.identity = identity.NewManager(identity.CASource{CA: ca, TTL: ttl}, zerolog.Nop())
}

// link gives network a key that everybody knows, besides those that it has.
func (w *world) link(network string) networkkey.Private {
	w.t.Helper()
	key, err := networkkey.Generate(rand.Reader)
	if err != nil {
		w.t.Fatal(err)
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	next := networkkey.Known{network: append(slices.Clone(w.known[network]), key.Public())}
	for n, k := range w.known {
		if n != network {
			next[n] = k
		}
	}
	w.known = next
	if _, there := w.keys[network]; !there {
		w.keys[network] = key
	}
	return key
}

// unlink makes everybody forget network, but its own gateways.
func (w *world) unlink(network string) {
	w.mu.Lock()
	defer w.mu.Unlock()
	next := networkkey.Known{}
	for n, k := range w.known {
		if n != network {
			next[n] = k
		}
	}
	w.known = next
}

func (w *world) keysOf(network string) (Keys, error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	known := networkkey.Known{network: {w.keys[network].Public()}}
	for n, k := range w.known {
		known[n] = k
	}
	return Keys{w.keys[network], known}, nil
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

// add makes a gateway known, described by with beside what all have; the first of a
// network links it. From then on others read it.
func (w *world) add(network, name string, with ...func(*mesh.Gateway)) *mesh.Gateway {
	w.t.Helper()
	if _, known := w.known[network]; !known {
		w.link(network)
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	g := &mesh.Gateway{Name: name, Network: network, Identity: workload("gateway-" + network)}
	for _, set := range with {
		set(g)
	}
	w.gateways = append(w.gateways, g)
	return g
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

// site is a gateway process in small: listener and federation.
type site struct {
	*mesh.Gateway
	world      *world
	relay      *relay
	listener   net.Listener
	metrics    *peer.Metrics
	federation *Federation
	cancel     context.CancelFunc
	done       chan struct{}
}

// start runs a process of g, to which new connections through r lead from now on.
func (w *world) start(g *mesh.Gateway, r *relay, changes ...func(*Config)) *site {
	w.t.Helper()
	s := &site{Gateway: g, world: w, relay: r, listener: w.listen("127.0.0.1"), metrics: peer.NewMetrics(prometheus.NewRegistry()), done: make(chan struct{})}
	r.target.Store(s.listener.Addr().String())
	c := Config{
		Name: g.Name, Network: g.Network, Self: g.Identity, Identity: w.identity, Log: zerolog.Nop(), Metrics: s.metrics,
		Keys: func() (Keys, error) { return w.keysOf(g.Network) },
		Peers: func() []*mesh.Gateway {
			return slices.DeleteFunc(w.all(), func(o *mesh.Gateway) bool { return o.Name == g.Name && o.Network == g.Network })
		},
		dial: w.dial,
	}
	for _, change := range changes {
		change(&c)
	}
	var err error
	if s.federation, err = New(c); err != nil {
		w.t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	s.cancel = cancel
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
	w.wg.Go(func() {
		defer close(s.done)
		if err := s.federation.Run(ctx); err != nil {
			w.t.Error(err)
		}
	})
	w.t.Cleanup(s.stop)
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
	if err != nil {
		raw.Close()
		return
	}
	s.federation.Accept(conn, id)
}

// stop is an orderly end; kill is what the others see of a kill -9.
func (s *site) stop() {
	s.cancel()
	s.listener.Close()
	<-s.done
}

func (s *site) kill() {
	s.relay.set(swallow)
	s.stop()
}

func health(healthy uint32) record.Record {
	return record.HealthRecord(service, 80, record.Health{Ready: 10, Healthy: healthy, ReadyCapacity: 10, HealthyCapacity: healthy})
}

func (s *site) publish(healthy uint32) {
	s.federation.Publish([]record.Record{health(healthy)})
	s.federation.Synchronise()
}

// believes says whether what s holds of network is this many healthy.
func (s *site) believes(network string, healthy uint32) bool {
	h, ok := s.health(network)
	return ok && h.Healthy == healthy
}

func (s *site) health(network string) (h ledger.Health, ok bool) {
	s.federation.Read(func(l *ledger.Ledger) { h, ok = l.Health(network, service, 80) })
	return h, ok
}

// status is what s holds of an instance.
func (s *site) status(id record.Instance) (out ledger.Status) {
	s.federation.Read(func(l *ledger.Ledger) {
		for _, st := range l.Status() {
			if st.Instance == id {
				out = st
			}
		}
	})
	return out
}

func all(sites []*site, ok func(*site) bool) bool {
	return !slices.ContainsFunc(sites, func(s *site) bool { return !ok(s) })
}

func rejected(m *peer.Metrics, reason string) int {
	return int(testutil.ToFloat64(m.Rejected.WithLabelValues(reason)))
}

// startAll makes networks of two gateways each and waits until all believe each other.
func startAll(w *world, networks ...string) []*site {
	for _, n := range networks {
		w.add(n, "gw-1")
		w.add(n, "gw-2")
	}
	relays := w.relays()
	var sites []*site
	for _, g := range w.all() {
		sites = append(sites, w.start(g, relays[g]))
	}
	eventuallyMembers(w.t, sites)
	return sites
}

func eventuallyMembers(t testing.TB, sites []*site) time.Duration {
	t.Helper()
	return eventually(t, "all gateways are members for all", func() bool {
		return all(sites, func(s *site) bool { return len(s.federation.Members()) == len(sites) })
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
