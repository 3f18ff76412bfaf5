package nodeproxy

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	dto "github.com/prometheus/client_model/go"

	"github.com/isthmus-mesh/isthmus/mesh"
)

// crowd has n connections come at random, rate a second, and returns how many round
// trips the first byte of each took.
func (w *distant) crowd(n int, rate float64, lasts time.Duration) (trips []float64, errs []error) {
	var wg sync.WaitGroup
	var mu sync.Mutex
	for i := range n {
		w.mu.Lock()
		pause := w.rng.ExpFloat64() / rate
		w.mu.Unlock()
		time.Sleep(time.Duration(pause * float64(time.Second)))
		wg.Go(func() {
			d, err := w.connect(i, lasts)
			mu.Lock()
			defer mu.Unlock()
			if trips = append(trips, d); err != nil {
				errs = append(errs, err)
			}
		})
	}
	wg.Wait()
	return trips, errs
}

// once is which part of trips took one round trip, and hardly more.
func once(trips []float64) float64 {
	n := 0
	for _, d := range trips {
		if d <= 1.01 {
			n++
		}
	}
	return float64(n) / float64(len(trips))
}

// hottest is what the busiest pod got, against the mean.
func (w *distant) hottest() float64 {
	w.mu.Lock()
	defer w.mu.Unlock()
	most, sum := 0, 0
	for _, n := range w.got {
		most, sum = max(most, n), sum+n
	}
	return float64(most) * float64(len(w.pods)) / float64(sum)
}

// random is what the busiest of pods gets against the mean when each of n connections
// goes to any of them, at most: the most of so many rounds that who repeats a test hardly
// ever sees more. The mean and three deviations are exceeded in one of twenty: it is a
// whole number, and its distribution is not even nearly normal.
func (w *distant) random(n int) float64 {
	rng := rand.New(rand.NewPCG(7, 7))
	most, got := 0, make([]int, len(w.pods))
	for range 10000 {
		clear(got)
		for range n {
			i := rng.IntN(len(got))
			got[i]++
			most = max(most, got[i])
		}
	}
	return float64(most) * float64(len(got)) / float64(n)
}

// TestWarmConnections is what warm sets are for, with the node proxy's own pool: the
// client is told by answers alone with whom its sessions are.
func TestWarmConnections(t *testing.T) {
	for _, c := range []struct {
		pods, n int
		rate    float64
		hottest float64
	}{
		{3, 600, 20, 1.05}, // each held once
		{60, 3000, 60, 1.2},
		{60, 3000, 15, 1.6},    // fewer sessions than pods
		{1000, 6000, 120, 8.2}, // a turn of 48 connections, and 6 are the mean
	} {
		if underRace && c.pods > 3 {
			continue // what may race does so with three
		}
		t.Run(fmt.Sprintf("%d pods, %v a second", c.pods, c.rate), func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				w := newDistant(c.pods, 2, 40*time.Millisecond)
				defer w.end()
				if _, errs := w.crowd(10*int(c.rate), c.rate, 100*time.Millisecond); len(errs) > 0 {
					t.Fatalf("while it gets warm: %v", errs[0])
				}
				w.forget()
				before := w.handshakes()
				trips, errs := w.crowd(c.n, c.rate, 100*time.Millisecond)
				part, hot, bound := once(trips), w.hottest(), c.hottest
				t.Logf("%d connections: %.1f %% in one round trip; hottest pod %.2f of the mean (bound %.2f); %d handshakes meanwhile", c.n, 100*part, hot, bound, w.handshakes()-before)
				if len(errs) > 0 {
					t.Errorf("%d of %d failed: %v", len(errs), c.n, errs[0])
				}
				if part < 0.99 {
					t.Errorf("%.1f %% took one round trip; want 99 %%", 100*part)
				}
				if hot > bound {
					t.Errorf("the hottest pod got %.2f of the mean; want at most %.2f", hot, bound)
				}
				w.nothingElse(t)
			})
		})
	}
}

