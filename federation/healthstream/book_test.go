package healthstream

import (
	"fmt"
	"maps"
	"math/rand/v2"
	"slices"
	"testing"
	"time"

	"github.com/isthmus-mesh/isthmus/federation"
	"github.com/isthmus-mesh/isthmus/mesh"
)

// history is the slow obvious twin of a book: it keeps everything that happened, and
// reads what is believed out of that.
type history struct {
	now    time.Time
	places map[mesh.EndpointID]string
	lives  []*lifeline
	serial int
}

type lifeline struct {
	node     string
	instance Instance
	attached bool
	draining bool
	ended    time.Time
	says     map[Target]statement
}

type statement struct {
	state federation.FactState
	at    int
}

// believed says what counts of t: not ok is nothing.
func (h *history) believed(t Target) (federation.FactState, bool) {
	node, listed := h.places[t.Endpoint]
	if !listed {
		return 0, false
	}
	pick := func(keep func(*lifeline) bool) (best statement, ok bool) {
		for _, l := range h.lives {
			if s, speaks := l.says[t]; speaks && l.node == node && keep(l) && (!ok || s.at > best.at) {
				best, ok = s, true
			}
		}
		return best, ok
	}
	for _, keep := range []func(*lifeline) bool{
		func(l *lifeline) bool { return l.attached && !l.draining },
		func(l *lifeline) bool { return l.attached },
		func(l *lifeline) bool { return !l.attached && h.now.Sub(l.ended) < Held },
	} {
		if s, ok := pick(keep); ok {
			return s.state, true
		}
	}
	return 0, false
}

// say makes l say state of t; whoever has gone is heard on t no more.
func (h *history) say(l *lifeline, t Target, state federation.FactState) {
	if old, ok := l.says[t]; !ok || old.state != state {
		h.serial++
		l.says[t] = statement{state, h.serial}
	}
	for _, x := range h.lives {
		if x.node == l.node && !x.attached {
			delete(x.says, t)
		}
	}
}

// end detaches l: what an attached sibling speaks of is the sibling's.
func (h *history) end(l *lifeline) {
	l.attached, l.ended = false, h.now
	for t := range l.says {
		for _, x := range h.lives {
			if _, speaks := x.says[t]; speaks && x.attached && x.node == l.node {
				delete(l.says, t)
			}
		}
	}
}

