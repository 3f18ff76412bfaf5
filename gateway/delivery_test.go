package gateway

import (
	"fmt"
	"math/rand/v2"
	"net/netip"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/isthmus-mesh/isthmus/discovery"
	"github.com/isthmus-mesh/isthmus/federation"
	"github.com/isthmus-mesh/isthmus/federation/damping"
	"github.com/isthmus-mesh/isthmus/federation/healthstream"
	"github.com/isthmus-mesh/isthmus/federation/record"
	"github.com/isthmus-mesh/isthmus/gateway/picker"
	"github.com/isthmus-mesh/isthmus/health"
	"github.com/isthmus-mesh/isthmus/mesh"
)

// rebuild gives the believer another mesh of pods, by their UIDs and states.
func (b *believer) rebuild(t *testing.T, revision uint64, pods map[string]string) {
	t.Helper()
	c := discovery.DefaultConfig()
	c.Networks = []discovery.Network{{Name: "west"}}
	c.Services = []discovery.Service{{Name: "hello", Global: true, Ports: []discovery.ServicePort{{Name: "a", Port: 80, TargetPort: 8080}}}}
	for uid, state := range pods {
		w := discovery.Workload{UID: uid, Network: "west", Node: "west-1", Services: []string{"hello.default.svc.cluster.local"},
			Addresses: []netip.Addr{netip.AddrFrom4([4]byte{10, 1, 0, uid[6]})}}
		w.State = state
		c.Workloads = append(c.Workloads, w)
	}
	snap, problems := discovery.Build(revision, c)
	if problems != nil {
		t.Fatal(problems)
	}
	b.store.Swap(snap)
	b.backends.forget(snap, time.Now())
	b.deliveries.revised(discovery.Everything(), time.Now())
}

// A pod that is left out is named with its cause, for as long as others need to know.
func TestExceptionsHaveTheirCausesAndLinger(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := newBeliever(t)
		expect := func(when string, ready, healthy uint32, cause record.Cause) {
			t.Helper()
			time.Sleep(time.Second) // so that nothing is put off
			h := b.last()
			want := []record.Exception{{Endpoint: b.pod.Endpoint, Cause: cause}}
			if cause == 0 {
				want = nil
			}
			if h.Ready != ready || h.Healthy != healthy || len(h.Exceptions) != len(want) || len(want) > 0 && (h.Exceptions[0].Endpoint != want[0].Endpoint || h.Exceptions[0].Cause != cause) {
				t.Errorf("%s: %+v; want %d of %d and %v", when, h, healthy, ready, want)
			}
		}
		expect("at first", 2, 2, 0)
		for range b.cfg.OutlierDetection.FailureThreshold {
			b.backends.Asked(b.pod, picker.Broken, attemptUnreachable, time.Now(), time.Now())
		}
		b.deliveries.touched(time.Now(), b.pod)
		expect("unreachable", 2, 1, record.Hop)
		b.witnessed(federation.Ejected, true)
		expect("and sick", 2, 1, record.Witness)
		b.witnessed(federation.Healthy, true)
		b.backends.Asked(b.pod, picker.Answers, "", time.Now(), time.Now())
		b.deliveries.touched(time.Now(), b.pod)
		expect("healed", 2, 2, 0)
		b.rebuild(t, 2, map[string]string{"hello-1": "notReady", "hello-2": ""})
		expect("not ready", 1, 1, record.NotReady)
		b.rebuild(t, 3, map[string]string{"hello-1": "terminating", "hello-2": ""})
		expect("terminating", 1, 1, record.Terminating)
		b.rebuild(t, 4, map[string]string{"hello-2": ""})
		expect("gone", 1, 1, record.Gone)
		time.Sleep(record.Linger - 2*time.Second)
		b.deliveries.expire(time.Now())
		expect("gone for a while", 1, 1, record.Gone)
		time.Sleep(2 * time.Second)
		b.deliveries.expire(time.Now())
		expect("gone for good", 1, 1, 0)
	})
}

