package warmset

import (
	"slices"
	"time"

	"github.com/spiffe/go-spiffe/v2/spiffeid"

	"github.com/isthmus-mesh/isthmus/balance"
	"github.com/isthmus-mesh/isthmus/mesh"
)

// Share is what is known of the share and port that a Set belongs to.
type Share struct {
	// Healthy is how many endpoints may be chosen.
	Healthy int
	// Out are those that may not: sick, not ready, terminating or gone.
	Out []mesh.EndpointID
	// Expect is who may answer.
	Expect []spiffeid.ID
	// Gateways are the names of the usable ones, the best first. The first two are
	// used.
	Gateways []string
}

// Answer is an endpoint that a gateway has chosen, and with which there is a session
// now.
type Answer struct {
	Endpoint mesh.EndpointID // zero: the gateway does not say, so nothing can be kept
	Weight   uint32          // zero is one
	Identity spiffeid.ID     // who has answered
	Gateway  string
}

// Choice is an endpoint for a connection, until Done.
type Choice struct {
	ID uint64 // of the session: that of the request that it came from
	Answer
}

// Set is the warm set of one source identity, share and port. Make it with New.
type Set struct {
	random func() float64
	draws  *balance.Draws
	share  Share
	known  bool // share was given
	demand demand
	used   time.Time // of the last Choose

	dirty bool      // something was called since Due, which may have to do with it
	wake  time.Time // when Due has something to do otherwise; zero: never
	whole bool      // whether every endpoint was to be held at the last Choose

	slots    []*slot
	held     map[uint64]*session // by ID; those that left too, while they have connections
	requests map[uint64]*slot    // in flight; nil: its slot is gone
	ended    []uint64
	next     uint64            // the last ID given out
	open     int               // connections
	away     []mesh.EndpointID // who has left because it was out, and is asked for when it is back
	redrawn  int               // how many were healthy when slots were last drawn among all
	scratch  []balance.Candidate
}

// slot is a place for one endpoint.
type slot struct {
	session *session // nil: empty
	request uint64   // in flight, to fill or renew it; zero: none
	due     time.Time
	tries   int               // failed since the last success
	avoid   []mesh.EndpointID // of the last request
	pin     mesh.EndpointID   // what to ask for; zero leaves it to the gateway
}

// session is one answer that was kept.
type session struct {
	Choice
	weight float64
	open   int // connections
	uses   int
	last   int // of its uses, before it is renewed
	since  time.Time
	first  time.Time // use
	left   bool
}

// maxAway is how many endpoints that are out are remembered.
const maxAway = MaxSlots

// New returns an empty set. random returns numbers in [0, 1); seed begins the
// sequence by which endpoints are chosen, and that of IDs: those of two sets hardly
// ever meet.
func New(random func() float64, seed uint64) *Set {
	return &Set{random: random, draws: balance.NewDraws(seed), next: seed >> 1, held: map[uint64]*session{}, requests: map[uint64]*slot{}}
}

// Choose counts a connection and returns the endpoint that it goes to, until Done.
// ok is false if none is held: then the gateway chooses. If c.ID is not zero then,
// the connection is a request of that ID for a slot, and ends with Opened (and then
// Use) or Failed.
func (s *Set) Choose(now time.Time) (c Choice, ok bool) {
	s.demand.note(now)
	s.used = now
	s.resize(now)
	s.scratch = s.scratch[:0]
	any, byWeight := false, s.complete(now)
	s.dirty, s.whole = s.dirty || byWeight != s.whole, byWeight
	for _, sl := range s.slots {
		x := balance.Candidate{Usable: sl.session != nil, Weight: 1}
		if x.Usable {
			any, x.Load = true, float64(sl.session.open)
			if byWeight {
				x.Weight = sl.session.weight
			}
		}
		s.scratch = append(s.scratch, x)
	}
	if !any {
		return Choice{ID: s.reserve()}, false
	}
	u, v := s.draws.Next()
	i, _, _ := balance.Pick(s.scratch, u, v)
	e := s.slots[i].session
	s.use(e, now)
	return e.Choice, true
}

// reserve makes a request for an empty slot of what the gateway is asked anyway;
// zero if there is no such slot.
func (s *Set) reserve() uint64 {
	for _, sl := range s.slots {
		if sl.request == 0 && sl.pin == 0 {
			s.next++
			sl.request, sl.due, sl.avoid = s.next, time.Time{}, nil
			s.requests[s.next] = sl
			return s.next
		}
	}
	return 0
}

func (s *Set) use(e *session, now time.Time) {
	if e.uses == 0 {
		e.first = now
	}
	e.uses++
	e.open++
	s.open++
	s.dirty = s.dirty || e.uses == 1 || e.uses == e.last
}

// Use counts a connection on the session id that was chosen by the gateway and kept
// since, until Done.
func (s *Set) Use(id uint64, now time.Time) {
	if e := s.held[id]; e != nil {
		s.use(e, now)
	}
}

// Done ends a connection on the session id.
func (s *Set) Done(id uint64) {
	if e := s.held[id]; e != nil {
		e.open--
		s.open--
		s.forget(e)
	}
}

// complete reports whether every endpoint is to be held.
func (s *Set) complete(now time.Time) bool { return s.demand.slots(now) >= s.share.Healthy }

// allowed is how many slots there may be.
func (s *Set) allowed() int { return min(MaxSlots, s.share.Healthy) }

// resize adds slots as the demand grows. Those that are too many for the demand end
// when they would be renewed; see expire.
func (s *Set) resize(now time.Time) {
	for want := min(s.demand.slots(now), s.allowed()); len(s.slots) < want; {
		s.slots = append(s.slots, &slot{due: now})
		s.dirty = true
	}
}

// leave ends sl's hold on its session: it takes no new connection.
func (s *Set) leave(sl *slot) {
	e := sl.session
	sl.session = nil
	if e == nil {
		return
	}
	e.left = true
	s.ended = append(s.ended, e.ID)
	s.forget(e)
}

func (s *Set) forget(e *session) {
	if e.left && e.open == 0 {
		delete(s.held, e.ID)
	}
}

// drop removes the slot at i.
func (s *Set) drop(i int) {
	sl := s.slots[i]
	s.leave(sl)
	if sl.request != 0 {
		s.requests[sl.request] = nil
	}
	s.slots = slices.Delete(s.slots, i, i+1)
}

// Ended returns the sessions that ended since it was last asked: they take no new
// stream, and are closed when their streams have ended.
func (s *Set) Ended() []uint64 {
	out := s.ended
	s.ended = nil
	return out
}

// Close ends every session. What is in flight will not be kept.
func (s *Set) Close() {
	for len(s.slots) > 0 {
		s.drop(len(s.slots) - 1)
	}
	s.away, s.share, s.known = nil, Share{}, false
}

// Unused returns for how long there was no connection and none was opened.
func (s *Set) Unused(now time.Time) time.Duration {
	if s.open > 0 {
		return 0
	}
	return now.Sub(s.used)
}
