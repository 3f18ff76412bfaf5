package warmset

import (
	"slices"
	"time"

	"github.com/isthmus-mesh/isthmus/mesh"
)

// Request is an endpoint to be opened in the background. It ends with Opened or
// Failed.
type Request struct {
	ID      uint64
	Gateway string
	Pin     mesh.EndpointID   // this one; zero: the gateway's choice
	Avoid   []mesh.EndpointID // without these; at most MaxSlots
}

const (
	// maxOpening is how many requests of one set are in flight at once: a session
	// costs 2 ms of CPU at each end.
	maxOpening = 4
	// After the n-th failure a slot waits retryFirst·2^(n-1), at most retryLimit, or
	// down to half of it.
	retryFirst = 100 * time.Millisecond
	retryLimit = 5 * time.Second
	// After persistent failures in a row a slot asks again only while somebody uses the
	// set: the next connection opens a session itself.
	persistent = 7
)

// Due returns what to open now.
func (s *Set) Due(now time.Time) (out []Request) {
	if !s.known || len(s.share.Gateways) == 0 {
		return nil
	}
	if !s.dirty && (s.wake.IsZero() || now.Before(s.wake)) {
		return nil
	}
	s.expire(now)
	limit := s.opening(now)
	for _, pinned := range [...]bool{true, false} { // who is asked for by name waits for nobody
		for _, sl := range s.slots {
			if len(s.requests) >= limit && !pinned || sl.request != 0 || sl.due.IsZero() || sl.due.After(now) || (sl.pin != 0) != pinned {
				continue
			}
			out = append(out, s.ask(sl, now))
		}
	}
	s.dirty, s.wake = false, s.passing(now)
	return out
}

// opening is how many requests may be in flight. When every endpoint is to be held
// once, two that are asked for at once may be the same.
func (s *Set) opening(now time.Time) int {
	if !s.complete(now) {
		return maxOpening
	}
	missing := 0
	for _, sl := range s.slots {
		if sl.session == nil {
			missing++
		}
	}
	return min(maxOpening, max(1, missing/4))
}

func (s *Set) ask(sl *slot, now time.Time) Request {
	s.next++
	whole := s.complete(now)
	r := Request{ID: s.next, Gateway: s.by(s.groupFor(sl, whole), sl.pin), Pin: sl.pin}
	if sl.pin == 0 && whole {
		r.Avoid = s.others(sl)
	}
	s.took(r.Gateway)
	sl.request, sl.gateway, sl.named, sl.due, sl.avoid = r.ID, r.Gateway, r.Pin, time.Time{}, r.Avoid
	sl.joined, sl.vain, sl.elsewhere, sl.content = 0, false, false, false
	s.requests[r.ID] = sl
	return r
}

// others are the endpoints that slots other than sl have.
func (s *Set) others(sl *slot) (out []mesh.EndpointID) {
	for _, o := range s.slots {
		if o == sl {
			continue
		}
		if o.pin != 0 {
			out = append(out, o.pin)
		} else if o.session != nil && !o.session.Unnamed {
			out = append(out, o.session.Endpoint)
		}
	}
	return out
}

// expire has slots renewed whose time is over, and ends those that the demand no
// longer asks for.
func (s *Set) expire(now time.Time) {
	want := s.demand.slots(now)
	if s.complete(now) {
		s.replaceDuplicates(now)
		return
	}
	for i := 0; i < len(s.slots); {
		sl := s.slots[i]
		switch over := sl.session != nil && sl.session.over(now); {
		case over && len(s.slots) > want, sl.session == nil && sl.request == 0 && len(s.slots) > want:
			s.drop(i)
			continue
		case over && sl.due.IsZero() && sl.request == 0 && sl.session.uses > 0:
			sl.due = now
		}
		i++
	}
}

// over reports whether e was used enough, or for long enough, or not at all for as
// long.
func (e *session) over(now time.Time) bool {
	if e.uses == 0 {
		return now.Sub(e.since) >= renewAfter
	}
	return e.uses >= e.last || now.Sub(e.first) >= renewAfter
}

// replaceDuplicates has every endpoint held once.
func (s *Set) replaceDuplicates(now time.Time) {
	for i, sl := range s.slots {
		if sl.session == nil || sl.request != 0 || !sl.due.IsZero() {
			continue
		}
		if slices.ContainsFunc(s.slots[:i], func(o *slot) bool { return o.has(sl.session.Endpoint) }) {
			sl.due = now
		}
	}
}

// Opened takes in what came of a request. If it is kept, the caller has the session
// until Ended names the request; else the caller ends it.
func (s *Set) Opened(request uint64, a Answer, now time.Time) (kept bool) {
	sl := s.answered(request)
	s.unnamed = a.Unnamed
	if sl == nil {
		return false
	}
	if !s.fits(sl, a, now) {
		sl.pin = 0 // another slot may have it, or ask for it
		if s.failed(sl, now); !slices.Contains(sl.avoid, a.Endpoint) && s.taken(sl, a.Endpoint) {
			sl.due, sl.tries = now, 0 // two were asked for at once and are the same
			if sl.content {
				sl.due = time.Time{}
			}
		} else if s.inVain(sl, a) {
			// Seldom at last, but not at first: the gateway may not know of a new endpoint yet.
			sl.vain, sl.elsewhere = true, true
			if d := retryFirst << min(sl.tries, 10); d > retryLimit {
				d = min(d, renewAfter)
				sl.due = now.Add(d + time.Duration(s.random()*float64(d/2)))
			}
		}
		return false
	}
	if e := sl.session; e != nil && e.Endpoint == a.Endpoint && e.Gateway == a.Gateway { // its turn again
		e.uses, e.since, e.weight = 0, now, float64(max(1, a.Weight))
		sl.due, sl.tries, sl.pin = time.Time{}, 0, 0
		return false
	}
	s.fill(sl, request, a, now)
	if s.complete(now) { // else they are renewed
		s.rebalance(now)
	}
	return true
}

