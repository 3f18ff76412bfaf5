package reprobe

import (
	"context"
	"errors"
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
