package warmset

import (
	"math"
	"slices"

	"github.com/isthmus-mesh/isthmus/mesh"
)

// Offer is what one gateway has of a share.
type Offer struct {
	// Group is the name of those gateways that reach the same endpoints.
	Group string
	// Healthy is how many endpoints may be chosen by way of it, and Weight their weight.
	Healthy int
	Weight  float64
}

// nearly is what part of the best of its group a gateway has to offer so that sessions
// go by it: if each of two gave half of the turns, endpoints that only one can reach would
// have too few, and by this the others at most a sixth more than the mean.
const nearly = 0.75

// group is gateways that reach the same endpoints, of which a set uses two.
type group struct {
	name    string
	ways    []string // one or two
	healthy int
	weight  float64
}

func (s *Share) offer(gateway string) Offer {
	if o, has := s.Offers[gateway]; has {
		return o
	}
	return Offer{Healthy: s.Healthy, Weight: float64(s.Healthy)}
}

func (s *Share) groups() (out []group) {
	for _, gateway := range s.Gateways {
		o := s.offer(gateway)
		i := slices.IndexFunc(out, func(g group) bool { return g.name == o.Group })
		if i < 0 {
			i, out = len(out), append(out, group{name: o.Group})
		}
		out[i].healthy, out[i].weight = max(out[i].healthy, o.Healthy), max(out[i].weight, o.Weight)
	}
	for _, gateway := range s.Gateways {
		o := s.offer(gateway)
		if i := slices.IndexFunc(out, func(g group) bool { return g.name == o.Group }); len(out[i].ways) < 2 && o.Weight >= nearly*out[i].weight {
			out[i].ways = append(out[i].ways, gateway)
		}
	}
	return out
}

// regroup takes in whom the gateways of s.share reach. Nothing of turns is made good to a
// group that was away.
func (s *Set) regroup() {
	s.groups = s.share.groups()
	for _, sl := range s.slots {
		if e := sl.session; e != nil && slices.Contains(s.share.Gateways, e.Gateway) {
			e.group = s.share.offer(e.Gateway).Group
		}
	}
	was := s.turns
	if s.turns = nil; len(s.groups) < 2 {
		return
	}
	began, any := 0.0, false
	for _, g := range s.groups {
		if t, has := was[g.name]; has && (!any || t < began) {
			began, any = t, true
		}
	}
	s.turns = map[string]float64{}
	for _, g := range s.groups {
		t, has := was[g.name]
		if !has {
			t = began + s.random()/g.weight // sets do not all begin with the same
		}
		s.turns[g.name] = t
	}
}

func (s *Set) group(name string) *group {
	for i := range s.groups {
		if s.groups[i].name == name {
			return &s.groups[i]
		}
	}
	return nil
}

// groupFor is whose endpoint sl is to have: if all are to be held, of the group of which
// most are missing, else of each group in turns by its weight. Who is asked for by name
// is of its own group.
func (s *Set) groupFor(sl *slot, whole bool) *group {
	if len(s.groups) == 1 {
		return &s.groups[0]
	}
	if sl.pin != 0 {
		if g := s.group(sl.home); g != nil {
			return g
		}
	}
	best := &s.groups[0]
	if whole {
		missing := s.missing(sl)
		if sl.elsewhere { // that group has nobody else: somewhere the count is wrong
			missing[s.share.offer(sl.gateway).Group] = math.MinInt
		}
		for i := range s.groups {
			if g := &s.groups[i]; missing[g.name] > missing[best.name] {
				best = g
			}
		}
		return best
	}
	for i := range s.groups {
		if g := &s.groups[i]; s.turns[g.name] < s.turns[best.name] {
			best = g
		}
	}
	return best
}

// missing is how many endpoints of each group no slot but sl has, asks for, or has just
// asked for in vain.
func (s *Set) missing(sl *slot) map[string]int {
	out := map[string]int{}
	for _, g := range s.groups {
		out[g.name] = g.healthy
	}
	for _, o := range s.slots {
		switch {
		case o == sl:
		case o.pin != 0:
			out[o.home]--
		case o.session != nil:
			out[o.session.group]--
		case o.request != 0 || o.vain:
			out[s.share.offer(o.gateway).Group]--
		}
	}
	return out
}

// took counts a turn of the group of gateway.
func (s *Set) took(gateway string) {
	if len(s.groups) < 2 {
		return
	}
	if g := s.group(s.share.offer(gateway).Group); g != nil {
		s.turns[g.name] += 1 / g.weight
	}
}

// by is the gateway of g through which fewer sessions go, if both can reach pin.
func (s *Set) by(g *group, pin mesh.EndpointID) string {
	first := g.ways[0]
	if len(g.ways) == 1 {
		return first
	}
	second, balance := g.ways[1], 0
	if one := s.share.reaches(first, pin); pin != 0 && one != s.share.reaches(second, pin) {
		if one {
			return first
		}
		return second
	}
	for _, sl := range s.slots {
		switch {
		case sl.session == nil:
		case sl.session.Gateway == first:
			balance++
		case sl.session.Gateway == second:
			balance--
		}
	}
	if balance > 0 || balance == 0 && s.random() < 0.5 {
		return second
	}
	return first
}
