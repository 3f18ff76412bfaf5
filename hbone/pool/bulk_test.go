package pool

import (
	"errors"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/isthmus-mesh/isthmus/hbone"
)

// bulkGone is when a session has long forgotten its last transfer.
const bulkGone = 2 * time.Second

// transfer writes n bytes to st, in pieces of one chunk, each read back.
func transfer(t testing.TB, st *hbone.Stream, n int) {
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

func discard(st *hbone.Stream) {
	for buf := make([]byte, 64<<10); ; {
		if _, err := st.Read(buf); err != nil {
			return
		}
	}
}

func TestPoolPutsNewStreamsBesideBulkOnASessionOfTheirOwn(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := &backend{t: t, cfg: hbone.DefaultConfig(), delay: 40 * time.Millisecond}
		p := New(Config{})
		bulk := poolOpen(t, p, Key{}, b)
		first := bulk.Session()
		if st := poolOpen(t, p, Key{}, b); st.Session() != first {
			t.Error("a second session without bulk on the first")
		} else {
			endStream(st)
		}
		transfer(t, bulk, 16<<20)
		var small []*hbone.Stream
		for range 3 {
			small = append(small, poolOpen(t, p, Key{}, b))
		}
		for _, st := range small {
			if st.Session() == first || st.Session() != small[0].Session() {
				t.Error("stream is not on the second session")
			}
		}
		transfer(t, small[0], 16<<20) // now both have bulk
		if st := poolOpen(t, p, Key{}, b); st.Session() != first || b.dials.Load() != uncongestedSessions {
			t.Errorf("with bulk on both: %d sessions, want %d, and the first one used", b.dials.Load(), uncongestedSessions)
		} else {
			endStream(st)
		}
		time.Sleep(bulkGone)
		if st := poolOpen(t, p, Key{}, b); st.Session() != first {
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
		b := &backend{t: t, cfg: hbone.DefaultConfig()}
		p := New(Config{DialTimeout: time.Minute})
		bulk := poolOpen(t, p, Key{}, b)
		transfer(t, bulk, 16<<20)
		b.fail = errors.New("no route")
		b.delay = time.Millisecond
		for range 3 { // the second and third do not even try
			endStream(poolOpen(t, p, Key{}, b))
		}
		if n := b.dials.Load(); n != 2 {
			t.Errorf("%d dials, want the first and one that failed", n)
		}
		time.Sleep(uncongestedPause)
		bulk = poolOpen(t, p, Key{}, b)
		transfer(t, bulk, 16<<20)
		b.delay = 30 * time.Second
		began := time.Now()
		st := poolOpen(t, p, Key{}, b)
		if waited := time.Since(began); waited != uncongestedWait || st.Session() != bulk.Session() {
			t.Errorf("waited %v for a session without bulk, want %v", waited, uncongestedWait)
		}
		endStream(st)
		p.Close()
		time.Sleep(time.Minute)
		b.stop()
	})
}
