package fairqueue

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"sync"
	"testing"
	"testing/synctest"
	"time"
)

// place is one slot in the books of the model.
type place struct {
	slot      *Slot[int]
	key       int
	id        string
	overtaken map[string]int // how often each other client was granted while it was first of its client and could have been
	held      bool
}

// model is the slow twin: a list of all places, the oldest first.
type model struct {
	perClient, perTarget int
	all                  []*place
}

func (m *model) held(key int, id string) (of, all int) {
	for _, p := range m.all {
		if p.held && p.key == key {
			all++
			if p.id == id {
				of++
			}
		}
	}
	return of, all
}

// first reports whether p is the oldest that its client waits for.
func (m *model) first(p *place) bool {
	i := slices.IndexFunc(m.all, func(o *place) bool { return o.key == p.key && o.id == p.id && !o.held })
	return m.all[i] == p
}

func (m *model) eligible(p *place) bool {
	of, _ := m.held(p.key, p.id)
	return !p.held && m.first(p) && !reached(of, m.perClient)
}

func granted(s *Slot[int]) bool {
	select {
	case <-s.granted:
		return true
	default:
		return false
	}
}

// settle takes note of what was granted since, and checks that it may be: in the order
// of each client, and to nobody a second time before another who could have been served.
func (m *model) settle(t *testing.T, what string) {
	t.Helper()
	var now []*place
	eligible := slices.DeleteFunc(slices.Clone(m.all), func(p *place) bool { return !m.eligible(p) })
	for _, p := range m.all {
		if !p.held && granted(p.slot) {
			now = append(now, p)
		}
	}
	for _, p := range now {
		if !m.first(p) {
			t.Fatalf("%s: client %s at %d: a younger one was served first", what, p.id, p.key)
		}
		p.held = true
		for _, o := range eligible {
			if o.key == p.key && o.id != p.id && !o.held && !slices.Contains(now, o) {
				if o.overtaken[p.id]++; o.overtaken[p.id] > 1 {
					t.Fatalf("%s: client %s was served twice at %d while %s waited", what, p.id, p.key, o.id)
				}
			}
		}
	}
}

// check compares the books: bounds hold, counts agree, nobody waits where there is room.
func (m *model) check(t *testing.T, q *Queue[int], what string) {
	t.Helper()
	held, waiting := 0, 0
	for _, p := range m.all {
		of, all := m.held(p.key, p.id)
		switch {
		case p.held:
			held++
			if m.perClient > 0 && of > m.perClient || m.perTarget > 0 && all > m.perTarget {
				t.Fatalf("%s: %d of client %s and %d in all at %d", what, of, p.id, all, p.key)
			}
		default:
			waiting++
			if !reached(of, m.perClient) && !reached(all, m.perTarget) {
				t.Fatalf("%s: client %s waits at %d where there is room", what, p.id, p.key)
			}
		}
	}
	if h, w := q.Counts(); h != held || w != waiting {
		t.Fatalf("%s: counts %d held and %d waiting, want %d and %d", what, h, w, held, waiting)
	}
}

// Random schedules of few clients at few targets.
func TestTheQueueAgreesWithAList(t *testing.T) {
	for seed := range uint64(120) {
		rng := rand.New(rand.NewPCG(seed, 8))
		m := &model{perClient: rng.IntN(5), perTarget: rng.IntN(7)}
		q := New[int](m.perClient, m.perTarget)
		for step := range 400 {
			what := fmt.Sprintf("seed %d step %d", seed, step)
			if n := len(m.all); n == 0 || rng.IntN(9) < 5 && n < 60 {
				p := &place{key: rng.IntN(2), id: fmt.Sprint(rng.IntN(4)), overtaken: map[string]int{}}
				of, all := m.held(p.key, p.id)
				want := Bound("")
				if reached(of, m.perClient) {
					want = ByClient
				} else if reached(all, m.perTarget) {
					want = ByTarget
				}
				var bound Bound
				if p.slot, bound = q.Enter(p.key, p.id); bound != want || granted(p.slot) != (want == "") {
					t.Fatalf("%s: bound %q, want %q", what, bound, want)
				}
				p.held = bound == ""
				m.all = append(m.all, p)
			} else {
				i := rng.IntN(n)
				p := m.all[i]
				m.all = slices.Delete(m.all, i, i+1)
				p.slot.Release()
				m.settle(t, what)
				p.slot.Release() // once more, which must change nothing
			}
			m.check(t, q, what)
		}
		for len(m.all) > 0 {
			m.all[0].slot.Release()
			m.all = m.all[1:]
			m.settle(t, fmt.Sprintf("seed %d, at the end", seed))
		}
		if h, w := q.Counts(); h != 0 || w != 0 || len(q.targets) != 0 {
			t.Fatalf("seed %d: %d held, %d waiting, %d targets when all have left", seed, h, w, len(q.targets))
		}
	}
}

// One with a thousand in the queue costs another with one no more than one turn.
func TestClientsTakeTurns(t *testing.T) {
	q := New[int](0, 1)
	now, _ := q.Enter(0, "greedy")
	var greedy []*Slot[int]
	for range 1000 {
		s, _ := q.Enter(0, "greedy")
		greedy = append(greedy, s)
	}
	modest, bound := q.Enter(0, "modest")
	if bound != ByTarget {
		t.Errorf("bound %q, want %q", bound, ByTarget)
	}
	now.Release()
	greedy[0].Release()
	if !granted(modest) {
		t.Error("a client with one that waits is not served after one turn of another's")
	}
}

func TestWaitEnds(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		q := New[int](1, 0)
		first, _ := q.Enter(0, "a")
		gone := errors.New("the client has gone")
		ctx, cancel := context.WithCancelCause(t.Context())
		for _, c := range []struct {
			name string
			do   func()
			want error
		}{
			{"nothing happens", func() {}, ErrTimeout},
			{"the context ends", func() { cancel(gone) }, gone},
			{"a place is free", first.Release, nil},
		} {
			ctx := ctx
			if c.want == nil {
				ctx = t.Context()
			}
			s, _ := q.Enter(0, "a")
			time.AfterFunc(time.Second, c.do)
			if err := s.Wait(ctx, time.Minute); err != c.want {
				t.Errorf("%s: %v, want %v", c.name, err, c.want)
			}
			s.Release()
			synctest.Wait()
		}
		if h, w := q.Counts(); h != 0 || w != 0 {
			t.Errorf("%d held and %d waiting at the end", h, w)
		}
	})
}

// Many at once, of whom some give up: the bound holds and nobody is forgotten.
func TestManyAtOnce(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		q := New[int](3, 5)
		var wg sync.WaitGroup
		var mu sync.Mutex
		under, served := 0, 0
		for i := range 300 {
			wg.Go(func() {
				ctx, cancel := context.WithTimeout(t.Context(), time.Duration(1+i%50)*time.Second)
				defer cancel()
				s, _ := q.Enter(i%2, fmt.Sprint(i%7))
				defer s.Release()
				if s.Wait(ctx, time.Hour) != nil {
					return
				}
				mu.Lock()
				under++
				served++
				if under > 2*5 {
					t.Errorf("%d at once at two targets", under)
				}
				mu.Unlock()
				time.Sleep(time.Second)
				mu.Lock()
				under--
				mu.Unlock()
			})
		}
		wg.Wait()
		if h, w := q.Counts(); h != 0 || w != 0 || len(q.targets) != 0 {
			t.Errorf("%d held, %d waiting, %d targets at the end", h, w, len(q.targets))
		}
		if served < 200 {
			t.Errorf("%d of 300 were served in time", served)
		}
	})
}
