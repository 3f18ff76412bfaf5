package picker

import (
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/isthmus-mesh/isthmus/balance"
	"github.com/isthmus-mesh/isthmus/federation/damping"
	"github.com/isthmus-mesh/isthmus/health"
	"github.com/isthmus-mesh/isthmus/health/standing"
	"github.com/isthmus-mesh/isthmus/mesh"
	"github.com/isthmus-mesh/isthmus/route"
)

// Service is a port of an exported service, as this network can serve it.
type Service struct {
	picker   *Picker
	draws    *balance.Draws
	exported atomic.Pointer[route.Exported]
	snap     atomic.Pointer[mesh.Snapshot] // that exported holds for

	mu      sync.Mutex
	of      []*mesh.Workload // all members, offered or not, that exported was made from
	members []*member        // by member of exported
	index   balance.Index
	places  standing.Places
	alarms  standing.Alarms[*member]
	left    bool // it holds nothing any more

	capacity uint64               // of all members
	well     int                  // members against whom nothing is held
	damped   map[*member]struct{} // members that answer, and are held back by their witness
}

// member is one pod of a service.
type member struct {
	service *Service
	at      int // of exported; -1: none any more
	pod     *mesh.Workload
	hop     *standing.Cell[mesh.EndpointID]
	port    *standing.Cell[health.Key]
	turn    balance.Turn // while the index is made anew

	well     bool // nothing is held against it
	damped   bool // but that its witness holds it back
	released bool // it is damped and chosen nevertheless: half of the others are damped, or nobody is well
}

// Exported is what the service is, as of the last Resolve. Do not modify.
func (s *Service) Exported() route.Exported { return *s.exported.Load() }

// current reports whether exported holds for snap.
func (s *Service) current(snap *mesh.Snapshot, svc *mesh.Service, network string) bool {
	if s.snap.Load() == snap {
		return true
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	x, of := s.exported.Load(), snap.Members(svc, network)
	if s.left || x == nil || x.Service != svc || len(of) != len(s.of) || len(of) == 0 || &of[0] != &s.of[0] {
		return false
	}
	s.snap.Store(snap)
	return true
}

// offer takes over the members that x, by snap, still has; false if s was dropped.
func (s *Service) offer(x route.Exported, snap *mesh.Snapshot, now time.Time) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.left {
		return false
	}
	old := s.members
	for _, m := range old {
		m.turn, m.at = s.index.Turn(m.at), -1
	}
	s.members = make([]*member, 0, len(x.Members))
	if s.of = nil; snap != nil {
		s.of = snap.Members(x.Service, s.picker.config.Network)
	}
	s.places.Reset()
	s.alarms.Clear()
	nth := 0
	if s.picker.config.Nth != nil {
		nth = s.picker.config.Nth()
	}
	for i, w := range x.Members {
		for len(old) > 0 && old[0].pod.UID < w.UID {
			old[0].leave()
			old = old[1:]
		}
		key := health.Key{Endpoint: w.Endpoint, Port: w.Target(x.Port)}
		var m *member
		if len(old) > 0 && old[0].port.Key() == key {
			m, old = old[0], old[1:]
		} else {
			m = &member{service: s, hop: s.picker.hops.Hold(w.Endpoint), port: s.picker.ports.Hold(key), turn: balance.NewTurn(balance.PlaceInRound(uint64(w.Endpoint), nth))}
			m.hop.Watch(m)
		}
		m.at, m.pod = i, w
		s.members = append(s.members, m)
	}
	for _, m := range old {
		m.leave()
	}
	s.capacity, s.well, s.damped = 0, 0, nil
	for _, m := range s.members {
		m.well, m.damped, m.released = false, false, false
		s.capacity += uint64(m.pod.Capacity)
		s.stand(m, now)
	}
	s.release()
	candidates := make([]balance.Candidate, len(s.members))
	for i, m := range s.members {
		candidates[i] = s.weigh(m, now)
	}
	s.index.Reset(candidates)
	s.index.TakeTurns(func(i int) balance.Turn { return s.members[i].turn })
	s.exported.Store(&x)
	s.snap.Store(snap)
	return true
}

