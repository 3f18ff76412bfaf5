package overload

import (
	"context"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"
)

// served offers a process, bound to 20 pieces of 20 ms each (1000 a second), stock and
// repeating clients' work, and returns what was accepted of each.
func served(t *testing.T, l *Limiter, stock, repeats int, d time.Duration) (of, off int64) {
	var once, try atomic.Int64
	work := func(w Work, n *atomic.Int64) {
		n.Add(1)
		time.Sleep(20 * time.Millisecond)
		w.Opened()
		w.Done()
	}
	go func() { // the control loop keeps its window
		for range int(d / tick) {
			time.Sleep(tick)
			l.mu.Lock()
			l.control.bounded, l.control.window = true, 20
			l.recent.step()
			l.times.step(true)
			l.admit()
			l.refuseOverdue(time.Now())
			l.mu.Unlock()
		}
		l.unbound()
	}()
	gen := func(rate int, f func()) {
		go func() {
			for range rate * int(d/time.Second) {
				time.Sleep(time.Second / time.Duration(rate))
				go f()
			}
		}()
	}
	gen(stock, func() {
		if w, err := l.AdmitOnce(t.Context(), "stock"); err == nil {
			work(w, &once)
		}
	})
	gen(repeats, func() {
		if w, err := l.TryAdmit(); err == nil {
			work(w, &try)
		}
	})
	time.Sleep(d)
	of, off = once.Load(), try.Load()
	time.Sleep(onceWait + time.Second)
	return of, off
}

// Stock clients that ask for a little more than there is take all of it: whoever says
// isthmus-repeats gets nothing while one of them waits.
func TestClientsThatRepeatAreServedBesideStockOnes(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l, _ := boundTo(0)
		once, try := served(t, l, 1100, 500, 10*time.Second)
		t.Logf("in 10 s of 1100 stock and 500 repeating a second: %d and %d", once, try)
		if try < once/10 {
			t.Errorf("of %d connections that clients with isthmus-repeats asked for %d were accepted, of %d by stock clients %d", 5000, try, 11000, once)
		}
	})
}

// One client takes every place of the waiting room; a second one, with one connection a
// second, is refused at once though it would wait.
func TestOneClientDoesNotTakeTheWholeWaitingRoom(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l, under := boundTo(10)
		ctx, cancel := context.WithCancel(t.Context())
		defer cancel()
		for range leastOnce {
			go l.AdmitOnce(ctx, "flood")
		}
		synctest.Wait()
		started := time.Now()
		go func() {
			time.Sleep(5 * time.Millisecond)
			under[0].Done() // there is room in a moment
		}()
		if _, err := l.AdmitOnce(t.Context(), "stock"); err != nil {
			t.Errorf("the other client was refused after %v: %v; want a turn, or a wait", time.Since(started), err)
		}
		time.Sleep(time.Second)
	})
}
