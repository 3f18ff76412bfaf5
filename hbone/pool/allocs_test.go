package pool

import (
	"testing"
	"time"

	"github.com/isthmus-mesh/isthmus/hbone"
)

// A choice of a pooled session allocates nothing, with and without bulk.
func TestChoiceOfASessionDoesNotAllocate(t *testing.T) {
	b := &backend{t: t, cfg: hbone.DefaultConfig()}
	p := New(Config{})
	st := poolOpen(t, p, Key{}, b)
	e := p.keys[Key{}]
	for _, bulk := range []bool{false, true} {
		if bulk {
			transfer(t, st, 4<<20)
		}
		if n := testing.AllocsPerRun(100, func() {
			p.mu.Lock()
			p.choose(e, 0, time.Now())
			p.mu.Unlock()
		}); n != 0 {
			t.Errorf("bulk %v: %v objects per choice, want none", bulk, n)
		}
	}
	st.Close()
	p.Close()
	b.stop()
}
