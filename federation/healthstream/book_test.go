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
	state  federation.FactState
	at     int
	came   time.Time
	listed bool // discovery has had it there
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
	old, ok := l.says[t]
	now := statement{state, old.at, h.now, old.listed || h.here(l, t)}
	if !ok || old.state != state {
		h.serial++
		now.at = h.serial
	}
	l.says[t] = now
	for _, x := range h.lives {
		if x.node == l.node && !x.attached {
			delete(x.says, t)
		}
	}
}

// here says whether discovery has t on the node of l.
func (h *history) here(l *lifeline, t Target) bool {
	node, ok := h.places[t.Endpoint]
	return ok && node == l.node
}

// relocate makes everybody forget the pods that were on their nodes and are no more.
func (h *history) relocate() {
	for _, l := range h.lives {
		for t, s := range l.says {
			switch here := h.here(l, t); {
			case here:
				s.listed = true
				l.says[t] = s
			case s.listed:
				delete(l.says, t)
			}
		}
	}
}

// pass lets time pass: those that have gone are forgotten, and what is well.
func (h *history) pass() {
	for _, l := range h.lives {
		if !l.attached && h.now.Sub(l.ended) >= Held {
			clear(l.says)
		}
	}
	sick := func(node string, t Target) bool {
		return slices.ContainsFunc(h.lives, func(l *lifeline) bool {
			return l.node == node && l.says[t].state != federation.Healthy // the zero statement is healthy
		})
	}
	for _, l := range h.lives {
		for t, s := range l.says {
			if s.state == federation.Healthy && h.now.Sub(s.came) > 2*Held && !sick(l.node, t) {
				delete(l.says, t)
			}
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
			discovered := mesh.EndpointID(0) // the only endpoint that this step changed in discovery
			switch rng.IntN(10) {
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
				h.relocate()
				changed := func(x mesh.EndpointID) bool { return x == id }
				if discovered = id; rng.IntN(8) == 0 {
					changed, discovered = anyEndpoint, 0
				}
				maps.DeleteFunc(told, func(x Target, s federation.FactState) bool { // the receiver drops ejections of pods that changed
					return changed(x.Endpoint) && s != federation.Healthy
				})
				b.relocate(changed, h.now)
				step("%d is on %q", id, h.places[id])
			case 5:
				h.now = h.now.Add(time.Duration(rng.Int64N(int64(40 * time.Second))))
				h.pass()
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
			case 7: // it has forgotten one
				if a := attached(); len(a) > 0 {
					l := a[rng.IntN(len(a))]
					x := Target{mesh.EndpointID(rng.IntN(6) + 1), 80}
					delete(l.says, x)
					b.nothing(books[l], []Target{x})
					step("%d says nothing of %d", l.instance[0], x.Endpoint)
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
			edges := b.take()
			if discovered != 0 && len(edges) > 1 {
				t.Fatalf("seed %d: discovery of %d changed, and these ports were published: %v, after\n%s", seed, discovered, edges, join(steps))
			}
			for i, e := range edges {
				if slices.ContainsFunc(edges[:i], func(o Edge) bool { return o.Target == e.Target }) {
					t.Fatalf("seed %d: two edges of %v at once: %v", seed, e.Target, edges)
				}
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

func factOf(id mesh.EndpointID, state federation.FactState) Fact {
	return Fact{EndpointFact: federation.EndpointFact{Endpoint: id, Port: 80, State: state, Reason: "refused"}}
}

// A stream may live for months: what came back must not fill it.
func TestPodsThatCameBackDoNotKeepSickOnesFromBeingLeftOut(t *testing.T) {
	sick := targets(1 << 40)[0]
	full := func(between func(b *book, now time.Time) time.Time) *book {
		b := newBook(func(mesh.EndpointID) (string, bool) { return "node-1", true })
		now := time.Unix(0, 0)
		l, _, _ := b.attach("node-1", Instance{1}, now)
		for id := mesh.EndpointID(1); id <= MaxFacts; id++ {
			b.report(l, []Fact{factOf(id, federation.Ejected)}, false, now)
			b.report(l, []Fact{factOf(id, federation.Healthy)}, false, now)
		}
		now = between(b, now)
		b.report(l, []Fact{factOf(sick.Endpoint, federation.Ejected)}, false, now)
		if len(l.facts) > MaxFacts {
			t.Errorf("%d facts are kept; want at most %d", len(l.facts), MaxFacts)
		}
		return b
	}
	b := full(func(_ *book, now time.Time) time.Time { return now })
	if _, ok := b.believed[sick]; !ok {
		t.Errorf("a pod that falls sick at once is not left out: %d are known to answer", len(b.believed))
	}
	if _, ok := b.believed[Target{1, 80}]; ok {
		t.Error("the oldest word that a port answers gives way; it is kept")
	}
	b = full(func(b *book, now time.Time) time.Time {
		now = now.Add(2*Held + time.Second)
		b.advance(now)
		return now
	})
	if n := len(b.believed); n != 1 {
		t.Errorf("after twice %v %d facts are kept; want the sick one alone", Held, n)
	}
}

// What one instance has said of a port that answers is kept for as long as another one
// says that it is out: it would count again.
func TestThatAPodAnswersIsKeptWhileAnInstanceSaysOtherwise(t *testing.T) {
	b := newBook(func(mesh.EndpointID) (string, bool) { return "a", true })
	now := time.Unix(0, 0)
	one, _, _ := b.attach("a", Instance{1}, now)
	two, _, _ := b.attach("a", Instance{2}, now)
	b.report(one, []Fact{factOf(7, federation.Ejected)}, true, now)
	b.report(two, []Fact{factOf(7, federation.Healthy)}, true, now)
	b.advance(now.Add(10 * Held))
	if s := b.believed[Target{7, 80}]; s.fact.State != federation.Healthy {
		t.Errorf("believes %v; want the later word", s.fact.State)
	}
}

// A thief of a node's key attaches instance after instance, one a second.
func TestAThiefOfANodesKeyCannotDetachTheRealNodeProxy(t *testing.T) {
	b := newBook(func(mesh.EndpointID) (string, bool) { return "node-1", true })
	now := time.Unix(0, 0)
	honest, _, _ := b.attach("node-1", Instance{1}, now)
	steal := func(seconds int) (detached int) {
		for range seconds {
			now = now.Add(time.Second)
			stolen, _, evicted := b.attach("node-1", Instance{2, byte(now.Unix()), byte(now.Unix() >> 8)}, now)
			b.report(stolen, []Fact{factOf(1, federation.Healthy)}, true, now)
			if evicted == honest {
				detached++
				honest, _, _ = b.attach("node-1", honest.instance, now) // it comes back
			}
			if n := b.attached("node-1"); n > maxAttached {
				t.Fatalf("%d are attached; want at most %d", n, maxAttached)
			}
		}
		return detached
	}
	if n := steal(120); n > 0 {
		t.Errorf("in two minutes the real node proxy was detached %d times", n)
	}
	b.detach(honest, now)
	steal(3)
	honest, _, _ = b.attach("node-1", Instance{3}, now) // it has restarted, and is the youngest
	b.report(honest, []Fact{factOf(2, federation.Ejected)}, true, now)
	for range 120 {
		steal(1)
		if s := b.believed[Target{2, 80}]; !honest.attached || s.fact.State != federation.Ejected {
			t.Fatalf("the real node proxy, that had restarted, is attached: %v; what it says of a port that nobody else names: %+v", honest.attached, s)
		}
	}
}

func TestAnInstanceThatComesBackCountsAsAttached(t *testing.T) {
	b := newBook(func(mesh.EndpointID) (string, bool) { return "a", true })
	now := time.Unix(0, 0)
	for i := range byte(20) {
		if l, _, _ := b.attach("a", Instance{i % 6}, now); l != nil {
			b.report(l, []Fact{factOf(mesh.EndpointID(i+1), federation.Ejected)}, true, now)
		}
		if n := b.attached("a"); n > maxAttached {
			t.Fatalf("%d are attached; want at most %d", n, maxAttached)
		}
		now = now.Add(time.Second)
	}
}

// The successor of a pod has its name, and nothing else of it.
func TestAPodThatIsListedAgainIsAskedAndNotHeldOutForItsPredecessor(t *testing.T) {
	inBubble(t, func(w *world) {
		s := w.gateway("gw-1", nil)
		w.list("node-1", 7, 8)
		n := w.node("node-1", nil)
		n.attached(1)
		n.observe(7, ejected)
		s.holds("sick", 7)
		w.list("", 7)
		s.health.Relocate(anyEndpoint)
		s.holds("gone")
		w.list("node-1", 7)
		n.takeAsked()
		delete(n.facts, Target{7, 80}) // it has forgotten that pod, and does not say so: one of yesterday
		s.health.Relocate(anyEndpoint)
		s.holds("back")
		if got := n.takeAsked(); !slices.Equal(got, targets(7)) {
			t.Errorf("the node proxy was asked of %v; want the pod that is back", got)
		}
		n.observe(7, ejected)
		s.holds("sick as well", 7)
	})
}

// Discovery of the gateway alone lost the pod, and its node proxy has seen it fail all
// the while.
func TestAPodThatDiscoveryLostForAMomentIsLeftOutAgain(t *testing.T) {
	inBubble(t, func(w *world) {
		s := w.gateway("gw-1", nil)
		w.list("node-1", 7)
		n := w.node("node-1", nil)
		n.attached(1)
		n.observe(7, ejected)
		s.holds("sick", 7)
		w.list("", 7)
		s.health.Relocate(anyEndpoint)
		s.holds("lost")
		w.list("node-1", 7)
		s.health.Relocate(anyEndpoint)
		s.holds("back", 7)
		n.mu.Lock()
		delete(n.facts, Target{7, 80})
		n.mu.Unlock()
		n.Changed(Target{7, 80})
		s.holds("the node proxy has forgotten it")
	})
}

// The receiver may have dropped a pod that was not listed for a moment. A change of other
// pods publishes nothing, however many ports are ejected.
func TestDiscoveryChangeRepeatsItsOwnEjections(t *testing.T) {
	b := newBook(func(mesh.EndpointID) (string, bool) { return "a", true })
	now := time.Unix(0, 0)
	l, _, _ := b.attach("a", Instance{1}, now)
	facts := []Fact{factOf(1000, federation.Healthy)}
	for id := range mesh.EndpointID(500) {
		facts = append(facts, factOf(id+1, federation.Ejected))
	}
	b.report(l, facts, true, now)
	b.take()
	for what, x := range map[string]struct {
		changed func(mesh.EndpointID) bool
		want    int
	}{
		"an ejected pod": {func(id mesh.EndpointID) bool { return id == 7 }, 1},
		"a healthy pod":  {func(id mesh.EndpointID) bool { return id == 1000 }, 0},
		"no pod here":    {func(mesh.EndpointID) bool { return false }, 0},
		"all pods":       {anyEndpoint, 500},
	} {
		b.relocate(x.changed, now)
		edges := b.take()
		if len(edges) != x.want {
			t.Errorf("%s changed: %d transitions published; want %d", what, len(edges), x.want)
		}
		for _, e := range edges {
			if !x.changed(e.Endpoint) || !e.Known || e.Fact.State != federation.Ejected {
				t.Errorf("%s changed: published %+v; want ejections of what changed", what, e)
			}
		}
	}
}

// anyEndpoint is a change of discovery that may be of any endpoint.
func anyEndpoint(mesh.EndpointID) bool { return true }
