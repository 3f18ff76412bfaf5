package gateway

import (
	"context"
	"fmt"
	"testing"
	"time"

	"github.com/rs/zerolog"

	"github.com/isthmus-mesh/isthmus/federation"
	"github.com/isthmus-mesh/isthmus/gateway/picker"
	"github.com/isthmus-mesh/isthmus/health"
	"github.com/isthmus-mesh/isthmus/internal/reprobe"
	"github.com/isthmus-mesh/isthmus/mesh"
	"github.com/isthmus-mesh/isthmus/route"
)

// crowd is a service of n pods and the backends that choose among them, after
// some of their ports were reported sick.
func crowd(tb testing.TB, n, sick int) (*backends, *picker.Service) {
	tb.Helper()
	ctx, cancel := context.WithCancel(context.Background())
	said := map[health.Key]federation.EndpointFact{}
	prober := reprobe.New[mesh.EndpointID](ctx, hopSchedule)
	listed := map[mesh.EndpointID]*mesh.Workload{}
	b := newBackends("west", DefaultConfig().OutlierDetection, witnessedBy(said), prober,
		func(context.Context, *mesh.Workload) error { return nil },
		func(id mesh.EndpointID) *mesh.Workload { return listed[id] }, zerolog.Nop(), func(*mesh.Workload) {})
	tb.Cleanup(func() {
		cancel()
		prober.Wait()
	})
	x := route.Exported{Service: &mesh.Service{Hostname: "hello.default.svc.cluster.local"}, Port: mesh.Port{Service: 80, Target: 8080}}
	for i := range n {
		uid := fmt.Sprintf("west/default/hello-%d", i)
		x.Members = append(x.Members, &mesh.Workload{UID: uid, Network: "west", Endpoint: mesh.EndpointIDOf("west", uid), Capacity: 1, State: mesh.Ready})
		listed[x.Members[i].Endpoint] = x.Members[i]
	}
	for i := range sick {
		said[health.Key{Endpoint: x.Members[i].Endpoint, Port: 8080}] = federation.EndpointFact{Endpoint: x.Members[i].Endpoint, Port: 8080, State: federation.Ejected, Reason: "refused"}
		b.reported(said[health.Key{Endpoint: x.Members[i].Endpoint, Port: 8080}], "node-1")
	}
	return b, b.Offer(x, time.Now())
}

// witnessedBy answers what is believed by what was said.
func witnessedBy(said map[health.Key]federation.EndpointFact) facts {
	return func(_ string, id mesh.EndpointID, port uint16) (federation.EndpointFact, time.Duration, bool) {
		f, ok := said[health.Key{Endpoint: id, Port: port}]
		return f, 0, ok
	}
}

// nothingWitnessed is what is believed as long as no node proxy has said anything.
func nothingWitnessed(network string, id mesh.EndpointID, port uint16) (federation.EndpointFact, time.Duration, bool) {
	return witnessedBy(nil)(network, id, port)
}

func TestChoosesOnlyAmongTheWellAndSharesEvenly(t *testing.T) {
	b, x := crowd(t, 10, 2)
	seen := map[string]int{}
	for range 800 {
		l, ok := b.choose(x, picker.Request{}, time.Now())
		if !ok || l.Dazed {
			t.Fatalf("no choice, or a dazed one (%v), with 8 of 10 healthy", l.Dazed)
		}
		seen[l.Pod.UID]++
		b.release(l, health.Neutral, "", time.Now())
	}
	for i, m := range x.Exported().Members {
		n := seen[m.UID]
		if i < 2 && n != 0 {
			t.Errorf("%s is reported sick and was chosen %d times", m.UID, n)
		}
		if i >= 2 && (n < 90 || n > 110) {
			t.Errorf("%s was chosen %d times of 800; want 100 ± 10", m.UID, n)
		}
	}
	if n := b.Open(); n != 0 {
		t.Errorf("%d open connections left in the books", n)
	}
}

// pickAllocs is the most that one choice among 1 000 endpoints may allocate;
// measured 0 (2026-11), whatever their number.
const pickAllocs = 4

func TestAChoiceAmongAThousandHardlyAllocates(t *testing.T) {
	b, x := crowd(t, 1000, 100)
	now := time.Now()
	choose := func() {
		l, _ := b.choose(x, picker.Request{}, now)
		b.release(l, health.Neutral, "", now)
	}
	choose()
	if n := testing.AllocsPerRun(100, choose); n > pickAllocs {
		t.Errorf("%v allocations for one choice; want at most %d", n, pickAllocs)
	}
}

func BenchmarkPick(b *testing.B) {
	for _, n := range []int{10, 1000} {
		b.Run(fmt.Sprintf("endpoints=%d", n), func(b *testing.B) {
			be, x := crowd(b, n, n/10)
			b.ReportAllocs()
			for b.Loop() {
				now := time.Now()
				l, _ := be.choose(x, picker.Request{}, now)
				be.release(l, health.Neutral, "", now)
			}
		})
	}
}
