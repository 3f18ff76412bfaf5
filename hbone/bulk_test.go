package hbone

import (
	"errors"
	"sync"
	"testing"
	"testing/synctest"
	"time"
)

// transfer writes n bytes to st, in pieces of one chunk, each read back.
func transfer(t testing.TB, st *Stream, n int) {
	t.Helper()
	var wg sync.WaitGroup
	wg.Go(func() {
		for buf := make([]byte, 64<<10); n > 0; n -= len(buf) {
			if _, err := st.Write(buf); err != nil {
				t.Error(err)
			}
		}
		st.CloseWrite()
	})
	discard(st)
	wg.Wait()
}

func discard(st *Stream) {
	for buf := make([]byte, 64<<10); ; {
		if _, err := st.Read(buf); err != nil {
			return
		}
	}
}

func TestBulkIsLargePiecesThatFollowEachOther(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		for _, c := range []struct {
			name  string
			piece int
			pause time.Duration
			bulk  bool
		}{
			{"transfer", 64 << 10, time.Millisecond, true},
			{"transfer over a slow line", 16 << 10, 15 * time.Millisecond, true},
			{"large answers now and then", 64 << 10, 200 * time.Millisecond, false},
			{"very many small messages", 4 << 10, time.Microsecond, false},
		} {
			var m bulkMeter
			for range 1000 {
				m.add(c.piece)
				time.Sleep(c.pause)
			}
			if bulk := time.Since(m.seen) < bulkHold; bulk != c.bulk {
				t.Errorf("%s: bulk %v, want %v", c.name, bulk, c.bulk)
			}
			time.Sleep(bulkHold)
			if time.Since(m.seen) < bulkHold {
				t.Errorf("%s: still bulk after %v without any", c.name, bulkHold)
			}
		}
	})
}

func TestPoolPutsNewStreamsBesideBulkOnASessionOfTheirOwn(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := &backend{t: t, cfg: DefaultConfig(), delay: 40 * time.Millisecond}
		p := NewPool(PoolConfig{})
		bulk := poolOpen(t, p, PoolKey{}, b)
		first := bulk.Session()
		if st := poolOpen(t, p, PoolKey{}, b); st.Session() != first {
			t.Error("a second session without bulk on the first")
		} else {
			endStream(st)
		}
		transfer(t, bulk, 16<<20)
		var small []*Stream
		for range 3 {
			small = append(small, poolOpen(t, p, PoolKey{}, b))
		}
		for _, st := range small {
			if st.Session() == first || st.Session() != small[0].Session() {
				t.Error("stream is not on the second session")
			}
		}
		transfer(t, small[0], 16<<20) // now both have bulk
		if st := poolOpen(t, p, PoolKey{}, b); st.Session() != first || b.dials.Load() != calmSessions {
			t.Errorf("with bulk on both: %d sessions, want %d, and the first one used", b.dials.Load(), calmSessions)
		} else {
			endStream(st)
		}
		time.Sleep(2 * bulkHold)
		if st := poolOpen(t, p, PoolKey{}, b); st.Session() != first {
			t.Error("the first session is still avoided long after the transfer")
		} else {
			endStream(st)
		}
		for _, st := range append(small, bulk) {
			st.Close()
		}
		p.Close()
		b.stop()
	})
}

// The session that there is will do when another one cannot be had, or not soon.
func TestPoolGoesOnBesideBulkWhenNoOtherSessionCanBeHad(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := &backend{t: t, cfg: DefaultConfig()}
		p := NewPool(PoolConfig{DialTimeout: time.Minute})
		bulk := poolOpen(t, p, PoolKey{}, b)
		transfer(t, bulk, 16<<20)
		b.fail = errors.New("no route")
		b.delay = time.Millisecond
		for range 3 { // the second and third do not even try
			endStream(poolOpen(t, p, PoolKey{}, b))
		}
		if n := b.dials.Load(); n != 2 {
			t.Errorf("%d dials, want the first and one that failed", n)
		}
		time.Sleep(calmPause)
		bulk = poolOpen(t, p, PoolKey{}, b)
		transfer(t, bulk, 16<<20)
		b.delay = 30 * time.Second
		began := time.Now()
		st := poolOpen(t, p, PoolKey{}, b)
		if waited := time.Since(began); waited != calmWait || st.Session() != bulk.Session() {
			t.Errorf("waited %v for a session without bulk, want %v", waited, calmWait)
		}
		endStream(st)
		p.Close()
		time.Sleep(time.Minute)
		b.stop()
	})
}
