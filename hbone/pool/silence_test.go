package pool

import (
	"context"
	"errors"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/isthmus-mesh/isthmus/hbone"
)

// forgotten is a backend whose first connection a firewall has forgotten: what
// either side sends on it vanishes, and nobody is told.
func forgotten(t *testing.T, p *Pool) (b *backend, old *hbone.Stream) {
	b = &backend{t: t, cfg: hbone.DefaultConfig(), delay: 10 * time.Millisecond}
	old = poolOpen(t, p, Key{}, b)
	time.Sleep(time.Minute)
	b.blackhole()
	return b, old
}

func TestANewConnectionOvertakesAForgottenOne(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var silent []Key
		p := New(Config{Silent: func(k Key, _ *hbone.Session) { silent = append(silent, k) }})
		b, old := forgotten(t, p)
		began := time.Now()
		st := poolOpen(t, p, Key{}, b)
		if len(silent) != 1 || silent[0] != (Key{}) {
			t.Errorf("silent sessions are reported of %v, want one of the only key", silent)
		}
		// PING at once, silent after 300 ms, then a dial and an answer.
		if took := time.Since(began); took > 400*time.Millisecond || st.Session() == old.Session() {
			t.Errorf("the first new connection took %v, want 300ms and two round trips", took)
		}
		if s := p.Stats(); s.Hedges != 1 || s.HedgesWon != 1 || s.Dials != 2 || s.DialErrors != 0 {
			t.Errorf("%+v: want one hedge, won", s)
		}
		if old.Session().Err() != nil {
			t.Error("the stream that was open was killed")
		}
		if _, err := old.Read(make([]byte, 1)); !errors.Is(err, hbone.ErrPingTimeout) {
			t.Errorf("the stream that was open ended with %v, want the PING's timeout", err)
		}
		if took := time.Since(began); took < 20*time.Second {
			t.Errorf("it ended after %v, want the liveness bound of 20s", took)
		}
		endStream(st)
		p.Close()
		b.stop()
		time.Sleep(time.Minute)
	})
}

// Whoever comes while a session is silent does not wait on it, and a peer that is
// only slow keeps it.
func TestASlowPeerKeepsItsSession(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := New(Config{})
		b, old := forgotten(t, p)
		b.delay = 10 * time.Second // a new connection is no faster
		time.AfterFunc(2*time.Second, b.resume)
		for range 50 {
			go func() { endStream(poolOpen(t, p, Key{}, b)) }()
			time.Sleep(100 * time.Millisecond)
		}
		if s := p.Stats(); s.Dials != 2 || s.Hedges != 1 || s.HedgesWon != 0 || s.Waiting != 0 || s.Retired != 0 {
			t.Errorf("%+v: want one hedge, which lost, and the session kept", s)
		}
		st := poolOpen(t, p, Key{}, b)
		if st.Session() != old.Session() {
			t.Error("not on the session that has answered again")
		}
		endStream(st)
		endStream(old)
		time.Sleep(time.Minute)
		p.Close()
		b.stop()
		time.Sleep(time.Minute)
	})
}

// If the fresh connect fails too, who waits for it hears why; one such dial is in
// flight at a time.
func TestASilentPeerThatCannotBeDialledFailsNewCalls(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := New(Config{})
		b, old := forgotten(t, p)
		b.delay, b.fail = time.Second, errors.New("no route")
		var failed atomic.Int64
		for range 100 {
			go func() {
				ctx, cancel := context.WithTimeout(t.Context(), 5*time.Second)
				defer cancel()
				if _, _, err := p.Open(ctx, Key{}, b.dial, poolReq); errors.Is(err, b.fail) {
					failed.Add(1)
				} else if err == nil {
					t.Error("opened")
				}
			}()
			time.Sleep(50 * time.Millisecond)
		}
		if s := p.Stats(); s.Dialing > 1 || s.Dials > 7 {
			t.Errorf("%+v: want one dial at a time, of 1s each", s)
		}
		time.Sleep(time.Minute)
		if n := failed.Load(); n < 90 {
			t.Errorf("%d of 100 calls heard of the failed dial", n)
		}
		old.Close()
		p.Close()
		b.stop()
		time.Sleep(time.Minute)
	})
}
