package healthstream

import (
	"context"
	"crypto/tls"
	"fmt"
	"net"
	"net/netip"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/testutil"
	"github.com/rs/zerolog"
	"github.com/spiffe/go-spiffe/v2/spiffeid"

	"github.com/isthmus-mesh/isthmus/federation"
	"github.com/isthmus-mesh/isthmus/federation/peer"
	"github.com/isthmus-mesh/isthmus/identity"
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

// world is a network's gateways on loopback sockets.
type world struct {
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

func (w *world) all() []*mesh.Gateway {
	w.mu.Lock()
	defer w.mu.Unlock()
	return slices.Clone(w.gateways)
}

// site is a gateway process in small: listener and health server.
type site struct {
	*mesh.Gateway
	world    *world
	listener net.Listener
	ledger   *peer.Ledger
	metrics  *peer.Metrics
	health   *Server
	reports  chan federation.Record
	cancel   context.CancelFunc
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

func (w *world) start(g *mesh.Gateway, change func(*ServerConfig)) *site {
	w.t.Helper()
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		w.t.Fatal(err)
	}
	g = w.moved(g, netip.MustParseAddrPort(listener.Addr().String()))
	s := &site{
		Gateway: g, world: w, listener: listener, ledger: peer.NewLedger(0), metrics: peer.NewMetrics(prometheus.NewRegistry()),
		reports: make(chan federation.Record, 1000),
	}
	cfg := ServerConfig{
		Name: g.Name, Network: g.Network, Ledger: s.ledger, Log: zerolog.Nop(), Metrics: s.metrics,
		Authorize: func(peer spiffeid.ID, node string) error {
			if peer != workload("nodeproxy") {
				return fmt.Errorf("%q may not attach as %q", peer, node)
			}
			return nil
		},
		OnReport: func(_ string, records []federation.Record) {
			for _, r := range records {
				select {
				case s.reports <- r:
				default: // a test that floods looks at the ledger instead
				}
			}
		},
	}
	if change != nil {
		change(&cfg)
	}
	s.health = NewServer(cfg)
	ctx, cancel := context.WithCancel(context.Background())
	s.cancel = cancel
	s.listen(ctx)
	w.t.Cleanup(s.stop)
	return s
}

func (s *site) listen(ctx context.Context) {
	config := s.world.identity.ServerTLS(s.Identity, nil, ALPN)
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
	s.health.Accept(ctx, conn, peer)
}

func (s *site) stop() {
	s.cancel()
	s.listener.Close()
}

func believes(l *peer.Ledger, network string, healthy uint32) bool {
	fact, _, ok := l.Summary(network, service, 80)
	return ok && fact.Healthy == healthy
}

func rejected(m *peer.Metrics, reason string) int {
	return int(testutil.ToFloat64(m.Rejected.WithLabelValues(reason)))
}
