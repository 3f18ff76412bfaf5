package nodeproxy

import (
	"context"
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/isthmus-mesh/isthmus/federation"
	"github.com/isthmus-mesh/isthmus/federation/healthstream"
	"github.com/isthmus-mesh/isthmus/federation/record"
	"github.com/isthmus-mesh/isthmus/hbone"
	"github.com/isthmus-mesh/isthmus/hbone/pool"
	"github.com/isthmus-mesh/isthmus/internal/testlb"
	"github.com/isthmus-mesh/isthmus/mesh"
	"github.com/isthmus-mesh/isthmus/nodeproxy/warmset"
)

// replicated is a distant world whose gateways are all behind one address.
type replicated struct {
	*distant
	front netip.AddrPort
	// Of each gateway by name, guarded by distant's mu: where its process is, and what it
	// says of itself.
	at       map[string]string
	draining map[string]bool
	cutoff   map[string]bool
	began    time.Time
}

func newReplicated(replicas, pods int, policy testlb.Policy) *replicated {
	w := &replicated{distant: newDistant(pods, replicas, 10*time.Millisecond), front: netip.MustParseAddrPort("10.3.9.9:15008"),
		at: map[string]string{}, draining: map[string]bool{}, cutoff: map[string]bool{}, began: time.Now()}
	w.distant.fronts = func() []netip.AddrPort { w.mu.Lock(); defer w.mu.Unlock(); return []netip.AddrPort{w.front} }
	var backends []string
	for i, g := range w.gateways {
		own := g.Address.String()
		w.at[g.Name] = own
		backends = append(backends, own)
		moved := *g
		moved.Address = w.front
		w.gateways[i] = &moved
	}
	w.balancer = &testlb.Balancer{Policy: policy}
	w.balancer.Set(backends...)
	w.client.view.known = w.known
	w.client.view.reports = true
	w.discover()
	return w
}

// known is what all gateways say, without delay.
func (w *replicated) known(string, string) (healthstream.Known, bool) {
	w.mu.Lock()
	defer w.mu.Unlock()
	n := uint32(len(w.pods))
	k := healthstream.Known{Summaries: map[uint16]federation.SummaryFact{80: {Service: distantHost, Port: 80, Ready: n, Healthy: n, ReadyCapacity: n, HealthyCapacity: n}}}
	for _, g := range w.gateways {
		h := record.Health{Ready: n, ReadyCapacity: n, Healthy: n, HealthyCapacity: n}
		if w.cutoff[g.Name] {
			h.Healthy, h.HealthyCapacity = 0, 0
			for _, p := range w.pods {
				h.Exceptions = append(h.Exceptions, record.Exception{Endpoint: p.Endpoint, Cause: record.Hop})
			}
		}
		k.Deliveries = append(k.Deliveries, healthstream.Delivery{Gateway: g.Name, Live: true, Draining: w.draining[g.Name], Health: map[uint16]record.Health{80: h}})
	}
	return k, true
}

// cut has a gateway lose its pods; it says so when told is set.
func (w *replicated) cut(name string, cut bool) {
	w.mu.Lock()
	w.processes[w.at[name]].cut = cut
	w.mu.Unlock()
}

// say has a gateway tell what it can deliver.
func (w *replicated) say(name string, cut bool) {
	w.mu.Lock()
	w.cutoff[name] = cut
	w.mu.Unlock()
	w.discover()
}

// start runs a new replica, which the balancer does not know yet.
func (w *replicated) start(tell bool) (name string) {
	w.mu.Lock()
	n := w.begun
	w.mu.Unlock()
	name = fmt.Sprint("gw-", n+1)
	own := netip.AddrPortFrom(netip.AddrFrom4([4]byte{10, 3, 1, byte(n + 1)}), 15008)
	w.listen(own.String())
	w.mu.Lock()
	w.at[name] = own.String()
	w.mu.Unlock()
	if tell {
		w.tell(name)
	}
	return name
}

// tell has the client know a replica.
func (w *replicated) tell(name string) {
	w.mu.Lock()
	g := *w.gateways[0]
	g.Name = name
	w.gateways = append(slices.Clone(w.gateways), &g)
	w.mu.Unlock()
	w.discover()
}

