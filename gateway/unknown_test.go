package gateway

import (
	"context"
	"io"
	"net/netip"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/rs/zerolog"

	"github.com/isthmus-mesh/isthmus/discovery"
	"github.com/isthmus-mesh/isthmus/federation"
	"github.com/isthmus-mesh/isthmus/federation/peer"
	"github.com/isthmus-mesh/isthmus/internal/reprobe"
	"github.com/isthmus-mesh/isthmus/mesh"
)

// believer is a gateway without its network: it gets records and publishes
// summaries, in the bubble's time.
type believer struct {
	*Gateway
	withdrawn []federation.Key
	pod       *mesh.Workload

	mu   sync.Mutex
	said []federation.SummaryFact
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
	b := &believer{Gateway: &Gateway{cfg: DefaultConfig(), log: zerolog.New(io.Discard), store: &discovery.Store{}, metrics: NewMetrics(prometheus.NewRegistry())}}
	b.cfg.Network = "west"
	snap, problems := discovery.Build(1, c)
	if problems != nil {
		t.Fatal(problems)
	}
	b.store.Swap(snap)
	b.pod = b.store.Current().Workload("hello-1")
	ctx, cancel := context.WithCancel(t.Context())
	b.ledger = peer.NewLedger(federation.DefaultTTL)
	b.backends = newBackends("west", b.cfg.OutlierDetection, b.ledger, reprobe.New[mesh.EndpointID](ctx, hopSchedule),
		func(context.Context, *mesh.Workload) error { return nil }, b.listed, zerolog.Nop(), func(w *mesh.Workload) { b.summary.touched(w, time.Now()) })
	b.summary = &summaries{network: "west", store: b.store, pods: b.backends.podHealth, publish: b.publishes, own: func(...federation.Record) {}, withdraw: func(k ...federation.Key) { b.withdrawn = append(b.withdrawn, k...) },
		last: map[summaryKey]federation.Record{}, exported: map[summaryKey]struct{}{}}
	b.summary.start(time.Now())
	var watching sync.WaitGroup
	watching.Go(func() { b.watchLedger(ctx) })
	watching.Go(func() { // as the federation does
		for tick := time.NewTicker(time.Second); ; {
			select {
			case <-ctx.Done():
				tick.Stop()
				return
			case <-tick.C:
				b.ledger.Expire()
			}
		}
	})
	t.Cleanup(func() {
		cancel()
		watching.Wait()
	})
	synctest.Wait() // it follows its ledger
	return b
}

func (b *believer) publishes(records ...federation.Record) {
	b.mu.Lock()
	defer b.mu.Unlock()
	for _, r := range records {
		b.said = append(b.said, *r.Summary)
	}
}

// last is the newest summary that was published.
func (b *believer) last() federation.SummaryFact {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.said[len(b.said)-1]
}

func (b *believer) reported(incarnation, sequence uint64, state federation.FactState) {
	r := federation.Record{Network: "west", Origin: federation.Origin{Name: "west/west-1", Incarnation: incarnation}, Sequence: sequence,
		Endpoint: &federation.EndpointFact{Endpoint: b.pod.Endpoint, Port: 8080, State: state, Reason: "refused"}}
	if b.ledger.Merge(r).Accepted() {
		b.takeReport("west-1", []federation.Record{r})
	}
}

// A pod was ejected, its node proxy restarts and has nothing to say of it: what the
// old one said is believed for the TTL, and then the pod is back, everywhere.
func TestAFactThatExpiresIsAChange(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := newBeliever(t)
		b.reported(1, 1, federation.Ejected)
		if s := b.last(); s.Healthy != 1 || len(s.Exceptions) != 1 {
			t.Fatalf("after the report: %+v; want one exception", s)
		}
		time.Sleep(federation.DefaultTTL - 5*time.Second)
		if s := b.last(); s.Healthy != 1 {
			t.Errorf("within the TTL: %+v; want the exception", s)
		}
		time.Sleep(10 * time.Second)
		synctest.Wait()
		if s := b.last(); s.Healthy != 2 || len(s.Exceptions) != 0 {
			t.Errorf("after the TTL: %+v; want two healthy pods", s)
		}
		if n := len(b.backends.sickSubjects()); n != 0 {
			t.Errorf("%d ports are still kept as sick", n)
		}
		b.reported(1, 2, federation.Ejected)
		if s := b.last(); s.Healthy != 1 {
			t.Errorf("after a new report: %+v; want the exception again", s)
		}
	})
}

// A node proxy that has started anew and speaks of another pod takes back what its
// predecessor said.
func TestANewIncarnationIsAChange(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := newBeliever(t)
		b.reported(1, 1, federation.Ejected)
		b.pod = b.store.Current().Workload("hello-2")
		b.reported(2, 1, federation.Ejected)
		synctest.Wait()
		if s := b.last(); s.Healthy != 1 || len(s.Exceptions) != 1 || s.Exceptions[0] != b.pod.Endpoint {
			t.Errorf("%+v; want the other pod as the exception", s)
		}
		if n := len(b.backends.sickSubjects()); n != 1 {
			t.Errorf("%d ports are kept as sick; want the one that was reported by the new process", n)
		}
	})
}
