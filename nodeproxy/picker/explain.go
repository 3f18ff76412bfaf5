package picker

import (
	"time"

	"github.com/isthmus-mesh/isthmus/health"
	"github.com/isthmus-mesh/isthmus/health/standing"
	"github.com/isthmus-mesh/isthmus/internal/answer"
	"github.com/isthmus-mesh/isthmus/mesh"
	"github.com/isthmus-mesh/isthmus/route"
)

// Explain says of every candidate of d whether a new connection of origin, as in [Tried], may go there, and
// why.
func (p *Picker) Explain(d *Destination, origin string, now time.Time) []answer.Verdict {
	if plan := d.Plan(); plan.Direct != nil {
		k := health.Key{Endpoint: plan.Direct.Endpoint, Port: plan.Port.Target}
		v := answer.Verdict{Verdict: standing.Verdict{Kind: "pod", Name: plan.Direct.UID, Port: k.Port, In: true, Weight: 1, Part: 1, Causes: standing.OfCell([]standing.Cause{}, p.pods.Find(k), now)}}
		v.Causes = p.origins.explain(v.Causes, origin, k, now)
		v.Failed = p.attempts.get(k)
		if c := p.pods.Find(k); c != nil {
			v.Open = c.Open()
		}
		return []answer.Verdict{v}
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	plan := d.plan.Load()
	d.pass(now)
	for _, i := range d.shares { // all of them, whether they take part or not
		x, avoid := d.members[i].share.weigh(d.members[i], &plan.Candidates[i], Tried{}, now)
		if d.index.Set(i, x); avoid {
			d.index.Mask(i)
		}
	}
	d.maskUnreached(origin, now)
	defer d.index.Unmask()
	best, healthy := d.unmask()
	out := make([]answer.Verdict, 0, len(d.members))
	for i, m := range d.members {
		x := d.index.At(i)
		v := answer.Verdict{Verdict: standing.Verdict{Rank: x.Rank, Weight: x.Weight, Part: d.index.Share(i), Open: int(d.Load(i)), Causes: []standing.Cause{}}}
		v.In = v.Part > 0
		if m.pod != nil {
			v.Kind, v.Name, v.Port = "pod", m.pod.UID, m.cell.Key().Port
			v.Causes, v.Failed = standing.OfCell(v.Causes, m.cell, now), p.attempts.get(m.cell.Key())
			v.Causes = p.origins.explain(v.Causes, origin, m.cell.Key(), now)
			if id := m.pod.Endpoint; d.said.excepted(id) {
				v.Causes = append(v.Causes, d.own.cause(id))
			}
		} else {
			m.share.explain(&v, m, &plan.Candidates[i], now)
		}
		if healthy && x.Rank < best && len(v.Causes) == 0 {
			v.Causes = append(v.Causes, standing.Cause{Word: standing.HeldFarther})
		}
		out = append(out, v)
	}
	return out
}

// unmask ends the masks of pods that one origin does not reach, and of shares that nobody can be reached by, when no choice heeds
// them, as in choose: somebody healthy is behind them, or nobody is left otherwise. It
// returns the best rank with somebody healthy. The caller holds mu.
func (d *Destination) unmask() (best int, healthy bool) {
	if best, healthy = d.index.Best(); healthy || d.index.Masked() == 0 {
		return best, healthy
	}
	var masked []int
	left := false
	for i := range d.members {
		if d.index.Share(i) > 0 {
			left = true
		} else {
			masked = append(masked, i)
		}
	}
	d.index.Unmask()
	if best, healthy = d.index.Best(); !healthy && left {
		for _, i := range masked {
			d.index.Mask(i)
		}
	}
	return best, healthy
}

// cause is that the owners of s leave an endpoint out.
func (s *share) cause(id mesh.EndpointID) standing.Cause {
	s.mu.Lock()
	defer s.mu.Unlock()
	return standing.Cause{Word: standing.HeldReported, By: "its witness, as the gateways of " + s.key.Network + " say", Since: s.since[id]}
}

// explain adds what there is to say of a share: its gateways, and single endpoints.
func (s *share) explain(v *answer.Verdict, m *member, c *route.Candidate, now time.Time) {
	v.Kind, v.Name, v.Failed = "share", s.key.Network, s.attempts.get("")
	v.Causes = weakOf(standing.OfCell(v.Causes, s.whole, now), "to this share")
	h := s.current(now)
	ways := waysOf(m, c, &h, Tried{}, now, nil)
	s.mu.Lock()
	if sumUp(ways, &h, float64(c.Capacity)).draining {
		v.Causes = append(v.Causes, standing.Cause{Word: standing.HeldDraining})
	}
	v.Unknown = !s.known && s.picker.config.Endpoints
	s.mu.Unlock()
	for _, id := range h.Exceptions {
		x := s.cause(id)
		x.Endpoint = id.String()
		v.Endpoints = append(v.Endpoints, x)
	}
	preferStaying(ways)
	nobody, reached, says := true, false, false
	for i, w := range ways {
		g := answer.Verdict{Verdict: standing.Verdict{Kind: "gateway", Name: w.name, Weight: w.gate.Weight * w.delivers(float64(c.Capacity)), Open: m.gates[i].cell.Open()}}
		g.Failed = s.attempts.get(w.name)
		g.Causes = weakOf(standing.OfCell([]standing.Cause{}, m.gates[i].cell, now), "to this gateway")
		if f := s.picker.Unreached(m.gates[i].key); f != nil {
			for j := range g.Causes {
				if c := &g.Causes[j]; c.Word == standing.HeldFailed || c.Word == standing.HeldProbing {
					c.Error = f.Error
				}
			}
		}
		for _, x := range weakOf(standing.OfCell(nil, m.paths[i], now), "of this service through it") {
			if x.Word == standing.HeldFailed {
				x.Word = standing.HeldPath
			}
			g.Causes = append(g.Causes, x)
		}
		if w.silent {
			g.Causes = append(g.Causes, standing.Cause{Word: standing.HeldSilent})
		}
		switch d := w.delivery; {
		case d != nil && d.Draining:
			g.Causes = append(g.Causes, standing.Cause{Word: standing.HeldDraining})
		case w.draining:
			g.Causes = append(g.Causes, standing.Cause{Word: answer.HeldDrained})
		case d != nil && !d.able():
			g.Causes = append(g.Causes, standing.Cause{Word: standing.HeldNothing})
		}
		g.In = g.Weight > 0 && w.gate.Usable && !w.silent
		nobody = nobody && !g.In
		up := w.gate.Usable && !w.silent
		reached, says = reached || up, says || up && w.delivery != nil && !w.delivery.able()
		v.Gateways = append(v.Gateways, g)
	}
	if nobody && len(v.Causes) == 0 {
		word := answer.HeldUndelivered
		switch {
		case !reached:
			word = answer.HeldUnreached
		case says:
			word = standing.HeldNothing
		}
		v.Causes = append(v.Causes, standing.Cause{Word: word})
	}
	partGateways(v, nobody)
}

// weakOf says which connections failed of what is weak in list.
func weakOf(list []standing.Cause, which string) []standing.Cause {
	for i := range list {
		if list[i].Word == standing.HeldWeak {
			list[i].Of = which
		}
	}
	return list
}

// partGateways says which part of v each gateway gets: all if it has none that takes part
// and is chosen all the same.
func partGateways(v *answer.Verdict, nobody bool) {
	total := 0.0
	for i := range v.Gateways {
		g := &v.Gateways[i]
		if nobody && v.In {
			g.In, g.Weight = true, 1
		}
		if g.In {
			total += g.Weight
		}
	}
	for i := range v.Gateways {
		if g := &v.Gateways[i]; g.In && total > 0 {
			g.Part = v.Part * g.Weight / total
		}
	}
}

// Since is when this process first heard that an endpoint of a share is out; zero if
// it follows no such share.
func (p *Picker) Since(k Share, id mesh.EndpointID) time.Time {
	p.mu.Lock()
	s := p.known[k]
	p.mu.Unlock()
	if s == nil {
		return time.Time{}
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.since[id]
}

// Attempts are what failed of a share since something succeeded, for people; nil: nothing.
func (p *Picker) Attempts(k Share) *answer.Attempts {
	p.mu.Lock()
	s := p.known[k]
	p.mu.Unlock()
	if s == nil {
		return nil
	}
	return s.attempts.get("")
}
