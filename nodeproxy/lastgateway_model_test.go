package nodeproxy

import (
	"fmt"
	"math/rand/v2"
	"net/netip"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	"github.com/isthmus-mesh/isthmus/health"
	"github.com/isthmus-mesh/isthmus/internal/testlb"
	"github.com/isthmus-mesh/isthmus/mesh"
	"github.com/isthmus-mesh/isthmus/nodeproxy/picker"
)

// apart gives each replica its own address, with no balancer before them.
func (w *replicated) apart() *replicated {
	w.balancer = nil
	for i, g := range w.gateways {
		own := *g
		own.Address = netip.MustParseAddrPort(w.at[g.Name])
		w.gateways[i] = &own
	}
	w.discover()
	return w
}

// lameDuck has a replica say that it leaves, by discovery, by its health stream or both, and
// serve on.
func (w *replicated) lameDuck(name string, listed, said bool) {
	w.mu.Lock()
	w.draining[name] = said
	w.gateways = slices.Clone(w.gateways)
	for i, x := range w.gateways {
		if x.Name == name {
			g := *x
			g.Drained = listed
			w.gateways[i] = &g
		}
	}
	w.mu.Unlock()
	w.discover()
}

// All gateways of the only network with the service say that they leave, and serve on:
// nobody else is there, and each connection is made.
func TestGatewaysThatAllDrainAreUsed(t *testing.T) {
	for name, policy := range map[string]testlb.Policy{"addresses of their own": "", "round robin": testlb.RoundRobin, "least connections": testlb.LeastConnections, "by source": testlb.BySource} {
		for _, how := range []struct{ listed, said bool }{{true, false}, {false, true}, {true, true}} {
			t.Run(fmt.Sprintf("%s, drained %v, draining %v", name, how.listed, how.said), func(t *testing.T) {
				synctest.Test(t, func(t *testing.T) {
					w := newReplicated(3, 4, policy)
					if policy == "" {
						w.apart()
					}
					defer w.end()
					x := w.traffic(20, 10*time.Second)
					for _, g := range []string{"gw-1", "gw-2", "gw-3"} {
						time.Sleep(time.Second)
						w.lameDuck(g, how.listed, how.said)
					}
					x.wait(t)
					w.check(t)
				})
			})
		}
	}
}

// A balancer with affinity leads every dial to a replica that leaves, and lets go of it late:
// until then its session is the only one that there is.
func TestADrainingReplicaServesWhileTheBalancerLeadsToNoOther(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newReplicated(3, 4, testlb.RoundRobin)
		defer w.end()
		w.behind("gw-1")
		x := w.traffic(20, 20*time.Second)
		time.Sleep(2 * time.Second)
		w.lameDuck("gw-1", true, true)
		time.Sleep(8 * time.Second)
		w.check(t)
		w.behind("gw-2", "gw-3")
		time.Sleep(5 * time.Second)
		before := w.streamsOf("gw-1")
		x.wait(t)
		if after := w.streamsOf("gw-1"); after > before {
			t.Errorf("it was given %d tunnels more long after the balancer had let go of it", after-before)
		}
		w.check(t)
		if dials := w.client.pool.Stats().Dials; dials > 300 {
			t.Errorf("%d dials in 20 s", dials)
		}
	})
}

// Random schedules of gateways that come, say that they leave, change their mind, end and are
// killed, beside what a slow observer knows of each. No connection fails while one that serves
// is there, whatever it says; and one that leaves is given nothing while another one serves.
func TestTheLastGatewayUnderRandomSchedules(t *testing.T) {
	t.Parallel()
	seeds := 24
	if underRace {
		seeds = 4 // one of each kind of balancer
	}
	for seed := range seeds {
		t.Run(fmt.Sprint("seed=", seed), func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) { lastGatewaySchedule(t, uint64(seed)) })
		})
	}
}

