package overload

import (
	"context"
	"testing"
	"testing/synctest"
	"time"
)

// Stock clients that ask for a little more than there is take all of it: whoever says
// isthmus-repeats gets nothing while one of them waits.
func TestClientsThatRepeatAreServedBesideStockOnes(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l, _ := boundTo(0)
		const repeating, asked = 500, 1100
		got := offered(t, l, 10*time.Second, offer{"stock", asked, l.stock(t.Context(), "stock")}, offer{"repeats", repeating, l.repeats("repeats")})
		t.Logf("of %d stock and %d repeating a second, of 1000 that can be served: %v", asked, repeating, got)
		if got["repeats"] < 250 || got["stock"] < 350 {
			t.Errorf("of %d connections a second that a client with isthmus-repeats asks for %d are accepted, of %d by a stock client %d", repeating, got["repeats"], asked, got["stock"])
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
