package reprobe

import (
	"context"
	"errors"
	"sync"
	"testing"
	"testing/synctest"
	"time"
)

var errDown = errors.New("down")

func TestAsksAtOnceThenSlowerUntilItAnswers(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ctx, cancel := context.WithCancel(t.Context())
		p := New[string](ctx, Schedule{First: 100 * time.Millisecond, Limit: 400 * time.Millisecond, Timeout: time.Second})
		start := time.Now()
		var asked []time.Duration
		p.Watch("pod", func(context.Context) error {
			asked = append(asked, time.Since(start))
			if len(asked) < 6 {
				return errDown
			}
			return nil
		}, func(err error) bool { return err == nil })
		synctest.Wait()
		time.Sleep(time.Minute) // bubble time
		synctest.Wait()
		if len(asked) != 6 || p.Active() != 0 {
			t.Fatalf("asked %d times, %d active; want 6 and 0", len(asked), p.Active())
		}
		if asked[0] != 0 {
			t.Errorf("first question after %v, want at once", asked[0])
		}
		limits := []time.Duration{100, 200, 400, 400, 400}
		for i, l := range limits {
			if gap := asked[i+1] - asked[i]; gap < l*time.Millisecond/2 || gap > l*time.Millisecond+1 {
				t.Errorf("pause %d is %v, want within [%v, %v]", i+1, gap, l*time.Millisecond/2, l*time.Millisecond)
			}
		}
		cancel()
		p.Wait()
	})
}

func TestSecondWatchAsksSoonerButStartsNoSecondSeries(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ctx, cancel := context.WithCancel(t.Context())
		p := New[int](ctx, Schedule{First: time.Hour, Limit: time.Hour, Timeout: time.Second})
		asked := 0
		ask := func(context.Context) error { asked++; return errDown }
		never := func(error) bool { return false }
		p.Watch(1, ask, never)
		synctest.Wait()
		p.Watch(1, ask, never)
		synctest.Wait()
		if asked != 2 || p.Active() != 1 {
			t.Errorf("asked %d times with %d series; want 2 with 1", asked, p.Active())
		}
		cancel()
		p.Wait()
		if p.Active() != 0 {
			t.Errorf("%d series outlive the context", p.Active())
		}
	})
}

// gatewayLike is the schedule of what costs more to ask than a local application.
var gatewayLike = Schedule{First: 250 * time.Millisecond, Limit: 2 * time.Second, Bound: 30 * time.Second, Least: time.Second, Timeout: time.Second}

// questions are when a key was asked.
type questions struct {
	mu sync.Mutex
	at []time.Time
}

func (q *questions) len() int {
	q.mu.Lock()
	defer q.mu.Unlock()
	return len(q.at)
}

// failing watches a key that does not answer.
func failing(p *Prober[string], done func(err error)) *questions {
	q := &questions{}
	p.Watch("gateway", func(context.Context) error {
		q.mu.Lock()
		defer q.mu.Unlock()
		q.at = append(q.at, time.Now())
		return errDown
	}, func(err error) bool { done(err); return err == nil })
	return q
}

func TestWhatDoesNotAnswerForLongIsAskedLessAndLess(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ctx, cancel := context.WithCancel(t.Context())
		p := New[string](ctx, gatewayLike)
		asked := failing(p, func(error) {})
		in := func(d time.Duration) (n int) {
			before := asked.len()
			time.Sleep(d)
			synctest.Wait()
			return asked.len() - before
		}
		if n := in(time.Minute); n < 30 {
			t.Errorf("asked %d times in the first minute; want one every two seconds at least", n)
		}
		if n := in(time.Hour); n > 400 {
			t.Errorf("asked %d times in the next hour; want at most 400", n)
		}
		if n := in(24 * time.Hour); n < 24*120 || n > 24*241 {
			t.Errorf("asked %d times in the next day; want one every 15 to 30 s", n)
		}
		cancel()
		p.Wait()
	})
}

func TestManyWhoAskForAQuestionGetOneASecond(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ctx, cancel := context.WithCancel(t.Context())
		p := New[string](ctx, gatewayLike)
		asked := failing(p, func(error) {})
		time.Sleep(time.Hour)
		before := asked.len()
		for range 1000 {
			failing(p, nil)
			time.Sleep(10 * time.Millisecond)
		}
		synctest.Wait()
		if n := asked.len() - before; n < 5 || n > 11 {
			t.Errorf("asked %d times in 10 s in which 1000 asked for it; want about one a second", n)
		}
		cancel()
		p.Wait()
	})
}

func TestRestartAsksNowAndAsOftenAsInTheBeginning(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ctx, cancel := context.WithCancel(t.Context())
		p := New[string](ctx, gatewayLike)
		p.Restart("gateway")
		if n := p.Active(); n != 0 {
			t.Errorf("%d series of what nobody watches", n)
		}
		asked := failing(p, func(error) {})
		time.Sleep(24 * time.Hour)
		before := asked.len()
		p.Restart("gateway")
		time.Sleep(10 * time.Second)
		synctest.Wait()
		if n := asked.len() - before; n < 6 {
			t.Errorf("asked %d times within 10 s of the restart; want as in the first ten", n)
		}
		cancel()
		p.Wait()
	})
}

func TestByPutsAQuestionEarlierAndNotTooEarly(t *testing.T) {
	for name, c := range map[string]struct{ by, least, most time.Duration }{
		"earlier":             {by: 5 * time.Second, least: 5 * time.Second, most: 5 * time.Second},
		"not before its turn": {by: 0, least: time.Second, most: 2 * time.Second},
		"not later":           {by: time.Hour, least: 15 * time.Second, most: 30 * time.Second},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				ctx, cancel := context.WithCancel(t.Context())
				p := New[string](ctx, gatewayLike)
				asked := failing(p, func(error) { p.By("gateway", time.Now().Add(c.by)) })
				time.Sleep(time.Hour)
				cancel()
				p.Wait()
				n := asked.len()
				if gap := asked.at[n-1].Sub(asked.at[n-2]); gap < c.least || gap > c.most+1 {
					t.Errorf("the pause is %v; want %v to %v", gap, c.least, c.most)
				}
			})
		})
	}
}
