package nodeproxy

import (
	"fmt"
	"math/rand/v2"
	"testing"
	"time"

	"github.com/isthmus-mesh/isthmus/health"
	"github.com/isthmus-mesh/isthmus/internal/retrybudget"
	"github.com/isthmus-mesh/isthmus/route"
)

// TestHedgesUnderRandomSchedules has the torture's world with pods that are fast, slow, refuse or accept nobody, by turns,
// while health moves, links are silent for a while, and replicas answer for each other. Beyond what the torture holds of every
// connection: each is answered, as the first pod of each service accepts; no more is taken from the retry budget
// than hedges and repeats cost; and a pod that was only ever slow is as healthy as before.
func TestHedgesUnderRandomSchedules(t *testing.T) {
	t.Parallel()
	if file := *tortureSchedule; file != "" {
		t.Skip("TestTorture replays it")
	}
	seeds := uint64(60)
	if testing.Short() || underRace {
		seeds = 20
	}
	if *tortureSeeds > 0 {
		seeds = uint64(*tortureSeeds)
	}
	for seed := *tortureFirst; seed < *tortureFirst+seeds && !t.Failed(); seed++ {
		torture(t, generateHedges(seed))
	}
}

// generateHedges makes the schedule of seed.
func generateHedges(seed uint64) schedule {
	r := rand.New(rand.NewPCG(seed, 3))
	ms := time.Millisecond
	s := schedule{world: options{
		Seed: seed, Delay: pickOne(r, 0, 100*time.Microsecond, ms, 8*ms, 40*ms), LinkBuffer: 128 << 10, AppBuffer: 32 << 10,
		FirstWindow: 64 << 10, StreamWindow: 64 << 10, ConnWindow: 256 << 10, PodStreams: pickOne(r, 1, 3, 100), GatewayStreams: pickOne(r, 3, 100),
		Pods: 2 + r.IntN(3), Kept: r.IntN(3) > 0, Early: r.IntN(5) > 0, Attempts: 8, Places: true, Replicas: pickOne(r, 1, 1, 2, 3),
	}}
	if r.IntN(2) == 0 {
		s.world.Hedges = 1 + r.IntN(3)
	}
	kind := r.IntN(3) // what pods but the first do: anything; or they are slow at most, and links may be silent, or not
	serve := func(l link, pod int) step {
		st := step{op: opServes, link: l, conn: pod}
		if r.IntN(4) > 0 {
			st.n = pickOne(r, lateness...)
		}
		if kind == 0 && pod > 0 {
			st.op = pickOne(r, opServes, opSpurns, opSpurns, opSulks)
		}
		return st
	}
	for pod := range s.world.Pods {
		s.steps = append(s.steps, serve(linkPods, pod), serve(linkGateway, pod))
	}
	conns := 0
	open := map[string]bool{}
	for range 10 + r.IntN(30) {
		st := step{after: pickOne(r, 0, 0, ms, 10*ms, 60*ms, 101*ms, 140*ms, 500*ms), link: pickOne(r, linkPods, linkGateway), conn: r.IntN(s.world.Pods)}
		switch k := r.IntN(12); {
		case k < 4:
			x := serve(st.link, st.conn)
			st.op, st.n = x.op, x.n
		case k < 7 && conns < maxTortured:
			st.op, st.conn, st.n = opOpen, conns, 0
			open[fmt.Sprint(conns, client)], open[fmt.Sprint(conns, server)] = true, true
			conns++
		case k < 10 && conns > 0:
			st.conn, st.side = r.IntN(conns), pickOne(r, client, client, server)
			key := fmt.Sprint(st.conn, st.side)
			switch {
			case !open[key]:
				continue
			case r.IntN(8) == 0:
				st.op, open[key] = pickOne(r, opEnd, opEnd, opReset, opLeave), false
			default:
				st.op, st.n = opSend, pickOne(r, 1, 100, 5000, 16<<10, 40_000)
			}
		case k == 10 && kind < 2:
			st.op, st.link, st.n = pickOne(r, opUp, opDown), pickOne(r, allLinks...), pickOne(r, 50, 110, 300, 900)
		case k == 11 && kind == 0 && r.IntN(4) == 0:
			st.op, st.link, st.n = pickOne(r, opFreeze, opDrain, opCut), pickOne(r, allLinks...), pickOne(r, 900, 5000)
		default:
			continue
		}
		s.steps = append(s.steps, st)
	}
	return s
}

// unmoved states that nobody is blamed for being slow: pods that were nothing else in steps, and
// what leads to them, if nothing else was wrong.
func (w *tortured) unmoved(steps []step) error {
	sick, links := map[string]bool{}, false
	for _, s := range steps {
		if s.op == opSpurns || s.op == opSulks {
			sick[podAddress(s).Addr().String()] = true
		}
		links = links || s.op.onLink()
	}
	now, snap := time.Now(), w.client.store.Current()
	for _, pod := range snap.Workloads()[1:] {
		if sick[pod.Addresses[0].String()] {
			continue
		}
		x := w.server.witness
		x.mu.Lock()
		state := x.tracker.State(health.Key{Endpoint: pod.Endpoint, Port: 8080}, now)
		x.mu.Unlock()
		if state.Phase != health.Healthy || state.Consecutive > 0 || state.Health < 1 {
			return fmt.Errorf("%s was never wrong, and its witness has it as %+v", pod.UID, state)
		}
	}
	if len(sick) > 0 || links {
		return nil
	}
	for _, host := range []string{"near.default", "far.default"} {
		d, err := w.client.view.Resolve(snap, route.Flow{Source: snap.Workload(torturedUID), Host: host, Port: 80}, now)
		if err != nil {
			return err
		}
		for _, v := range w.client.view.Explain(d, "", now) {
			if len(v.Causes) > 0 || v.Failed != nil && v.Failed.Fault {
				return fmt.Errorf("nothing was wrong with %s, and the client has it as %+v (failed %+v)", v.Name, v, v.Failed)
			}
		}
	}
	return nil
}

// spent states that the retry budgets have lost what hedges and repeats cost, and no more.
func (w *tortured) spent() error {
	least := retrybudget.AfterSlow * w.hedges("withdrawn", "accepted", "refused", "unanswered")
	most := least
	families, err := w.client.registry.Gather()
	if err != nil {
		return err
	}
	for _, f := range families {
		if f.GetName() != "isthmus_connect_retries_total" {
			continue
		}
		for _, m := range f.GetMetric() {
			n := m.GetCounter().GetValue()
			switch reason := m.GetLabel()[0].GetValue(); reason {
			case "refused":
				least, most = least+n*retrybudget.AfterRefusal, most+n*retrybudget.AfterRefusal
			case "timeout":
				least, most = least+n*retrybudget.AfterTimeout, most+n*retrybudget.AfterTimeout
			default:
				least, most = least+n*retrybudget.AfterRefusal, most+n*retrybudget.AfterTimeout
			}
		}
	}
	gone := 0.0
	for _, authority := range []string{"near.default:80", "far.default:80"} {
		gone += float64(w.client.cfg.Retry.BudgetBurst)
		key := torturedID("client").String() + " " + authority
		for w.client.budget.Spend(key, 1) {
			gone--
		}
		w.client.budget.Keep(func(k string) bool { return k != key })
	}
	if gone < least || gone > most {
		return fmt.Errorf("the retry budgets have lost %v, and hedges and repeats cost %v to %v", gone, least, most)
	}
	return nil
}