func (m *member) leave() {
	m.hop.Unwatch(m)
	m.service.picker.hops.Release(m.hop)
	m.service.picker.ports.Release(m.port)
}

func (s *Service) leave() {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, m := range s.members {
		m.at = -1
		m.leave()
	}
	s.members, s.of, s.left = nil, nil, true
	s.snap.Store(nil)
	s.index.Reset(nil)
	s.places.Reset()
	s.alarms.Clear()
}

// Changed implements [standing.Watcher]: something else is known of the pod.
func (m *member) Changed(now time.Time) {
	m.service.mu.Lock()
	defer m.service.mu.Unlock()
	m.service.refresh(m, now)
}

func (s *Service) refresh(m *member, now time.Time) {
	if m.at < 0 {
		return
	}
	if s.stand(m, now) {
		for _, x := range s.release() {
			s.index.Set(x.at, s.weigh(x, now))
		}
	}
	s.index.Set(m.at, s.weigh(m, now))
}

// stand counts m anew, and reports whether that may release somebody, or the
// opposite.
func (s *Service) stand(m *member, now time.Time) (changed bool) {
	doubted, sick, damped := s.picker.held(m.port.Key())
	able := !doubted && m.hop.Score(now).Usable
	well, damped := able && !sick, able && damped
	before := s.well > 0
	if m.well != well {
		if m.well = well; well {
			s.well++
		} else {
			s.well--
		}
	}
	if changed = m.damped != damped; changed {
		if m.damped = damped; damped {
			if s.damped == nil {
				s.damped = map[*member]struct{}{}
			}
			s.damped[m] = struct{}{}
		} else {
			delete(s.damped, m)
			m.released = false
		}
	}
	return changed || len(s.damped) > 0 && before != (s.well > 0)
}

// release decides which damped members are chosen, and returns those of whom it
// decides otherwise than before.
func (s *Service) release() (turned []*member) {
	if len(s.damped) == 0 {
		return nil
	}
	list := make([]damping.Member, 0, len(s.damped))
	for m := range s.damped {
		list = append(list, damping.Member{Key: damping.Key(m.port.Key()), Capacity: m.pod.Capacity})
	}
	out := damping.Held(list, s.capacity, s.well > 0)
	for m := range s.damped {
		if released := !slices.Contains(out, damping.Key(m.port.Key())); released != m.released {
			m.released = released
			turned = append(turned, m)
		}
	}
	return turned
}

func (s *Service) weigh(m *member, now time.Time) balance.Candidate {
	hop := m.hop.Score(now)
	s.alarms.Set(m, hop.Next)
	return balance.Candidate{
		Weight: float64(m.pod.Capacity) * hop.Weight, Size: float64(m.pod.Capacity), Faint: hop.Faint,
		Usable: m.well || m.damped && m.released,
	}
}

// held returns what is held against a port besides the hop: that the pod owes an
// answer, and that the witness says that the port is out, be it that it answers and
// is held back.
func (p *Picker) held(k health.Key) (doubted, sick, damped bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	w, sick := p.sick[k]
	return !p.marks[k.Endpoint].doubted.IsZero(), sick, w.Reason == damping.Reason
}

func (p *Picker) well(k health.Key) bool {
	doubted, sick, _ := p.held(k)
	return !doubted && !sick
}

func (s *Service) place(id mesh.EndpointID) (int, bool) {
	return s.places.Find(id, len(s.members), func(i int) mesh.EndpointID { return s.members[i].pod.Endpoint })
}

// Load implements [balance.Loads].
func (s *Service) Load(i int) float64 { return float64(s.members[i].port.Open()) }

// Request narrows the choice of a pod for one client.
type Request struct {
	Avoid       []uint64                   // advisory, from the client
	Pin         mesh.EndpointID            // this one or none; zero is no pin
	Exclude     []mesh.EndpointID          // tried already
	HealthyOnly bool                       // a pod that is thought to answer, or none
	Crowded     func(mesh.EndpointID) bool // the client would have to wait for its turn there; nil: nowhere
}

// maxCrowded is how many crowded pods are passed over in one choice.
const maxCrowded = 64

