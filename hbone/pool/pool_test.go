package pool

import (
	"context"
	"errors"
	"io"
	"net"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/isthmus-mesh/isthmus/hbone"
	"github.com/isthmus-mesh/isthmus/internal/simnet"
)

// backend serves sessions in memory and counts the dials.
type backend struct {
	t       testing.TB
	cfg     hbone.Config
	delay   time.Duration
	buffer  int
	handler hbone.Handler
	dials   atomic.Int64
	fail    error

	eager bool // dials do not wait for the peer's SETTINGS

	mu      sync.Mutex
	servers []*hbone.Session
	conns   []*simnet.Conn // both ends of each connection
}

func (b *backend) dial(ctx context.Context) (*hbone.Session, error) {
	b.dials.Add(1)
	if b.fail != nil {
		time.Sleep(b.delay)
		return nil, b.fail
	}
	x, y := simnet.Pair(simnet.Options{Delay: b.delay, Buffer: b.buffer})
	h := b.handler
	if h == nil {
		h = echoHandler
	}
	s := hbone.NewServer(pipeTransport{y}, b.cfg, h)
	b.mu.Lock()
	b.servers = append(b.servers, s)
	b.conns = append(b.conns, x, y)
	b.mu.Unlock()
	go s.Serve(context.Background())
	if b.eager {
		return hbone.StartClient(pipeTransport{x}, hbone.DefaultConfig())
	}
	return hbone.NewClient(ctx, pipeTransport{x}, hbone.DefaultConfig())
}

func (b *backend) stop() {
	b.mu.Lock()
	defer b.mu.Unlock()
	for _, s := range b.servers {
		s.Close(nil)
	}
}

// each calls f for both ends of each connection that there is.
func (b *backend) each(f func(*simnet.Conn)) {
	b.mu.Lock()
	defer b.mu.Unlock()
	for _, c := range b.conns {
		f(c)
	}
}

func (b *backend) cut()       { b.each((*simnet.Conn).Cut) }
func (b *backend) blackhole() { b.each((*simnet.Conn).Stall) }
func (b *backend) resume()    { b.each((*simnet.Conn).Resume) }

var poolReq = &hbone.Request{Authority: "a:1"}

func poolOpen(t testing.TB, p *Pool, key Key, b *backend) *hbone.Stream {
	t.Helper()
	st, _, err := p.Open(context.Background(), key, b.dial, poolReq)
	check(t, err)
	return st
}

func endStream(st *hbone.Stream) {
	st.CloseWrite()
	io.Copy(io.Discard, st)
	st.Close()
}

// pipeTransport is the least transport: no TLS, one write per burst.
type pipeTransport struct{ net.Conn }

func (p pipeTransport) WriteBurst(b []byte) error { _, err := p.Write(b); return err }
func (pipeTransport) Peer() hbone.Peer            { return hbone.Peer{} }

func echoHandler(_ context.Context, in *hbone.Incoming) {
	st, err := in.Accept(nil)
	if err != nil {
		return
	}
	io.Copy(struct{ io.Writer }{st}, struct{ io.Reader }{st})
	st.CloseWrite()
	st.Close()
}

func check(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

func TestPoolSharesOneDialPerKey(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := &backend{t: t, cfg: hbone.DefaultConfig(), delay: 20 * time.Millisecond}
		p := New(Config{})
		var wg sync.WaitGroup
		for i := range 50 {
			key := Key{Source: "a", Address: "127.0.0.1:1"}
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
		if _, _, err := p.Open(t.Context(), Key{}, b.dial, poolReq); !errors.Is(err, ErrClosed) {
			t.Errorf("open on a closed pool: %v", err)
		}
		b.stop()
	})
}

