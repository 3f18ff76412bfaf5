package picker

import (
	"cmp"
	"errors"
	"fmt"
	"maps"
	"math"
	"math/rand/v2"
	"slices"
	"testing"
	"time"

	"github.com/isthmus-mesh/isthmus/balance"
	"github.com/isthmus-mesh/isthmus/federation/damping"
	"github.com/isthmus-mesh/isthmus/health"
	"github.com/isthmus-mesh/isthmus/mesh"
	"github.com/isthmus-mesh/isthmus/nodeproxy/warmset"
	"github.com/isthmus-mesh/isthmus/route"
)

// model is the slow and obvious picker: trackers, counts and a scan. It draws
// nothing; it says who may be chosen.
type model struct {
	pods       *health.Tracker[health.Key]
	paths      *health.Tracker[Path]
	gateways   *health.Tracker[string]
	failed     map[any]time.Time
	out        map[any]bool        // what an edge was told of
	unanswered map[health.Key]bool // pods that have failed since they were good, by their node proxies' silence
	refused    map[health.Key]bool // and otherwise
	damper     *damping.Damper[health.Key]
	origins    *health.Tracker[OriginKey] // pods as captured pods reach them, each for itself
	alone      map[OriginKey]bool         // that have not answered one since they were good
	lone       *damping.Damper[OriginKey]
	met        map[health.Key]meeting
	gateDamper *damping.Damper[string]
	unreached  map[string]bool // gateways that connections have not reached since they were good
	behind     map[string]bool // and that failed behind their handshake
	open       int
	waits      map[string]silence
	health     map[Share]Health
	hinted     map[hinted]time.Time
	silent     map[hinted]bool // of those
	lapsed     map[Share]map[mesh.EndpointID]time.Time
}

// hinted is an endpoint, by way of one gateway or, if that is empty, of any.
type hinted struct {
	id      mesh.EndpointID
	gateway string
}

// going is one choice that is not done yet, with the attempts of the model.
type going struct {
	c          Choice
	origin     string
	pod, alone health.Attempt // the latter for origin
	path, hop  health.Attempt
}

func newModel(c Config) *model {
	return &model{pods: health.NewTracker[health.Key](c.Own, c.Jitter), paths: health.NewTracker[Path](c.Paths, c.Jitter),
		gateways: health.NewTracker[string](c.Gateways, c.Jitter), unanswered: map[health.Key]bool{}, refused: map[health.Key]bool{}, damper: damping.New[health.Key](maxDamped), origins: health.NewTracker[OriginKey](c.Own, c.Jitter), alone: map[OriginKey]bool{}, lone: damping.New[OriginKey](maxDamped), met: map[health.Key]meeting{}, gateDamper: damping.New[string](maxDamped), unreached: map[string]bool{}, behind: map[string]bool{}, failed: map[any]time.Time{}, out: map[any]bool{}, waits: map[string]silence{},
		health: map[Share]Health{}, hinted: map[hinted]time.Time{}, silent: map[hinted]bool{}, lapsed: map[Share]map[mesh.EndpointID]time.Time{}}
}

// candidates weighs every candidate of plan by the rules.
func (m *model) candidates(plan *route.Plan, t Tried, now time.Time) []balance.Candidate {
	out := make([]balance.Candidate, len(plan.Candidates))
	for i, c := range plan.Candidates {
		if w := c.Workload; w != nil {
			k := health.Key{Endpoint: w.Endpoint, Port: w.Target(plan.Port)}
			out[i] = balance.Candidate{Rank: c.Rank, Weight: float64(c.Capacity) * m.pods.Weight(k, now), Faint: m.pods.Faint(k),
				Usable: m.pods.Usable(k, now) && !slices.Contains(m.health[Share{"east", host, 80}].Exceptions, w.Endpoint), Avoid: slices.Contains(t.Pods, w.Endpoint) || !m.origins.Usable(OriginKey{t.Origin, k}, now)}
			continue
		}
		out[i] = m.share(c, t, now)
	}
	return out
}

// drains is whether g leaves, whoever says so.
func (m *model) drains(s Share, g *mesh.Gateway) bool {
	h := m.health[s]
	return g.Drained || h.of(g.Name) != nil && h.of(g.Name).Draining
}