// forgetGateway takes a replica out of what the client knows.
func (w *replicated) forgetGateway(name string) {
	w.mu.Lock()
	w.gateways = slices.DeleteFunc(slices.Clone(w.gateways), func(g *mesh.Gateway) bool { return g.Name == name })
	delete(w.at, name)
	w.mu.Unlock()
	w.discover()
}

// drain has a replica say that it leaves, and end its sessions in order.
func (w *replicated) drain(name string) {
	w.mu.Lock()
	w.draining[name] = true
	g := w.processes[w.at[name]]
	w.gateways = slices.Clone(w.gateways)
	for i, x := range w.gateways {
		if x.Name == name {
			drained := *x
			drained.Drained = true
			w.gateways[i] = &drained
		}
	}
	w.mu.Unlock()
	w.discover()
	w.work.Go(func() {
		ctx, cancel := context.WithTimeout(w.ctx, 5*time.Second)
		defer cancel()
		g.sessions.Drain(ctx)
	})
}

// behind sets the backends of the balancer by name.
func (w *replicated) behind(names ...string) {
	w.mu.Lock()
	var at []string
	for _, n := range names {
		at = append(at, w.at[n])
	}
	w.mu.Unlock()
	w.balancer.Set(at...)
}

// move gives the balancer, and all gateways, another address; nobody is at the old one.
func (w *replicated) move(last byte) {
	w.mu.Lock()
	w.front = netip.AddrPortFrom(netip.AddrFrom4([4]byte{10, 3, 9, last}), 15008)
	w.gateways = slices.Clone(w.gateways)
	for i, g := range w.gateways {
		moved := *g
		moved.Address = w.front
		w.gateways[i] = &moved
	}
	w.mu.Unlock()
	w.discover()
}

// streamsOf is how many tunnels a replica was asked for.
func (w *replicated) streamsOf(name string) int {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.processes[w.at[name]].asked
}

// check says which sessions are booked to another replica than they are with.
func (w *replicated) check(t *testing.T) {
	t.Helper()
	w.mu.Lock()
	defer w.mu.Unlock()
	w.client.answers.Range(func(s, a any) bool {
		name, _, _ := strings.Cut(a.(warmset.Answer).Gateway, " ")
		if at, is := w.at[name], s.(*hbone.Session).Base().RemoteAddr().String(); at != "" && at != is {
			t.Errorf("a session with the replica at %s is booked to %s, which is at %s", is, name, at)
		}
		return true
	})
}

// traffic connects so many times a second until stop is closed.
type replicaTraffic struct {
	mu      sync.Mutex
	failed  []error
	count   int
	slowest float64
	killed  []time.Time // gateways: what was under way through one may have got its first bytes already
	work    sync.WaitGroup
}

// kill notes that a gateway is killed now.
func (x *replicaTraffic) kill() {
	x.mu.Lock()
	defer x.mu.Unlock()
	x.killed = append(x.killed, time.Now())
}

func (w *replicated) traffic(perSecond int, d time.Duration) *replicaTraffic {
	x := &replicaTraffic{}
	x.work.Go(func() {
		for i := range int(d.Seconds() * float64(perSecond)) {
			x.work.Go(func() {
				began := time.Now()
				trips, err := w.connect(i, 50*time.Millisecond)
				x.mu.Lock()
				defer x.mu.Unlock()
				if x.count++; slices.ContainsFunc(x.killed, func(at time.Time) bool { return err != nil && !began.After(at) }) {
					return
				}
				if x.slowest = max(x.slowest, trips); err != nil {
					x.failed = append(x.failed, fmt.Errorf("connection %d: %w", i, err))
				}
			})
			time.Sleep(time.Second / time.Duration(perSecond))
		}
	})
	return x
}

func (x *replicaTraffic) wait(t *testing.T) {
	t.Helper()
	x.work.Wait()
	if len(x.failed) > 0 {
		t.Errorf("%d of %d connections failed, the first: %v", len(x.failed), x.count, x.failed[0])
	}
}

