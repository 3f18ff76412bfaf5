package overload

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"math"
	"math/rand/v2"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/testutil"
)

// What a turn costs under the lock, which every CONNECT takes, grows with the clients that
// wait and not with what they wait for.
func TestTheCostOfATurnDoesNotGrowWithThoseThatWait(t *testing.T) {
	const turns = 5000
	cost := func(waiters int) time.Duration {
		l := New(prometheus.NewRegistry())
		g := &l.gate
		for i := range waiters {
			g.enter(&waiter{client: g.clients.asks(fmt.Sprint("c", i%50), g.recent.now)})
		}
		started := time.Now()
		for range turns {
			w := g.next(1000)
			g.clients.served(w.client)
			g.strike(w)
			g.enter(w)
		}
		return time.Since(started) / turns
	}
	var few, many time.Duration
	for range 5 { // others may have the processor now and then
		if few, many = cost(500), cost(20000); many < 6*few {
			return
		}
	}
	t.Errorf("a turn costs %v with 500 waiters, %v with 20000", few, many)
}

// modelSeeds is how many schedules the model tests run.
var modelSeeds = flag.Int("overload.seeds", 3, "schedules of the model tests")

// Accounting of a gate against a model, over random schedules.
func TestAGateKeepsItsBooksOverRandomSchedules(t *testing.T) {
	for seed := range uint64(*modelSeeds) {
		synctest.Test(t, func(t *testing.T) { gateModel(t, seed, seed%2 == 0) })
		if t.Failed() {
			return
		}
	}
}

type liveWork struct {
	w      *Work
	tick   uint64
	opened bool
	who    string
}