func TestPoolOpensAnotherSessionWhenFullAndReusesBoth(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := &backend{t: t, cfg: hbone.DefaultConfig()}
		b.cfg.MaxStreams = 5
		p := New(Config{MaxStreams: 3})
		var open []*hbone.Stream
		for range 7 {
			open = append(open, poolOpen(t, p, Key{}, b))
		}
		if n := b.dials.Load(); n != 3 {
			t.Errorf("%d dials for 7 streams of 3 per session, want 3", n)
		}
		for _, st := range open {
			endStream(st)
		}
		synctest.Wait()
		for range 7 {
			poolOpen(t, p, Key{}, b)
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
		b := &backend{t: t, cfg: hbone.DefaultConfig(), delay: 10 * time.Millisecond}
		p := New(Config{})
		endStream(poolOpen(t, p, Key{}, b))
		b.mu.Lock()
		go b.servers[0].Close(nil) // its GOAWAY is still on the way when we open
		b.mu.Unlock()
		synctest.Wait()
		endStream(poolOpen(t, p, Key{}, b))
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
		p := New(Config{})
		defer p.Close()
		var wg sync.WaitGroup
		for range 10 {
			wg.Go(func() {
				if _, _, err := p.Open(context.Background(), Key{}, b.dial, poolReq); !errors.Is(err, b.fail) {
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
		b := &backend{t: t, cfg: hbone.DefaultConfig()}
		expires := time.Now().Add(time.Hour)
		p := New(Config{ExpiresAt: func(Key, *hbone.Session) time.Time { return expires }})
		endStream(poolOpen(t, p, Key{}, b))
		time.Sleep(6 * time.Minute)
		if s := p.Stats(); s.Sessions != 0 || s.Keys != 0 {
			t.Errorf("after 6 idle minutes: %+v, want nothing", s)
		}
		long := poolOpen(t, p, Key{}, b)
		time.Sleep(time.Hour)
		short := poolOpen(t, p, Key{}, b)
		if n := b.dials.Load(); n != 3 {
			t.Errorf("%d dials, want a new one because the certificate has expired", n)
		}
		long.Write([]byte("x"))
		if _, err := io.ReadFull(long, make([]byte, 1)); err != nil {
			t.Errorf("stream on the retired session: %v", err)
		}
		p.Retire(func(k Key) bool { return k == Key{} })
		s := short.Session()
		endStream(short)
		<-s.Done()
		endStream(long)
		p.Close()
		b.stop()
	})
}

func TestPoolRetiresOneKeyAlone(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := &backend{t: t, cfg: hbone.DefaultConfig()}
		p := New(Config{})
		one, other := Key{UID: "one"}, Key{UID: "other"}
		st := poolOpen(t, p, one, b)
		endStream(poolOpen(t, p, other, b))
		if !p.Serves(one) || !p.Serves(other) || p.Serves(Key{UID: "none"}) {
			t.Error("keys with a session do not serve, or one without does")
		}
		p.RetireKey(one)
		p.RetireKey(Key{UID: "none"})
		if p.Serves(one) || !p.Serves(other) {
			t.Error("the retired key serves, or the other does not")
		}
		st.Write([]byte("x"))
		if _, err := io.ReadFull(st, make([]byte, 1)); err != nil {
			t.Errorf("stream on the retired session: %v", err)
		}
		s := st.Session()
		endStream(st)
		<-s.Done()
		b.cut()
		synctest.Wait()
		if p.Serves(other) {
			t.Error("a key whose session has died serves")
		}
		p.Close()
		b.stop()
	})
}

func TestPoolCallerLeavesTheDialToOthers(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := &backend{t: t, cfg: hbone.DefaultConfig(), delay: time.Second}
		p := New(Config{})
		ctx, cancel := context.WithTimeout(t.Context(), 100*time.Millisecond)
		defer cancel()
		if _, _, err := p.Open(ctx, Key{}, b.dial, poolReq); !errors.Is(err, context.DeadlineExceeded) {
			t.Errorf("impatient caller: %v", err)
		}
		endStream(poolOpen(t, p, Key{}, b))
		if n := b.dials.Load(); n != 1 {
			t.Errorf("%d dials, want 1", n)
		}
		p.Close()
		b.stop()
	})
}

// A process that exits waits until what was written last has arrived, and no longer
// than it wants to.
func TestWaitReturnsWhenAllIsWritten(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const size = 800 << 10 // at 4 KiB per 20 ms: 4 s
		got := make(chan int64, 1)
		b := &backend{t: t, delay: 20 * time.Millisecond, buffer: 4 << 10, handler: func(_ context.Context, in *hbone.Incoming) {
			st, err := in.Accept(nil)
			if err != nil {
				return
			}
			st.CloseWrite()
			n, _ := io.Copy(io.Discard, st)
			st.Close()
			got <- n
		}}
		defer b.stop()
		p := New(Config{})
		p.Wait(t.Context()) // nothing to wait for
		st, _, err := p.Open(t.Context(), Key{}, b.dial, &hbone.Request{Authority: "app:80"})
		if err != nil {
			t.Fatal(err)
		}
		st.Write(make([]byte, size))
		st.CloseWrite()
		io.Copy(io.Discard, st)
		p.Close()
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		started := time.Now()
		if p.Wait(ctx); time.Since(started) != time.Second {
			t.Errorf("Wait returned after %v, want 1s: its context's end", time.Since(started))
		}
		p.Wait(t.Context())
		if st := p.Stats(); st.Retired != 1 || len(p.leaving) != 0 {
			t.Errorf("%d of %d sessions have not closed", len(p.leaving), st.Retired)
		}
		if n := <-got; n != size {
			t.Errorf("%d of %d bytes arrived", n, size)
		}
		p.Wait(t.Context())
	})
}
