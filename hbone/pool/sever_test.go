package pool

import (
	"errors"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/isthmus-mesh/isthmus/hbone"
)

// One session is in use and one was taken out before: both take no stream and end after
// their time, unless what ended them is over by then.
func TestSeverEndsSessionsAfterDrain(t *testing.T) {
	for _, again := range []bool{false, true} {
		synctest.Test(t, func(t *testing.T) {
			b := &backend{t: t}
			defer b.stop()
			p := New(Config{})
			defer p.Close()
			gone, other := Key{Address: "gone"}, Key{Address: "other"}
			retired := poolOpen(t, p, gone, b)
			p.RetireKey(gone)
			used, kept := poolOpen(t, p, gone, b), poolOpen(t, p, other, b)
			cause := errors.New("unlinked")
			var linked atomic.Bool
			match := func(k Key, _ *hbone.Session) bool { return k == gone && !linked.Load() }
			if n := p.Sever(match, 10*time.Second, cause); n != 2 {
				t.Errorf("%d sessions begin to end, want 2", n)
			}
			if n := p.Sever(match, time.Hour, cause); n != 0 {
				t.Errorf("%d of them begin to end again", n)
			}
			fresh := poolOpen(t, p, gone, b)
			if fresh.Session() == used.Session() {
				t.Error("a severed session has taken a stream")
			}
			time.Sleep(9 * time.Second)
			for _, st := range []*hbone.Stream{retired, used} {
				if _, err := st.Write([]byte("x")); err != nil {
					t.Errorf("before the drain is over: %v", err)
				}
			}
			linked.Store(again)
			time.Sleep(2 * time.Second)
			for _, st := range []*hbone.Stream{retired, used} {
				if err := st.Session().Err(); again != (err == nil) || !again && !errors.Is(err, cause) {
					t.Errorf("linked again %t: the session has ended by %v", again, err)
				}
			}
			for _, st := range []*hbone.Stream{kept, fresh} {
				if _, err := st.Write([]byte("x")); err != nil {
					t.Errorf("another session: %v", err)
				}
			}
			for _, st := range []*hbone.Stream{retired, used, kept, fresh} {
				st.Close()
			}
		})
	}
}