// Pods that come, leave and crash, and a gateway that is lost, cost nobody a connection
// but those whose first bytes were on the line that broke.
func TestWarmConnectionsWhilePodsComeAndGo(t *testing.T) {
	for _, pods := range []int{3, 60, 1000} {
		if underRace && pods > 3 {
			continue
		}
		t.Run(fmt.Sprint(pods, " pods"), func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				w := newDistant(pods, 2, 40*time.Millisecond)
				defer w.end()
				w.tellHealth()
				w.crowd(200, 20, 100*time.Millisecond)
				done := make(chan struct{})
				var churn sync.WaitGroup
				churn.Go(func() {
					for i := 0; ; i++ {
						select {
						case <-done:
							return
						case <-time.After(2 * time.Second):
						}
						pod := w.pods[i%len(w.pods)]
						w.leave(pod, i%2 == 0)
						time.Sleep(3 * time.Second)
						w.comeBack(pod)
						if i == 3 {
							w.lose(w.gateways[0].Address.String())
						}
					}
				})
				n := 1200
				if underRace {
					n = 600
				}
				trips, errs := w.crowd(n, 20, 100*time.Millisecond)
				close(done)
				churn.Wait()
				lost := w.indeterminate(t)
				t.Logf("%.1f %% in one round trip; %d had their first bytes on a line that broke", 100*once(trips), lost)
				if len(errs) != lost || lost > 12 {
					t.Errorf("%d of %d failed, %d of them because what they had sent was lost: %v", len(errs), len(trips), lost, errs)
				}
				if part := once(trips); part < 0.85 {
					t.Errorf("%.1f %% took one round trip; want 85 %%", 100*part)
				}
				w.nothingElse(t)
			})
		})
	}
}

// nothingElse checks that the pool has no sessions but those that sets hold, and those
// with gateways, and that no connection is counted any more.
func (w *distant) nothingElse(t *testing.T) {
	t.Helper()
	time.Sleep(10 * time.Second)
	held, opening := 0, 0
	for _, s := range w.client.kept.Status() {
		held, opening = held+s.Held, opening+s.Opening
		if s.Open != 0 {
			t.Errorf("%d connections are counted, and none is open", s.Open)
		}
	}
	inner := 0
	w.client.answers.Range(func(any, any) bool { inner++; return true })
	if keys := w.client.pool.Stats().Keys; keys > held+opening+len(w.gateways) || inner < held || inner > held+opening {
		t.Errorf("%d keys in the pool, and %d sessions with pods, of which sets hold %d", keys, inner, held)
	}
}

// indeterminate is how many connections were given up since nobody knows whether their
// first bytes arrived.
func (w *distant) indeterminate(t *testing.T) int {
	var m dto.Metric
	if err := w.client.metrics.indeterminate.Write(&m); err != nil {
		t.Fatal(err)
	}
	return int(m.GetCounter().GetValue())
}

// leave has a pod go: discovery says so a second before its lines end, or after it.
func (w *distant) leave(pod *mesh.Workload, crash bool) {
	w.mu.Lock()
	w.out[pod.Endpoint] = true
	w.mu.Unlock()
	cut := func() {
		w.mu.Lock()
		defer w.mu.Unlock()
		for _, c := range w.lines[pod.UID] {
			c.Cut()
		}
		w.lines[pod.UID] = nil
	}
	steps := []func(){w.discover, cut}
	if crash {
		slices.Reverse(steps)
	}
	steps[0]()
	time.Sleep(time.Second)
	steps[1]()
}

func (w *distant) comeBack(pod *mesh.Workload) {
	w.mu.Lock()
	delete(w.out, pod.Endpoint)
	w.mu.Unlock()
	w.discover()
}

// A gateway that names nobody, as stock ones do, leaves connections as fast as others.
func TestWarmConnectionsThroughAGatewayThatNamesNobody(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newDistant(6, 1, 40*time.Millisecond)
		w.silent = true
		defer w.end()
		w.crowd(200, 20, 100*time.Millisecond)
		w.forget()
		trips, errs := w.crowd(1000, 20, 100*time.Millisecond)
		t.Logf("%.1f %% in one round trip; hottest pod %.2f of the mean", 100*once(trips), w.hottest())
		if len(errs) > 0 {
			t.Errorf("%d failed: %v", len(errs), errs[0])
		}
		if part := once(trips); part < 0.95 {
			t.Errorf("%.1f %% took one round trip; want 95 %%", 100*part)
		}
		if hot, bound := w.hottest(), w.random(1000/32); hot > bound {
			t.Errorf("the hottest pod got %.2f of the mean; turns of 32 connections at random come to %.2f at most", hot, bound)
		}
	})
}

// A burst to a share of few pods, of which nothing is held, waits for few handshakes.
func TestABurstSharesTheSessionsThatAreBeingOpened(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newDistant(3, 1, 40*time.Millisecond)
		defer w.end()
		if _, errs := w.crowd(200, 1e6, time.Second); len(errs) > 0 {
			t.Errorf("%d failed: %v", len(errs), errs[0])
		}
		if n := w.handshakes(); n > 20 {
			t.Errorf("%d handshakes with pods for 200 connections at once to 3 pods", n)
		}
		w.nothingElse(t)
	})
}
