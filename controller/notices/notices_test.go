package notices

import (
	"fmt"
	"math/rand/v2"
	"strings"
	"testing"
	"time"
)

var start = time.Unix(1_800_000_000, 0)

func web(i int) Object { return Object{Service, "demo", fmt.Sprint("web-", i)} }

// TestWhatStandsIsSaidAndNothingElse runs random schedules and compares what is said with
// what stands: each at once, as far as the rate lets it, and again before an hour is over.
func TestWhatStandsIsSaidAndNothingElse(t *testing.T) {
	for seed := range uint64(200) {
		rng := rand.New(rand.NewPCG(seed, 5))
		var b Board
		now := start
		stands := map[Notice]time.Time{} // since when
		said := map[Notice]time.Time{}
		written, from := 0, now
		for step := range 300 {
			if rng.IntN(3) == 0 {
				o := web(rng.IntN(10))
				var list []Notice
				for range rng.IntN(3) {
					list = append(list, Notice{Reason: "Unsupported", Message: fmt.Sprint("text ", rng.IntN(4))})
				}
				b.Set(o, list, now)
				for n := range stands {
					if n.Object == o {
						delete(stands, n)
					}
				}
				for _, n := range list {
					n.Object = o
					stands[n] = now
				}
			}
			due, wait := b.Due(now)
			if wait <= 0 || wait > again {
				t.Fatalf("seed %d, step %d: asks to be asked again in %v", seed, step, wait)
			}
			for _, n := range due {
				if _, is := stands[n]; !is {
					t.Fatalf("seed %d, step %d: %v is said, and does not stand", seed, step, n)
				}
				written++
				if said[n] = now; rng.IntN(20) == 0 {
					b.Failed(n, now)
				}
			}
			if limit := burst + int(now.Sub(from)/every) + 1; written > limit {
				t.Fatalf("seed %d, step %d: %d written in %v; want at most %d", seed, step, written, now.Sub(from), limit)
			}
			now = now.Add(time.Duration(rng.IntN(60)) * time.Second)
		}
		now = now.Add(time.Minute)
		for range 100 {
			due, _ := b.Due(now)
			for _, n := range due {
				said[n] = now
			}
			now = now.Add(10 * time.Second)
		}
		for n := range stands {
			if at, ever := said[n]; !ever || now.Sub(at) > time.Hour {
				t.Fatalf("seed %d: %v stands and was said at %v; now it is %v", seed, n, at, now)
			}
		}
		if stand, _ := b.Len(); stand != len(stands) || len(b.next) != stand {
			t.Fatalf("seed %d: %d stand and %d are remembered; want %d", seed, stand, len(b.next), len(stands))
		}
	}
}

func TestABoardIsBounded(t *testing.T) {
	var b Board
	for i := range maxNotices + 50 {
		b.Set(web(i), []Notice{{Reason: "R", Message: "m"}}, start)
	}
	if stand, left := b.Len(); stand != maxNotices || left != 50 {
		t.Errorf("%d stand and %d were left out", stand, left)
	}
	var many []Notice
	for i := range 100 {
		many = append(many, Notice{Reason: "R", Message: fmt.Sprint(i, strings.Repeat("ü", 2*maxMessage))})
	}
	b = Board{}
	b.Set(web(1), many, start)
	if n := len(b.stands[web(1)]); n != perObject {
		t.Errorf("%d notices of one object; want %d", n, perObject)
	}
}

// TestWhatIsLeftOutIsSaidWhenThereIsRoom runs random schedules of objects on a board that
// is too small: as much stands as there is room for, whatever came first, and the rest is
// named as soon as something has ended.
func TestWhatIsLeftOutIsSaidWhenThereIsRoom(t *testing.T) {
	for seed := range uint64(300) {
		rng := rand.New(rand.NewPCG(seed, 6))
		b := Board{limit: 7}
		truth := map[Object][]Notice{}
		for step := range 200 {
			o := web(rng.IntN(8))
			truth[o] = nil
			for i := range rng.IntN(5) {
				truth[o] = append(truth[o], Notice{Reason: "Unsupported", Message: fmt.Sprint("text ", i)})
			}
			b.Set(o, truth[o], start)
			for round := 0; ; round++ { // as its owner does
				waiting := b.Waiting()
				if len(waiting) == 0 {
					break
				}
				if round > 20 {
					t.Fatalf("seed %d, step %d: after %d rounds these wait still: %v", seed, step, round, waiting)
				}
				for _, o := range waiting {
					b.Set(o, truth[o], start)
				}
			}
			all, stands := 0, 0
			for o, list := range truth {
				all += len(list)
				stands += len(b.stands[o])
				if n := len(b.stands[o]) + b.out[o]; n != len(list) {
					t.Fatalf("seed %d, step %d: of %d notices of %s %d stand or wait", seed, step, len(list), o, n)
				}
			}
			if stand, left := b.Len(); stand != min(all, 7) || stands != stand || left != all-stand || len(b.next) != stand {
				t.Fatalf("seed %d, step %d: of %d notices %d stand and %d are left out; want as many as there is room for, 7", seed, step, all, stand, left)
			}
		}
	}
}

