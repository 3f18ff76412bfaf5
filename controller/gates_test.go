package controller

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"testing"
	"time"

	"github.com/isthmus-mesh/isthmus/controller/vip"
	"github.com/isthmus-mesh/isthmus/discovery/kube/owned"
)

// world is an API server of a test, of which a right may be taken away.
type world struct {
	pending map[vip.Name]bool
	none    bool            // no right at all
	lacks   map[string]bool // namespaces without it
	denied  map[string]bool // namespaces that are full
	bad     map[vip.Name]bool
	tried   int
}

func (w *world) create(n vip.Name) error {
	w.tried++
	switch {
	case w.none, w.lacks[n.Namespace]:
		return fmt.Errorf("create: %w", owned.ErrNoRight)
	case w.denied[n.Namespace]:
		return fmt.Errorf("create: %w", owned.ErrDenied)
	case w.bad[n]:
		return fmt.Errorf("create: %w", owned.ErrRefused)
	}
	delete(w.pending, n)
	return nil
}

// plan tries what is pending, in its order, as a leader does; it returns when to look again.
func (w *world) plan(g *gates, names []vip.Name, now time.Time) time.Time {
	for _, n := range names {
		if !w.pending[n] || !g.open("create", n, now) {
			continue
		}
		if err := w.create(n); err != nil {
			g.failed("create", n, err, now)
		} else {
			g.done("create", n, now)
		}
	}
	if at, ok := g.next(now); ok {
		return at
	}
	return now.Add(time.Hour)
}

func names(namespaces, each int) (out []vip.Name) {
	for i := range namespaces {
		for j := range each {
			out = append(out, vip.Name{Namespace: fmt.Sprintf("n%03d", i), Name: fmt.Sprint("s", j)})
		}
	}
	return out
}

func newWorld(all []vip.Name) *world {
	w := &world{pending: map[vip.Name]bool{}, lacks: map[string]bool{}, denied: map[string]bool{}, bad: map[vip.Name]bool{}}
	for _, n := range all {
		w.pending[n] = true
	}
	return w
}

// Without the right to write, one write of each namespace tells of it and the rest waits,
// however many there are and however often there is news; when it is back all is done within
// seconds.
func TestWritesWithoutTheRightWait(t *testing.T) {
	all := names(200, 10)
	w, g, now := newWorld(all), newGates(), time.Unix(1_800_000_000, 0)
	w.none = true
	for range 5 * 60 * 5 { // five minutes, with news each 200 ms
		w.plan(g, all, now)
		now = now.Add(pace)
	}
	if w.tried > 200+5*60 {
		t.Errorf("%d writes were tried in five minutes without the right; want one of each of 200 namespaces, and one a second", w.tried)
	}
	if len(sentences(g.held())) == 0 || len(sentences(g.held())) > maxFindings+1 {
		t.Errorf("said is %q", sentences(g.held()))
	}
	w.none = false
	back := now
	for now.Sub(back) < time.Minute {
		next := w.plan(g, all, now) // without news
		if len(w.pending) == 0 {
			break
		}
		now = next
	}
	if took := now.Sub(back); len(w.pending) > 0 || took > 2*rights.Limit {
		t.Errorf("%v after the right is back %d of %d are not written", took, len(w.pending), len(all))
	}
	if len(g.of) != 0 || len(sentences(g.held())) != 0 {
		t.Errorf("all is written, and there are gates: %q", sentences(g.held()))
	}
}