// share weighs a share by the gateways that stay, or by all if those have nothing.
func (m *model) share(c route.Candidate, t Tried, now time.Time) balance.Candidate {
	s := Share{c.Network, host, 80}
	var stay []*mesh.Gateway
	for _, g := range c.Gateways {
		if !m.drains(s, g) {
			stay = append(stay, g)
		}
	}
	x := m.shareBy(c, stay, t, now)
	if x.Weight == 0 {
		x = m.shareBy(c, c.Gateways, t, now)
	}
	x.Avoid = true
	for _, g := range stay {
		k := GatewayKey(g)
		if m.gateways.Usable(k, now) && m.paths.Usable(Path{s, g.Name}, now) && !slices.Contains(t.Gateways, k) && !m.waits[k].long(now) {
			x.Avoid = slices.Contains(t.Networks, c.Network)
		}
	}
	return x
}

// shareBy is the sum over groups of the best of gateways that can deliver.
func (m *model) shareBy(c route.Candidate, gateways []*mesh.Gateway, t Tried, now time.Time) balance.Candidate {
	s := Share{c.Network, host, 80}
	h := m.health[s]
	x := balance.Candidate{Rank: c.Rank, Faint: true}
	anyUp := false
	able := func(g *mesh.Gateway) (float64, bool) {
		if !m.paths.Usable(Path{s, g.Name}, now) {
			return 0, false
		}
		d := h.of(g.Name)
		switch {
		case d == nil:
			return float64(c.Capacity) * m.paths.Weight(Path{s, g.Name}, now), true
		case d.Healthy == 0:
			return 0, false
		}
		return float64(d.HealthyCapacity) * m.paths.Weight(Path{s, g.Name}, now), true
	}
	for _, g := range gateways {
		if _, ok := able(g); ok {
			anyUp = anyUp || m.gateways.Usable(GatewayKey(g), now)
			x.Faint = x.Faint && m.paths.Faint(Path{s, g.Name})
		}
	}
	add := func(of func(*Delivery) bool) {
		most := 0.0
		for _, g := range gateways {
			if w, ok := able(g); ok && of(h.of(g.Name)) && (!anyUp || m.gateways.Usable(GatewayKey(g), now)) {
				most = max(most, w)
			}
		}
		x.Weight += most
	}
	for _, group := range h.Groups {
		add(func(d *Delivery) bool { return d != nil && within(group, d) })
	}
	if x.Weight == 0 {
		add(func(d *Delivery) bool { return d == nil })
	}
	x.Usable = x.Weight > 0
	x.Faint = x.Faint && x.Usable
	return x
}

// allowed says who may be chosen, and whether that is dazed.
func allowed(c []balance.Candidate) (who []int, dazed bool) {
	for _, heed := range []bool{true, false} {
		best := math.MinInt
		for _, x := range c {
			if x.Usable && !x.Faint && !x.Drained && !(heed && x.Avoid) && x.Weight > 0 {
				best = max(best, x.Rank)
			}
		}
		for i, x := range c {
			if best > math.MinInt && x.Usable && !x.Drained && !(heed && x.Avoid) && x.Weight > 0 && (x.Rank == best || x.Faint && x.Rank > best) {
				who = append(who, i)
			}
		}
		if len(who) > 0 {
			return who, false
		}
	}
	for _, heed := range []bool{true, false} {
		for i, x := range c {
			if !x.Drained && !(heed && x.Avoid) {
				who = append(who, i)
			}
		}
		if len(who) > 0 {
			return who, true
		}
	}
	return nil, false
}

// schedule is one random run of picker and model side by side.
type schedule struct {
	t     *testing.T
	seed  uint64
	rng   *rand.Rand
	p     *Picker
	m     *model
	snap  *mesh.Snapshot
	l     layout
	now   time.Time
	going []*going

	joined string // the Way of what the last Choose was told to wait for
}

func (s *schedule) fail(format string, args ...any) {
	s.t.Helper()
	s.t.Fatalf("seed %d, %v: "+format, append([]any{s.seed, s.now.Sub(epoch)}, args...)...)
}

// origin is a captured pod, or none.
func (s *schedule) origin() string { return []string{"", "shop", "cafe"}[s.rng.IntN(3)] }

func (s *schedule) tried(plan *route.Plan) (t Tried) {
	t.Origin = s.origin()
	for range s.rng.IntN(3) {
		switch c := plan.Candidates[s.rng.IntN(len(plan.Candidates))]; {
		case c.Workload != nil:
			t.Pods = append(t.Pods, c.Workload.Endpoint)
		case s.rng.IntN(2) == 0:
			t.Networks = append(t.Networks, c.Network)
		default:
			t.Gateways = append(t.Gateways, GatewayKey(c.Gateways[s.rng.IntN(len(c.Gateways))]))
		}
	}
	return t
}

