package warmset

import "time"

// Status is how a Set stands, for people.
type Status struct {
	Wanted  int // sessions that its demand asks for, at most one for each endpoint
	Held    int
	Opening int            // requests in flight
	Open    int            // connections
	Whole   bool           // every endpoint is to be held once
	By      map[string]int // sessions held, by gateway
}

// Status returns how s stands.
func (s *Set) Status(now time.Time) Status {
	x := Status{Wanted: min(s.demand.slots(now), s.allowed()), Opening: len(s.requests), Open: s.open, Whole: s.complete(now), By: map[string]int{}}
	for _, sl := range s.slots {
		if sl.session != nil {
			x.Held++
			x.By[sl.session.Gateway]++
		}
	}
	return x
}
