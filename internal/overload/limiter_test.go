package overload

import (
	"context"
	"errors"
	"math/rand/v2"
	"runtime"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/prometheus/client_golang/prometheus"
)

// boundTo returns a limiter with a window of n and so much under way.
func boundTo(n int) *Limiter {
	l := New(prometheus.NewRegistry())
	l.control = control{bounded: true, window: float64(n)}
	for range n {
		if err := l.Admit(context.Background()); err != nil {
			panic(err)
		}
	}
	return l
}

// idle is what the scheduler says when nobody waits for a processor.
var idle = load{processors: 1}

func TestWithoutRunEverythingIsAdmittedAndNothingIsLate(t *testing.T) {
	l := New(prometheus.NewRegistry())
	for range 10000 {
		if err := l.Admit(t.Context()); err != nil {
			t.Fatal(err)
		}
	}
	if d := l.Late(time.Time{}); d != 0 {
		t.Errorf("late by %v", d)
	}
}

func TestTheNewestIsAdmittedAndTheOldestRefused(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := boundTo(100)
		type answer struct {
			who int
			err error
		}
		answers := make(chan answer, 10)
		for who := range 10 {
			go func() { answers <- answer{who, l.Admit(t.Context())} }()
			synctest.Wait()
			time.Sleep(time.Millisecond)
		}
		for range 3 {
			l.Done()
		}
		synctest.Wait()
		for range 3 {
			if a := <-answers; a.who < 7 || a.err != nil {
				t.Errorf("number %d got %v; want 7 to 9 to be admitted", a.who, a.err)
			}
		}
		if n := len(answers); n != 0 {
			t.Fatalf("%d more were answered", n)
		}
		time.Sleep(maxWait)
		l.control.window = 0 // and stays below what is under way
		l.step(time.Now(), idle)
		synctest.Wait()
		for range 7 {
			if a := <-answers; !errors.Is(a.err, ErrOverloaded) {
				t.Errorf("number %d got %v after %v", a.who, a.err, maxWait)
			}
		}
	})
}

// Whatever happens, each caller gets one answer in bounded time, the window is
// never exceeded, nobody is left, and what was admitted is accounted for.
func TestEveryCallerIsAnswered(t *testing.T) {
	for seed := range uint64(30) {
		synctest.Test(t, func(t *testing.T) { everyCaller(t, seed) })
	}
}

func everyCaller(t *testing.T, seed uint64) {
	rng := rand.New(rand.NewPCG(seed, 0))
	l := boundTo(0)
	l.control.window = 40
	var admitted, refused, left atomic.Int64
	var all, loop sync.WaitGroup
	for range 1000 {
		patience, at, work := time.Duration(rng.IntN(900))*time.Millisecond, time.Duration(rng.IntN(700))*time.Millisecond, time.Duration(rng.IntN(100))*time.Millisecond
		all.Go(func() {
			time.Sleep(at)
			ctx, cancel := context.WithTimeout(t.Context(), patience)
			defer cancel()
			started := time.Now()
			err := l.Admit(ctx)
			if took := time.Since(started); took > maxWait+2*tick {
				t.Errorf("seed %d: an answer took %v", seed, took)
			}
			switch {
			case err == nil:
				admitted.Add(1)
				time.Sleep(work)
				l.Done()
			case errors.Is(err, ErrOverloaded):
				refused.Add(1)
			default:
				left.Add(1)
			}
		})
	}
	ctx, stop := context.WithCancel(t.Context())
	loop.Go(func() {
		for ctx.Err() == nil {
			time.Sleep(tick)
			l.step(time.Now(), idle)
			l.mu.Lock()
			if l.control.bounded && float64(l.underWay) > l.control.window {
				t.Errorf("seed %d: %d are under way in a window of %.0f", seed, l.underWay, l.control.window)
			}
			l.mu.Unlock()
		}
	})
	all.Wait()
	stop()
	loop.Wait()
	if n := admitted.Load() + refused.Load() + left.Load(); n != 1000 || admitted.Load() == 0 || left.Load() == 0 || len(l.waiters) != 0 || l.underWay != 0 {
		t.Errorf("seed %d: %d admitted, %d refused, %d left, %d wait still, %d are under way", seed, admitted.Load(), refused.Load(), left.Load(), len(l.waiters), l.underWay)
	}
}

func TestRunAdmitsWhoWaitsWhenItEnds(t *testing.T) {
	l := boundTo(100)
	ctx, stop := context.WithCancel(t.Context())
	got := make(chan error)
	go func() { got <- l.Admit(t.Context()) }()
	done := make(chan struct{})
	go func() { l.Run(ctx); close(done) }()
	stop()
	<-done
	if err := <-got; err != nil {
		t.Error(err)
	}
}

// The scheduler's own figures show that goroutines wait when there are many that
// want to run.
func TestWaitIsSeenWhenProcessorsAreScarce(t *testing.T) {
	s := newScheduler()
	var all sync.WaitGroup
	var stop atomic.Bool
	for range 200 * runtime.GOMAXPROCS(0) {
		all.Go(func() {
			for !stop.Load() {
				for range 20000 {
					_ = stop.Load()
				}
				runtime.Gosched()
			}
		})
	}
	time.Sleep(300 * time.Millisecond)
	runnable, wait := s.read()
	stop.Store(true)
	all.Wait()
	if wait < time.Millisecond || runnable < 100 {
		t.Errorf("%d want to run and the mean wait is %v, with 200 goroutines for each processor", runnable, wait)
	}
}

func TestHistoryKeepsTheWorstOfATime(t *testing.T) {
	var h history
	at := time.Unix(1000, 0)
	for i := range 3 * kept {
		late := time.Duration(0)
		if i == 3*kept-10 {
			late = time.Second
		}
		h.add(at, at.Add(tick), late)
		at = at.Add(tick)
	}
	for _, c := range []struct {
		ago, want time.Duration
	}{{0, 0}, {8 * tick, 0}, {10 * tick, time.Second}, {kept * tick, time.Second}, {time.Hour, time.Second}} {
		if got := h.worst(at.Add(-c.ago), at); got != c.want {
			t.Errorf("worst of the last %v is %v, want %v", c.ago, got, c.want)
		}
	}
	if got := h.worst(at, at.Add(time.Second)); got != time.Second-2*tick {
		t.Errorf("a second after the last span it is late by %v", got)
	}
}
