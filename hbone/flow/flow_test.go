package flow

import (
	"math/rand/v2"
	"reflect"
	"strings"
	"testing"
	"time"
)

var start = time.Date(2026, 11, 1, 0, 0, 0, 0, time.UTC)

func TestBulkIsLargePiecesThatFollowEachOther(t *testing.T) {
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
		var b Bulk
		now := start
		for range 1000 {
			if b.Add(c.piece) {
				b.Step(now)
			}
			now = now.Add(c.pause)
		}
		if bulk := b.Congested(now); bulk != c.bulk {
			t.Errorf("%s: bulk %v, want %v", c.name, bulk, c.bulk)
		}
		if b.Congested(now.Add(bulkHold)) {
			t.Errorf("%s: still bulk after %v without any", c.name, bulkHold)
		}
	}
}

func TestOnlySmallFramesInARowAreInteractive(t *testing.T) {
	var c SmallFrames
	for i := range 3 * interactiveFrames {
		if got, want := c.Add(100), i+1 >= interactiveFrames; got != want {
			t.Errorf("after %d small frames: %v, want %v", i+1, got, want)
		}
	}
	c.Add(BulkPiece)
	if c.Add(BulkPiece - 1) {
		t.Error("one small frame behind a large one is the end of a transfer")
	}
	for _, w := range []struct {
		after time.Duration
		want  bool
	}{{0, true}, {InteractiveHold, true}, {InteractiveHold + 1, false}} {
		if got := Interactive(start.Add(w.after), start); got != w.want {
			t.Errorf("%v after the last small message: %v, want %v", w.after, got, w.want)
		}
	}
}

// Whatever is sent and read: the window adds up, never exceeds what it may, and no
// credit is a crumb.
func TestWindowAddsUp(t *testing.T) {
	for seed := range uint64(200) {
		rng := rand.New(rand.NewPCG(seed, 3))
		var w Window
		most := 64<<10 + rng.IntN(4<<20)
		w.Init(1 + rng.IntN(most))
		now, queued, told := start, 0, w.Avail
		for range 1000 {
			now = now.Add(time.Duration(rng.IntN(5)) * time.Millisecond)
			if n := rng.IntN(told + 1); n > 0 && rng.IntN(2) == 0 {
				w.Avail, queued, told = w.Avail-n, queued+n, told-n
			}
			n := rng.IntN(queued + 1)
			queued -= n
			if w.Consumed(n) {
				p := Path{RTT: time.Duration(rng.IntN(3)) * 10 * time.Millisecond, Interactive: rng.IntN(2) == 0}
				due := w.Credit(now, p, most)
				if due < 0 || due > 0 && due < w.Size/4 {
					t.Fatalf("seed %d: credit of %d bytes for a window of %d", seed, due, w.Size)
				}
				told += due
			}
			if told != w.Avail || w.Avail+w.Unacked+queued != w.Size || w.Size > most {
				t.Fatalf("seed %d: %+v, %d queued, the peer knows of %d, at most %d", seed, w, queued, told, most)
			}
		}
	}
}

func TestWindowBesideSmallMessagesHoldsWhatThePathNeeds(t *testing.T) {
	const most = 4 << 20
	size := func(rtt time.Duration, perSecond int, p bool) int {
		var w Window
		w.Init(1 << 20)
		for now := start; now.Before(start.Add(5 * time.Second)); now = now.Add(time.Millisecond) {
			n := min(perSecond/1000, w.Avail)
			w.Avail -= n
			if w.Consumed(n) {
				w.Credit(now, Path{RTT: rtt, Interactive: p}, most)
			}
		}
		return w.Size
	}
	if n := size(time.Millisecond, 100<<20, false); n != most {
		t.Errorf("a lone transfer has a window of %d, want all of %d", n, most)
	}
	if n := size(time.Millisecond, 50<<20, true); n != SharedWindow {
		t.Errorf("beside small messages on a short path: %d, want %d", n, SharedWindow)
	}
	if n, want := size(40*time.Millisecond, 20<<20, true), pathFactor*20<<20/25; n < want*3/4 || n > want*5/4 {
		t.Errorf("beside small messages on a long path: %d, want about %d: two round trips", n, want)
	}
}

func TestDecisions(t *testing.T) {
	if FirstWindow(LongPath, 1, 4) != 4 || FirstWindow(LongPath-1, 1, 4) != 1 || FirstWindow(0, 1, 4) != 1 {
		t.Error("only a long path has the whole window at once")
	}
	if QueueLimit(400, true) != 100 || QueueLimit(400, false) != 400 {
		t.Error("a quarter of the queue beside small messages, all of it otherwise")
	}
	for _, c := range []struct {
		few, interactive bool
		want             int
	}{{false, false, InlineMax}, {false, true, InlineMax}, {true, true, InlineMax}, {true, false, InlineBulk}} {
		if got := Inline(c.few, c.interactive); got != c.want {
			t.Errorf("few processors %v, small messages %v: %d bytes inline, want %d", c.few, c.interactive, got, c.want)
		}
	}
	rtt := RTT(0, 80)
	if rtt != 80 || RTT(rtt, 40) != 40 || RTT(rtt, 160) != 90 || RTT(0, 0) != 1 {
		t.Error("the shortest round trip counts, longer ones by an eighth, none is zero")
	}
}

func TestEverySwitchIsRead(t *testing.T) {
	var all Disable
	for _, s := range switches {
		d, err := ParseDisable(" " + s.name + ",")
		if err != nil || !*s.of(&d) {
			t.Errorf("%s: %+v, %v", s.name, d, err)
		}
		*s.of(&d) = false
		if d != (Disable{}) {
			t.Errorf("%s disables more: %+v", s.name, d)
		}
		*s.of(&all) = true
	}
	if v := reflect.ValueOf(all); v.NumField() != len(switches) {
		t.Errorf("%d heuristics, %d switches", v.NumField(), len(switches))
	}
	if _, err := ParseDisable("bulk,calm"); err == nil || !strings.Contains(err.Error(), `"calm"`) {
		t.Errorf("an unknown name gives %v", err)
	}
}