func gateModel(t *testing.T, seed uint64, own bool) {
	rng := rand.New(rand.NewPCG(seed, 77))
	l := New(prometheus.NewRegistry())
	g := &l.gate
	if own {
		g = &l.own
	}
	var mu sync.Mutex
	live := map[*liveWork]bool{}
	asked, answered := 0, 0
	refusals := 0
	var all sync.WaitGroup
	ctx, stop := context.WithCancel(t.Context())
	defer stop()
	check := func() {
		synctest.Wait()
		mu.Lock()
		defer mu.Unlock()
		g.mu.Lock()
		defer g.mu.Unlock()
		under, opening := 0, 0
		least := map[string]int{}
		most := map[string]int{}
		for x := range live {
			if g.recent.now-x.tick < uint64(hanging/tick) {
				under++
				least[x.who]++
			}
			if g.recent.now-x.tick < uint64(hanging/tick)+coarse {
				most[x.who]++
			}
			if !x.opened {
				opening++
			}
		}
		if g.recent.underWay != under {
			t.Fatalf("seed %d: underWay %d, model %d", seed, g.recent.underWay, under)
		}
		if g.all != opening {
			t.Fatalf("seed %d: all %d, model %d", seed, g.all, opening)
		}
		once := 0
		per := map[*client]int{}
		var last uint64
		g.waiters.each(func(w *waiter) {
			if !w.queued || w.came <= last {
				t.Fatalf("seed %d: waiters are out of order", seed)
			}
			if last = w.came; w.client != nil {
				once++
				per[w.client]++
			}
		})
		if n := g.waiters.len - g.direct.len; once != n {
			t.Fatalf("seed %d: once %d, counted %d", seed, n, once)
		}
		if len(g.clients.waiting) != len(per) {
			t.Fatalf("seed %d: waiting clients %d, %d", seed, len(g.clients.waiting), len(per))
		}
		for c, n := range per {
			if c.waiters.len != n {
				t.Fatalf("seed %d: client waiting %d, %d", seed, c.waiters.len, n)
			}
		}
		for who, c := range g.clients.known {
			if n := c.pieces.underWay(g.recent.now); n < least[who] || n > most[who] {
				t.Fatalf("seed %d: client %s has %d under way, model %d to %d", seed, who, n, least[who], most[who])
			}
		}
		if g.recent.done < 0 || g.recent.justDone < 0 || g.recent.lately < 0 || g.kept.places < 0 {
			t.Fatalf("seed %d: negative counters %+v", seed, g.recent)
		}
		if asked-answered != g.waiters.len {
			t.Fatalf("seed %d: %d asked, %d answered, %d wait", seed, asked, answered, g.waiters.len)
		}
		if float64(refusals) != testutil.ToFloat64(l.refused) {
			t.Fatalf("seed %d: %d refusals, %v counted", seed, refusals, testutil.ToFloat64(l.refused))
		}
		if g.waiters.len > 0 {
			if places := 1 + rng.IntN(20); g.next(places) != nextOfAll(g, places) {
				t.Fatalf("seed %d: another one has its turn than by a look at all", seed)
			}
		}
		// Work-conserving: nobody waits while nothing is bounded.
		if !g.control.bounded && g.waiters.len > 0 {
			t.Fatalf("seed %d: %d wait without a bound", seed, g.waiters.len)
		}
	}
	names := 1 + rng.IntN(6)
	burst := 1 + rng.IntN(200)
	for step := range 1000 {
		switch rng.IntN(12) {
		case 0, 1, 2, 3:
			for range rng.IntN(burst) {
				who := fmt.Sprint("c", int(math.Abs(rng.NormFloat64())*float64(names)))
				kind := rng.IntN(3)
				if own {
					kind = 2
				}
				patience := time.Duration(rng.IntN(15000)) * time.Millisecond
				mu.Lock()
				asked++
				mu.Unlock()
				all.Go(func() {
					cctx, cancel := context.WithTimeout(ctx, patience)
					defer cancel()
					var w Work
					var err error
					switch kind {
					case 0:
						w, err = g.AdmitOnce(cctx, who)
					case 1:
						w, err = g.TryAdmit(who)
					default:
						who = ""
						w, err = g.Admit(cctx, time.Now())
					}
					mu.Lock()
					defer mu.Unlock()
					answered++
					if err != nil {
						if errors.Is(err, ErrOverloaded) {
							refusals++
						}
						return
					}
					live[&liveWork{w: &w, tick: w.tick, who: who}] = true
				})
			}
		case 4, 5, 6:
			synctest.Wait()
			mu.Lock()
			n := rng.IntN(burst)
			for x := range live {
				if n--; n < 0 {
					break
				}
				if rng.IntN(2) == 0 && !x.opened {
					x.w.Opened()
					x.w.Opened()
					x.opened = true
				}
				if rng.IntN(3) > 0 {
					x.w.Done()
					x.w.Done()
					delete(live, x)
				}
			}
			mu.Unlock()
		case 7:
			g.Refuse(rng.IntN(500))
		case 8:
			if rng.IntN(20) == 0 {
				g.unbound()
			}
		default:
			k := 1 + rng.IntN(3)
			if rng.IntN(40) == 0 {
				k = rng.IntN(700) // up to 14 s
			}
			late := rng.IntN(3) == 0
			for range k {
				time.Sleep(tick)
				g.mu.Lock()
				g.step(time.Now(), g.load(1, late))
				g.mu.Unlock()
			}
		}
		check()
		if t.Failed() {
			t.Logf("step %d", step)
			return
		}
	}
	stop()
	all.Wait()
	check()
	for x := range live {
		x.w.Done()
	}
	live = map[*liveWork]bool{}
	for range int((keptIdle + 3*hanging) / tick) {
		time.Sleep(tick)
		g.mu.Lock()
		g.step(time.Now(), g.load(1, false))
		g.mu.Unlock()
	}
	check()
	if len(g.clients.known)+len(g.clients.waiting)+g.waiters.len+g.all+g.recent.underWay != 0 {
		t.Fatalf("seed %d: left: %d known, %d waiting", seed, len(g.clients.known), g.waiters.len)
	}
	if g.control.bounded {
		t.Fatalf("seed %d: still bounded", seed)
	}
}

// nextOfAll is next by a walk through all that wait.
func nextOfAll(g *gate, places int) (first *waiter) {
	if newest := g.waiters.newest; newest.client == nil {
		return newest
	}
	for w := g.waiters.newest; w != nil; w = w.places[ofAll].older {
		if c := w.client; c != nil && (first == nil || c.turn < first.client.turn) && g.leaves(c, places) {
			first = w
		}
	}
	return first
}

