package reprobe

import (
	"context"
	"errors"
	"math/rand/v2"
	"sync"
	"testing"
	"testing/synctest"
	"time"
)

var modelSchedule = Schedule{First: 100 * time.Millisecond, Limit: 500 * time.Millisecond, Timeout: time.Second, Spacing: 20 * time.Millisecond, Concurrent: 3}

// world is what a Prober asks, and the slow obvious model of what it should be
// doing: which keys are owned, which are ill, which have a series.
type world struct {
	t    *testing.T
	seed uint64
	rng  *rand.Rand
	p    *Prober[int]

	mu      sync.Mutex
	owned   map[int]bool
	ill     map[int]bool
	slow    map[int]bool // takes 300 ms to say anything
	watched map[int]bool // has a series, by the model
	again   map[int]bool // one more question was asked for since the last one began
	asking  map[int]int
	asked   []time.Time
}

func (w *world) fail(format string, args ...any) {
	w.t.Helper()
	w.t.Errorf("seed %d: "+format, append([]any{w.seed}, args...)...)
}

func (w *world) watch(k int) {
	w.mu.Lock()
	w.watched[k], w.again[k] = true, w.watched[k]
	w.mu.Unlock()
	w.p.Watch(k, func(ctx context.Context) error { return w.ask(ctx, k) }, func(err error) bool { return w.done(k, err) })
}

func (w *world) ask(ctx context.Context, k int) error {
	w.mu.Lock()
	w.asked = append(w.asked, time.Now())
	w.asking[k]++
	w.again[k] = false
	total := 0
	for _, n := range w.asking {
		total += n
	}
	if !w.owned[k] {
		w.fail("key %d is asked and nobody owns it", k)
	}
	if w.asking[k] > 1 || total > modelSchedule.Concurrent {
		w.fail("key %d is asked %d times at once, all together %d; want 1 and at most %d", k, w.asking[k], total, modelSchedule.Concurrent)
	}
	slow := w.slow[k]
	w.mu.Unlock()
	if slow {
		select {
		case <-ctx.Done():
		case <-time.After(300 * time.Millisecond):
		}
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	w.asking[k]--
	if w.ill[k] {
		return errDown
	}
	return nil
}

func (w *world) done(k int, err error) bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	if !w.owned[k] {
		w.fail("key %d: an answer is delivered and nobody owns it", k)
	}
	if errors.Is(err, context.Canceled) {
		w.fail("key %d: a cancelled question is told as an answer", k)
	}
	if err == nil {
		w.watched[k] = w.again[k]
	}
	return err == nil
}

// step does one random thing.
func (w *world) step(keys int) {
	k := w.rng.IntN(keys)
	switch w.rng.IntN(6) {
	case 0, 1:
		w.mu.Lock()
		own := w.owned[k]
		w.mu.Unlock()
		if own {
			w.watch(k)
		}
	case 2:
		w.mu.Lock()
		w.ill[k] = !w.ill[k]
		w.slow[k] = w.rng.IntN(3) == 0
		w.mu.Unlock()
	case 3: // discovery changes
		w.mu.Lock()
		for k := range keys {
			if w.rng.IntN(4) == 0 {
				w.owned[k] = !w.owned[k]
			}
			w.watched[k] = w.watched[k] && w.owned[k]
		}
		w.mu.Unlock()
		w.p.Retain(func(k int) bool { w.mu.Lock(); defer w.mu.Unlock(); return w.owned[k] })
	default:
		time.Sleep(time.Duration(w.rng.Int64N(int64(400 * time.Millisecond))))
	}
}

// check compares what runs with the model. A key that answers has a series only
// until it is asked next.
func (w *world) check() {
	synctest.Wait()
	w.mu.Lock()
	n := 0
	for _, on := range w.watched {
		if on {
			n++
		}
	}
	w.mu.Unlock()
	if got := w.p.Active(); got != n {
		w.fail("%d series run; the model has %d", got, n)
	}
}

func TestSeriesFollowTheModelWhateverHappens(t *testing.T) {
	for seed := range uint64(300) {
		synctest.Test(t, func(t *testing.T) {
			ctx, cancel := context.WithCancel(t.Context())
			w := &world{t: t, seed: seed, rng: rand.New(rand.NewPCG(seed, 1)), p: New[int](ctx, modelSchedule),
				owned: map[int]bool{}, ill: map[int]bool{}, slow: map[int]bool{}, watched: map[int]bool{}, again: map[int]bool{}, asking: map[int]int{}}
			for k := range 8 {
				w.owned[k], w.ill[k] = true, w.rng.IntN(2) == 0
			}
			for range 150 {
				w.step(8)
				w.check()
			}
			w.mu.Lock()
			clear(w.ill)
			w.mu.Unlock()
			time.Sleep(10 * time.Second) // bubble time: all that answers has been asked
			w.check()
			if n := w.p.Active(); n != 0 {
				w.fail("%d series go on although every key answers", n)
			}
			cancel()
			w.p.Wait()
		})
		if t.Failed() {
			return
		}
	}
}

func TestHowOftenAllTogetherAreAskedIsBounded(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ctx, cancel := context.WithCancel(t.Context())
		p := New[int](ctx, Schedule{First: 100 * time.Millisecond, Limit: 500 * time.Millisecond, Timeout: time.Second})
		var mu sync.Mutex
		asked := 0
		const keys = 1000
		for k := range keys {
			p.Watch(k, func(context.Context) error { mu.Lock(); defer mu.Unlock(); asked++; return errDown }, func(error) bool { return false })
		}
		time.Sleep(time.Minute)
		synctest.Wait()
		// 5 ms apart and a pause is at least half of what is due: at most 400 a second.
		if most := keys + 60*400; asked > most || asked < keys+60*100 {
			t.Errorf("%d keys that never answer are asked %d times in a minute; want at most %d, and some", keys, asked, most)
		}
		cancel()
		p.Wait()
	})
}

func TestAKeyThatIsNotRetainedIsAskedNoMore(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ctx, cancel := context.WithCancel(t.Context())
		p := New[int](ctx, modelSchedule)
		asked, told := 0, 0
		p.Watch(1, func(ctx context.Context) error { asked++; <-ctx.Done(); return ctx.Err() }, func(error) bool { told++; return false })
		synctest.Wait()
		p.Retain(func(int) bool { return false })
		synctest.Wait()
		time.Sleep(time.Minute)
		if asked != 1 || told != 0 || p.Active() != 0 {
			t.Errorf("asked %d times, told %d, %d active; want the one that was under way, 0 and 0", asked, told, p.Active())
		}
		cancel()
		p.Wait()
	})
}

func TestAnEndedSeriesDoesNotTakeTheNextOneWithIt(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ctx, cancel := context.WithCancel(t.Context())
		p := New[int](ctx, modelSchedule)
		watch := func() {
			p.Watch(1, func(ctx context.Context) error { <-ctx.Done(); return ctx.Err() }, func(error) bool { return false })
		}
		watch()
		synctest.Wait()
		p.Retain(func(int) bool { return false })
		watch() // before the first one has noticed
		synctest.Wait()
		if p.Active() != 1 {
			t.Errorf("%d series; want the second one", p.Active())
		}
		cancel()
		p.Wait()
	})
}
