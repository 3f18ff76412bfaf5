package warmset

import (
	"maps"
	"slices"
	"time"

	"github.com/isthmus-mesh/isthmus/mesh"
)

const (
	// returnWithin is how soon an endpoint that is back is asked for, at the latest.
	// Clients spread over it.
	returnWithin = 800 * time.Millisecond
	// redrawWithin is how soon all slots are drawn anew when there are more endpoints
	// to draw among.
	redrawWithin = 4 * time.Second
	// grown is by which part there must be more: one of some that are many is drawn by
	// the renewal in any case.
	grown = 16
)

// Revise takes in what is known of the share now. Who must not be held leaves at
// once.
func (s *Set) Revise(share Share, now time.Time) {
	changed := share.Healthy != s.share.Healthy || !slices.Equal(share.Out, s.share.Out) || !slices.Equal(share.Gateways, s.share.Gateways) || !maps.Equal(share.Offers, s.share.Offers)
	s.share, s.known, s.dirty = share, true, true
	s.regroup()
	for _, sl := range s.slots {
		if sl.vain && changed {
			sl.vain, sl.elsewhere, sl.due, sl.tries = false, false, now, 0
		}
		e := sl.session
		switch {
		case e == nil:
		case !e.Unnamed && !share.has(e.Endpoint):
			s.remember(homed{e.Endpoint, e.group})
			s.refill(sl, homed{}, now)
		case !slices.Contains(share.Expect, e.Identity):
			s.refill(sl, homed{}, now)
		case !share.reaches(e.Gateway, e.Endpoint):
			s.refill(sl, homed{e.name(), e.group}, now) // it is well, through another one
		}
		if sl.pin != 0 && !share.has(sl.pin) {
			sl.pin = 0
		}
	}
	s.shrink()
	s.resize(now)
	back := s.returned(now)
	s.redraw(back, now)
	s.rebalance(now)
}

// rebalance has sessions go by the other of the two gateways of their group until both have as
// many, if one of them is back, or more is known of them. Each pod stays if all are held.
// If they are renewed, which evens small differences out by itself, those that change take
// what the other gateway chooses: a pod that stayed would have one turn after another.
func (s *Set) rebalance(now time.Time) {
	for i := range s.groups {
		if g := &s.groups[i]; len(g.ways) == 2 {
			s.rebalanceGroup(g, now)
		}
	}
}

func (s *Set) rebalanceGroup(g *group, now time.Time) {
	stay, apart := s.complete(now), 2
	if !stay {
		apart = max(apart, len(s.slots)/4/len(s.groups))
	}
	var by [2]int // sessions, and requests by name
	renewed := 0  // sessions that are to be, by way of the gateway that has fewer
	of := func(sl *slot) int { return slices.Index(g.ways, sl.session.Gateway) }
	for _, sl := range s.slots {
		if sl.session == nil || sl.session.group != g.name {
			continue
		}
		switch i := of(sl); {
		case i < 0 || sl.pin != 0:
			by[1-max(i, 0)]++ // it is on its way
		case !stay && (sl.request != 0 || !sl.due.IsZero()):
			renewed++
		default:
			by[i]++
		}
	}
	if by[0] < by[1] {
		by[0] += renewed
	} else {
		by[1] += renewed
	}
	for _, sl := range s.slots {
		if sl.session == nil || sl.session.group != g.name || sl.session.Unnamed || sl.request != 0 || sl.pin != 0 || !sl.due.IsZero() {
			continue
		}
		i := of(sl)
		if i < 0 || by[i] < by[1-i]+apart || !s.share.reaches(g.ways[1-i], sl.session.Endpoint) {
			continue
		}
		by[i]--
		by[1-i]++
		if sl.tries = 0; stay {
			sl.pin, sl.home = sl.session.Endpoint, g.name
		}
		sl.due = now.Add(time.Duration(s.random() * float64(redrawWithin)))
	}
}

// refill empties sl and has it filled at once, with pin unless that is nobody.
func (s *Set) refill(sl *slot, pin homed, now time.Time) {
	s.leave(sl)
	sl.pin, sl.home, sl.due, sl.tries = pin.endpoint, pin.group, now, 0
}

// remember notes who is to be asked for when it is back.
func (s *Set) remember(e homed) {
	s.away = slices.DeleteFunc(s.away, func(o homed) bool { return o.endpoint == e.endpoint })
	if len(s.away) == maxAway {
		s.away = slices.Delete(s.away, 0, 1)
	}
	s.away = append(s.away, e)
}

// shrink drops slots until there are no more than may be, the empty ones first,
// then the least used.
func (s *Set) shrink() {
	for len(s.slots) > s.allowed() {
		least := 0
		for i, sl := range s.slots {
			if sl.uses() < s.slots[least].uses() {
				least = i
			}
		}
		s.drop(least)
	}
}

func (sl *slot) uses() int {
	if sl.session == nil {
		return -1
	}
	return sl.session.uses
}

// returned has slots ask for endpoints that are no longer out, and counts them.
func (s *Set) returned(now time.Time) (back int) {
	for i := 0; i < len(s.away); {
		e := s.away[i]
		if !s.share.has(e.endpoint) {
			i++
			continue
		}
		s.away = slices.Delete(s.away, i, i+1)
		back++
		if sl := s.placeFor(e.endpoint); sl != nil {
			sl.pin, sl.home, sl.tries = e.endpoint, e.group, 0
			sl.due = now.Add(time.Duration(s.random() * float64(returnWithin)))
		}
	}
	return back
}

// placeFor returns the slot for an endpoint that is back: an empty one, or the one
// that was used most, whose renewal is next; nil if it has one already, or all are
// being filled.
func (s *Set) placeFor(e mesh.EndpointID) (place *slot) {
	for _, sl := range s.slots {
		switch {
		case sl.has(e):
			return nil
		case sl.request != 0 || sl.pin != 0:
		case place == nil, sl.session == nil, place.session != nil && sl.uses() > place.uses():
			place = sl
		}
	}
	return place
}

func (sl *slot) has(e mesh.EndpointID) bool {
	return sl.pin == e || sl.session != nil && sl.session.Endpoint == e
}

// redraw has all slots drawn anew if there are more endpoints to draw among than
// they were drawn among, not counting those that are asked for by name.
func (s *Set) redraw(back int, now time.Time) {
	h := s.share.Healthy
	if h <= s.redrawn || s.complete(now) {
		s.redrawn = min(s.redrawn, h)
		if s.complete(now) {
			s.redrawn = h
		}
		return
	}
	if h-back < s.redrawn+max(1, s.redrawn/grown) {
		return
	}
	s.redrawn = h
	for _, sl := range s.slots {
		if at := now.Add(time.Duration(s.random() * float64(redrawWithin))); sl.session != nil && sl.pin == 0 && (sl.due.IsZero() || at.Before(sl.due)) {
			sl.due = at
		}
	}
}