// A look at what has changed comes to the same as one at every member, whatever was
// reported of whom, and whatever discovery changed meanwhile.
func TestALookAtWhatChangedIsAsGoodAsOneAtAll(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		rng := rand.New(rand.NewPCG(1, 1))
		b := newBeliever(t)
		states := map[string]string{"hello-1": "", "hello-2": ""}
		for step := range 400 {
			time.Sleep(time.Second) // so that nothing is put off
			uid := fmt.Sprint("hello-", 1+rng.IntN(9))
			w := b.store.Current().Workload(uid)
			switch n := rng.IntN(10); {
			case n < 2 || w == nil:
				if states[uid] = []string{"", "notReady", "terminating"}[rng.IntN(3)]; rng.IntN(3) == 0 && len(states) > 1 {
					delete(states, uid)
				}
				b.rebuild(t, uint64(step+2), states)
			case n < 3:
				b.backends.Asked(w, picker.Broken, attemptUnreachable, time.Now(), time.Now())
				b.deliveries.touched(time.Now(), w)
			case n < 4:
				b.backends.Asked(w, picker.Answers, "", time.Now(), time.Now())
				b.deliveries.touched(time.Now(), w)
			default:
				key := health.Key{Endpoint: w.Endpoint, Port: 8080}
				e := healthstream.Edge{Target: healthstream.Target(key), Known: true}
				e.Fact.EndpointFact = federation.EndpointFact{Endpoint: key.Endpoint, Port: 8080, State: []federation.FactState{federation.Healthy, federation.Ejected}[n%2],
					Reason: []string{"refused", damping.Reason}[rng.IntN(2)]}
				b.facts[key] = e.Fact.EndpointFact
				b.takeEdges([]healthstream.Edge{e})
			}
			time.Sleep(time.Second)
			b.deliveries.catchUp(time.Now())
			snap := b.store.Current()
			svc := snap.Named("hello.default.svc.cluster.local")
			members := snap.Members(svc, "west")
			if i := slices.IndexFunc(members, func(w *mesh.Workload) bool { return w.UID != uid }); i >= 0 {
				b.deliveries.touched(time.Now(), members[i]) // so that those that are out are looked at now: hops come back by time alone
			} else if len(members) > 0 {
				b.deliveries.touched(time.Now(), members[0])
			}
			x := b.deliveries.ports[svc.Hostname][80]
			if x == nil && len(members) == 0 {
				continue
			}
			var whole delivery
			whole.look(basis{svc, members}, svc.Ports[0], b.backends.podHealth, b.backends.podDetail, time.Now())
			if !whole.fact.Equal(&x.fact) {
				t.Fatalf("step %d: %+v; a look at all members comes to %+v", step, x.fact, whole.fact)
			}
		}
	})
}

// A service that discovery stops exporting while a report of one of its pods comes in
// leaves nothing behind at other networks, whoever sees the new snapshot first.
func TestAServiceThatIsExportedNoMoreIsWithdrawn(t *testing.T) {
	for _, first := range []string{"the report", "discovery"} {
		t.Run(first, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				b := newBeliever(t)
				c := discovery.DefaultConfig()
				c.Networks = []discovery.Network{{Name: "west"}}
				c.Services = []discovery.Service{{Name: "hello", Ports: []discovery.ServicePort{{Name: "a", Port: 80, TargetPort: 8080}}}}
				c.Workloads = []discovery.Workload{{UID: "hello-1", Network: "west", Node: "west-1", Services: []string{"hello.default.svc.cluster.local"},
					Addresses: []netip.Addr{netip.MustParseAddr("10.1.0.49")}}}
				snap, problems := discovery.Build(2, c)
				if problems != nil {
					t.Fatal(problems)
				}
				time.Sleep(time.Minute) // so that nothing is put off
				b.store.Swap(snap)
				said := len(b.said)
				if first == "the report" {
					b.witnessed(federation.Ejected, true)
				}
				b.deliveries.revised(discovery.Everything(), time.Now())
				if first == "discovery" {
					b.witnessed(federation.Ejected, true)
				}
				want := map[record.Kind]int{record.KindExport: 1, record.KindHealth: 1}
				for _, k := range b.withdrawn {
					want[k.Kind]--
				}
				if want[record.KindExport] != 0 || want[record.KindHealth] != 0 || len(b.said) != said {
					t.Errorf("withdrawn %v, and %d words more; want the export and the health of hello, and none", b.withdrawn, len(b.said)-said)
				}
				if x := b.deliveries.ports["hello.default.svc.cluster.local"][80]; x == nil || x.health.Healthy != 0 {
					t.Errorf("its own node proxies are told %+v; want the pod out", x)
				}
			})
		})
	}
}

