package picker

import (
	"slices"
	"sync"
	"time"

	"github.com/isthmus-mesh/isthmus/balance"
	"github.com/isthmus-mesh/isthmus/health"
	"github.com/isthmus-mesh/isthmus/health/standing"
	"github.com/isthmus-mesh/isthmus/mesh"
	"github.com/isthmus-mesh/isthmus/route"
)

// share is what is kept of a share: what is said of it, and of its single pods what
// is held against them.
type share struct {
	picker  *Picker
	key     Share
	holders int // under picker.mu
	whole   *standing.Cell[Share]

	attempts attempts[string] // by name of a gateway; "": by way of any

	gatewayDraws *balance.Draws

	mu       sync.Mutex
	watchers map[*Destination]struct{}
	asked    bool // whether health has been asked for
	known    bool
	health   Health
	since    map[mesh.EndpointID]time.Time // when an exception was first heard of
	lapsed   map[mesh.EndpointID]time.Time // exceptions of a word that has expired, each with the end of its doubt
	hints    *health.Hints                 // endpoints that failed under our eyes; nil: none ever
}

func (s *share) watch(d *Destination) {
	s.mu.Lock()
	s.watchers[d] = struct{}{}
	s.mu.Unlock()
}

func (s *share) unwatch(d *Destination) {
	s.mu.Lock()
	delete(s.watchers, d)
	s.mu.Unlock()
}

// current returns what is said of s.
func (s *share) current(now time.Time) Health {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.ask(now)
	return s.health
}

// ask asks once what is said; later changes are heard of. The caller holds mu.
func (s *share) ask(now time.Time) {
	if !s.asked {
		s.asked = true
		s.take(now)
	}
}

// take takes in what is said now; the caller holds mu, so that an older word cannot
// replace a newer one.
func (s *share) take(now time.Time) {
	before, wasKnown := s.health, s.known
	s.health, s.known = s.picker.config.Health(s.key)
	s.lapse(before.Exceptions, wasKnown, now)
	since := map[mesh.EndpointID]time.Time{}
	note := func(id mesh.EndpointID) {
		if since[id] = s.since[id]; since[id].IsZero() {
			since[id] = now
		}
	}
	for _, id := range s.health.Exceptions {
		note(id)
	}
	for _, g := range s.health.Groups {
		for i := range g {
			for _, id := range g[i].Unreachable {
				note(id)
			}
		}
	}
	s.since = since
	if s.known && s.hints != nil {
		for _, k := range s.hints.Known(s.hinted()) {
			switch id := k.Endpoint; {
			case s.health.absent(id):
				s.hints.Forget(k)
			case k.Gateway != "" && s.health.unreachable(k.Gateway, id):
			case k.Gateway != "" && before.unreachable(k.Gateway, id):
				s.hints.Forget(k)
			case !s.health.excepted(id): // a gateway refuses to be asked for one that is left out, too
				s.hints.Cleared(k, s.health.Returned[id], now)
			}
		}
	}
}

// lapse keeps the exceptions of a word that has expired with no other after it: those
// who said it are cut off. Their pods count as unknown, so as usable, in what the
// share weighs; a session of our own goes to one of them only when lapsedFor is over.
// Until then connections reach them if a gateway of theirs, who knows better, chooses
// them. Any new word ends it. The caller holds mu.
func (s *share) lapse(exceptions []mesh.EndpointID, wasKnown bool, now time.Time) {
	switch {
	case s.known:
		s.lapsed = nil
	case wasKnown && !s.known && len(exceptions) > 0:
		s.lapsed = make(map[mesh.EndpointID]time.Time, len(exceptions))
		for _, id := range exceptions {
			s.lapsed[id] = now.Add(lapsedFor)
		}
	}
}

// hear takes in a change and returns who else must know.
func (s *share) hear(now time.Time) []*Destination {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.asked = true
	s.take(now)
	out := make([]*Destination, 0, len(s.watchers))
	for d := range s.watchers {
		out = append(out, d)
	}
	return out
}

func (s *share) hinted() health.HintService {
	return health.HintService{Network: s.key.Network, Service: s.key.Service, Port: s.key.Port}
}

// hint notes that an endpoint failed under our eyes, or was silent, by way of gateway or,
// if that is empty, of any.
func (s *share) hint(id mesh.EndpointID, gateway string, silent bool, now time.Time) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.hints == nil {
		s.hints = health.NewHints(hintTTL)
	}
	if k := (health.HintKey{HintService: s.hinted(), Endpoint: id, Gateway: gateway}); silent {
		s.hints.Silent(k, now)
	} else {
		s.hints.Failed(k, now)
	}
}

