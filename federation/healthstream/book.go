package healthstream

import (
	"cmp"
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

	// healed is for how long a port is known to answer that was out: as long as a
	// node proxy says so.
	healed = 2 * Held

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
// A pod that discovery has listed and lists no more takes what was said of it along:
// the next one of its name is another. What was said before discovery listed a pod
// stays, since discovery of two processes does not change at the same instant.
//
// It is pure; not safe for concurrent use.
type book struct {
	place    Place
	lives    int // that are kept of one node proxy
	nodes    map[string]*nodeLives
	believed map[Target]said
	order    uint64
	waiting  map[Target]*waiting // of which somebody is to be told
	serial   uint64              // of waiting
}

type nodeLives struct {
	lives []*life // oldest first
	last  Instance
	left  time.Time            // when last was attached last
	lost  map[Target]time.Time // were out when discovery listed them no more: when that was
}

// life is one instance of a node proxy.
type life struct {
	node     string
	instance Instance
	attached bool
	draining bool
	heard    bool      // it has said all that it knows
	ended    time.Time // when it was attached last
	facts    map[Target]said
}

// said is a fact and when it came.
type said struct {
	fact  Fact
	seen  time.Time // of the evidence, by this clock
	came  time.Time // when it was said last
	order uint64    // of changes, as seen here

	listed bool // discovery has had it on that node since
}

func newBook(place Place) *book {
	return &book{place: place, lives: maxLives, nodes: map[string]*nodeLives{}, believed: map[Target]said{}, waiting: map[Target]*waiting{}}
}

// attach begins or resumes an instance. resumed says that another one was here
// before. evicted is one that is attached no more to make room; nil for none.
func (b *book) attach(node string, i Instance, now time.Time) (l *life, resumed bool, evicted *life) {
	n := b.nodes[node]
	if n == nil {
		n = &nodeLives{lost: map[Target]time.Time{}}
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
	if l == nil || !l.attached {
		if evicted = n.evict(); evicted != nil {
			b.end(evicted, now)
		}
	}
	if l == nil {
		l = &life{node: node, instance: i, attached: true, facts: map[Target]said{}}
		n.lives = append(n.lives, l)
		b.trim(n)
	}
	l.attached, l.draining = true, false
	b.rederive(l)
	return l, resumed, evicted
}

// displaces says whether the next stream of an instance takes the place of another one of
// its node: of its own, whose end may not have been seen, or of the one that gives way.
func (b *book) displaces(node string, i Instance) bool {
	n := b.nodes[node]
	return n != nil && (slices.ContainsFunc(n.lives, func(x *life) bool { return x.instance == i && x.attached }) || n.evict() != nil)
}

// evict names the instance that gives way to one more: one that drains, else the
// youngest. Whoever has the node's key and attaches instance after instance displaces
// their own, and displaces the real one only if that has come since; it is let in again.
func (n *nodeLives) evict() (out *life) {
	attached := 0
	for _, x := range n.lives {
		if !x.attached {
			continue
		}
		attached++
		if out == nil || x.draining || !out.draining {
			out = x
		}
	}
	if attached < maxAttached {
		return nil
	}
	return out
}

// trim forgets those that went first, beyond maxLives.
func (b *book) trim(n *nodeLives) {
	for len(n.lives) > b.lives {
		var first *life // at most maxAttached are attached
		for _, l := range n.lives {
			if !l.attached && (first == nil || l.ended.Before(first.ended)) {
				first = l
			}
		}
		n.lives = slices.DeleteFunc(n.lives, func(l *life) bool { return l == first })
		b.rederive(first)
	}
}

// report takes what an attached instance says. elsewhere are the targets that
// discovery places on other nodes, full the number that were not kept.
func (b *book) report(l *life, facts []Fact, whole bool, now time.Time) (elsewhere []Target, full int) {
	if whole {
		l.heard = true
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
	var spare []Target // of ports that are well, those that were said last first
	for _, f := range facts {
		t := f.Target()
		old, known := l.facts[t]
		if !known && len(l.facts) >= MaxFacts && f.State != federation.Healthy {
			if spare == nil {
				spare = l.healthy()
			}
			spare = b.displace(l, spare)
		}
		if !known && len(l.facts) >= MaxFacts {
			full++
			continue
		}
		node, ok := b.place(t.Endpoint)
		s := said{fact: f, seen: now.Add(-f.Age), came: now, order: old.order, listed: old.listed || ok && node == l.node}
		if !known || old.fact.EndpointFact != f.EndpointFact {
			b.order++
			s.order = b.order
		} else {
			s.seen = old.seen
		}
		l.facts[t] = s
		b.supersede(l, t)
		if ok && node != l.node {
			elsewhere = append(elsewhere, t)
		}
		b.derive(t)
	}
	return elsewhere, full
}

// healthy lists the ports that are well by the word of l, the oldest word last. It is
// never nil.
func (l *life) healthy() []Target {
	out := []Target{}
	for t, s := range l.facts {
		if s.fact.State == federation.Healthy {
			out = append(out, t)
		}
	}
	slices.SortFunc(out, func(a, b Target) int { return cmp.Compare(l.facts[b].order, l.facts[a].order) })
	return out
}

// displace forgets the last of spare that is well still, for one that is not. It
// returns what is left of spare.
func (b *book) displace(l *life, spare []Target) []Target {
	for len(spare) > 0 {
		t := spare[len(spare)-1]
		spare = spare[:len(spare)-1]
		if s, ok := l.facts[t]; ok && s.fact.State == federation.Healthy {
			delete(l.facts, t)
			b.derive(t)
			break
		}
	}
	return spare
}

// nothing takes that l has nothing to say of targets any more: it has forgotten them.
func (b *book) nothing(l *life, targets []Target) {
	for _, t := range targets {
		delete(l.facts, t)
		b.derive(t)
	}
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
	b.end(l, now)
	if n := b.nodes[l.node]; len(l.facts) == 0 {
		n.lives = slices.DeleteFunc(n.lives, func(x *life) bool { return x == l })
	}
}

// end is detach of one that may be back at once.
func (b *book) end(l *life, now time.Time) {
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
}

// open lists what is believed to be out of a node's pods, and what was out before
// discovery lost it for a while, and l has not spoken of itself: at most [MaxFacts].
func (b *book) open(l *life) []Target {
	n := b.nodes[l.node]
	out := b.back(l.node, n)
	for _, x := range n.lives {
		for t := range x.facts {
			if s, ok := b.believed[t]; ok && s.fact.State != federation.Healthy {
				out = append(out, t)
			}
		}
	}
	out = slices.DeleteFunc(out, func(t Target) bool { _, own := l.facts[t]; return own })
	slices.SortFunc(out, compareTargets)
	out = slices.Compact(out)
	return out[:min(len(out), MaxFacts)]
}

// back lists what discovery had lost and lists again.
func (b *book) back(name string, n *nodeLives) (out []Target) {
	for t := range n.lost {
		if node, ok := b.place(t.Endpoint); ok && node == name {
			out = append(out, t)
		}
	}
	return out
}

// asked notes that node was asked for all that is open.
func (b *book) asked(node string) {
	n := b.nodes[node]
	for _, t := range b.back(node, n) {
		delete(n.lost, t)
	}
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

// relocate follows a change of discovery. Ejected ports of endpoints that changed are
// published again, as the receiver may have dropped them with the pod or the service. ask
// are the nodes to ask for what is open.
func (b *book) relocate(changed func(mesh.EndpointID) bool, now time.Time) (ask []string) {
	for name, n := range b.nodes {
		for _, l := range n.lives {
			b.follow(n, l, now)
			b.rederive(l)
		}
		if len(b.back(name, n)) > 0 {
			ask = append(ask, name)
		}
	}
	for t, s := range b.believed {
		if s.fact.State != federation.Healthy && changed(t.Endpoint) {
			b.wait(t, s, true).again = true
		}
	}
	return ask
}

// follow forgets what l has said of pods that were on its node and are no more.
func (b *book) follow(n *nodeLives, l *life, now time.Time) {
	for t, s := range l.facts {
		node, ok := b.place(t.Endpoint)
		switch here := ok && node == l.node; {
		case here && !s.listed:
			s.listed = true
			l.facts[t] = s
		case !here && s.listed:
			delete(l.facts, t)
			if s.fact.State != federation.Healthy && len(n.lost) < MaxFacts {
				n.lost[t] = now
			}
			b.derive(t)
		}
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
		for _, l := range n.lives {
			b.forgive(n, l, now)
		}
		maps.DeleteFunc(n.lost, func(_ Target, at time.Time) bool { return now.Sub(at) >= Held })
		if len(n.lives) == 0 && now.Sub(n.left) >= remembered {
			delete(b.nodes, name)
		}
	}
}

// forgive forgets of which ports l has said that they answer again, where nobody else
// says otherwise: what nothing is known of is used as well.
func (b *book) forgive(n *nodeLives, l *life, now time.Time) {
	for t, s := range l.facts {
		if s.fact.State == federation.Healthy && now.Sub(s.came) > healed && !n.sick(t) {
			delete(l.facts, t)
			b.derive(t)
		}
	}
}

// sick says whether any instance says that t is out.
func (n *nodeLives) sick(t Target) bool {
	return slices.ContainsFunc(n.lives, func(l *life) bool {
		s, ok := l.facts[t]
		return ok && s.fact.State != federation.Healthy
	})
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

// heard lists those of names that have said all that they know.
func (b *book) heard() []string {
	return slices.DeleteFunc(b.names(), func(name string) bool {
		return !slices.ContainsFunc(b.nodes[name].lives, func(l *life) bool { return l.attached && l.heard })
	})
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
