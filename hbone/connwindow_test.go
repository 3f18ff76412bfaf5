package hbone

import (
	"math/rand/v2"
	"testing"
)

// A peer that sends whatever it may, to applications that read little or nothing,
// gets exactly as far as MaxUnread says.
func TestAGreedyPeerReachesMaxUnreadAndNoMore(t *testing.T) {
	cfg := DefaultConfig()
	for name, reads := range map[string]int{"nobody reads": 0, "now and then somebody reads": 8} {
		rng := rand.New(rand.NewPCG(1, 2))
		var w connWindow
		w.init(cfg.ConnWindow)
		most := 0
		for range 20_000 {
			if n := min(w.avail, 1+rng.IntN(cfg.MaxFrame)); n > 0 {
				if low, ok := w.receive(n); !ok {
					t.Fatalf("%s: the peer kept to its window and was refused", name)
				} else if low {
					w.lend()
				}
			}
			most = max(most, w.holds())
			if reads > 0 && rng.IntN(reads) == 0 {
				w.release(rng.IntN(min(w.held, cfg.MaxFrame) + 1))
			}
			if err := w.check(); err != nil {
				t.Fatal(err)
			}
		}
		if int64(most) != cfg.MaxUnread() && reads == 0 || int64(most) > cfg.MaxUnread() {
			t.Errorf("%s: %d bytes were held, MaxUnread is %d", name, most, cfg.MaxUnread())
		}
	}
}

// What is given back while nothing is left to the peer is told soon: those that read could
// otherwise wait for bytes that the peer may not send, of a window that nobody holds.
func TestAPeerWithNoWindowLeftIsToldOfLittle(t *testing.T) {
	cfg := DefaultConfig()
	var w connWindow
	w.init(cfg.ConnWindow)
	for n := 1; n > 0; n = min(w.avail, cfg.MaxFrame) {
		if low, _ := w.receive(n); low {
			w.lend()
		}
	}
	if crowded, empty := w.lack(); !crowded || empty.IsZero() {
		t.Errorf("crowded %v, empty since %v, with %d of %d held", crowded, empty, w.held, cfg.MaxUnread())
	}
	told := 0
	for range 16 {
		told += w.release(w.size / 64)
		if err := w.check(); err != nil {
			t.Fatal(err)
		}
	}
	if told < w.size/16 {
		t.Errorf("of %d bytes that were given back %d are told", w.size/4, told)
	}
	if _, empty := w.lack(); !empty.IsZero() {
		t.Errorf("empty since %v, with %d left", empty, w.avail)
	}
}
