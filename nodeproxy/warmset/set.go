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
	// Gateways are the names of the usable ones, the best first. The first two of each
	// group are used.
	Gateways []string
	// Offers is what gateways offer, by name. Who is not in it is of the group without a
	// name, and offers all that is healthy.
	Offers map[string]Offer
	// Reaches reports whether a gateway can reach an endpoint; nil: each can reach all.
	Reaches func(gateway string, e mesh.EndpointID) bool
}

// has reports whether e may be chosen, as far as is known.
func (s *Share) has(e mesh.EndpointID) bool {
	return !slices.Contains(s.Out, e)
}

func (s *Share) reaches(gateway string, e mesh.EndpointID) bool {
	return slices.Contains(s.Gateways, gateway) && (s.Reaches == nil || s.Reaches(gateway, e))
}

// Answer is an endpoint that a gateway has chosen, and with which there is a session
// now.
type Answer struct {
	Endpoint mesh.EndpointID // zero: nobody, so nothing can be kept
	Weight   uint32          // zero is one
	Identity spiffeid.ID     // who has answered
	Gateway  string
	// Unnamed says that the gateway has not named the endpoint: Endpoint is the caller's
	// name for whoever it is.
	Unnamed bool
}

// Choice is an endpoint for a connection, until Done.
type Choice struct {
	ID uint64 // of the session: that of the request that it came from
	Answer
	// Joined says that nothing that fits is held, and that the session ID is being opened by
	// somebody else, by way of Gateway: the connection may wait for it, and reports nothing.
	// Pin is whom that asks for by name; zero: the gateway chooses.
	Joined bool
	Pin    mesh.EndpointID
}

// Set is the warm set of one source identity, share and port. Make it with New.
type Set struct {
	// Avoid, unless nil, reports whether connections had better not go on the session of this ID now, as whoever is at its
	// other end is silent. It must not wait.
	Avoid func(id uint64) bool

	random func() float64
	draws  *balance.Draws
	share  Share
	known  bool               // share was given
	groups []group            // of share
	turns  map[string]float64 // by group, if there are several: turns that it had, by its weight
	demand demand
	used   time.Time // of the last Choose
	asleep bool      // slots may be; see there

	dirty   bool      // something was called since Due, which may have to do with it
	wake    time.Time // when Due has something to do otherwise; zero: never
	unnamed bool      // gateways do not name endpoints, as far as is known: nobody can tell who is held

	whole bool // whether every endpoint was to be held at the last Choose

	slots    []*slot
	held     map[uint64]*session // by ID; those that left too, while they have connections
	requests map[uint64]*slot    // in flight; nil: its slot is gone
	ended    []uint64
	next     uint64  // the last ID given out
	open     int     // connections
	away     []homed // who has left because it was out, and is asked for when it is back
	redrawn  int     // how many were healthy when slots were last drawn among all
	scratch  []balance.Candidate
}

// slot is a place for one endpoint.
type slot struct {
	session *session        // nil: empty
	request uint64          // in flight, to fill or renew it; zero: none
	gateway string          // that request asks
	named   mesh.EndpointID // by request; pin may be another one meanwhile
	due     time.Time
	joined  int               // connections that wait for request
	tries   int               // failed since the last success
	asleep  bool              // given up until somebody uses the set
	avoid   []mesh.EndpointID // of the last request
	pin     mesh.EndpointID   // what to ask for; zero leaves it to the gateway
	home    string            // the group of pin
	// elsewhere says that another group than that of gateway is to be asked: nobody has been
	// found since vain was set.
	elsewhere bool
	// content says that request is a connection's own, and the slot has a session that is not to be replaced.
	content bool
	vain    bool // its gateway had nobody but those that are held
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
	group  string // of its gateway
}

// homed is an endpoint and its group.
type homed struct {
	endpoint mesh.EndpointID
	group    string
}

// name is the endpoint as its gateways know it; zero if they have not named it.
func (e *session) name() mesh.EndpointID {
	if e.Unnamed {
		return 0
	}
	return e.Endpoint
}

// maxAway is how many endpoints that are out are remembered.
const maxAway = MaxSlots

// New returns an empty set. random returns numbers in [0, 1); seed begins the
// sequence by which endpoints are chosen, and that of IDs: those of two sets hardly
// ever meet.
func New(random func() float64, seed uint64) *Set {
	return &Set{random: random, draws: balance.NewDraws(seed), next: seed >> 1, held: map[uint64]*session{}, requests: map[uint64]*slot{}}
}