// Choose implements Kept with sessions that are no longer good, too, and such as are being
// opened.
func (s *schedule) Choose(k Share, _ string, fits func(warmset.Choice) bool) (warmset.Choice, bool) {
	pods, gateways := s.snap.Members(s.snap.Service(host), k.Network), s.snap.Gateways(k.Network)
	s.joined = ""
	for id := range uint64(s.rng.IntN(4)) {
		x := warmset.Choice{ID: id + 1, Joined: s.rng.IntN(3) == 0}
		pod := pods[s.rng.IntN(len(pods))]
		if x.Gateway = Way(gateways[s.rng.IntN(len(gateways))]); !x.Joined {
			x.Endpoint, x.Identity = pod.Endpoint, pod.Identity
		}
		if !fits(x) {
			continue
		}
		if x.Joined {
			s.joined = x.Gateway
		}
		return x, !x.Joined
	}
	return warmset.Choice{}, false
}

func (s *schedule) pick() {
	d, err := s.p.Resolve(s.snap, flow(s.snap), s.now)
	if err != nil {
		if re := (*route.Error)(nil); !errors.As(err, &re) {
			s.fail("resolve: %v", err)
		}
		return
	}
	plan := d.Plan()
	t := s.tried(plan)
	candidates := s.m.candidates(plan, t, s.now)
	who, dazed := allowed(candidates)
	c, err := s.p.Pick(d, t, s, s.now)
	if err != nil {
		if len(who) > 0 {
			s.fail("nobody was chosen (%v), though %d may be of %+v", err, len(who), candidates)
		}
		return
	}
	at := slices.IndexFunc(plan.Candidates, func(x route.Candidate) bool {
		return x.Workload != nil && x.Workload == c.Pod || x.Workload == nil && c.Gateway != nil && x.Network == c.Gateway.Network
	})
	if !slices.Contains(who, at) || c.Dazed != dazed {
		s.fail("chose candidate %d (dazed %v); %v may be (dazed %v), tried %+v, of %+v", at, c.Dazed, who, dazed, t, candidates)
	}
	s.weights(d, candidates, at)
	g := &going{c: c, origin: t.Origin}
	s.m.open++
	if c.Pod != nil {
		k := health.Key{Endpoint: c.Pod.Endpoint, Port: c.Target}
		g.pod, g.alone = s.m.pods.Begin(k, s.now), s.m.origins.Begin(OriginKey{t.Origin, k}, s.now)
	} else {
		s.way(plan.Candidates[at], c, t)
		k := GatewayKey(c.Gateway)
		g.path, g.hop = s.m.paths.Begin(Path{c.Share, c.Gateway.Name}, s.now), s.m.gateways.Begin(k, s.now)
		s.m.waits[k] = s.m.waits[k].asked(s.now)
	}
	s.going = append(s.going, g)
}

// way checks the gateway and the pod of another network.
func (s *schedule) way(c route.Candidate, x Choice, t Tried) {
	h := s.m.health[x.Share]
	stays := func(g *mesh.Gateway) bool { return !s.m.drains(x.Share, g) }
	serves := func(g *mesh.Gateway) bool {
		k := GatewayKey(g)
		d := h.of(g.Name)
		return s.m.gateways.Usable(k, s.now) && !s.m.gateways.Faint(k) && s.m.paths.Usable(Path{x.Share, g.Name}, s.now) && !s.m.paths.Faint(Path{x.Share, g.Name}) &&
			!slices.Contains(t.Gateways, k) && !s.m.waits[k].long(s.now) && (d == nil || d.able())
	}
	good := func(g *mesh.Gateway) bool { return serves(g) && stays(g) }
	faint := s.m.gateways.Faint(GatewayKey(x.Gateway)) || s.m.paths.Faint(Path{x.Share, x.Gateway.Name})
	switch {
	case good(x.Gateway):
	case slices.ContainsFunc(c.Gateways, good) && (!faint || !stays(x.Gateway)):
		s.fail("chose gateway %s, which is sick, silent, tried, drains or has nothing, beside one that is well", x.Gateway.Name)
	case !serves(x.Gateway) && !faint && slices.ContainsFunc(c.Gateways, serves):
		s.fail("chose gateway %s, which is sick, silent, tried or has nothing, beside one that drains and serves", x.Gateway.Name)
	}
	if x.Joined != (s.joined != "") || x.Joined && Way(x.Gateway) != s.joined {
		s.fail("goes by way of %s (joined %v), and waits for what is opened by way of %q", x.Gateway.Name, x.Joined, s.joined)
	}
	if x.Kept.ID == 0 {
		return
	}
	if Way(x.Gateway) != x.Kept.Gateway {
		s.fail("goes by way of %s on a session by way of %s", x.Gateway.Name, x.Kept.Gateway)
	}
	id := x.Kept.Endpoint
	if h.excepted(id) || h.unreachable(x.Gateway.Name, id) || slices.Contains(t.Pods, id) || s.now.Before(s.m.hinted[hinted{id, ""}]) || s.now.Before(s.m.hinted[hinted{id, x.Gateway.Name}]) {
		s.fail("chose %s, which is out, failed lately or was tried", id)
	}
	if s.now.Before(s.m.lapsed[x.Share][id]) {
		s.fail("chose %s, which was out by the last word of owners who say nothing more", id)
	}
}

