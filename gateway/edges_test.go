package gateway

import (
	"fmt"
	"net/netip"
	"testing"
	"testing/synctest"
	"time"

	"github.com/rs/zerolog"

	"github.com/isthmus-mesh/isthmus/discovery"
	"github.com/isthmus-mesh/isthmus/federation"
	"github.com/isthmus-mesh/isthmus/federation/healthstream"
	"github.com/isthmus-mesh/isthmus/federation/record"
	"github.com/isthmus-mesh/isthmus/health"
	"github.com/isthmus-mesh/isthmus/mesh"
)

// crowded is a believer with one service of many pods and two ports, which counts.
type crowded struct {
	*believer
	looks     int // at a pod and one of its ports
	published []record.Record
	told      []portKey
}

func newCrowded(t *testing.T, pods int) *crowded {
	t.Helper()
	c := discovery.DefaultConfig()
	c.Networks = []discovery.Network{{Name: "west"}}
	c.Services = []discovery.Service{{Name: "hello", Global: true, Ports: []discovery.ServicePort{{Name: "a", Port: 80, TargetPort: 8080}, {Name: "b", Port: 81, TargetPort: 8081}}}}
	for i := range pods {
		c.Workloads = append(c.Workloads, discovery.Workload{UID: fmt.Sprint("hello-", i), Network: "west", Node: fmt.Sprint("west-", i/50),
			Services: []string{"hello.default.svc.cluster.local"}, Addresses: []netip.Addr{netip.AddrFrom4([4]byte{10, 1, byte(i >> 8), byte(i)})}})
	}
	snap, problems := discovery.Build(2, c)
	if problems != nil {
		t.Fatal(problems)
	}
	b := &crowded{believer: newBeliever(t)}
	b.store.Swap(snap)
	b.backends.forget(snap, time.Now())
	b.deliveries.revised(discovery.Everything(), time.Now())
	look := b.deliveries.pods
	b.deliveries.pods = func(w *mesh.Workload, target uint16, now time.Time) (record.Cause, bool, time.Time) {
		b.looks++
		return look(w, target, now)
	}
	b.deliveries.publish = func(records []record.Record, _ ...record.Key) { b.published = append(b.published, records...) }
	b.deliveries.told = func(k portKey) { b.told = append(b.told, k) }
	time.Sleep(time.Minute) // so that nothing is put off
	return b
}

// report is the word of the witnesses that port 8080 of these pods is out.
func (b *crowded) report(from, to int) (edges []healthstream.Edge) {
	for i := from; i < to; i++ {
		k := health.Key{Endpoint: b.store.Current().Workload(fmt.Sprint("hello-", i)).Endpoint, Port: 8080}
		e := healthstream.Edge{Target: healthstream.Target(k), Known: true}
		e.Fact.EndpointFact = federation.EndpointFact{Endpoint: k.Endpoint, Port: k.Port, State: federation.Ejected, Reason: "refused"}
		b.facts[k] = e.Fact.EndpointFact
		edges = append(edges, e)
	}
	return edges
}

// expect fails unless there were so many looks at a pod and one of its two ports, and
// the only thing said is the health of port 80, as often as it changed.
func (b *crowded) expect(t *testing.T, when string, looks, records int) {
	t.Helper()
	if b.looks != looks {
		t.Errorf("%s: %d looks at a pod's port; want %d", when, b.looks, looks)
	}
	if len(b.published) != records || len(b.told) != records {
		t.Errorf("%s: %d records published, %d changes told to node proxies; want %d", when, len(b.published), len(b.told), records)
	}
	for _, r := range b.published {
		if r.Key.Kind != record.KindHealth || r.Key.Port != 80 {
			t.Errorf("%s: published %v, which has not changed", when, r.Key)
		}
	}
	b.looks, b.published, b.told = 0, nil, nil
	time.Sleep(time.Minute) // so that nothing is put off
}

// What pods of a service cost that change together is one look at each of them and at
// those that are out, and one record of each port that changed.
func TestManyEdgesAreOneLook(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := newCrowded(t, 200)
		b.takeEdges(b.report(0, 50))
		h := b.published[len(b.published)-1].Health
		if h.Ready != 200 || h.Healthy != 150 {
			t.Errorf("after 50 reports: %d of %d healthy; want 150 of 200", h.Healthy, h.Ready)
		}
		b.expect(t, "50 edges in one batch", 50+50, 1)
		b.takeEdges(b.report(0, 50))
		b.expect(t, "the same again", 50+50, 0)
		b.takeEdges(b.report(49, 50))
		b.expect(t, "one of them again", 50+1, 0)

		for i := range 20 { // while somebody else looks
			b.report(50+i, 51+i)
			b.deliveries.enqueue(time.Now(), []*mesh.Workload{b.store.Current().Workload(fmt.Sprint("hello-", 50+i))})
		}
		for range 20 { // each has its turn
			b.deliveries.flush()
		}
		b.expect(t, "20 callers that waited for their turn", 50+20+20, 1)

		b.deliveries.revised(discovery.Everything(), time.Now())
		b.expect(t, "a snapshot that changes nothing", 70, 0)
	})
}

// logLines counts what is logged.
type logLines struct{ n, bytes int }

func (l *logLines) Write(p []byte) (int, error) { l.n++; l.bytes += len(p); return len(p), nil }

// Whoever has the key of one node says of its pods, port by port, sick and well in turn.
// Ports that no service leads to are not believed, and of the others there are a few
// lines.
func TestOneNodeProxyCannotFillTheLog(t *testing.T) {
	for name, ports := range map[string][]uint16{"of no service": {8081, 8180}, "of a service": {8080, 8080}} {
		t.Run(name, func(t *testing.T) {
			b := newBeliever(t)
			var log logLines
			b.log = zerolog.New(&log)
			const rounds = 1000
			for n := range rounds {
				edges := make([]healthstream.Edge, 0, ports[1]-ports[0]+1)
				for port := ports[0]; port <= ports[1]; port++ {
					f := federation.EndpointFact{Endpoint: b.pod.Endpoint, Port: port, State: federation.FactState(1 - n%2), Reason: "refused"}
					edges = append(edges, healthstream.Edge{Target: healthstream.Target{Endpoint: b.pod.Endpoint, Port: port}, Fact: healthstream.Fact{EndpointFact: f}, Known: true})
				}
				b.takeEdges(edges)
				if sick := len(b.backends.Sick()); sick > 1 {
					t.Fatalf("%d ports are kept as sick; want that of the service alone", sick)
				}
			}
			if log.n > 10 {
				t.Errorf("%d reports of one node proxy are %d lines and %d kB of log", rounds, log.n, log.bytes>>10)
			}
			if name == "of a service" && log.n < 2 {
				t.Errorf("%d lines; want one of the ejection and one of the readmission", log.n)
			}
		})
	}
}

// What was withdrawn is published again when it is back.
func TestWhatIsBackIsPublishedAgain(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := newCrowded(t, 200)
		full := b.store.Current()
		empty, problems := discovery.Build(3, discovery.DefaultConfig())
		if problems != nil {
			t.Fatal(problems)
		}
		b.store.Swap(empty)
		b.deliveries.revised(discovery.Everything(), time.Now())
		b.published = nil
		b.store.Swap(full)
		b.deliveries.revised(discovery.Everything(), time.Now())
		if len(b.published) != 3 {
			t.Errorf("published %d records; want the export and the health of both ports", len(b.published))
		}
	})
}
