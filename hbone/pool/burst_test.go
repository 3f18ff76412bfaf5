package pool

import (
	"context"
	"errors"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/isthmus-mesh/isthmus/hbone"
)

// burst opens n streams at once and returns them, and how many calls failed.
func burst(p *Pool, b *backend, n int) (open []*hbone.Stream, failed int64) {
	var mu sync.Mutex
	var fails atomic.Int64
	var wg sync.WaitGroup
	for range n {
		wg.Go(func() {
			st, _, err := p.Open(context.Background(), Key{}, b.dial, poolReq)
			if err != nil {
				b.t.Error(err)
				fails.Add(1)
				return
			}
			mu.Lock()
			open = append(open, st)
			mu.Unlock()
		})
	}
	wg.Wait()
	return open, fails.Load()
}

func TestABurstIsServedByAsFewSessionsAsItNeeds(t *testing.T) {
	for _, c := range []struct{ limit, calls, dials int }{{100, 300, 3}, {30, 300, 10}, {1, 20, 20}} {
		synctest.Test(t, func(t *testing.T) {
			b := &backend{t: t, cfg: hbone.DefaultConfig(), delay: 5 * time.Millisecond}
			b.cfg.MaxStreams = c.limit
			p := New(Config{})
			open, _ := burst(p, b, c.calls)
			if n := b.dials.Load(); n != int64(c.dials) && c.limit == 100 || n < int64(c.dials) || n > int64(c.dials+dialsAtOnce) {
				t.Errorf("%d calls, %d streams per session: %d dials, want about %d", c.calls, c.limit, n, c.dials)
			}
			if s := p.Stats(); s.Streams != c.calls {
				t.Errorf("%+v: want %d streams", s, c.calls)
			}
			for _, st := range open {
				endStream(st)
			}
			p.Close()
			b.stop()
			time.Sleep(time.Minute)
		})
	}
}

// A session that is full does not fail a call: a stream that ends makes room.
func TestACallWaitsForAStreamToEnd(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := &backend{t: t, cfg: hbone.DefaultConfig(), delay: time.Millisecond}
		b.cfg.MaxStreams = 1
		p := New(Config{DialTimeout: time.Hour})
		first := poolOpen(t, p, Key{}, b)
		b.delay = time.Minute // the second session will take its time
		time.AfterFunc(time.Second, func() { endStream(first) })
		began := time.Now()
		second := poolOpen(t, p, Key{}, b)
		if took := time.Since(began); second.Session() != first.Session() || took > 2*time.Second {
			t.Errorf("waited %v, want the stream that ended after 1s", took)
		}
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		if _, _, err := p.Open(ctx, Key{}, b.dial, poolReq); !errors.Is(err, ErrExhausted) || !errors.Is(err, context.DeadlineExceeded) {
			t.Errorf("a call that waited in vain: %v, want ErrExhausted and the cause", err)
		}
		endStream(second)
		p.Close()
		time.Sleep(time.Hour)
		b.stop()
	})
}

// A peer that restarts takes down three sessions with 300 CONNECTs that wait for
// its answer: all are repeated, on as many sessions as they need.
func TestCallsOfDeadSessionsShareTheNewOnes(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := &backend{t: t, cfg: hbone.DefaultConfig(), delay: 5 * time.Millisecond}
		b.cfg.MaxStreams = 100
		var up atomic.Bool
		b.handler = func(ctx context.Context, in *hbone.Incoming) {
			if !up.Load() {
				<-ctx.Done()
				return
			}
			echoHandler(ctx, in)
		}
		p := New(Config{})
		time.AfterFunc(time.Second, func() {
			if s := p.Stats(); s.Streams != 300 {
				t.Errorf("%+v: want 300 streams that wait", s)
			}
			up.Store(true)
			b.cut()
		})
		open, failed := burst(p, b, 300)
		if n := b.dials.Load(); failed != 0 || n != 6 {
			t.Errorf("%d calls failed, %d dials; want none and 3 + 3", failed, n)
		}
		for _, st := range open {
			endStream(st)
		}
		p.Close()
		b.stop()
		time.Sleep(time.Minute)
	})
}

// REFUSED_STREAM on a session that lives is no reason to give it up.
func TestARefusedStreamGoesElsewhereAndItsSessionStays(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := &backend{t: t, cfg: hbone.DefaultConfig(), delay: time.Millisecond, eager: true}
		b.cfg.MaxStreams = 2
		p := New(Config{})
		open, failed := burst(p, b, 3) // all at once, before the SETTINGS are in
		if s := p.Stats(); failed != 0 || s.Refused != 1 || s.Retired != 0 || s.Sessions != 2 {
			t.Errorf("%d failed, %+v: want 1 refused, 2 sessions, none retired", failed, s)
		}
		for _, st := range open {
			endStream(st)
		}
		p.Close()
		b.stop()
		time.Sleep(time.Minute)
	})
}

func TestADialEndsWithThePoolAndWithTheLastThatWaitsForARetiredKey(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var ended atomic.Int64
		dial := func(ctx context.Context) (*hbone.Session, error) {
			<-ctx.Done()
			ended.Add(1)
			return nil, context.Cause(ctx)
		}
		p := New(Config{DialTimeout: time.Hour})
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		call := func(ctx context.Context, want error) {
			if _, _, err := p.Open(ctx, Key{}, dial, poolReq); !errors.Is(err, want) {
				t.Errorf("got %v, want %v", err, want)
			}
		}
		var wg sync.WaitGroup
		wg.Go(func() { call(ctx, context.DeadlineExceeded) })
		synctest.Wait()
		p.Retire(func(Key) bool { return true })
		synctest.Wait()
		if ended.Load() != 0 {
			t.Error("a dial ended though somebody waits for it")
		}
		wg.Wait()
		synctest.Wait()
		if ended.Load() != 1 || p.Stats().Keys != 0 {
			t.Errorf("%d dials ended, %+v; want the one of the retired key", ended.Load(), p.Stats())
		}
		wg.Go(func() { call(t.Context(), ErrClosed) })
		synctest.Wait()
		p.Close()
		wg.Wait()
		synctest.Wait()
		if ended.Load() != 2 {
			t.Error("a dial outlives the pool")
		}
	})
}

// Connections that come before their peer's limit is known, and of which some end
// at once, are refused and served later; none of that is a failure.
func TestABurstOfShortConnectionsBeforeTheLimitIsKnown(t *testing.T) {
	for calls := 4; calls < 20; calls++ {
		synctest.Test(t, func(t *testing.T) {
			b := &backend{t: t, cfg: hbone.DefaultConfig(), delay: 40 * time.Millisecond, eager: true}
			b.cfg.MaxStreams = 3
			p := New(Config{})
			var wg sync.WaitGroup
			for range calls {
				wg.Go(func() {
					err := p.Use(context.Background(), Key{}, b.dial, func(s *hbone.Session) error {
						st, err := s.Start(poolReq)
						if err != nil {
							return err
						}
						st.CloseWrite()
						if _, err = st.AwaitResponse(context.Background()); err == nil {
							endStream(st)
						}
						return err
					})
					if err != nil {
						t.Errorf("%d calls: %v", calls, err)
					}
				})
			}
			wg.Wait()
			p.Close()
			b.stop()
			time.Sleep(time.Minute)
		})
	}
}
