package hbone

import (
	"io"
	"sync"
	"testing"
	"testing/synctest"

	"github.com/isthmus-mesh/isthmus/internal/simnet"
)

// Many writers on a transport that is often full: everybody gets space in the
// queue in the end. (A writer whose turn came when the transport was free used
// to keep the turn from the next one: five of sixteen hung.)
func TestManyBulkWritersAllFinish(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		for _, buffer := range []int{10_000, 100_000, 1 << 20} {
			r := newRig(t, rigConfig{handler: discardHandler, pair: simPair(simnet.Options{Buffer: buffer})})
			var wg sync.WaitGroup
			for range 24 {
				st := open(t, r.client)
				wg.Go(func() {
					for i := range 40 {
						if _, err := st.Write(make([]byte, 1+i*2000)); err != nil {
							t.Error(err)
							return
						}
					}
					st.CloseWrite()
					if n, err := io.Copy(io.Discard, st); n != 0 || err != nil {
						t.Errorf("end: %d, %v", n, err)
					}
					st.Close()
				})
			}
			wg.Wait()
			if r.client.w.reserved != 0 || len(r.client.w.room)+len(r.client.w.credit) != 0 {
				t.Errorf("writer is left with %d reserved, %d waiting", r.client.w.reserved, len(r.client.w.room)+len(r.client.w.credit))
			}
			r.close()
		}
	})
}
