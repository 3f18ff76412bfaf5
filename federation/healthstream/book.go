package healthstream

import (
	"maps"
	"slices"
	"time"

	"github.com/isthmus-mesh/isthmus/federation"
	"github.com/isthmus-mesh/isthmus/mesh"
)

const (
	// Held is for how long the word of a node proxy counts that is attached no
	// more and whose successor has not spoken of that port.
	Held = time.Minute

	// maxLives is how many instances of one node proxy are kept, and maxAttached
	// how many of them may be attached: an old one that drains, a new one, and one
	// more whose end has not been seen yet.
	maxLives    = 5
	maxAttached = 3

	// remembered is for how long a node is known to have been here before.
	remembered = time.Hour
)

// Place says on which node of the own network discovery lists an endpoint; not ok
// if it lists none.
type Place func(id mesh.EndpointID) (node string, ok bool)

// Edge is a change of what is believed of a port. Known is false when nothing is
// any more.
type Edge struct {
	Target
	Fact  Fact
	Known bool
}

// book is what the node proxies of a network have said, and what follows from it.
//
// Of a port its node alone is believed, and discovery says which that is: other
// words are kept, in case discovery changes, and mean nothing. Among the instances
// of that node's proxy the one counts that has spoken of the port last, as seen
// here, if it is attached and does not drain; failing that one that drains;
// failing that, for [Held], one that has gone. No clock of a node proxy orders
// anything, and news about one port says nothing of another.
//
// It is pure; not safe for concurrent use.
type book struct {
	place    Place
	lives    int // that are kept of one node proxy
	nodes    map[string]*nodeLives
	believed map[Target]said
	order    uint64
	edges    []Edge
}

type nodeLives struct {
	lives []*life // oldest first
	last  Instance
	left  time.Time // when last was attached last
}

// life is one instance of a node proxy.
type life struct {
	node     string
	instance Instance
	attached bool
	draining bool
	ended    time.Time // when it was attached last
	facts    map[Target]said
}

// said is a fact and when it came.
type said struct {
	fact  Fact
	seen  time.Time // of the evidence, by this clock
	order uint64    // of changes, as seen here
}

func newBook(place Place) *book {
	return &book{place: place, lives: maxLives, nodes: map[string]*nodeLives{}, believed: map[Target]said{}}
}

// attach begins or resumes an instance. resumed says that another one was here
// before. evicted is one that is attached no more to make room; nil for none.
func (b *book) attach(node string, i Instance, now time.Time) (l *life, resumed bool, evicted *life) {
	n := b.nodes[node]
	if n == nil {
		n = &nodeLives{}
		b.nodes[node] = n
	}
	resumed = !n.left.IsZero() && n.last != i
	for _, x := range n.lives {
		if x.instance == i {
			l = x
		} else {
			resumed = true
		}
	}
	if l == nil {
		l = &life{node: node, instance: i, facts: map[Target]said{}}
		evicted = n.evict()
		if evicted != nil {
			b.detach(evicted, now)
		}
		n.lives = append(n.lives, l)
		b.trim(n)
	}
	l.attached, l.draining = true, false
	b.rederive(l)
	return l, resumed, evicted
}

// evict names the instance that gives way to one more: one that drains, else the
// oldest.
func (n *nodeLives) evict() (out *life) {
	attached := 0
	for _, x := range n.lives {
		if !x.attached {
			continue
		}
		attached++
		if out == nil || x.draining && !out.draining {
			out = x
		}
	}
	if attached < maxAttached {
		return nil
	}
	return out
}

// trim forgets the oldest of those that are gone, beyond maxLives.
func (b *book) trim(n *nodeLives) {
	for len(n.lives) > b.lives {
		i := slices.IndexFunc(n.lives, func(l *life) bool { return !l.attached })
		l := n.lives[i] // at most maxAttached are attached
		n.lives = slices.Delete(n.lives, i, i+1)
		b.rederive(l)
	}
}

// report takes what an attached instance says. elsewhere are the targets that
// discovery places on other nodes, full the number that were not kept.
func (b *book) report(l *life, facts []Fact, whole bool, now time.Time) (elsewhere []Target, full int) {
	if whole {
		repeated := make(map[Target]bool, len(facts))
		for _, f := range facts {
			repeated[f.Target()] = true
		}
		for t := range l.facts {
			if !repeated[t] {
				delete(l.facts, t)
				b.derive(t)
			}
		}
	}
	for _, f := range facts {
		t := f.Target()
		old, known := l.facts[t]
		if !known && len(l.facts) >= MaxFacts {
			full++
			continue
		}
		s := said{fact: f, seen: now.Add(-f.Age), order: old.order}
		if !known || old.fact.EndpointFact != f.EndpointFact {
			b.order++
			s.order = b.order
		} else {
			s.seen = old.seen
		}
		l.facts[t] = s
		b.supersede(l, t)
		if node, ok := b.place(t.Endpoint); ok && node != l.node {
			elsewhere = append(elsewhere, t)
		}
		b.derive(t)
	}
	return elsewhere, full
}

