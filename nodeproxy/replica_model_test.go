package nodeproxy

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	"github.com/isthmus-mesh/isthmus/internal/testlb"
)

// Random schedules of what happens to replicas behind one address, and the invariants:
// no connection fails while the balancer leads to a replica that reaches its pods and does not
// leave; no session is booked to another replica than it is with; one that drains is given no
// stream once its word has come; and dials are bounded by what has happened.
func TestReplicasUnderRandomSchedules(t *testing.T) {
	t.Parallel()
	seeds := 12
	if testing.Short() || underRace {
		seeds = 4
	}
	for seed := range seeds {
		t.Run(fmt.Sprint("seed=", seed), func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) { replicaSchedule(t, uint64(seed)) })
		})
	}
}

func replicaSchedule(t *testing.T, seed uint64) {
	r := rand.New(rand.NewPCG(seed, 11))
	policies := []testlb.Policy{testlb.RoundRobin, testlb.LeastConnections}
	w := newReplicated(2+r.IntN(2), 1+r.IntN(4), policies[r.IntN(len(policies))])
	defer w.end()
	const perSecond = 50
	type replica struct {
		name             string
		cut, leaves, out bool // out: the balancer leads there no more
	}
	var all []*replica
	for _, g := range w.gateways {
		all = append(all, &replica{name: g.Name})
	}
	events := 0
	var log []string
	note := func(format string, a ...any) {
		events++
		log = append(log, fmt.Sprintf("%v ", time.Since(w.began).Round(time.Millisecond))+fmt.Sprintf(format, a...))
	}
	// sound are the replicas that the balancer leads to and that reach their pods.
	sound := func() (n int) {
		for _, x := range all {
			if !x.cut && !x.leaves && !x.out {
				n++
			}
		}
		return n
	}
	balance := func() {
		var names []string
		for _, x := range all {
			if !x.out {
				names = append(names, x.name)
			}
		}
		w.behind(names...)
	}
	remove := func(x *replica) { all = slices.DeleteFunc(all, func(o *replica) bool { return o == x }) }
	steps := 14
	x := w.traffic(perSecond, time.Duration(steps)*1500*time.Millisecond)
	for range steps {
		time.Sleep(time.Duration(200+r.IntN(1000)) * time.Millisecond)
		w.check(t)
		some := all[r.IntN(len(all))]
		switch k := r.IntN(7); {
		case k == 0 && len(all) < 5: // one comes, and is told of before or after the balancer leads there
			tell := r.IntN(2) == 0
			name := w.start(tell)
			all = append(all, &replica{name: name})
			note("%s comes, told: %v", name, tell)
			balance()
			if !tell {
				time.Sleep(time.Duration(r.IntN(500)) * time.Millisecond)
				w.tell(name)
			}
		case k == 1 && !some.cut && sound() > 1 && !some.leaves: // it loses its pods, and says so a little later
			some.cut = true
			note("%s loses its pods", some.name)
			w.cut(some.name, true)
			time.Sleep(time.Duration(r.IntN(200)) * time.Millisecond)
			w.say(some.name, true)
		case k == 2 && some.cut && !some.leaves:
			some.cut = false
			note("%s reaches its pods again", some.name)
			w.cut(some.name, false)
			w.say(some.name, false)
		case k == 3 && !some.leaves && sound() > 1 && !some.cut: // a rolling update takes it
			some.leaves, some.out = true, true
			note("%s drains", some.name)
			balance()
			w.drain(some.name)
			time.Sleep(300 * time.Millisecond)
			before := w.streamsOf(some.name)
			time.Sleep(300 * time.Millisecond)
			if after := w.streamsOf(some.name); after > before {
				t.Errorf("%s was given %d connections more after its word had come", some.name, after-before)
			}
			w.lose(w.at[some.name])
			w.forgetGateway(some.name)
			remove(some)
		case k == 4 && sound() > 2 && !some.cut && !some.leaves: // the balancer notices late that it leads there no more
			some.out = true
			note("the balancer cannot reach %s", some.name)
			w.balancer.Cut(w.at[some.name], true)
			time.Sleep(time.Duration(r.IntN(2000)) * time.Millisecond)
			balance()
		case k == 5 && some.out && !some.leaves:
			some.out = false
			note("the balancer leads to %s again", some.name)
			w.balancer.Cut(w.at[some.name], false)
			balance()
		case k == 6:
			note("the address moves")
			w.move(byte(10 + events))
		}
	}
	x.wait(t)
	w.check(t)
	if t.Failed() {
		for _, l := range log {
			t.Log(l)
		}
	}
	dials := w.client.pool.Stats().Dials
	if most := uint64(40 * (events + 3)); dials > most {
		t.Errorf("%d dials for %d events; want at most %d", dials, events, most)
	}
	t.Logf("%d events, %d connections, slowest %.1f round trips, %d dials", events, x.count, x.slowest, dials)
}

// A balancer with affinity never leads to the second replica: connections go on by the
// first, and dials for the second come to an end.
func TestABalancerWithAffinityCostsFewDials(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		w := newReplicated(3, 4, testlb.BySource)
		defer w.end()
		x := w.traffic(50, 2*time.Minute)
		x.wait(t)
		w.check(t)
		if dials := w.client.pool.Stats().Dials; dials > 400 {
			t.Errorf("%d dials in two minutes", dials)
		}
		t.Logf("%d connections, slowest %.1f round trips, %d dials", x.count, x.slowest, w.client.pool.Stats().Dials)
	})
}
