package picker

import (
	"cmp"
	"hash/fnv"
	"math"
	"slices"
	"strconv"
	"time"

	"github.com/isthmus-mesh/isthmus/health"
	"github.com/isthmus-mesh/isthmus/mesh"
	"github.com/isthmus-mesh/isthmus/nodeproxy/warmset"
	"github.com/isthmus-mesh/isthmus/route"
)

// Kept are the warm sets of one source identity.
type Kept interface {
	// Choose is that of [warmset.Set]; gateway is a Way. It is called with locks held, and
	// must not call the Picker but for Warm.
	Choose(k Share, gateway string, fits func(warmset.Choice) bool) (warmset.Choice, bool)
}

// Way is what a gateway is called in a warm set: one that has moved is another one.
func Way(g *mesh.Gateway) string { return g.Name + " " + g.Address.String() }

// chooseKept asks kept for a session and returns by which gateway it goes. It is g, and
// that chooses the pod, if there is none but with pods in doubt: the gateway knows
// better.
func (s *share) chooseKept(c *Choice, m *member, candidate *route.Candidate, g int, t Tried, kept Kept, now time.Time) int {
	x, ok := kept.Choose(s.key, m.ways[g], func(x warmset.Choice) bool {
		i := slices.Index(m.ways, x.Gateway)
		if i < 0 || i != g && !s.open(m, candidate, i, g, t, now) {
			return false
		}
		if x.Joined {
			return x.Pin == 0 || s.sound(warmset.Choice{Answer: warmset.Answer{Endpoint: x.Pin}}, candidate.Gateways[i].Name, t.Pods, now)
		}
		return slices.Contains(candidate.Expect, x.Identity) && s.sound(x, candidate.Gateways[i].Name, t.Pods, now)
	})
	switch {
	case ok:
		c.Kept = x
	case !x.Joined:
		c.Reserved = x.ID
		return g
	default:
		c.Reserved, c.Joined, c.Pinned = x.ID, true, x.Pin
	}
	return slices.Index(m.ways, x.Gateway) // that was asked: what comes of it is its own
}

// open reports whether nothing speaks against the gateway i, beside g: that it drains does
// unless g does.
func (s *share) open(m *member, candidate *route.Candidate, i, g int, t Tried, now time.Time) bool {
	h := s.current(now)
	d := h.of(candidate.Gateways[i].Name)
	return (!h.drains(candidate.Gateways[i]) || h.drains(candidate.Gateways[g])) && !slices.Contains(t.Gateways, m.gates[i].key) && !m.gates[i].silent(now) && m.gates[i].cell.Score(now).Usable &&
		m.paths[i].Score(now).Usable && (d == nil || d.able())
}

// sound reports whether the pod of x may be chosen, by what its owners and our own eyes
// say of it. While a pod has failed without a word from its owners none is: they may be
// cut off.
func (s *share) sound(x warmset.Choice, gateway string, tried []mesh.EndpointID, now time.Time) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.hints != nil && s.hints.Unexplained(s.hinted(), gateway, s.explained, doubtFor, now) {
		return false
	}
	if x.Unnamed {
		return true
	}
	id := x.Endpoint
	return !slices.Contains(tried, id) && !s.health.excepted(id) && !s.health.absent(id) && !s.health.unreachable(gateway, id) && !now.Before(s.lapsed[id]) &&
		!s.failedLately(id, "", now) && !s.failedLately(id, gateway, now)
}

func (s *share) failedLately(id mesh.EndpointID, gateway string, now time.Time) bool {
	return s.hints != nil && now.Before(s.hints.Until(health.HintKey{HintService: s.hinted(), Endpoint: id, Gateway: gateway}))
}

// Warm is what a warm set of k is to know: what is said of it, and by which of gateways
// sessions go. ready is how many endpoints it has if nobody says.
func (p *Picker) Warm(k Share, gateways []*mesh.Gateway, ready int, now time.Time) warmset.Share {
	if !p.config.Endpoints || len(gateways) == 0 {
		return warmset.Share{}
	}
	h, out := p.said(k, now)
	w := warmset.Share{Out: out, Reaches: reaches(&h, gateways)}
	p.preferred(&w, k, &h, gateways, ready-(len(out)-len(h.Absent)), now)
	return w
}