// Reached takes in that a session with an endpoint of k has just been opened by way of
// gateway: it is silent no more, and gateway has a way to it.
func (p *Picker) Reached(k Share, id mesh.EndpointID, gateway string) {
	p.mu.Lock()
	s := p.known[k]
	p.mu.Unlock()
	if s == nil {
		return
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.hints != nil {
		s.hints.Heard(s.hinted(), id, gateway)
	}
}

func (s *share) leave() { s.picker.shares.Release(s.whole) }

// explained reports whether the owners say what we saw; the caller holds mu.
func (s *share) explained(k health.HintKey) bool {
	_, lapsed := s.lapsed[k.Endpoint]
	return lapsed || s.health.excepted(k.Endpoint) || s.health.absent(k.Endpoint) || k.Gateway != "" && s.health.unreachable(k.Gateway, k.Endpoint)
}

// avoid lists endpoints that gateway should leave out: what this connection has met,
// what failed under our eyes, what is reported; of the last at most half of
// those that are ready, of which there are members if nobody says.
func (s *share) avoid(gateway string, tried []mesh.EndpointID, members int, now time.Time) []mesh.EndpointID {
	if !s.picker.config.Endpoints {
		return tried
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.known {
		members = s.health.ready()
	}
	var more []mesh.EndpointID
	if s.hints != nil {
		more = s.hints.Avoid(s.hinted(), gateway, s.health.Exceptions, members, now)
	} else if len(s.health.Exceptions) > 0 {
		more = health.CapExceptions(members, s.health.Exceptions, nil)
		more = more[:min(len(more), health.MaxAvoid)]
	}
	out := slices.Clone(tried)
	for _, id := range more {
		if !slices.Contains(out, id) {
			out = append(out, id)
		}
	}
	return out
}

// weigh returns how the share counts for one connection: by the sum over the
// groups of its gateways of what the best of each can deliver. avoid says that no
// gateway is there, as far as is known, that this connection has not tried and that does
// not drain: one that does serves on, or has stopped since and may be back.
func (s *share) weigh(m *member, c *route.Candidate, t Tried, now time.Time) (x balance.Candidate, avoid bool) {
	whole := s.whole.Score(now)
	s.mu.Lock()
	h := s.health
	s.mu.Unlock()
	ways := waysOf(m, c, &h, t, now, make([]way, 0, maxWays))
	w := sumUp(ways, &h, float64(c.Capacity))
	x = balance.Candidate{
		Weight: w.weight * whole.Weight, Size: w.size, Faint: whole.Faint || w.faint, Rank: c.Rank,
		Usable: whole.Usable && w.usable,
	}
	return x, !w.here || slices.Contains(t.Networks, c.Network)
}

// maxWays is how many gateways of a network are looked at without memory of their
// own.
const maxWays = 16

// way is one gateway of a share as one connection sees it.
type way struct {
	name     string
	gate     standing.Score
	path     standing.Score
	delivery *Delivery // nil: unknown
	tried    bool
	silent   bool
	draining bool // by discovery, or by its own word
	out      bool // draining, and not looked at: others are there
}

func waysOf(m *member, c *route.Candidate, h *Health, t Tried, now time.Time, out []way) []way {
	for i, g := range c.Gateways {
		out = append(out, way{
			name: g.Name, gate: m.gates[i].cell.Score(now), path: m.paths[i].Score(now), delivery: h.of(g.Name),
			tried: slices.Contains(t.Gateways, m.gates[i].key), silent: m.gates[i].silent(now), draining: h.drains(g),
		})
	}
	return out
}

// preferStaying leaves out of ways those that drain, unless none of the others serves as
// far as is known: then the better part of what is left is what drains and serves on.
func preferStaying(ways []way) {
	var fresh, any [2]bool // by whether it drains: one not tried, any one
	for i := range ways {
		w, k := &ways[i], 0
		if w.draining {
			k = 1
		}
		if w.out = false; w.gate.Usable && w.delivers(1) > 0 {
			any[k] = true
			fresh[k] = fresh[k] || !w.tried && !w.silent && !w.gate.Faint && !w.path.Faint
		}
	}
	if fresh[0] || !fresh[1] && any[0] {
		leaveOut(ways)
	}
}

func leaveOut(ways []way) {
	for i := range ways {
		ways[i].out = ways[i].draining
	}
}

// delivers returns what the share has by way of w: nothing if the gateway has
// nobody to offer, refuses or is left out; nominal if it does not say.
func (w *way) delivers(nominal float64) float64 {
	if !w.path.Usable || w.out {
		return 0
	}
	switch d := w.delivery; {
	case d == nil:
		return nominal * w.path.Weight
	case d.able():
		return d.capacity() * w.path.Weight
	}
	return 0
}

// worth is what a share comes to.
type worth struct {
	weight, size float64
	usable       bool // somebody can deliver
	faint        bool // but hardly
	here         bool // by a gateway that takes connections and does not drain
	draining     bool // all of it
}

// sumUp weighs what does not drain, or all if that has nothing to offer.
func sumUp(ways []way, h *Health, nominal float64) worth {
	leaveOut(ways)
	r := sum(ways, h, nominal)
	if r.weight == 0 && slices.ContainsFunc(ways, func(w way) bool { return w.draining }) {
		for i := range ways {
			ways[i].out = false
		}
		r = sum(ways, h, nominal)
	}
	return r
}

func sum(ways []way, h *Health, nominal float64) worth {
	groups := h.Groups
	r := worth{faint: true, draining: true}
	up := false
	for i := range ways {
		w := &ways[i]
		r.here = r.here || w.gate.Usable && w.path.Usable && !w.tried && !w.silent && !w.draining
		up = up || w.gate.Usable && w.delivers(nominal) > 0
		if w.delivers(nominal) > 0 && !w.path.Faint {
			r.faint = false
		}
		r.draining = r.draining && w.draining
	}
	best := func(of func(*way) float64, in func(*way) bool) (most float64) {
		for i := range ways {
			if w := &ways[i]; in(w) && (!up || w.gate.Usable) { // if none is up, all count
				most = max(most, of(w))
			}
		}
		return most
	}
	weight := func(w *way) float64 { return w.delivers(nominal) }
	for g := range groups {
		said := func(w *way) bool { return w.delivery != nil && within(groups[g], w.delivery) }
		r.weight += best(weight, said)
		size := 0.0
		for i := range groups[g] {
			size = max(size, groups[g][i].size())
		}
		r.size += size
	}
	if r.weight == 0 { // nobody says that he can deliver: by those who say nothing
		r.weight = best(weight, func(w *way) bool { return w.delivery == nil })
	}
	if r.size == 0 {
		r.size = nominal
	}
	if whole := max(r.size, r.weight); h.Most > 0 && whole > float64(h.Most) { // what part of it is healthy stays
		r.weight *= float64(h.Most) / whole
		r.size = float64(h.Most)
	}
	r.usable = r.weight > 0
	r.faint = r.faint && r.usable
	return r
}

func within(g Group, d *Delivery) bool {
	for i := range g {
		if &g[i] == d {
			return true
		}
	}
	return false
}

// siblings is how many of ways reach what d does and can deliver, at least 1.
func (h *Health) siblings(ways []way, d *Delivery) float64 {
	n := 0
	for _, g := range h.Groups {
		if len(h.Groups) < 2 || !within(g, d) {
			continue
		}
		for i := range ways {
			if w := &ways[i]; w.gate.Usable && w.delivery != nil && within(g, w.delivery) && w.delivers(1) > 0 {
				n++
			}
		}
	}
	return float64(max(1, n))
}

// chooseGateway picks by what each can deliver, of which those of one group that can have
// a part each. One that drains is left to when no other serves.
func (s *share) chooseGateway(m *member, c *route.Candidate, t Tried, now time.Time) int {
	s.mu.Lock()
	h := s.health
	s.mu.Unlock()
	var space [maxWays]balance.Candidate
	list := space[:0]
	ways := waysOf(m, c, &h, t, now, make([]way, 0, maxWays))
	preferStaying(ways)
	for i := range ways {
		w := &ways[i]
		size, of := float64(c.Capacity), 1.0
		if w.delivery != nil {
			size, of = w.delivery.size(), h.siblings(ways, w.delivery)
		}
		x := balance.Candidate{
			Weight: w.gate.Weight * w.delivers(float64(c.Capacity)) / of, Size: size / of, Faint: w.gate.Faint || w.path.Faint,
			Usable: w.gate.Usable, Drained: w.out, Avoid: w.tried || w.silent,
		}
		x.Load = float64(m.gates[i].cell.Open())
		list = append(list, x)
	}
	// The pod is drawn in step with the gateway: by the same coordinate, each gateway
	// would have its own part of the pods, and nobody those that it cannot reach.
	u, v := s.gatewayDraws.Next()
	i, _, ok := balance.Pick(list, v, u)
	if !ok {
		return -1
	}
	return i
}
