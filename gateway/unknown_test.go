package gateway

import (
	"context"
	"io"
	"net/netip"
	"sync"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/rs/zerolog"

	"github.com/isthmus-mesh/isthmus/discovery"
	"github.com/isthmus-mesh/isthmus/federation"
	"github.com/isthmus-mesh/isthmus/federation/healthstream"
	"github.com/isthmus-mesh/isthmus/federation/record"
	"github.com/isthmus-mesh/isthmus/health"
	"github.com/isthmus-mesh/isthmus/internal/logging"
	"github.com/isthmus-mesh/isthmus/internal/reprobe"
	"github.com/isthmus-mesh/isthmus/mesh"
)

// believer is a gateway without its network: it gets records and publishes
// summaries, in the bubble's time.
type believer struct {
	*Gateway
	withdrawn []record.Key
	facts     map[health.Key]federation.EndpointFact
	pod       *mesh.Workload

	mu   sync.Mutex
	said []record.Health
}

func newBeliever(t *testing.T) *believer {
	t.Helper()
	c := discovery.DefaultConfig()
	c.Networks = []discovery.Network{{Name: "west"}}
	c.Gateways = []discovery.Gateway{{Name: "gw-1", Network: "west", Address: netip.MustParseAddrPort("10.0.0.1:15008"), ServiceAccount: "isthmus-system/gateway"}}
	c.Services = []discovery.Service{{Name: "hello", Global: true, Ports: []discovery.ServicePort{{Name: "a", Port: 80, TargetPort: 8080}}}}
	for _, uid := range []string{"hello-1", "hello-2"} {
		c.Workloads = append(c.Workloads, discovery.Workload{UID: uid, Network: "west", Node: "west-1", Services: []string{"hello.default.svc.cluster.local"},
			Addresses: []netip.Addr{netip.AddrFrom4([4]byte{10, 1, 0, uid[6]})}})
	}
	b := &believer{facts: map[health.Key]federation.EndpointFact{}, Gateway: &Gateway{cfg: DefaultConfig(), log: zerolog.New(io.Discard), store: &discovery.Store{}, metrics: NewMetrics(prometheus.NewRegistry()),
		edges: logging.PeerLimits{Every: edgeEvery}}}
	b.cfg.Network = "west"
	snap, problems := discovery.Build(1, c)
	if problems != nil {
		t.Fatal(problems)
	}
	b.store.Swap(snap)
	b.pod = b.store.Current().Workload("hello-1")
	ctx, cancel := context.WithCancel(t.Context())
	b.backends = newBackends("west", b.cfg.OutlierDetection, witnessedBy(b.facts), reprobe.New[mesh.EndpointID](ctx, hopSchedule),
		func(context.Context, *mesh.Workload) error { return nil }, b.listed, zerolog.Nop(), func(w *mesh.Workload) { b.deliveries.touched(time.Now(), w) })
	b.deliveries = &deliveries{network: "west", store: b.store, pods: b.backends.podHealth, why: b.backends.podDetail, publish: b.publishes, told: func(portKey) {}, ports: map[string]map[uint16]*delivery{}, exports: map[string]exported{}}
	b.deliveries.start(time.Now())
	t.Cleanup(cancel)
	return b
}

func (b *believer) publishes(records []record.Record, withdrawn ...record.Key) {
	b.mu.Lock()
	defer b.mu.Unlock()
	for _, r := range records {
		if r.Health != nil {
			b.said = append(b.said, *r.Health)
		}
	}
	b.withdrawn = append(b.withdrawn, withdrawn...)
}

// last is the newest health record that was published.
func (b *believer) last() record.Health {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.said[len(b.said)-1]
}

// witnessed is an edge in what is believed of the pod; not known says that nothing is.
func (b *believer) witnessed(state federation.FactState, known bool) {
	key := health.Key{Endpoint: b.pod.Endpoint, Port: 8080}
	e := healthstream.Edge{Target: healthstream.Target(key), Known: known}
	delete(b.facts, key)
	if known {
		e.Fact.EndpointFact = federation.EndpointFact{Endpoint: b.pod.Endpoint, Port: 8080, State: state, Reason: "refused"}
		b.facts[key] = e.Fact.EndpointFact
	}
	b.takeEdges([]healthstream.Edge{e})
}

// A pod was ejected, and then nothing is known of it any more: it is back, everywhere.
func TestAFactThatExpiresIsAChange(t *testing.T) {
	b := newBeliever(t)
	b.witnessed(federation.Ejected, true)
	if s := b.last(); s.Healthy != 1 || len(s.Exceptions) != 1 {
		t.Fatalf("after the report: %+v; want one exception", s)
	}
	b.witnessed(0, false)
	if s := b.last(); s.Healthy != 2 || len(s.Exceptions) != 0 {
		t.Errorf("when nothing is known any more: %+v; want two healthy pods", s)
	}
	if n := len(b.backends.Sick()); n != 0 {
		t.Errorf("%d ports are still kept as sick", n)
	}
	b.witnessed(federation.Ejected, true)
	if s := b.last(); s.Healthy != 1 {
		t.Errorf("after a new report: %+v; want the exception again", s)
	}
}

// Nothing is held against a pod that was said of the one before it of the same name,
// be it that its witness took the word back when discovery listed no pod.
func TestNothingIsHeldAgainstAPodThatWasSaidOfTheOneBefore(t *testing.T) {
	b := newBeliever(t)
	b.witnessed(federation.Ejected, true)
	full := b.store.Current()
	empty, problems := discovery.Build(2, discovery.DefaultConfig())
	if problems != nil {
		t.Fatal(problems)
	}
	b.store.Swap(empty)
	b.witnessed(0, false)
	b.store.Swap(full)
	b.backends.forget(full, time.Now())
	if sick := b.backends.Sick(); len(sick) > 0 {
		t.Errorf("%v are kept as sick; nobody says so", sick)
	}
}