// weights compares the weight of every pod, and sums. The chosen one may have
// become a probe.
func (s *schedule) weights(d *Destination, candidates []balance.Candidate, chosen int) {
	d.mu.Lock()
	defer d.mu.Unlock()
	sum := 0.0
	for i, want := range candidates {
		sum += d.index.Share(i)
		got := d.index.At(i)
		if d.members[i].pod != nil && (got.Weight != want.Weight || got.Usable != want.Usable && i != chosen || got.Faint != want.Faint) {
			s.fail("candidate %d counts as %+v; want %+v", i, got, want)
		}
	}
	if sum < 0.999999 || sum > 1.000001 {
		s.fail("the parts of all candidates sum to %v", sum)
	}
}

// edges checks that each tells of a change.
func (s *schedule) edges(list []Edge) {
	for _, e := range list {
		e.Reason = ""
		about := e
		about.Edge = health.NoEdge
		if out := e.Edge == health.EdgeEjected; s.m.out[about] == out {
			s.fail("edge %v of %+v, which was out: %v", e.Edge, about, s.m.out[about])
		} else {
			s.m.out[about] = out
		}
	}
}

func (s *schedule) end(g *going, success bool, o Outcome) {
	of := func(fault bool) health.Outcome {
		switch {
		case success:
			return health.Success
		case o.Fault && fault:
			return health.Failure
		}
		return health.Neutral
	}
	if g.c.Pod != nil {
		k := health.Key{Endpoint: g.c.Pod.Endpoint, Port: g.c.Target}
		r := of(o.At == AtEndpoint)
		switch {
		case r == health.Failure && o.Hop:
			if !s.m.unansweredTo(g.origin, k, g.alone, s.now) {
				r = health.Neutral
			}
		case success || o.Responded:
			delete(s.m.met, k)
			s.m.endAlone(OriginKey{g.origin, k}, g.alone, health.Success, s.now)
		}
		s.m.endPod(k, g.pod, r, o.Hop, s.now)
		return
	}
	path := Path{g.c.Share, g.c.Gateway.Name}
	r := of(o.At == AtNetwork || o.At == AtEndpoint && o.Endpoint == 0)
	s.m.paths.End(path, g.path, r, s.now)
	if r == health.Failure {
		s.m.failed[path] = s.now
	}
	hop := of(o.At == AtGateway)
	if o.Fault && o.At >= AtNetwork {
		hop = health.Success
	}
	s.m.endGateway(GatewayKey(g.c.Gateway), g.hop, hop, o.Unreached, s.now)
	if o.Fault && o.At == AtEndpoint && o.Endpoint != 0 {
		by := hinted{o.Endpoint, ""}
		if o.Hop {
			by.gateway = g.c.Gateway.Name
		}
		if was := s.m.hinted[by]; !o.Silent {
			delete(s.m.silent, by)
		} else if s.m.silent[by] || !s.now.Before(was) {
			s.m.silent[by] = true
		} else {
			return // it has failed, which says more
		}
		s.m.hinted[by] = s.now.Add(hintTTL)
	}
}

// unansweredTo is that k did not answer origin, and says whether that is held against it for all: nobody is captured, or
// another one has met the same within a minute, and nobody was answered since.
func (m *model) unansweredTo(origin string, k health.Key, a health.Attempt, now time.Time) (forAll bool) {
	last, known := m.met[k]
	known = known && now.Sub(last.at) < agreeWithin
	if !known || last.origin == origin {
		m.met[k] = meeting{origin, now}
	}
	m.endAlone(OriginKey{origin, k}, a, health.Failure, now)
	return origin == "" || known && last.origin != origin
}