// Failed takes in that nothing came of a request. gone says that the gateway does
// not offer the endpoint that was asked for by name.
func (s *Set) Failed(request uint64, gone bool, now time.Time) {
	sl := s.answered(request)
	if sl == nil {
		return
	}
	if gone || sl.tries > 2 {
		sl.pin = 0
	}
	s.failed(sl, now)
}

func (s *Set) answered(request uint64) *slot {
	sl := s.requests[request]
	delete(s.requests, request)
	s.dirty = true
	if sl != nil {
		sl.request = 0
	}
	return sl
}

func (s *Set) failed(sl *slot, now time.Time) {
	d := min(retryFirst<<min(sl.tries, 10), retryLimit)
	if sl.tries++; sl.tries > persistent && now.Sub(s.used) > d {
		sl.due, sl.asleep, s.asleep = time.Time{}, true, true
		return
	}
	sl.due = now.Add(d/2 + time.Duration(s.random()*float64(d/2)))
}

// wakeUp has slots that have given up ask again, since somebody uses the set.
func (s *Set) wakeUp(now time.Time) {
	for _, sl := range s.slots {
		if sl.asleep && sl.request == 0 && sl.due.IsZero() {
			sl.due, s.dirty = now, true
		}
		sl.asleep = false
	}
	s.asleep = false
}

// fits reports whether sl may hold a.
func (s *Set) fits(sl *slot, a Answer, now time.Time) bool {
	switch {
	case a.Endpoint == 0, !a.Unnamed && !s.share.has(a.Endpoint):
		return false
	case !slices.Contains(s.share.Expect, a.Identity), !s.share.reaches(a.Gateway, a.Endpoint):
		return false
	}
	return !s.complete(now) || !s.taken(sl, a.Endpoint)
}

// inVain reports whether the gateway has nobody to offer but those that are held: it was
// asked to avoid them, and they still are. Each such answer costs it a session.
func (s *Set) inVain(sl *slot, a Answer) bool {
	return slices.Contains(sl.avoid, a.Endpoint) && !slices.ContainsFunc(sl.avoid, func(e mesh.EndpointID) bool { return !s.taken(sl, e) })
}

// taken reports whether a slot other than sl has e.
func (s *Set) taken(sl *slot, e mesh.EndpointID) bool {
	return slices.ContainsFunc(s.slots, func(o *slot) bool { return o != sl && o.has(e) })
}

func (s *Set) fill(sl *slot, id uint64, a Answer, now time.Time) {
	s.leave(sl)
	for _, o := range s.slots {
		o.elsewhere = false
	}
	e := &session{Choice: Choice{ID: id, Answer: a}, weight: float64(max(1, a.Weight)), since: now, group: s.share.offer(a.Gateway).Group}
	// Give or take half, but seldom: the turns of a pod shall be of one length, and
	// those of the slots not end at one time.
	e.last = usesPerSlot/2 + int(s.random()*(usesPerSlot/2)) + int(s.random()*(usesPerSlot/2)) + 1
	s.held[e.ID] = e
	sl.session, sl.due, sl.tries, sl.pin, sl.asleep = e, time.Time{}, 0, 0, false
}

// Broken takes in that the session id cannot be used any more.
func (s *Set) Broken(id uint64, now time.Time) {
	for _, sl := range s.slots {
		if sl.session != nil && sl.session.ID == id {
			s.leave(sl)
			s.failed(sl, now)
			s.dirty = true
			return
		}
	}
}

// Next returns when Due has to be asked again though nothing was called meanwhile;
// zero: never.
func (s *Set) Next(now time.Time) time.Time {
	switch {
	case !s.known || len(s.share.Gateways) == 0:
		return time.Time{}
	case s.dirty:
		return now
	}
	return s.wake
}

// passing returns when something is due by the passing of time alone; zero: never.
func (s *Set) passing(now time.Time) (next time.Time) {
	at := func(t time.Time) {
		if next.IsZero() || t.Before(next) {
			next = t
		}
	}
	complete, full := s.complete(now), len(s.requests) >= s.opening(now)
	for _, sl := range s.slots {
		switch e := sl.session; {
		case sl.request != 0:
		case full && sl.pin == 0 && !sl.due.After(now) && !sl.due.IsZero(): // an answer comes first
		case !sl.due.IsZero():
			at(sl.due)
		case e == nil || complete:
		case e.uses == 0:
			at(later(e.since.Add(renewAfter), now.Add(time.Second)))
		default:
			at(later(e.first.Add(renewAfter), now.Add(time.Second)))
		}
	}
	if complete && len(s.slots) > 0 { // until the demand is too little
		at(now.Add(renewAfter / 4))
	}
	return next
}

func later(a, b time.Time) time.Time {
	if a.After(b) {
		return a
	}
	return b
}
