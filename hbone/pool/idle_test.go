package pool

import (
	"context"
	"testing"
	"testing/synctest"
	"time"

	"github.com/isthmus-mesh/isthmus/hbone"
)

// A session that was dialed for a call serves that call, however short the time for which
// sessions without streams are kept: a dial takes round trips, during which it has none.
// One whose call has left meanwhile ends like any other.
func TestAShortIdleTimeoutLeavesCallsServed(t *testing.T) {
	const roundTrip = 80 * time.Millisecond
	for _, idle := range []time.Duration{time.Second, roundTrip, roundTrip / 2, time.Millisecond, 1} {
		t.Run(idle.String(), func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				b := &backend{t: t, cfg: hbone.DefaultConfig(), delay: roundTrip / 2}
				defer b.stop()
				p := New(Config{IdleTimeout: idle})
				defer p.Close()
				for n := range int32(3) {
					ctx, cancel := context.WithTimeout(t.Context(), 15*time.Second)
					st, _, err := p.Open(ctx, Key{}, b.dial, poolReq)
					cancel()
					if err != nil || int32(b.dials.Load()) > n+1 {
						t.Fatalf("call %d: %v after %d dials, all answered", n+1, err, b.dials.Load())
					}
					endStream(st)
				}
				time.Sleep(2 * idle)
				ctx, cancel := context.WithTimeout(t.Context(), roundTrip/4)
				p.Open(ctx, Key{}, b.dial, poolReq) // leaves before its session is there
				cancel()
				time.Sleep(time.Minute)
				synctest.Wait()
				if s := p.Stats(); s.Sessions != 0 {
					t.Errorf("%+v; want no session left", s)
				}
			})
		})
	}
}