// Three replicas behind one address: one is cut off from its pods, one is killed, then
// each is replaced in turn. No connection fails, and no session is taken for another's.
func TestReplicasBehindOneAddressAreToldApart(t *testing.T) {
	t.Parallel()
	for _, policy := range []testlb.Policy{testlb.RoundRobin, testlb.LeastConnections} {
		t.Run(string(policy), func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				w := newReplicated(3, 4, policy)
				defer w.end()
				x := w.traffic(200, 20*time.Second)
				time.Sleep(2 * time.Second)
				w.check(t)
				w.cut("gw-1", true)
				time.Sleep(100 * time.Millisecond)
				w.say("gw-1", true)
				time.Sleep(3 * time.Second)
				w.check(t)
				w.cut("gw-1", false)
				w.say("gw-1", false)
				time.Sleep(time.Second)
				for _, old := range []string{"gw-1", "gw-2", "gw-3"} {
					fresh := w.start(true)
					names := slices.DeleteFunc(slices.Collect(func(yield func(string) bool) {
						for _, g := range w.gateways {
							if !yield(g.Name) {
								return
							}
						}
					}), func(n string) bool { return n == old })
					_ = fresh
					w.behind(names...)
					w.drain(old)
					time.Sleep(2 * time.Second)
					w.check(t)
					w.lose(w.at[old])
					w.forgetGateway(old)
				}
				time.Sleep(time.Second)
				w.check(t)
				x.wait(t)
				t.Logf("%d connections, slowest %.1f round trips, dials %d", x.count, x.slowest, w.client.pool.Stats().Dials)
			})
		})
	}
}

// A balancer that leads to nobody but a replica which is not known here: that it does is known
// by several dials, however often discovery changes meanwhile.
func TestAReplicaThatIsNotKnownIsTakenWhileDiscoveryChanges(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newReplicated(2, 2, testlb.RoundRobin)
		defer w.end()
		stranger := w.start(false)
		w.behind(stranger)
		changing, stop := context.WithCancel(t.Context())
		var changes sync.WaitGroup
		changes.Go(func() {
			for changing.Err() == nil {
				w.discover()
				time.Sleep(10 * time.Millisecond)
			}
		})
		x := w.traffic(20, 5*time.Second)
		x.wait(t)
		stop()
		changes.Wait()
		if len(w.client.replicas.strangers) != 1 {
			t.Errorf("strangers are counted at %v; want the one address", w.client.replicas.strangers)
		}
		w.move(8)
		if len(w.client.replicas.strangers) != 0 {
			t.Errorf("strangers are counted at %v, where nobody is any more", w.client.replicas.strangers)
		}
	})
}

// One of a gateway's addresses is somebody else's now: the other one is dialed at once.
func TestAnAddressThatIsSomebodyElsesIsPassedOver(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newDistant(2, 1, 10*time.Millisecond)
		defer w.end()
		l, err := w.net.Listen("10.3.7.7:15008")
		if err != nil {
			t.Fatal(err)
		}
		defer l.Close()
		w.work.Go(func() {
			for {
				conn, err := l.Accept()
				if err != nil {
					return
				}
				w.work.Go(func() {
					hbone.ServerTLS(w.ctx, conn, w.client.ids.ServerTLS(torturedID("other"), nil, "h2"))
					conn.Close()
				})
			}
		})
		g := *w.gateways[0]
		g.Address, g.More = netip.MustParseAddrPort("10.3.7.7:15008"), []netip.AddrPort{g.Address}
		w.gateways[0] = &g
		w.discover()
		for range 8 { // each begins at an address drawn at random
			if trips, err := w.connect(0, 0); err != nil || trips > 12 {
				t.Errorf("a connection took %.1f round trips (%v)", trips, err)
			}
			time.Sleep(time.Second) // a dial that goes on beside it would end with the session that it is on
			w.client.pool.Retire(func(pool.Key) bool { return true })
		}
		if s := w.client.pool.Stats(); s.DialErrors > 0 {
			t.Errorf("%d of %d dials failed", s.DialErrors, s.Dials)
		}
	})
}