// endAlone ends an attempt at a pod as its origin, unless that is none, reaches it.
func (m *model) endAlone(k OriginKey, a health.Attempt, o health.Outcome, now time.Time) {
	if k.Origin == "" {
		return
	}
	was := m.origins.State(k, now).Phase
	edge := m.origins.End(k, a, o, now)
	is := m.origins.State(k, now).Phase
	switch {
	case o == health.Success && is == health.Healthy:
		delete(m.alone, k)
	case o == health.Failure && was == health.Healthy && edge == health.EdgeEjected:
		m.lone.Expire(now)
		m.lone.Ejected(k, now)
	case o == health.Failure:
		m.lone.Failed(k, now)
	}
	if o == health.Failure {
		m.alone[k] = true
	}
	if was != health.Healthy && is == health.Healthy {
		m.lone.Readmitted(k, now)
	}
}

// endPod ends an attempt at a pod; hop says that its node proxy did not answer.
func (m *model) endPod(k health.Key, a health.Attempt, o health.Outcome, hop bool, now time.Time) {
	was := m.pods.State(k, now).Phase
	edge := m.pods.End(k, a, o, now)
	is := m.pods.State(k, now).Phase
	switch {
	case o == health.Failure && hop:
		m.unanswered[k] = true
		if was == health.Healthy && edge == health.EdgeEjected {
			m.damper.Expire(now)
			m.damper.Ejected(k, now)
		} else {
			m.damper.Failed(k, now)
		}
	case o == health.Failure:
		m.refused[k] = true
	case o == health.Success && is == health.Healthy:
		delete(m.unanswered, k)
		delete(m.refused, k)
	}
	if o == health.Failure {
		m.failed[k] = now
	}
	if was != health.Healthy && is == health.Healthy {
		m.damper.Readmitted(k, now)
	}
}

// endGateway ends an attempt at a gateway; unreached says that there was no session with it.
func (m *model) endGateway(k string, a health.Attempt, o health.Outcome, unreached bool, now time.Time) {
	was := m.gateways.State(k, now).Phase
	edge := m.gateways.End(k, a, o, now)
	is := m.gateways.State(k, now).Phase
	switch {
	case o == health.Failure && unreached:
		m.unreached[k] = true
	case o == health.Failure:
		m.behind[k] = true
		if was == health.Healthy && edge == health.EdgeEjected {
			m.gateDamper.Expire(now)
			m.gateDamper.Ejected(k, now)
		} else {
			m.gateDamper.Failed(k, now)
		}
	case o == health.Success && is == health.Healthy:
		delete(m.unreached, k)
		delete(m.behind, k)
	}
	if was != health.Healthy && is == health.Healthy {
		m.gateDamper.Readmitted(k, now)
	}
}

// readmitPod is word from elsewhere that a pod which is out works.
func (m *model) readmitPod(k health.Key, now time.Time) {
	m.pods.Readmit(k, now)
	m.damper.Readmitted(k, now)
	delete(m.unanswered, k)
	delete(m.refused, k)
}

// askPod tells what a question of our own to the node proxy of a random pod found.
func (s *schedule) askPod() {
	pods := s.snap.Members(s.snap.Service(host), "east")
	if len(pods) == 0 {
		return
	}
	w := pods[s.rng.IntN(len(pods))]
	k := health.Key{Endpoint: w.Endpoint, Port: 8080}
	o := []health.Outcome{health.Success, health.Success, health.Failure, health.Neutral}[s.rng.IntN(4)]
	origin := s.origin()
	own, want, forAll := OriginKey{origin, k}, Asked{}, true
	is := func(st health.State, held time.Time) {
		out := st.Phase != health.Healthy
		want.Out = want.Out || out
		for _, at := range []time.Time{held, st.Until} {
			if out && at.After(s.now) && (want.By.IsZero() || at.Before(want.By)) {
				want.By = at
			}
		}
	}
	shared := s.m.unanswered[k] && !s.m.refused[k]
	if s.m.alone[own] || shared {
		held := time.Time{}
		switch o {
		case health.Failure:
			forAll = s.m.unansweredTo(origin, k, s.m.origins.Begin(own, s.now), s.now)
		case health.Success:
			if delete(s.m.met, k); origin != "" && s.m.origins.State(own, s.now).Phase != health.Healthy {
				if held = s.m.lone.Answered(own, s.now); !held.After(s.now) {
					s.m.origins.Readmit(own, s.now)
					s.m.lone.Readmitted(own, s.now)
					delete(s.m.alone, own)
				}
			}
		}
		is(s.m.origins.State(own, s.now), held)
	}
	if shared {
		held, excepted := time.Time{}, s.m.health[Share{"east", host, 80}].Exceptions
		switch out := s.m.pods.State(k, s.now).Phase != health.Healthy; {
		case o == health.Failure && forAll:
			s.m.endPod(k, s.m.pods.Begin(k, s.now), o, true, s.now)
		case o == health.Success && out && !slices.Contains(excepted, w.Endpoint):
			if held = s.m.damper.Answered(k, s.now); !held.After(s.now) {
				s.m.readmitPod(k, s.now)
			}
		}
		is(s.m.pods.State(k, s.now), held)
	}
	got := s.p.AskedPod(w, s.snap, origin, o, "connect", s.now)
	if got.Out != want.Out || !got.By.Equal(want.By) {
		s.fail("a question to %s that ended in %v: out %v, asked again by %v; want %v, %v", w.UID, o, got.Out, got.By, want.Out, want.By)
	}
	s.edges(got.Edges)
}