// choose picks one of s; the caller holds mu.
func (s *Service) choose(r Request, now time.Time) (i int, dazed, ok bool) {
	for _, m := range s.alarms.Due(now) {
		s.refresh(m, now)
	}
	defer s.index.Unmask()
	if r.Pin != 0 {
		return s.choosePinned(r, now)
	}
	s.mask(r.Exclude)
	s.maskAvoided(r)
	u, v := s.draws.Next()
	heeded := true
	if i, ok = s.index.PickInTurn(v, s); !ok {
		left, some := s.index.PickDazed(u)
		s.index.Unmask()
		s.mask(r.Exclude)
		switch i, ok = s.index.PickInTurn(v, s); {
		case ok:
			heeded = false
		case r.HealthyOnly:
			return 0, false, false
		case some:
			i, dazed, ok = left, true, true
			s.maskAvoided(r)
		default:
			heeded, dazed = false, true
			i, ok = s.index.PickDazed(u)
		}
	}
	if ok && r.Crowded != nil && r.Crowded(s.members[i].pod.Endpoint) {
		i = s.uncrowded(r, i, dazed, heeded)
	}
	if ok {
		s.index.Took(i)
	}
	return i, dazed, ok
}

// uncrowded chooses again without those where the client would have to wait, and
// returns the first choice if there is nobody as good.
func (s *Service) uncrowded(r Request, first int, dazed, heeded bool) int {
	for i := first; ; {
		if s.index.Masked() > maxCrowded+len(r.Avoid)+len(r.Exclude) {
			return first
		}
		s.index.Mask(i)
		u, v := s.draws.Next()
		next, ok := s.index.PickInTurn(v, s)
		if !ok && dazed {
			next, ok = s.index.PickDazed(u)
		}
		if !ok && heeded && len(r.Avoid) > 0 { // better one that the client avoids than a wait
			return s.unavoided(r, first, dazed)
		}
		if !ok {
			return first
		}
		if !r.Crowded(s.members[next].pod.Endpoint) {
			return next
		}
		i = next
	}
}

// unavoided chooses among those that the client wants to avoid.
func (s *Service) unavoided(r Request, first int, dazed bool) int {
	for _, id := range r.Avoid {
		i, ok := s.place(mesh.EndpointID(id))
		if ok && (dazed || s.index.Well(i)) && !slices.Contains(r.Exclude, mesh.EndpointID(id)) && !r.Crowded(mesh.EndpointID(id)) {
			return i
		}
	}
	return first
}

func (s *Service) choosePinned(r Request, now time.Time) (i int, dazed, ok bool) {
	i, ok = s.place(r.Pin)
	if !ok || slices.Contains(r.Exclude, r.Pin) {
		return 0, false, false
	}
	if s.index.Well(i) {
		return i, false, true
	}
	s.mask(r.Exclude)
	// One that only owes an answer is given if there is nobody better: another pod
	// would not answer sooner, and a client that is told no gets no session to keep and
	// makes a handshake for each connection instead. Else it can go to another pod.
	return i, true, !r.HealthyOnly && s.slow(i, now) && !s.index.Any()
}

// slow reports whether nothing is held against a pod but that it owes an answer.
func (s *Service) slow(i int, now time.Time) bool {
	m := s.members[i]
	doubted, sick, _ := s.picker.held(m.port.Key())
	return doubted && !sick && m.hop.Score(now).Usable
}

// Owes returns the pod of id if it is not chosen only because it owes an answer;
// else nil.
func (p *Picker) Owes(s *Service, id mesh.EndpointID, now time.Time) *mesh.Workload {
	s.mu.Lock()
	defer s.mu.Unlock()
	if i, ok := s.place(id); ok && s.slow(i, now) {
		return s.members[i].pod
	}
	return nil
}

func (s *Service) mask(ids []mesh.EndpointID) {
	for _, id := range ids {
		if i, ok := s.place(id); ok {
			s.index.Mask(i)
		}
	}
}

func (s *Service) maskAvoided(r Request) {
	for _, id := range r.Avoid {
		if i, ok := s.place(mesh.EndpointID(id)); ok {
			s.index.Mask(i)
		}
	}
}
