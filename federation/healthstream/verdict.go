package healthstream

import (
	"cmp"
	"maps"
	"slices"

	"github.com/isthmus-mesh/isthmus/federation"
)

// waiting is a target that is believed to be something else than was told.
type waiting struct {
	serial uint64
	told   federation.EndpointFact
	known  bool // told is something
	again  bool // it is to be told even if it is what was told
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
		b.wait(t, was, known)
	}
	if w := b.waiting[t]; w != nil && w.idle(now, knows) {
		delete(b.waiting, t)
	}
}

// wait notes that somebody is to be told of t, of which they know was. However often
// it changes until they are, that is once.
func (b *book) wait(t Target, was said, known bool) *waiting {
	w := b.waiting[t]
	if w == nil {
		b.serial++
		w = &waiting{serial: b.serial, told: was.fact.EndpointFact, known: known}
		b.waiting[t] = w
	}
	return w
}

// idle says that there is nothing to tell: it is as it was told before.
func (w *waiting) idle(now said, knows bool) bool {
	return w.known == knows && w.told == now.fact.EndpointFact && !(w.again && knows)
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

// take returns the edges since the last call, in order: of each target one.
func (b *book) take() []Edge {
	if len(b.waiting) == 0 {
		return nil
	}
	targets := slices.SortedFunc(maps.Keys(b.waiting), func(x, y Target) int {
		return cmp.Compare(b.waiting[x].serial, b.waiting[y].serial)
	})
	clear(b.waiting)
	out := make([]Edge, len(targets))
	for i, t := range targets {
		now, knows := b.believed[t]
		out[i] = Edge{Target: t, Fact: now.fact, Known: knows}
	}
	return out
}