// helloOf is a mesh with a service of this name and two pods.
func helloOf(t *testing.T, revision uint64, name string, change func(*discovery.Service)) *mesh.Snapshot {
	t.Helper()
	c := discovery.DefaultConfig()
	c.Networks = []discovery.Network{{Name: "west"}}
	s := discovery.Service{Name: name, Global: true, Ports: []discovery.ServicePort{{Name: "a", Port: 80, TargetPort: 8080}}}
	change(&s)
	c.Services = []discovery.Service{s}
	for _, uid := range []string{"hello-1", "hello-2"} {
		c.Workloads = append(c.Workloads, discovery.Workload{UID: uid, Network: "west", Node: "west-1", Services: []string{name + ".default.svc.cluster.local"},
			Addresses: []netip.Addr{netip.AddrFrom4([4]byte{10, 1, 0, uid[6]})}})
	}
	snap, problems := discovery.Build(revision, c)
	if problems != nil {
		t.Fatal(problems)
	}
	return snap
}

// published is what others hold of a gateway that publishes by hear.
type published map[record.Key]record.Record

func (p published) hear(records []record.Record, withdrawn ...record.Key) {
	for _, r := range records {
		p[r.Key] = r
	}
	for _, k := range withdrawn {
		delete(p, k)
	}
}

// publishTo starts b's deliveries anew; what they publish is in the result.
func (b *believer) publishTo() published {
	p := published{}
	b.deliveries.publish = p.hear
	b.deliveries.ports, b.deliveries.exports = map[string]map[uint16]*delivery{}, map[string]exported{}
	b.deliveries.start(time.Now())
	return p
}

// read is a store that does something once, right after it was read for the first time.
type read struct {
	*discovery.Store
	then func()
	done atomic.Bool
}

func (r *read) Current() *mesh.Snapshot {
	snap := r.Store.Current()
	if !r.done.Swap(true) {
		r.then()
	}
	return snap
}

// A service that discovery stops exporting while a look at it begins stays withdrawn,
// whatever the look has read before.
func TestAServiceThatIsNoLongerExportedIsNotPublishedByALateLook(t *testing.T) {
	hello := portKey{"hello.default.svc.cluster.local", 80}
	now := time.Now()
	for name, c := range map[string]struct {
		due  func(d *deliveries) // makes the look due
		look func(d *deliveries)
	}{
		"put off": {func(d *deliveries) { d.late = map[portKey]time.Time{hello: now} }, func(d *deliveries) { d.catchUp(now) }},
		"lingering exception": {func(d *deliveries) {
			x := &d.ports[hello.service][hello.port].exceptions
			x.Set(1, record.Gone, now.Add(-time.Hour))
			x.Clear(1, now.Add(-time.Hour))
		}, func(d *deliveries) { d.expire(now) }},
		"another snapshot": {func(*deliveries) {}, func(d *deliveries) { d.revised(discovery.Everything(), now) }},
	} {
		t.Run(name, func(t *testing.T) {
			b := newBeliever(t)
			said, d := b.publishTo(), b.deliveries
			private := helloOf(t, 2, "hello", func(s *discovery.Service) { s.Global = false })
			var wg sync.WaitGroup
			d.store = &read{Store: b.store, then: func() {
				b.store.Swap(private)
				if !d.turn.TryLock() { // the look has its turn, and the withdrawal comes behind it
					wg.Go(func() { d.revised(discovery.Everything(), now) })
					return
				}
				d.turn.Unlock()
				d.revised(discovery.Everything(), now)
				c.due(d)
			}}
			if len(said) != 2 {
				t.Fatalf("%d records are published at first; want the export and the health of hello", len(said))
			}
			c.due(d)
			c.look(d)
			wg.Wait()
			if len(said) > 0 {
				t.Errorf("%d records of a service that is not exported are published to every network", len(said))
			}
		})
	}
}

// A service that is renamed and keeps its old name as an alias is withdrawn under that.
func TestARenamedServiceIsWithdrawnUnderItsOldName(t *testing.T) {
	b := newBeliever(t)
	said := b.publishTo()
	b.store.Swap(helloOf(t, 2, "hallo", func(s *discovery.Service) { s.Aliases = []string{"hello.default.svc.cluster.local"} }))
	b.deliveries.revised(discovery.Everything(), time.Now())
	for k := range said {
		if k.Service == "hello.default.svc.cluster.local" {
			t.Errorf("%v is published still; discovery lists no service of this name", k)
		}
	}
	if len(said) != 2 {
		t.Errorf("%d records are published; want the export and the health of hallo", len(said))
	}
}
