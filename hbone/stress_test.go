package hbone

import (
	"io"
	"sync"
	"testing"
	"testing/synctest"

	"github.com/isthmus-mesh/isthmus/internal/simnet"
	"golang.org/x/net/http2"
)

// Many writers on a transport that is often full: everybody gets space in the
// queue in the end, and nothing stays reserved.
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
			if r.client.send.reserved != 0 || len(r.client.send.room)+len(r.client.send.credit) != 0 {
				t.Errorf("writer is left with %d reserved, %d waiting", r.client.send.reserved, len(r.client.send.room)+len(r.client.send.credit))
			}
			r.close()
		}
	})
}

// A writer whose turn came when the transport was free writes by itself; the next
// one in line must then get its turn. (It did not: under load all turns went that
// way, and five of sixteen bulk connections stood still.)
func TestAWriterThatFindsTheTransportFreePassesItsTurnOn(t *testing.T) {
	p, s := rawServer(t, DefaultConfig())
	first, id := p.openRaw(s)
	second, _ := p.openRaw(s)
	s.mu.Lock()
	w := &s.send
	w.reserved = 3 * maxPayload // three others had their turn before
	w.wait(&first.send, waitsRoom)
	w.wait(&second.send, waitsRoom)
	w.admit()
	w.reserved -= 3 * maxPayload
	if !first.send.turn || second.send.turn {
		t.Errorf("turns: first %v, second %v; want only the first", first.send.turn, second.send.turn)
	}
	s.mu.Unlock()
	if _, err := first.Write([]byte("x")); err != nil {
		t.Fatal(err)
	}
	p.kind(http2.FrameData, id)
	s.mu.Lock()
	defer s.mu.Unlock()
	if !second.send.turn {
		t.Error("the second writer did not get its turn")
	}
}

// A writer that goes on because the transport is free, before its turn has come,
// must not be given one afterwards: nobody would give it back. (It was: four such
// streams, and every writer of the session waited for ever.)
func TestAWriterThatGoesOnBeforeItsTurnLeavesTheList(t *testing.T) {
	p, s := rawServer(t, DefaultConfig())
	st, id := p.openRaw(s)
	s.mu.Lock()
	s.send.wait(&st.send, waitsRoom)
	s.mu.Unlock()
	if _, err := st.Write([]byte("x")); err != nil {
		t.Fatal(err)
	}
	p.kind(http2.FrameData, id)
	s.mu.Lock()
	defer s.mu.Unlock()
	s.send.admit()
	if st.send.turn || s.send.reserved != 0 || len(s.send.room) != 0 {
		t.Errorf("turn %v, %d bytes reserved, %d waiting, after the write has returned", st.send.turn, s.send.reserved, len(s.send.room))
	}
}