// Choose counts a connection and returns the endpoint that it goes to, until Done: one
// of those that fits accepts, or, if that is nil, of all that are held. ok is false if
// there is none: then gateway chooses. If c.ID is not zero then, and c.Joined is false,
// the connection is a request of that ID for a slot, and ends with Opened (and then Use)
// or Failed. It waits only for what fits accepts, of which no more is known than a joined
// Choice says: one gateway refuses what another does not.
func (s *Set) Choose(now time.Time, gateway string, fits func(Choice) bool) (c Choice, ok bool) {
	s.demand.note(now)
	s.used = now
	if s.asleep {
		s.wakeUp(now)
	}
	s.resize(now)
	s.scratch = s.scratch[:0]
	any, byWeight := false, s.complete(now)
	s.dirty, s.whole = s.dirty || byWeight != s.whole, byWeight
	for _, sl := range s.slots {
		x := balance.Candidate{Usable: sl.session != nil && (fits == nil || fits(sl.session.Choice)), Weight: 1}
		if x.Usable {
			any, x.Load = true, float64(sl.session.open)
			if byWeight {
				x.Weight = sl.session.weight
			}
		}
		s.scratch = append(s.scratch, x)
	}
	if !any {
		if id := s.reserve(gateway); id != 0 {
			return Choice{ID: id}, false
		}
		return s.join(fits), false
	}
	e := s.slots[s.pick()].session
	s.use(e, now)
	return e.Choice, true
}

// pick is one of the candidates in scratch, one to avoid only if all are. Only who is drawn is asked about.
func (s *Set) pick() int {
	for {
		u, v := s.draws.Next()
		i, _, _ := balance.Pick(s.scratch, u, v)
		if s.scratch[i].Avoid || s.Avoid == nil || !s.Avoid(s.slots[i].session.ID) {
			return i
		}
		s.scratch[i].Avoid = true
	}
}

// reserve makes a request for an empty slot of what gateway is asked anyway; zero if
// there is no such slot.
func (s *Set) reserve(gateway string) uint64 {
	for _, sl := range s.slots {
		if sl.request == 0 && sl.pin == 0 {
			s.next++
			sl.content = sl.session != nil && sl.due.IsZero()
			sl.request, sl.gateway, sl.named, sl.due, sl.avoid, sl.joined = s.next, gateway, 0, time.Time{}, nil, 0
			s.requests[s.next] = sl
			s.took(gateway)
			return s.next
		}
	}
	return 0
}

// join returns the request in flight that fits and for which the fewest connections wait,
// so that a burst to a share of few endpoints does not open a session each, and none does
// while all are asked for by name since a gateway has moved; zero if there is none.
func (s *Set) join(fits func(Choice) bool) (c Choice) {
	var least *slot
	for _, sl := range s.slots {
		if sl.request == 0 || least != nil && sl.joined >= least.joined {
			continue
		}
		x := Choice{ID: sl.request, Answer: Answer{Gateway: sl.gateway}, Joined: true, Pin: sl.named}
		if fits == nil || fits(x) {
			least, c = sl, x
		}
	}
	if least != nil {
		least.joined++
	}
	return c
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
// since, until Done. It returns false, and counts nothing, if the session was not kept.
func (s *Set) Use(id uint64, now time.Time) bool {
	e := s.held[id]
	if e != nil {
		s.use(e, now)
	}
	return e != nil
}

// Knows reports whether the session id is held, or being opened.
func (s *Set) Knows(id uint64) bool {
	e := s.held[id]
	return e != nil && !e.left || s.requests[id] != nil
}

// Done ends a connection on the session id.
func (s *Set) Done(id uint64) {
	if e := s.held[id]; e != nil {
		e.open--
		s.open--
		s.forget(e)
	}
}

// complete reports whether every endpoint is to be held. While it is not known with whom
// a session is nobody can tell, whatever other gateways say.
func (s *Set) complete(now time.Time) bool {
	return !s.unnamed && s.demand.slots(now) >= s.share.Healthy && !slices.ContainsFunc(s.slots, (*slot).unnamed)
}

func (sl *slot) unnamed() bool { return sl.session != nil && sl.session.Unnamed }

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
	s.away, s.share, s.known, s.groups, s.turns = nil, Share{}, false, nil, nil
}

// Unused returns for how long there was no connection and none was opened.
func (s *Set) Unused(now time.Time) time.Duration {
	if s.open > 0 {
		return 0
	}
	return now.Sub(s.used)
}
