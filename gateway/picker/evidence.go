package picker

import (
	"time"

	"github.com/isthmus-mesh/isthmus/health"
	"github.com/isthmus-mesh/isthmus/mesh"
)

// change changes what is marked of a pod; nothing if discovery does not list it.
func (p *Picker) change(id mesh.EndpointID, how func(*mark)) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if !p.config.Listed(id) { // with mu held: Forget comes after
		return
	}
	m := p.marks[id]
	if how(&m); m == (mark{}) {
		delete(p.marks, id)
		return
	}
	p.marks[id] = m
}

// tell has a pod weighed again wherever it is a member.
func (p *Picker) tell(id mesh.EndpointID, now time.Time) {
	if c := p.hops.Find(id); c != nil {
		c.Tell(now)
	}
}

// Doubt keeps connections away from a pod that is slow to answer one, while there
// are others, until Asked.
func (p *Picker) Doubt(id mesh.EndpointID, now time.Time) {
	p.change(id, func(m *mark) {
		if m.doubted.IsZero() {
			m.doubted = now
		}
	})
	p.tell(id, now)
}

// Doubts is how many pods owe an answer.
func (p *Picker) Doubts() (n int) {
	p.mu.Lock()
	defer p.mu.Unlock()
	for _, m := range p.marks {
		if !m.doubted.IsZero() {
			n++
		}
	}
	return n
}

// Doubted reports whether a pod owes an answer.
func (p *Picker) Doubted(id mesh.EndpointID) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	return !p.marks[id].doubted.IsZero()
}

// MayVerify reports, at most once per every, that a pod may be asked because of a
// client.
func (p *Picker) MayVerify(id mesh.EndpointID, every time.Duration, now time.Time) (due bool) {
	p.change(id, func(m *mark) {
		if due = now.Sub(m.asked) >= every; due {
			m.asked = now
		}
	})
	return due
}

// Answer is what a question of our own to a pod's node proxy found.
type Answer uint8

const (
	Answers   Answer = iota
	NotAsked         // we could not ask, which says nothing about the pod
	Untrusted        // it showed a certificate that cannot be believed
	Silent           // it did not answer, which counts unless it has answered others meanwhile
	Unknown          // it did not answer, and that may have been our doing
	Broken           // it answered wrongly
)

// Asked takes in what a question that was put at started found.
func (p *Picker) Asked(w *mesh.Workload, a Answer, reason string, started, now time.Time) (edges []Edge) {
	id := w.Endpoint
	if !p.config.Listed(id) {
		return nil
	}
	hop := p.hops.Hold(id) // it need not be a member of a service that somebody has asked for
	defer p.hops.Release(hop)
	switch a {
	case Answers:
		p.change(id, func(m *mark) { m.doubted, m.untrusted = time.Time{}, false })
		edges = p.edge(w, hop.Readmit("", now), "", now)
	case NotAsked:
		p.change(id, func(m *mark) { m.doubted = time.Time{} })
	case Silent:
		if !hop.AnsweredSince(started) { // else it has more to do than it can
			edges = p.edge(w, hop.Fail(reason, now), reason, now)
		}
	case Untrusted:
		p.change(id, func(m *mark) { m.untrusted = true })
		fallthrough
	case Broken:
		edges = p.edge(w, hop.Fail(reason, now), reason, now)
	}
	hop.Tell(now)
	return edges
}

// Reported takes note of what a witness says, or that it says nothing any more, and
// tells whether that is an edge. A port of which nothing is said is healthy.
func (p *Picker) Reported(k health.Key, healthy bool, word Word, now time.Time) (edge bool) {
	p.mu.Lock()
	was, sick := p.sick[k]
	switch {
	case healthy:
		delete(p.sick, k)
	case p.config.Listed(k.Endpoint):
		if word.Since = now; sick {
			word.Since = was.Since
		}
		p.sick[k] = word
	}
	p.mu.Unlock()
	p.tell(k.Endpoint, now)
	return sick == healthy
}

// Sick lists the ports that witnesses say are out.
func (p *Picker) Sick() []health.Key {
	p.mu.Lock()
	defer p.mu.Unlock()
	out := make([]health.Key, 0, len(p.sick))
	for k := range p.sick {
		out = append(out, k)
	}
	return out
}

// Hop is what is known of a pod's hop.
type Hop struct {
	health.State
	Usable  bool
	Doubted bool
	Turned  time.Time // when it last changed; zero: never
}

// Hop returns what is known of a pod's hop.
func (p *Picker) Hop(id mesh.EndpointID, now time.Time) Hop {
	p.mu.Lock()
	m := p.marks[id]
	p.mu.Unlock()
	h := Hop{State: health.State{Health: 1}, Usable: true, Doubted: !m.doubted.IsZero(), Turned: m.turned}
	if c := p.hops.Find(id); c != nil {
		h.State, _ = c.State(now)
		h.Usable = c.Score(now).Usable
	}
	return h
}

// Usable reports whether a port is chosen as long as any is.
func (p *Picker) Usable(k health.Key, now time.Time) bool {
	return p.Hop(k.Endpoint, now).Usable && p.well(k)
}

// OpenAt is how many connections each port of each pod has.
func (p *Picker) OpenAt() map[mesh.EndpointID]map[uint16]int {
	out := map[mesh.EndpointID]map[uint16]int{}
	p.ports.Each(func(k health.Key, open int) {
		if open == 0 {
			return
		}
		if out[k.Endpoint] == nil {
			out[k.Endpoint] = map[uint16]int{}
		}
		out[k.Endpoint][k.Port] = open
	})
	return out
}

// Remembered is how many pods and ports something is remembered of.
func (p *Picker) Remembered() int {
	p.mu.Lock()
	defer p.mu.Unlock()
	return len(p.marks) + len(p.sick) + len(p.hops.Troubled())
}
