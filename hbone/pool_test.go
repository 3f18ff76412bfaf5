package hbone

import (
	"context"
	"errors"
	"io"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/isthmus-mesh/isthmus/internal/simnet"
)

// backend serves sessions in memory and counts the dials.
type backend struct {
	t       testing.TB
	cfg     Config
	delay   time.Duration
	handler Handler
	dials   atomic.Int64
	fail    error

	mu      sync.Mutex
	servers []*Session
}

func (b *backend) dial(ctx context.Context) (*Session, error) {
	b.dials.Add(1)
	if b.fail != nil {
		time.Sleep(b.delay)
		return nil, b.fail
	}
	x, y := simnet.Pair(simnet.Options{Delay: b.delay})
	h := b.handler
	if h == nil {
		h = echoHandler
	}
	s := NewServer(plainTransport{y}, b.cfg, h)
	b.mu.Lock()
	b.servers = append(b.servers, s)
	b.mu.Unlock()
	go s.Serve(context.Background())
	return NewClient(ctx, plainTransport{x}, DefaultConfig())
}

func (b *backend) stop() {
	b.mu.Lock()
	defer b.mu.Unlock()
	for _, s := range b.servers {
		s.Close(nil)
	}
}

var poolReq = &Request{Authority: "a:1"}

func poolOpen(t testing.TB, p *Pool, key PoolKey, b *backend) *Stream {
	t.Helper()
	st, _, err := p.Open(context.Background(), key, b.dial, poolReq)
	check(t, err)
	return st
}

func endStream(st *Stream) {
	st.CloseWrite()
	io.Copy(io.Discard, st)
	st.Close()
}

func TestPoolSharesOneDialPerKey(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := &backend{t: t, cfg: DefaultConfig(), delay: 20 * time.Millisecond}
		p := NewPool(PoolConfig{})
		var wg sync.WaitGroup
		for i := range 50 {
			key := PoolKey{Source: "a", Address: "127.0.0.1:1"}
			if i%2 == 1 {
				key.UID = "another pod at the same address"
			}
			wg.Go(func() { endStream(poolOpen(t, p, key, b)) })
		}
		wg.Wait()
		if n := b.dials.Load(); n != 2 {
			t.Errorf("%d dials, want one per key", n)
		}
		p.Close()
		if _, _, err := p.Open(t.Context(), PoolKey{}, b.dial, poolReq); !errors.Is(err, ErrPoolClosed) {
			t.Errorf("open on a closed pool: %v", err)
		}
		b.stop()
	})
}

func TestPoolOpensAnotherSessionWhenFullAndReusesBoth(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := &backend{t: t, cfg: DefaultConfig()}
		b.cfg.MaxStreams = 5
		p := NewPool(PoolConfig{MaxStreams: 3})
		var open []*Stream
		for range 7 {
			open = append(open, poolOpen(t, p, PoolKey{}, b))
		}
		if n := b.dials.Load(); n != 3 {
			t.Errorf("%d dials for 7 streams of 3 per session, want 3", n)
		}
		for _, st := range open {
			endStream(st)
		}
		synctest.Wait()
		for range 7 {
			poolOpen(t, p, PoolKey{}, b)
		}
		if n := b.dials.Load(); n != 3 {
			t.Errorf("%d dials after the streams ended, want the same 3", n)
		}
		p.Close()
		b.stop()
	})
}

func TestPoolRetriesOnceOnAFreshSession(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := &backend{t: t, cfg: DefaultConfig(), delay: 10 * time.Millisecond}
		p := NewPool(PoolConfig{})
		endStream(poolOpen(t, p, PoolKey{}, b))
		b.mu.Lock()
		go b.servers[0].Close(nil) // its GOAWAY is still on the way when we open
		b.mu.Unlock()
		synctest.Wait()
		endStream(poolOpen(t, p, PoolKey{}, b))
		if s := p.Stats(); s.Dials != 2 || s.Retried != 1 {
			t.Errorf("stats %+v, want 2 dials and 1 retry", s)
		}
		p.Close()
		b.stop()
	})
}

func TestPoolFailsEverybodyWhoWaitsForAFailedDial(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := &backend{t: t, delay: time.Second, fail: errors.New("no route")}
		p := NewPool(PoolConfig{})
		defer p.Close()
		var wg sync.WaitGroup
		for range 10 {
			wg.Go(func() {
				if _, _, err := p.Open(context.Background(), PoolKey{}, b.dial, poolReq); !errors.Is(err, b.fail) {
					t.Errorf("got %v", err)
				}
			})
		}
		wg.Wait()
		if n := b.dials.Load(); n != 1 || p.Stats().Keys != 0 {
			t.Errorf("%d dials, %d keys left; want 1 and 0", n, p.Stats().Keys)
		}
	})
}

func TestPoolRetiresIdleExpiredAndUnwantedSessions(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := &backend{t: t, cfg: DefaultConfig()}
		expires := time.Now().Add(time.Hour)
		p := NewPool(PoolConfig{ExpiresAt: func(PoolKey, *Session) time.Time { return expires }})
		endStream(poolOpen(t, p, PoolKey{}, b))
		time.Sleep(6 * time.Minute)
		if s := p.Stats(); s.Sessions != 0 || s.Keys != 0 {
			t.Errorf("after 6 idle minutes: %+v, want nothing", s)
		}
		long := poolOpen(t, p, PoolKey{}, b)
		time.Sleep(time.Hour)
		short := poolOpen(t, p, PoolKey{}, b)
		if n := b.dials.Load(); n != 3 {
			t.Errorf("%d dials, want a new one because the certificate has expired", n)
		}
		long.Write([]byte("x"))
		if _, err := io.ReadFull(long, make([]byte, 1)); err != nil {
			t.Errorf("stream on the retired session: %v", err)
		}
		p.Retire(func(k PoolKey) bool { return k == PoolKey{} })
		s := short.Session()
		endStream(short)
		<-s.Done()
		endStream(long)
		p.Close()
		b.stop()
	})
}

func TestPoolCallerLeavesTheDialToOthers(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := &backend{t: t, cfg: DefaultConfig(), delay: time.Second}
		p := NewPool(PoolConfig{})
		ctx, cancel := context.WithTimeout(t.Context(), 100*time.Millisecond)
		defer cancel()
		if _, _, err := p.Open(ctx, PoolKey{}, b.dial, poolReq); !errors.Is(err, context.DeadlineExceeded) {
			t.Errorf("impatient caller: %v", err)
		}
		endStream(poolOpen(t, p, PoolKey{}, b))
		if n := b.dials.Load(); n != 1 {
			t.Errorf("%d dials, want 1", n)
		}
		p.Close()
		b.stop()
	})
}
