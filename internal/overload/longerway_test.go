package overload

import (
	"context"
	"math/rand/v2"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/prometheus/client_golang/prometheus"
)

// After a failover to a way that is longer by far no connection is lost, as long as
// nobody is overloaded.
func TestAFailoverToALongerWayLosesNoConnection(t *testing.T) {
	for name, c := range map[string]struct{ rate, far float64 }{
		"2 ms to 250 ms, 1000 a second": {1000, 250},
		"2 ms to 400 ms, 1000 a second": {1000, 400},
		"2 ms to 400 ms, 3000 a second": {3000, 400},
		"2 ms to 600 ms, 400 a second":  {400, 600},
		"2 ms to 600 ms, 1000 a second": {1000, 600},
		"2 ms to 900 ms, 1000 a second": {1000, 900},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				unloaded(t, c.rate, 20*time.Second, func(r *rand.Rand, at time.Duration) float64 {
					if at < 10*time.Second {
						return 2
					}
					return c.far * (1 + 0.1*r.Float64())
				})
			})
		})
	}
}

// Where nobody is overloaded nobody is refused, and hardly anybody waits: what jitter_test.go
// shows of a gate, with what production calls, which lets connections wait for half a second.
func TestDestinationsThatAreNotOverloadedRefuseNobody(t *testing.T) {
	for name, c := range map[string]struct {
		rate float64
		long func(*rand.Rand) float64 // milliseconds
	}{
		"1 of 100 pods 2 ms away, the others 150 ms, 1000 a second": {1000, func(r *rand.Rand) float64 {
			if r.IntN(100) == 0 {
				return 2
			}
			return 150 * (1 + 0.05*r.Float64())
		}},
		"1 of 300 pods 2 ms away, the others 150 ms, 3000 a second": {3000, func(r *rand.Rand) float64 {
			if r.IntN(300) == 0 {
				return 2
			}
			return 150 * (1 + 0.05*r.Float64())
		}},
		"250±50 ms, 1000 a second": {1000, func(r *rand.Rand) float64 { return max(80, 250+50*r.NormFloat64()) }},
		"400±40 ms, 1000 a second": {1000, func(r *rand.Rand) float64 { return max(80, 400+40*r.NormFloat64()) }},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				n, waited := unloaded(t, c.rate, time.Minute, func(r *rand.Rand, _ time.Duration) float64 { return c.long(r) })
				if waited > n/100 {
					t.Errorf("%.1f %% made to wait, of %d connections in a minute; nobody is overloaded", 100*float64(waited)/float64(n), n)
				}
			})
		})
	}
}

// unloaded offers rate connections a second to one destination that has room for all of
// them, by what production calls; nobody may be refused. long is how many milliseconds one
// takes that begins then. It returns how many there were and how many were made to wait.
func unloaded(t *testing.T, rate float64, lasts time.Duration, long func(r *rand.Rand, at time.Duration) float64) (n, waits int) {
	d := NewDestinations(New(prometheus.NewRegistry()))
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	go d.Run(ctx)
	rng := rand.New(rand.NewPCG(1, 2))
	var refused, waited atomic.Int64
	var all sync.WaitGroup
	start := time.Now()
	n = int(rate * lasts.Seconds())
	for range n {
		time.Sleep(time.Duration(rng.ExpFloat64() / rate * float64(time.Second)))
		takes := time.Duration(long(rng, time.Since(start)) * float64(time.Millisecond))
		all.Go(func() {
			began := time.Now()
			w, err := d.Admit(ctx, "svc:80", began)
			if time.Since(began) > 10*time.Millisecond {
				waited.Add(1)
			}
			if err != nil {
				refused.Add(1)
				return
			}
			time.Sleep(takes)
			w.Opened()
			w.Done()
		})
	}
	all.Wait()
	if r, w := refused.Load(), waited.Load(); r > 0 {
		t.Errorf("%d (%.1f %%) refused and %.1f %% made to wait, of %d connections in %v; nobody is overloaded", r, 100*float64(r)/float64(n), 100*float64(w)/float64(n), n, lasts)
	}
	return n, int(waited.Load())
}

// While a real queue is found out everybody waits, for no longer than that takes; afterwards
// nobody waits longer than ever, and the queue's end is served by its capacity.
func TestWaitingForAVerdictEndsWithIt(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		d := NewDestinations(New(prometheus.NewRegistry()))
		ctx, cancel := context.WithCancel(t.Context())
		defer cancel()
		go d.Run(ctx)
		var mu sync.Mutex
		var free time.Time
		turn := func() time.Time { // of a line in front of 1000 a second
			mu.Lock()
			defer mu.Unlock()
			if now := time.Now(); free.Before(now) {
				free = now
			}
			free = free.Add(time.Millisecond)
			return free
		}
		rng := rand.New(rand.NewPCG(1, 2))
		var all sync.WaitGroup
		var refused, served [2]int
		var longest [2]time.Duration
		offer := func(rate float64, lasts time.Duration, part int) {
			for end := time.Now().Add(lasts); time.Now().Before(end); {
				time.Sleep(time.Duration(rng.ExpFloat64() / rate * float64(time.Second)))
				all.Go(func() {
					began := time.Now()
					w, err := d.Admit(ctx, "svc:80", began)
					mu.Lock()
					longest[part] = max(longest[part], time.Since(began))
					if err != nil {
						refused[part]++
					} else {
						served[part]++
					}
					mu.Unlock()
					if err == nil {
						time.Sleep(time.Until(turn()) + 2*time.Millisecond)
						w.Opened()
						w.Done()
					}
				})
			}
		}
		if offer(500, 3*time.Second, 0); refused[0] > 0 {
			t.Errorf("%d are refused at half the capacity", refused[0])
		}
		offer(4000, 3*time.Second, 0)
		offer(4000, 5*time.Second, 1)
		all.Wait()
		t.Logf("the longest wait is %v, at first and later, when %d are served and %d refused in 5 s", longest, served[1], refused[1])
		if longest[0] > longestTrial+maxWait || longest[1] > maxWait+2*tick || served[1] < 4500 || refused[1] < 10000 {
			t.Errorf("at four times the capacity the longest wait is %v, at first and later, when %d are served and %d refused in 5 s", longest, served[1], refused[1])
		}
	})
}