// said is what owners say of k, and which endpoints are out by it, or were by their
// last word.
func (p *Picker) said(k Share, now time.Time) (h Health, out []mesh.EndpointID) {
	p.mu.Lock()
	s := p.known[k]
	p.mu.Unlock()
	if s == nil {
		h, _ = p.config.Health(k)
		return h, slices.Concat(h.Exceptions, h.Absent)
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.ask(now)
	out = slices.Concat(s.health.Exceptions, s.health.Absent)
	for id, end := range s.lapsed {
		if now.Before(end) {
			out = append(out, id)
		}
	}
	return s.health, out
}

// reaches is nil if every gateway can reach everybody.
func reaches(h *Health, gateways []*mesh.Gateway) func(way string, e mesh.EndpointID) bool {
	var not map[string][]mesh.EndpointID
	for _, g := range gateways {
		if d := h.of(g.Name); d != nil && len(d.Unreachable) > 0 {
			if not == nil {
				not = map[string][]mesh.EndpointID{}
			}
			not[Way(g)] = d.Unreachable
		}
	}
	if not == nil {
		return nil
	}
	return func(way string, e mesh.EndpointID) bool { return !slices.Contains(not[way], e) }
}

// preferred fills in the gateways that can deliver, of those that drain if no other can, or,
// if there is none, all, and how many endpoints are behind them. Which come first differs from one node proxy to the
// next, by what each can deliver. One that says nothing is taken for one of the largest group.
func (p *Picker) preferred(w *warmset.Share, k Share, h *Health, gateways []*mesh.Gateway, unknown int, now time.Time) {
	type ranked struct {
		way   string
		score float64
		offer *warmset.Offer // nil: unknown
	}
	var able, leaving, all []ranked
	// The endpoints behind those that are able, and behind any: gateways of one group see
	// the same ones, other groups others.
	ableIn, leavingIn, allIn := make([]int, len(h.Groups)+1), make([]int, len(h.Groups)+1), make([]int, len(h.Groups)+1)
	for _, g := range gateways {
		v := p.way(k, h, g, now)
		n := max(0, unknown)
		if v.delivery != nil {
			n = int(v.delivery.Healthy)
		}
		group := len(h.Groups)
		if v.delivery != nil {
			group = slices.IndexFunc(h.Groups, func(g Group) bool { return within(g, v.delivery) })
		}
		allIn[group] = max(allIn[group], n)
		weight := v.gate.Weight * v.delivers(1)
		x := ranked{way: Way(g), score: -math.Log(p.draw(k, Way(g)))}
		if v.delivery != nil {
			x.offer = &warmset.Offer{Group: v.delivery.Group, Healthy: n, Weight: max(1, v.delivery.capacity())}
		}
		all = append(all, x)
		if v.gate.Usable && weight > 0 && !v.silent {
			if x.score /= weight; v.draining {
				leaving, leavingIn[group] = append(leaving, x), max(leavingIn[group], n)
			} else {
				able, ableIn[group] = append(able, x), max(ableIn[group], n)
			}
		}
	}
	switch {
	case len(able) > 0:
	case len(leaving) > 0:
		able, ableIn = leaving, leavingIn
	default:
		able, ableIn = all, allIn
	}
	slices.SortFunc(able, func(a, b ranked) int { return cmp.Compare(a.score, b.score) })
	last := len(h.Groups)
	for _, n := range ableIn[:last] {
		w.Healthy += n
	}
	w.Healthy = max(w.Healthy, ableIn[last]) // of gateways that say nothing: all there are
	var largest *warmset.Offer
	for _, x := range able {
		w.Gateways = append(w.Gateways, x.way)
		if x.offer != nil && (largest == nil || x.offer.Weight > largest.Weight) {
			largest = x.offer
		}
	}
	if largest == nil {
		return
	}
	w.Offers = make(map[string]warmset.Offer, len(able))
	for _, x := range able {
		if x.offer == nil {
			x.offer = largest
		}
		w.Offers[x.way] = *x.offer
	}
}

// way is how one gateway stands to k.
func (p *Picker) way(k Share, h *Health, g *mesh.Gateway, now time.Time) way {
	v := way{name: g.Name, delivery: h.of(g.Name), draining: h.drains(g)}
	v.gate.Usable, v.gate.Weight, v.path = true, 1, v.gate
	v.path.Usable, v.path.Weight = true, 1
	p.mu.Lock()
	gate := p.gates[GatewayKey(g)]
	p.mu.Unlock()
	if gate != nil {
		v.gate, v.silent = gate.cell.Score(now), gate.silent(now)
	}
	if c := p.paths.Find(Path{k, g.Name}); c != nil {
		v.path = c.Score(now)
	}
	return v
}

// draw returns a number in (0, 1) that is the same each time.
func (p *Picker) draw(k Share, way string) float64 {
	f := fnv.New64a()
	f.Write(strconv.AppendUint(nil, p.salt, 16))
	for _, part := range [...]string{k.Network, k.Service, way} {
		f.Write([]byte{0})
		f.Write([]byte(part))
	}
	h := f.Sum64() // its low bits are mixed best
	h ^= h >> 32
	h *= 0x9e3779b97f4a7c15
	return (float64(h>>11) + 0.5) / (1 << 53)
}