// reach has a session with a random endpoint that was silent or failed opened.
func (s *schedule) reach() {
	known := make([]Share, 0, len(s.m.health))
	for k := range s.m.health {
		known = append(known, k)
	}
	if len(s.m.hinted) == 0 || len(known) == 0 {
		return
	}
	all := slices.SortedFunc(maps.Keys(s.m.hinted), func(a, b hinted) int {
		return cmp.Or(cmp.Compare(a.id, b.id), cmp.Compare(a.gateway, b.gateway))
	})
	id, gateway := all[s.rng.IntN(len(all))].id, []string{"gw-1", "gw-2"}[s.rng.IntN(2)]
	for _, k := range known {
		s.p.Reached(k, id, gateway)
	}
	maps.DeleteFunc(s.m.hinted, func(h hinted, _ time.Time) bool { return h.id == id && (s.m.silent[h] || h.gateway == gateway) })
}

// finish ends or opens a random connection.
func (s *schedule) finish() {
	if len(s.going) == 0 {
		return
	}
	i := s.rng.IntN(len(s.going))
	g := s.going[i]
	o := Outcome{Reason: "refused", Responded: s.rng.IntN(2) == 0, Fault: s.rng.IntN(3) > 0, At: AtEndpoint}
	if g.c.Pod != nil {
		o.Hop = s.rng.IntN(2) == 0
	} else {
		o.At = At(s.rng.IntN(3) + 1)
		o.Unreached = o.At == AtGateway && s.rng.IntN(2) == 0
		if g.c.Kept.ID != 0 && o.At == AtEndpoint && s.rng.IntN(3) > 0 {
			o.Endpoint, o.Hop, o.Silent = g.c.Kept.Endpoint, s.rng.IntN(2) == 0, s.rng.IntN(2) == 0
		}
	}
	if g.c.Gateway != nil && !g.c.opened {
		s.m.waits[GatewayKey(g.c.Gateway)] = s.m.waits[GatewayKey(g.c.Gateway)].responded(o.Responded, s.now)
	}
	if !g.c.opened && s.rng.IntN(2) == 0 {
		s.end(g, true, Outcome{})
		if g.c.Gateway != nil && !o.Responded { // Opened responds
			k := GatewayKey(g.c.Gateway)
			if w := s.m.waits[k]; w.waiting > 0 {
				w.since = s.now
				s.m.waits[k] = w
			}
		}
		s.edges(s.p.Opened(&g.c, s.now))
		return
	}
	if g.c.opened && o.Fault {
		if g.c.Pod != nil {
			k := health.Key{Endpoint: g.c.Pod.Endpoint, Port: g.c.Target}
			g.pod, g.alone = s.m.pods.Begin(k, s.now), s.m.origins.Begin(OriginKey{g.origin, k}, s.now)
		} else {
			g.path, g.hop = s.m.paths.Begin(Path{g.c.Share, g.c.Gateway.Name}, s.now), s.m.gateways.Begin(GatewayKey(g.c.Gateway), s.now)
		}
	}
	if !g.c.opened || o.Fault {
		s.end(g, false, o)
	}
	s.edges(s.p.Done(&g.c, o, s.now))
	s.going = slices.Delete(s.going, i, i+1)
	s.m.open--
}