func TestAnEventHasOneName(t *testing.T) {
	n := Notice{web(1), "Unsupported", "a"}
	same, o := n, n
	o.Message = "b"
	if n.ID() != same.ID() || n.ID() == o.ID() || !strings.HasPrefix(n.ID(), "web-1.") {
		t.Errorf("%s, %s", n.ID(), o.ID())
	}
}

// What was said and has ended is taken back once; what comes again before that is not, and what
// was never said needs none of it.
func TestWhatHasEndedIsTakenBackOnce(t *testing.T) {
	var b Board
	now := time.Now()
	o := Object{Kind: Service, Namespace: "shop", Name: "cart"}
	n := Notice{Object: o, Reason: "Conflict", Message: "remove one of the two"}
	b.Set(o, []Notice{n}, now)
	b.Set(o, nil, now)
	if b.Due(now); len(b.Ended()) != 0 {
		t.Error("what was never said is taken back")
	}
	b.Set(o, []Notice{n}, now)
	b.Due(now)
	b.Set(o, nil, now)
	b.Set(o, []Notice{n}, now)
	if got := b.Ended(); len(got) != 0 {
		t.Errorf("%v is taken back, and stands", got)
	}
	b.Due(now)
	b.Set(o, nil, now)
	if got := b.Ended(); len(got) != 1 || got[0] != n {
		t.Errorf("ended is %v; want %v", got, n)
	}
	if got := b.Ended(); len(got) != 0 {
		t.Errorf("%v is taken back twice", got)
	}
	if b.Keep([]Notice{n}); len(b.ended) != 1 {
		t.Error("what could not be taken back is forgotten")
	}
	b.Set(o, []Notice{n}, now)
	if got := b.Ended(); len(got) != 0 {
		t.Errorf("%v is taken back, and stands again", got)
	}
}

// Taking back has its share of what may be written.
func TestTakingBackIsBounded(t *testing.T) {
	var b Board
	now := time.Now()
	objects := make([]Object, 60)
	for i := range objects {
		objects[i] = Object{Kind: Service, Namespace: "shop", Name: fmt.Sprint("s", i)}
		b.Set(objects[i], []Notice{{Reason: "R", Message: "m"}}, now)
	}
	for len(b.said) < len(objects) {
		now = now.Add(time.Minute)
		b.Due(now)
	}
	for _, o := range objects {
		b.Set(o, nil, now)
	}
	now = now.Add(time.Minute)
	taken := 0
	for rounds := 0; taken < len(objects); rounds++ {
		if rounds > len(objects) {
			t.Fatalf("%d of %d are taken back", taken, len(objects))
		}
		_, wait := b.Due(now)
		got := len(b.Ended())
		if got > burst {
			t.Fatalf("%d at once", got)
		}
		if taken += got; taken < len(objects) && wait > every {
			t.Fatalf("%d are left, and it waits %v", len(objects)-taken, wait)
		}
		now = now.Add(wait)
	}
}

// Of more than are told of one object those that others displace stand still: nothing may say that they do not.
func TestWhatIsDisplacedIsNotTakenBack(t *testing.T) {
	var b Board
	now := time.Unix(1, 0)
	o := Object{Kind: ConfigMap, Namespace: "demo", Name: "links"}
	list := func(first, last int) (out []Notice) {
		for i := first; i <= last; i++ {
			out = append(out, Notice{Reason: "NotConnected", Message: fmt.Sprintf("network %02d", i)})
		}
		return out
	}
	b.Set(o, list(1, perObject), now)
	b.Due(now)
	b.Set(o, list(0, perObject), now) // one more, which is told before them
	if ended := b.Ended(); len(ended) > 0 {
		t.Errorf("taken back are %v, which stand", ended)
	}
	if due, _ := b.Due(now); len(due) != 1 || due[0].Message != "network 00" {
		t.Errorf("due are %v; want the first", due)
	}
	b.Set(o, list(0, perObject-1), now) // the last is right again: what it displaced was taken from it
	if ended := b.Ended(); len(ended) > 0 {
		t.Errorf("taken back are %v, which were not told any more", ended)
	}
	b.Set(o, list(1, perObject-1), now)
	if ended := b.Ended(); len(ended) != 1 || ended[0].Message != "network 00" {
		t.Errorf("taken back are %v; want the first", ended)
	}
}