// Destinations over random schedules: users, gates and turns.
func TestGatesOfDestinationsEndOverRandomSchedules(t *testing.T) {
	for seed := range uint64(*modelSeeds) {
		synctest.Test(t, func(t *testing.T) { destinationsModel(t, seed) })
		if t.Failed() {
			return
		}
	}
}

func destinationsModel(t *testing.T, seed uint64) {
	rng := rand.New(rand.NewPCG(seed, 78))
	d := NewDestinations(New(prometheus.NewRegistry()))
	ctx, stop := context.WithCancel(t.Context())
	defer stop()
	var mu sync.Mutex
	type toward struct {
		t   *Toward
		key string
	}
	live := map[*toward]bool{}
	asked, answered := 0, 0
	var all sync.WaitGroup
	serve := func(k string) time.Duration { // time of an opening
		base := time.Duration(5+rng.IntN(30)) * time.Millisecond
		if rng.IntN(10) == 0 {
			base *= 20
		}
		return base
	}
	check := func() {
		synctest.Wait()
		mu.Lock()
		defer mu.Unlock()
		d.mu.Lock()
		defer d.mu.Unlock()
		users := map[string]int{}
		for x := range live {
			users[x.key]++
		}
		sum := 0
		for _, g := range d.gates {
			g.mu.Lock()
			defer g.mu.Unlock()
		}
		for key, g := range d.gates {
			waits := g.waiters.len
			if g.users != users[key]+waits {
				t.Fatalf("seed %d: %s has %d users, model %d and %d wait", seed, key, g.users, users[key], waits)
			}
			sum += waits
			n := 0
			for _, b := range d.busy {
				if b == g {
					n++
				}
			}
			if want := 0; g.busy {
				want = 1
				if n != want {
					t.Fatalf("busy %d times", n)
				}
			} else if n != 0 || g.users > 0 || g.control.bounded {
				t.Fatalf("seed %d: not busy, %d turns %d users bounded %v", seed, n, g.users, g.control.bounded)
			}
			if g.recent.underWay < 0 || g.recent.underWay > g.users {
				t.Fatalf("seed %d: %d under way of %d users", seed, g.recent.underWay, g.users)
			}
			if g.all < 0 || g.all > g.users {
				t.Fatalf("seed %d: all %d of %d users", seed, g.all, g.users)
			}
		}
		if asked-answered != sum {
			t.Fatalf("seed %d: %d unanswered, %d wait", seed, asked-answered, sum)
		}
	}
	for range 600 {
		switch rng.IntN(6) {
		case 0, 1, 2:
			key := fmt.Sprint("d", rng.IntN(3))
			for range rng.IntN(150) {
				took := serve(key)
				patience := time.Duration(rng.IntN(5000)) * time.Millisecond
				ok := rng.IntN(8) > 0
				mu.Lock()
				asked++
				mu.Unlock()
				all.Go(func() {
					cctx, cancel := context.WithTimeout(ctx, patience)
					defer cancel()
					w, err := d.Admit(cctx, key, time.Now())
					x := &toward{&w, key}
					mu.Lock()
					answered++
					if err == nil {
						live[x] = true
					}
					mu.Unlock()
					if err != nil {
						return
					}
					time.Sleep(took)
					mu.Lock()
					defer mu.Unlock()
					if ok {
						w.Opened()
					}
					w.Done()
					w.Done()
					delete(live, x)
				})
			}
		default:
			for range 1 + rng.IntN(5) {
				time.Sleep(tick)
				d.step(time.Now(), 1)
			}
			if rng.IntN(100) == 0 {
				for range 800 {
					time.Sleep(tick)
					d.step(time.Now(), 1)
				}
			}
		}
		check()
		if t.Failed() {
			return
		}
	}
	for range 2500 {
		time.Sleep(tick)
		d.step(time.Now(), 1)
	}
	all.Wait()
	for range 2500 {
		time.Sleep(tick)
		d.step(time.Now(), 1)
	}
	check()
	if len(d.gates) != 0 || len(d.busy) != 0 {
		t.Fatalf("seed %d: %d gates are left", seed, len(d.gates))
	}
}