// say changes what is said of a random share.
func (s *schedule) say() {
	k := Share{[]string{"east", "west", "north"}[s.rng.IntN(3)], host, 80}
	lately := func() time.Time { return s.now.Add(-time.Duration(s.rng.IntN(3)) * time.Second) }
	h := Health{Returned: map[mesh.EndpointID]time.Time{}}
	for _, w := range s.snap.Members(s.snap.Service(host), k.Network) {
		if s.rng.IntN(4) == 0 {
			h.Exceptions = append(h.Exceptions, w.Endpoint)
		} else if s.rng.IntN(2) == 0 {
			h.Returned[w.Endpoint] = lately()
		}
	}
	slices.Sort(h.Exceptions)
	ready := uint32(len(s.snap.Members(s.snap.Service(host), k.Network)))
	word := func(name string) Delivery {
		n := s.rng.Uint32N(ready + 1)
		d := Delivery{Gateway: name, Ready: ready, ReadyCapacity: ready, Healthy: n, HealthyCapacity: n, Draining: s.rng.IntN(8) == 0, Said: lately()}
		for _, w := range s.snap.Members(s.snap.Service(host), k.Network) {
			if s.rng.IntN(4) == 0 {
				d.Unreachable = append(d.Unreachable, w.Endpoint)
			}
		}
		slices.Sort(d.Unreachable)
		return d
	}
	switch s.rng.IntN(4) {
	case 0:
		h.Groups = []Group{{word("")}}
	case 1:
		h.Groups = []Group{{word("gw-1"), word("gw-2")}}
	case 2:
		h.Groups = []Group{{word("gw-1")}, {word("gw-2")}}
	case 3:
		h.Groups = []Group{{word("gw-1")}}
	}
	before, wasKnown := s.m.health[k]
	if s.rng.IntN(5) == 0 {
		delete(s.m.health, k)
	} else {
		s.m.health[k] = h
	}
	h, known := s.m.health[k]
	if known {
		delete(s.m.lapsed, k)
	} else if wasKnown {
		s.m.lapsed[k] = map[mesh.EndpointID]time.Time{}
		for _, id := range before.Exceptions {
			s.m.lapsed[k][id] = s.now.Add(lapsedFor)
		}
	}
	if known && k.Network == "east" {
		for _, w := range s.snap.Members(s.snap.Service(host), "east") {
			key := health.Key{Endpoint: w.Endpoint, Port: 8080}
			if !h.excepted(w.Endpoint) && s.m.failed[key].Before(h.Returned[w.Endpoint]) && s.m.pods.State(key, s.now).Phase != health.Healthy {
				s.m.readmitPod(key, s.now)
			}
		}
	}
	if known {
		for _, g := range s.snap.Gateways(k.Network) {
			if d, path := h.of(g.Name), (Path{k, g.Name}); d != nil && d.able() && s.m.failed[path].Before(d.Said) {
				s.m.paths.Readmit(path, s.now)
			}
		}
		for _, w := range s.snap.Members(s.snap.Service(host), k.Network) {
			back := func(by hinted) bool {
				return !h.excepted(w.Endpoint) && h.Returned[w.Endpoint].After(s.m.hinted[by].Add(-hintTTL))
			}
			if by := (hinted{w.Endpoint, ""}); back(by) {
				delete(s.m.hinted, by)
			}
			for _, g := range s.snap.Gateways(k.Network) {
				if by := (hinted{w.Endpoint, g.Name}); !h.unreachable(g.Name, w.Endpoint) && (before.unreachable(g.Name, w.Endpoint) || back(by)) {
					delete(s.m.hinted, by)
				}
			}
		}
	}
	s.edges(s.p.Heard(k, s.snap, s.now))
}

// ask tells what a question of our own to a random gateway found.
func (s *schedule) ask() {
	gs := s.snap.Gateways([]string{"west", "north"}[s.rng.IntN(2)])
	k := GatewayKey(gs[s.rng.IntN(len(gs))])
	if s.p.gates[k] == nil {
		return
	}
	o := []health.Outcome{health.Success, health.Success, health.Failure, health.Neutral}[s.rng.IntN(4)]
	want, held := Asked{}, time.Time{}
	out, back := s.m.gateways.State(k, s.now).Phase != health.Healthy, false
	switch {
	case o == health.Failure:
		s.m.endGateway(k, s.m.gateways.Begin(k, s.now), o, true, s.now)
		s.m.gateDamper.Failed(k, s.now)
	case o == health.Success && s.m.unreached[k] && !s.m.behind[k]:
		back = true
	case o == health.Success && out:
		held = s.m.gateDamper.Answered(k, s.now)
		back = !held.After(s.now)
	}
	if back {
		s.m.gateways.Readmit(k, s.now)
		delete(s.m.unreached, k)
		delete(s.m.behind, k)
		if out {
			s.m.gateDamper.Readmitted(k, s.now)
		}
	}
	st := s.m.gateways.State(k, s.now)
	want.Out = st.Phase != health.Healthy
	for _, at := range []time.Time{held, st.Until} {
		if want.Out && at.After(s.now) && (want.By.IsZero() || at.Before(want.By)) {
			want.By = at
		}
	}
	got := s.p.AskedGateway(k, o, "connect", "", s.now)
	if got.Out != want.Out || !got.By.Equal(want.By) {
		s.fail("a question to %s that ended in %v: out %v, asked again by %v; want %v, %v", k, o, got.Out, got.By, want.Out, want.By)
	}
	s.edges(got.Edges)
}