func lastGatewaySchedule(t *testing.T, seed uint64) {
	r := rand.New(rand.NewPCG(seed, 23))
	policy := []testlb.Policy{"", testlb.RoundRobin, testlb.LeastConnections, testlb.BySource}[seed%4]
	w := newReplicated(2+r.IntN(2), 1+r.IntN(4), policy)
	if policy == "" {
		w.apart()
	}
	defer w.end()
	type gateway struct {
		name          string
		leaves, ended bool
	}
	var all []*gateway
	for _, g := range w.gateways {
		all = append(all, &gateway{name: g.Name})
	}
	var log []string
	note := func(format string, a ...any) {
		log = append(log, fmt.Sprintf("%v ", time.Since(w.began).Round(time.Millisecond))+fmt.Sprintf(format, a...))
	}
	count := func(fits func(*gateway) bool) (n int) {
		for _, g := range all {
			if fits(g) {
				n++
			}
		}
		return n
	}
	serves := func(g *gateway) bool { return !g.ended }
	stays := func(g *gateway) bool { return !g.ended && !g.leaves }
	balance := func() {
		var names []string
		for _, g := range all {
			if serves(g) {
				names = append(names, g.name)
			}
		}
		if policy != "" {
			w.behind(names...)
		}
	}
	x := w.traffic(50, 40*time.Second)
	for range 12 {
		time.Sleep(time.Duration(r.IntN(1500)) * time.Millisecond)
		w.check(t)
		some := all[r.IntN(len(all))]
		switch k := r.IntN(8); {
		case k < 3 && !some.leaves && !some.ended:
			how := r.IntN(3)
			note("%s says that it leaves, in way %d", some.name, how)
			some.leaves = true
			w.lameDuck(some.name, how != 0, how != 1)
		case k == 3 && some.leaves && !some.ended:
			note("%s stays", some.name)
			some.leaves = false
			w.lameDuck(some.name, false, false)
		case k == 4 && !some.ended && count(serves) > 1:
			note("%s is killed", some.name)
			some.ended = true
			balance()
			x.kill()
			w.lose(w.at[some.name])
			time.Sleep(time.Duration(r.IntN(2000)) * time.Millisecond)
		case k == 5 && some.ended && len(all) > 1:
			note("%s is forgotten", some.name)
			w.forgetGateway(some.name)
			all = slices.DeleteFunc(all, func(g *gateway) bool { return g == some })
		case k == 6 && len(all) < 5:
			name := w.start(true)
			if policy == "" {
				w.mu.Lock()
				i := slices.IndexFunc(w.gateways, func(g *mesh.Gateway) bool { return g.Name == name })
				own := *w.gateways[i]
				own.Address, own.Drained = netip.MustParseAddrPort(w.at[name]), false
				w.gateways = slices.Clone(w.gateways)
				w.gateways[i] = &own
				w.mu.Unlock()
				w.discover()
			} else {
				w.lameDuck(name, false, false) // the one it was copied from may leave
			}
			note("%s comes", name)
			all = append(all, &gateway{name: name})
			balance()
		case k == 7 && count(stays) > 0 && policy != testlb.BySource: // which may lead to those alone that leave
			time.Sleep(3 * time.Second)
			if !slices.ContainsFunc(all, func(g *gateway) bool {
				return stays(g) && w.client.view.GatewayBelief("west/"+g.name, time.Now()).Phase == health.Healthy
			}) {
				break // as far as is known here
			}
			before := map[string]int{}
			for _, g := range all {
				if g.leaves && !g.ended {
					before[g.name] = w.streamsOf(g.name)
				}
			}
			time.Sleep(500 * time.Millisecond)
			for name, n := range before {
				if more := w.streamsOf(name) - n; more > 0 {
					t.Errorf("%s, which leaves, was given %d tunnels beside one that stays", name, more)
				}
			}
		}
	}
	x.wait(t)
	w.check(t)
	if t.Failed() {
		for _, l := range log {
			t.Log(l)
		}
		for _, g := range w.gateways {
			t.Log(g.Name, w.client.view.GatewayBelief(picker.GatewayKey(g), time.Now()))
		}
	}
	t.Logf("%d events, %d connections, slowest %.1f round trips, %d dials", len(log), x.count, x.slowest, w.client.pool.Stats().Dials)
}