// TestTheBookBelievesWhatItsHistorySays plays random schedules of instances that come,
// go, drain and speak, of discovery that changes and time that passes.
func TestTheBookBelievesWhatItsHistorySays(t *testing.T) {
	for seed := range uint64(400) {
		rng := rand.New(rand.NewPCG(seed, 7))
		h := &history{now: time.Unix(0, 0), places: map[mesh.EndpointID]string{}}
		b := newBook(func(id mesh.EndpointID) (string, bool) { n, ok := h.places[id]; return n, ok })
		b.lives = 1 << 20                         // that the oldest are forgotten has a test of its own
		told := map[Target]federation.FactState{} // by edges alone
		books := map[*lifeline]*life{}
		nodes := []string{"a", "b"}
		var steps []string
		step := func(format string, args ...any) { steps = append(steps, fmt.Sprintf(format, args...)) }
		fact := func(id int, state federation.FactState) Fact {
			return Fact{EndpointFact: federation.EndpointFact{Endpoint: mesh.EndpointID(id), Port: 80, State: state}, Age: time.Duration(rng.Int64N(int64(400 * 24 * time.Hour)))}
		}
		attached := func() []*lifeline {
			return slices.DeleteFunc(slices.Clone(h.lives), func(l *lifeline) bool { return !l.attached })
		}
		for range 120 {
			switch rng.IntN(9) {
			case 0: // a new instance, if there is room
				node := nodes[rng.IntN(2)]
				if slices.ContainsFunc(nodes, func(n string) bool { return n == node && count(h, n) >= maxAttached }) {
					continue
				}
				l := &lifeline{node: node, attached: true, says: map[Target]statement{}}
				l.instance[0], l.instance[1] = byte(len(h.lives)), byte(len(h.lives)>>8)
				h.lives = append(h.lives, l)
				books[l], _, _ = b.attach(node, l.instance, h.now)
				step("%s attaches as %d", node, l.instance[0])
			case 1: // one that has gone lately comes back
				for _, l := range h.lives {
					if !l.attached && h.now.Sub(l.ended) < Held && count(h, l.node) < maxAttached && len(l.says) > 0 {
						l.attached, l.draining = true, false
						books[l], _, _ = b.attach(l.node, l.instance, h.now)
						step("%d attaches again", l.instance[0])
						break
					}
				}
			case 2:
				if a := attached(); len(a) > 0 {
					l := a[rng.IntN(len(a))]
					h.end(l)
					b.detach(books[l], h.now)
					step("%d goes", l.instance[0])
				}
			case 3:
				if a := attached(); len(a) > 0 {
					l := a[rng.IntN(len(a))]
					l.draining = true
					b.drain(books[l])
					step("%d drains", l.instance[0])
				}
			case 4: // discovery changes
				id := mesh.EndpointID(rng.IntN(6) + 1)
				if delete(h.places, id); rng.IntN(4) > 0 {
					h.places[id] = nodes[rng.IntN(2)]
				}
				b.relocate()
				step("%d is on %q", id, h.places[id])
			case 5:
				h.now = h.now.Add(time.Duration(rng.Int64N(int64(40 * time.Second))))
				for _, l := range slices.Clone(h.lives) {
					if !l.attached && h.now.Sub(l.ended) >= Held {
						clear(l.says)
					}
				}
				b.advance(h.now)
				step("time passes")
			case 6: // the whole
				if a := attached(); len(a) > 0 {
					l := a[rng.IntN(len(a))]
					var facts []Fact
					for id := 1; id <= 6; id++ {
						if rng.IntN(2) == 0 {
							facts = append(facts, fact(id, federation.FactState(rng.IntN(2))))
						}
					}
					for x := range l.says {
						if !slices.ContainsFunc(facts, func(f Fact) bool { return f.Target() == x }) {
							delete(l.says, x)
						}
					}
					for _, f := range facts {
						h.say(l, f.Target(), f.State)
					}
					b.report(books[l], facts, true, h.now)
					step("%d says all: %v", l.instance[0], facts)
				}
			default:
				if a := attached(); len(a) > 0 {
					l := a[rng.IntN(len(a))]
					f := fact(rng.IntN(6)+1, federation.FactState(rng.IntN(2)))
					h.say(l, f.Target(), f.State)
					b.report(books[l], []Fact{f}, false, h.now)
					step("%d says %v of %d", l.instance[0], f.State, f.Endpoint)
				}
			}
			for _, e := range b.take() {
				if delete(told, e.Target); e.Known {
					told[e.Target] = e.Fact.State
				}
			}
			want := map[Target]federation.FactState{}
			for id := range h.places {
				if s, ok := h.believed(Target{id, 80}); ok {
					want[Target{id, 80}] = s
				}
			}
			if !maps.Equal(told, want) {
				t.Fatalf("seed %d: edges tell %v; want %v, after\n%s", seed, told, want, join(steps))
			}
			for x, s := range want {
				if got := b.believed[x].fact.State; got != s {
					t.Fatalf("seed %d: believes %v of %v; want %v", seed, got, x, s)
				}
			}
		}
	}
}

func count(h *history, node string) (n int) {
	for _, l := range h.lives {
		if l.attached && l.node == node {
			n++
		}
	}
	return n
}

func join(steps []string) (out string) {
	for _, s := range steps[max(0, len(steps)-25):] {
		out += s + "\n"
	}
	return out
}

func TestTheOldestInstancesAreForgotten(t *testing.T) {
	b := newBook(func(mesh.EndpointID) (string, bool) { return "a", true })
	now := time.Unix(0, 0)
	for i := range 50 {
		l, _, evicted := b.attach("a", Instance{byte(i)}, now)
		if evicted != nil {
			t.Fatalf("instance %d evicted %v", i, evicted.instance)
		}
		b.report(l, []Fact{{EndpointFact: federation.EndpointFact{Endpoint: mesh.EndpointID(i + 1), Port: 80, State: federation.Ejected}}}, true, now)
		b.detach(l, now)
	}
	if n := len(b.nodes["a"].lives); n > maxLives {
		t.Errorf("%d instances are kept; want at most %d", n, maxLives)
	}
	if n := len(b.believed); n > maxLives {
		t.Errorf("%d facts are believed; want at most %d", n, maxLives)
	}
	for i := range 2 * maxAttached {
		b.attach("a", Instance{100, byte(i)}, now)
	}
	if n := b.attached("a"); n != maxAttached {
		t.Errorf("%d are attached; want %d", n, maxAttached)
	}
	b.advance(now.Add(Held))
	b.advance(now.Add(2 * remembered))
	if n := len(b.believed); n != 0 {
		t.Errorf("%d facts are believed of instances that have gone", n)
	}
}