// rediscover takes pods away and brings them back; those that are gone are
// forgotten.
func (s *schedule) rediscover(revision uint64) {
	for _, w := range s.snap.Members(s.snap.Service(host), "east") {
		if s.rng.IntN(4) == 0 {
			s.l.absent[w.UID] = true
		}
	}
	for uid := range s.l.absent {
		if s.rng.IntN(2) == 0 {
			delete(s.l.absent, uid)
		}
	}
	for _, n := range []string{"west", "north"} {
		for g := range s.l.gateways {
			s.l.drained[fmt.Sprintf("%s/gw-%d", n, g+1)] = s.rng.IntN(3) == 0
		}
	}
	s.snap = s.l.snapshot(s.t, revision)
	s.p.Retain(s.snap, s.now)
	keep := func(k health.Key) bool { return s.snap.WorkloadByEndpoint(k.Endpoint) != nil }
	s.m.pods.Prune(s.now, keep)
	s.m.damper.Retain(keep)
	s.m.damper.Expire(s.now)
	alone := func(k OriginKey) bool { return keep(k.Key) }
	s.m.origins.Prune(s.now, alone)
	s.m.lone.Retain(alone)
	s.m.lone.Expire(s.now)
	maps.DeleteFunc(s.m.alone, func(k OriginKey, _ bool) bool {
		return !alone(k) || s.m.origins.State(k, s.now) == health.State{Health: 1}
	})
	maps.DeleteFunc(s.m.met, func(k health.Key, x meeting) bool { return !keep(k) || s.now.Sub(x.at) >= agreeWithin })
	for _, m := range []map[health.Key]bool{s.m.unanswered, s.m.refused} {
		maps.DeleteFunc(m, func(k health.Key, _ bool) bool {
			return !keep(k) || s.m.pods.State(k, s.now) == health.State{Health: 1}
		})
	}
	for _, m := range []map[string]bool{s.m.unreached, s.m.behind} {
		maps.DeleteFunc(m, func(k string, _ bool) bool { return s.m.gateways.State(k, s.now) == health.State{Health: 1} })
	}
	s.m.gateDamper.Expire(s.now)
	for about := range s.m.out {
		if e, ok := about.(Edge); ok && e.Scope == ScopeEndpoint && !keep(health.Key{Endpoint: e.Endpoint}) {
			delete(s.m.out, about)
		}
	}
	for k := range s.m.failed {
		if k, ok := k.(health.Key); ok && !keep(k) {
			delete(s.m.failed, k)
		}
	}
}

func TestThePickerDoesWhatTheScanWouldWhateverHappens(t *testing.T) {
	for seed := range uint64(400) {
		rng := rand.New(rand.NewPCG(seed, 3))
		s := &schedule{t: t, seed: seed, rng: rng, now: epoch, l: layout{distribution: []string{"PreferClose", "Any", "PreferNetwork"}[seed%3],
			east: rng.IntN(6), west: 1 + rng.IntN(5), north: rng.IntN(4), gateways: 1 + rng.IntN(3), absent: map[string]bool{}, drained: map[string]bool{}}}
		c := defaults()
		s.m = newModel(c)
		c.Health = func(k Share) (Health, bool) { h, ok := s.m.health[k]; return h, ok }
		s.p, s.snap = New(c), s.l.snapshot(t, 1)
		for step := range 400 {
			switch rng.IntN(14) {
			case 0, 1, 2, 3:
				s.pick()
			case 4, 5, 6, 7:
				s.finish()
			case 8:
				s.say()
			case 9:
				s.ask()
			case 10:
				s.now = s.now.Add(time.Duration(rng.Int64N(int64(20 * time.Second))))
			case 11:
				if rng.IntN(4) == 0 {
					s.rediscover(uint64(step + 2))
				}
			case 12:
				s.reach()
			case 13:
				s.askPod()
			}
		}
		for len(s.going) > 0 {
			s.finish()
		}
		if l := s.p.Load(); l != (Load{}) {
			t.Fatalf("seed %d: %+v left although everything is done", seed, l)
		}
	}
}