// Namespaces without the right, however many, do not keep one waiting that has it; one that is
// given it has it used within 5 s, or as many seconds as there are namespaces without it, however
// often there is news.
func TestNamespacesWithoutTheRightKeepNoOtherWaiting(t *testing.T) {
	for _, n := range []int{1, 3, 20, 300} {
		all := names(n+1, 2)
		w, g, now := newWorld(all), newGates(), time.Unix(1_800_000_000, 0)
		for _, name := range all[:2*n] {
			w.lacks[name.Namespace] = true
		}
		w.plan(g, all, now)
		for _, name := range all[2*n:] {
			if w.pending[name] {
				t.Fatalf("%d namespaces lack the right, and %s, which has it, is not written in the first plan; gates: %q", n, name, sentences(g.held()))
			}
		}
		bound := max(rights.Limit, time.Duration(n)*rights.First)
		for at := range min(n, 20) {
			given := all[2*(at*n/min(n, 20))]
			now = now.Add(7 * time.Second)
			w.plan(g, all, now)
			delete(w.lacks, given.Namespace)
			since := now
			for w.pending[given] && now.Sub(since) <= bound {
				next := w.plan(g, all, now)
				if !w.pending[given] {
					break
				}
				if now = now.Add(pace); at%2 == 0 { // without news
					now = next
				}
			}
			if took := now.Sub(since); w.pending[given] || took > bound+pace {
				t.Errorf("%d namespaces lack the right: one that has it back is written after %v, want %v", n, took, bound)
			}
			for _, name := range all[:2*n] { // and everything of the others is news again
				w.pending[name] = true
			}
		}
	}
}

// What may be written is, whatever else is refused; and in any order of faults and mends
// everything is written in the end that may be, and tries stay few.
func TestWhatMayBeWrittenIs(t *testing.T) {
	for seed := range uint64(50) {
		rng := rand.New(rand.NewPCG(seed, 8))
		all := names(12, 5)
		w, g, now := newWorld(all), newGates(), time.Unix(1_800_000_000, 0)
		start, fresh := now, len(all)
		for range 400 {
			switch n := all[rng.IntN(len(all))]; rng.IntN(12) {
			case 0:
				w.lacks[n.Namespace] = !w.lacks[n.Namespace]
			case 1:
				w.denied[n.Namespace] = !w.denied[n.Namespace]
			case 2:
				w.bad[n] = !w.bad[n]
			case 3:
				w.none = rng.IntN(3) == 0
			case 4:
				if !w.pending[n] {
					w.pending[n] = true
					fresh++
				}
			}
			w.plan(g, all, now)
			now = now.Add(time.Duration(rng.IntN(2_000)) * time.Millisecond)
		}
		// Each that is written is one try. Beside these each of twelve namespaces and sixty
		// objects that fail for ever would be tried once a second at most.
		if limit := fresh + int(now.Sub(start)/time.Second)*10; w.tried > limit {
			t.Errorf("seed %d: %d tries in %v; want at most %d", seed, w.tried, now.Sub(start), limit)
		}
		w.none = false
		for until := now.Add(10 * time.Minute); now.Before(until); {
			now = w.plan(g, all, now)
		}
		for n := range w.pending {
			if !w.lacks[n.Namespace] && !w.denied[n.Namespace] && !w.bad[n] {
				t.Fatalf("seed %d: nothing keeps %s back, and it is not written; gates: %q", seed, n, sentences(g.held()))
			}
		}
	}
}

func TestAGateThatNobodyAsksForIsForgotten(t *testing.T) {
	g, now := newGates(), time.Unix(1_800_000_000, 0)
	g.failed("create", vip.Name{Namespace: "demo", Name: "web"}, owned.ErrStale, now)
	if _, ok := g.next(now); !ok || len(sentences(g.held())) != 0 {
		t.Errorf("it is to be tried again: %v; said is %q, and it is no fault", ok, sentences(g.held()))
	}
	if g.next(now.Add(time.Hour)); len(g.of) != 0 {
		t.Error("an hour later it is remembered")
	}
	if errors.Is(owned.ErrNoRight, owned.ErrDenied) || !owned.OfOne(fmt.Errorf("x: %w", owned.ErrDenied)) || owned.OfOne(errors.New("no route to host")) {
		t.Error("errors are told apart wrongly")
	}
}