// supersede forgets what instances that are gone have said of t.
func (b *book) supersede(l *life, t Target) {
	for _, x := range b.nodes[l.node].lives {
		if !x.attached {
			delete(x.facts, t)
		}
	}
}

// drain makes the word of other instances go before that of l.
func (b *book) drain(l *life) {
	l.draining = true
	b.rederive(l)
}

// detach ends an instance's stream. What it said is held.
func (b *book) detach(l *life, now time.Time) {
	l.attached, l.ended = false, now
	n := b.nodes[l.node]
	n.last, n.left = l.instance, now
	for t := range l.facts {
		for _, x := range n.lives {
			if _, ok := x.facts[t]; ok && x.attached { // whose word goes before, now and later
				delete(l.facts, t)
				break
			}
		}
		b.derive(t)
	}
	if len(l.facts) == 0 {
		n.lives = slices.DeleteFunc(n.lives, func(x *life) bool { return x == l })
	}
}

// open lists what is believed to be out of a node's pods and what l has not spoken
// of itself, at most [MaxFacts].
func (b *book) open(l *life) []Target {
	var out []Target
	for _, x := range b.nodes[l.node].lives {
		for t := range x.facts {
			s, ok := b.believed[t]
			if _, own := l.facts[t]; !own && ok && s.fact.State != federation.Healthy {
				out = append(out, t)
			}
		}
	}
	slices.SortFunc(out, compareTargets)
	out = slices.Compact(out)
	return out[:min(len(out), MaxFacts)]
}

func compareTargets(a, b Target) int {
	if a.Endpoint != b.Endpoint {
		if a.Endpoint < b.Endpoint {
			return -1
		}
		return 1
	}
	return int(a.Port) - int(b.Port)
}

// relocate takes notice of a change of discovery.
func (b *book) relocate() {
	for _, n := range b.nodes {
		for _, l := range n.lives {
			b.rederive(l)
		}
	}
	for t := range b.believed {
		b.derive(t)
	}
}

// advance lets time pass: what was held for long enough is forgotten.
func (b *book) advance(now time.Time) {
	for name, n := range b.nodes {
		for _, l := range slices.Clone(n.lives) {
			if l.attached || now.Sub(l.ended) < Held {
				continue
			}
			n.lives = slices.DeleteFunc(n.lives, func(x *life) bool { return x == l })
			b.rederive(l)
		}
		if len(n.lives) == 0 && now.Sub(n.left) >= remembered {
			delete(b.nodes, name)
		}
	}
}

func (b *book) rederive(l *life) {
	for t := range l.facts {
		b.derive(t)
	}
}

// derive brings what is believed of t up to date and notes the edge, if it is one.
func (b *book) derive(t Target) {
	was, known := b.believed[t]
	now, knows := b.judge(t)
	switch {
	case knows:
		b.believed[t] = now
	default:
		delete(b.believed, t)
	}
	if known != knows || was.fact.EndpointFact != now.fact.EndpointFact {
		b.edges = append(b.edges, Edge{Target: t, Fact: now.fact, Known: knows})
	}
}

// judge finds the word that counts of t.
func (b *book) judge(t Target) (best said, ok bool) {
	node, listed := b.place(t.Endpoint)
	n := b.nodes[node]
	if !listed || n == nil {
		return said{}, false
	}
	rank := 0
	for _, l := range n.lives {
		s, speaks := l.facts[t]
		if !speaks {
			continue
		}
		r := l.rank()
		if r > rank || r == rank && s.order > best.order {
			best, rank, ok = s, r, true
		}
	}
	return best, ok
}

func (l *life) rank() int {
	switch {
	case !l.attached:
		return 1
	case l.draining:
		return 2
	}
	return 3
}

// take returns the edges since the last call, in order.
func (b *book) take() []Edge {
	out := b.edges
	b.edges = nil
	return out
}

// names lists the nodes that are attached, sorted.
func (b *book) names() []string {
	out := []string{}
	for _, name := range b.known() {
		if b.attached(name) > 0 {
			out = append(out, name)
		}
	}
	return out
}

// known lists the nodes of which something is kept, sorted.
func (b *book) known() []string { return slices.Sorted(maps.Keys(b.nodes)) }

// attached counts the instances of a node's proxy that are attached.
func (b *book) attached(node string) (n int) {
	if x := b.nodes[node]; x != nil {
		for _, l := range x.lives {
			if l.attached {
				n++
			}
		}
	}
	return n
}
