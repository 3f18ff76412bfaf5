package picker

import (
	"fmt"
	"maps"
	"math/rand/v2"
	"slices"
	"testing"
	"time"

	"github.com/isthmus-mesh/isthmus/balance"
	"github.com/isthmus-mesh/isthmus/federation/damping"
	"github.com/isthmus-mesh/isthmus/health"
	"github.com/isthmus-mesh/isthmus/mesh"
	"github.com/isthmus-mesh/isthmus/route"
)

var epoch = time.Unix(1_800_000_000, 0)

func pod(i int) *mesh.Workload {
	uid := fmt.Sprintf("west/default/hello-%05d", i)
	return &mesh.Workload{UID: uid, Network: "west", Endpoint: mesh.EndpointIDOf("west", uid), Capacity: 1 + uint32(i%2), State: mesh.Ready}
}

func export(pods ...*mesh.Workload) route.Exported {
	return route.Exported{Service: &mesh.Service{Hostname: "hello.default.svc.cluster.local"}, Port: mesh.Port{Service: 80, Target: 8080}, Members: pods}
}

func newPicker(listed func(mesh.EndpointID) bool) *Picker {
	return New(Config{Network: "west", Hops: health.DefaultConfig(), Listed: listed, Jitter: func() float64 { return 0.5 }, Seed: func() uint64 { return 1 }})
}

// model is the slow and obvious picker: it draws nothing and says who may be
// chosen.
type model struct {
	hops                     *health.Tracker[mesh.EndpointID]
	sick, doubted, untrusted map[mesh.EndpointID]bool
	damped                   map[mesh.EndpointID]bool // sick by the word of its witness, who says that it answers
	answered                 map[mesh.EndpointID]time.Time
	out                      map[mesh.EndpointID]bool // what an edge was told of
}

type going struct {
	c       Choice
	attempt health.Attempt
}

// schedule is one random run of picker and model side by side.
type schedule struct {
	t     *testing.T
	seed  uint64
	rng   *rand.Rand
	p     *Picker
	m     model
	pods  []*mesh.Workload // all there ever were
	here  []*mesh.Workload // that are listed
	now   time.Time
	going []*going
}

func (s *schedule) listed(id mesh.EndpointID) bool {
	return slices.ContainsFunc(s.here, func(w *mesh.Workload) bool { return w.Endpoint == id })
}

func (s *schedule) fail(format string, args ...any) {
	s.t.Helper()
	s.t.Fatalf("seed %d, %v: "+format, append([]any{s.seed, s.now.Sub(epoch)}, args...)...)
}

func (s *schedule) some() (ids []mesh.EndpointID) {
	for range s.rng.IntN(3) {
		ids = append(ids, s.pods[s.rng.IntN(len(s.pods))].Endpoint)
	}
	return ids
}

// able reports whether nothing but the witness's word may be held against a pod.
func (s *schedule) able(id mesh.EndpointID) bool {
	return s.m.hops.Usable(id, s.now) && !s.m.doubted[id]
}

// usable says whether a pod is chosen as long as anybody is: of those that are held
// back for flapping, those that do not fit into half of the capacity beside those that
// fit before them, by the order of their names in headers, or all if nobody is well.
func (s *schedule) usable(id mesh.EndpointID) bool {
	if !s.able(id) || s.m.sick[id] && !s.m.damped[id] {
		return false
	}
	if !s.m.sick[id] {
		return true
	}
	total, well := 0, false
	damped := map[mesh.EndpointID]int{} // what each weighs
	for _, w := range s.here {
		total += int(w.Capacity)
		well = well || s.able(w.Endpoint) && !s.m.sick[w.Endpoint]
		if s.able(w.Endpoint) && s.m.damped[w.Endpoint] {
			damped[w.Endpoint] += int(w.Capacity)
		}
	}
	sum, fits := 0, false
	for _, e := range slices.Sorted(maps.Keys(damped)) {
		if fits = 2*(sum+damped[e]) <= total; fits {
			sum += damped[e]
		}
		if e == id {
			break
		}
	}
	return !well || !fits
}

// allowed says who may be chosen for r, by a scan.
func (s *schedule) allowed(r Request) (c []balance.Candidate, who []int, dazed bool) {
	for _, w := range s.here {
		id := w.Endpoint
		c = append(c, balance.Candidate{Weight: float64(w.Capacity) * s.m.hops.Weight(id, s.now), Faint: s.m.hops.Faint(id),
			Usable:  s.usable(id),
			Drained: slices.Contains(r.Exclude, id) || r.Pin != 0 && r.Pin != id, Avoid: slices.Contains(r.Avoid, uint64(id))})
	}
	for _, daze := range []bool{false, true} {
		for _, heed := range []bool{true, false} {
			solid := slices.ContainsFunc(c, func(x balance.Candidate) bool { return x.Usable && !x.Faint && !x.Drained && !(heed && x.Avoid) })
			for i, x := range c {
				if !x.Drained && !(heed && x.Avoid) && (daze || solid && x.Usable) {
					who = append(who, i)
				}
			}
			if len(who) > 0 {
				if daze && (r.HealthyOnly || r.Pin != 0 && !s.slowLikeAll(r)) {
					return c, nil, false
				}
				return c, who, daze
			}
		}
	}
	return c, nil, false
}

// slowLikeAll reports whether the pinned pod only owes an answer, and nobody is
// better.
func (s *schedule) slowLikeAll(r Request) bool {
	slow := false
	for _, w := range s.here {
		id := w.Endpoint
		if id == r.Pin {
			slow = s.m.hops.Usable(id, s.now) && !s.m.sick[id] && s.m.doubted[id]
		} else if s.usable(id) && !slices.Contains(r.Exclude, id) {
			return false
		}
	}
	return slow
}

func (s *schedule) pick() {
	if len(s.here) == 0 {
		return
	}
	x := s.p.Offer(export(s.here...), s.now)
	r := Request{Exclude: s.some(), HealthyOnly: s.rng.IntN(4) == 0}
	for _, id := range s.some() {
		r.Avoid = append(r.Avoid, uint64(id))
	}
	if s.rng.IntN(6) == 0 {
		r.Pin = s.pods[s.rng.IntN(len(s.pods))].Endpoint
	}
	crowded := map[mesh.EndpointID]bool{}
	for _, id := range s.some() {
		crowded[id] = true
	}
	r.Crowded = func(id mesh.EndpointID) bool { return crowded[id] }
	candidates, who, dazed := s.allowed(r)
	c, ok := s.p.Pick(x, r, s.now)
	if ok != (len(who) > 0) {
		s.fail("chosen %v, and %v may be for %+v of %+v", ok, who, r, candidates)
	}
	if !ok {
		return
	}
	at := slices.Index(s.here, c.Pod)
	room := func(i int) bool { return !crowded[s.here[i].Endpoint] }
	if r.Pin == 0 && !room(at) && slices.ContainsFunc(who, func(i int) bool { return room(i) && !candidates[i].Faint }) {
		s.fail("chose a crowded pod, and one of %v has room", who)
	}
	avoided := candidates[at].Avoid && (dazed || candidates[at].Usable) && !candidates[at].Drained && !slices.ContainsFunc(who, room) // rather than wait
	if !slices.Contains(who, at) && !avoided || c.Dazed != dazed {
		s.fail("chose %d (dazed %v); %v may be (dazed %v) for %+v of %+v", at, c.Dazed, who, dazed, r, candidates)
	}
	attempt := s.m.hops.Begin(c.Pod.Endpoint, s.now)
	sum := 0.0
	for i := range candidates {
		sum += x.index.Share(i)
		if got := x.index.At(i); got.Weight != candidates[i].Weight || got.Usable != s.usable(s.here[i].Endpoint) { // the chosen one may be a probe
			s.fail("pod %d counts as %+v; want %+v", i, got, candidates[i])
		}
	}
	if sum < 0.999999 || sum > 1.000001 {
		s.fail("the parts of all pods sum to %v", sum)
	}
	s.going = append(s.going, &going{c, attempt})
}

func (s *schedule) end(g *going, o health.Outcome) {
	id := g.c.Pod.Endpoint
	if !s.listed(id) || o == health.Success && s.m.untrusted[id] {
		o = health.Neutral
	}
	s.m.hops.End(id, g.attempt, o, s.now)
}

func (s *schedule) edges(list []Edge) {
	for _, e := range list {
		if out := e.Edge == health.EdgeEjected; s.m.out[e.Pod.Endpoint] == out {
			s.fail("edge %v of %s, which was out: %v", e.Edge, e.Pod.UID, s.m.out[e.Pod.Endpoint])
		} else {
			s.m.out[e.Pod.Endpoint] = out
		}
	}
}

func (s *schedule) finish() {
	if len(s.going) == 0 {
		return
	}
	i := s.rng.IntN(len(s.going))
	g := s.going[i]
	if s.rng.IntN(3) == 0 {
		s.end(g, health.Success)
		if s.listed(g.c.Pod.Endpoint) {
			s.m.answered[g.c.Pod.Endpoint] = s.now
		}
		s.edges(s.p.Opened(&g.c, s.now))
		return
	}
	o := health.Outcome(s.rng.IntN(3))
	s.end(g, o)
	s.edges(s.p.Done(&g.c, Outcome{o, "unreachable"}, s.now))
	s.going = slices.Delete(s.going, i, i+1)
}

// learn takes in something else about a random pod.
func (s *schedule) learn() {
	w := s.pods[s.rng.IntN(len(s.pods))]
	id, key := w.Endpoint, health.Key{Endpoint: w.Endpoint, Port: 8080}
	fail := func() { s.m.hops.End(id, s.m.hops.Begin(id, s.now), health.Failure, s.now) }
	switch s.rng.IntN(5) {
	case 0:
		well := s.rng.IntN(2) == 0
		word := Word{Reason: []string{"refused", damping.Reason}[s.rng.IntN(2)]}
		if s.listed(id) && s.p.Reported(key, well, word, s.now) != (s.m.sick[id] == well) {
			s.fail("a report that is news is none, or the other way round")
		}
		s.m.sick[id] = !well && s.listed(id)
		s.m.damped[id] = s.m.sick[id] && word.Reason == damping.Reason
	case 1:
		s.p.Doubt(id, s.now)
		s.m.doubted[id] = s.listed(id)
	case 2, 3, 4:
		a, started := Answer(s.rng.IntN(6)), s.now.Add(-time.Second)
		if s.listed(id) {
			switch a {
			case Answers:
				s.m.doubted[id], s.m.untrusted[id] = false, false
				s.m.hops.Readmit(id, s.now)
			case NotAsked:
				s.m.doubted[id] = false
			case Untrusted:
				s.m.untrusted[id] = true
				fail()
			case Silent:
				if !s.m.answered[id].After(started) {
					fail()
				}
			case Broken:
				fail()
			}
		}
		s.edges(s.p.Asked(w, a, "unreachable", started, s.now))
	}
}

func (s *schedule) rediscover() {
	s.now = s.now.Add(2 * time.Second) // what answered before is no news
	s.here = nil
	for _, w := range s.pods {
		if s.rng.IntN(4) > 0 {
			s.here = append(s.here, w)
		}
	}
	s.p.Forget(s.now)
	s.m.hops.Prune(s.now, s.listed)
	for _, w := range s.pods {
		if id := w.Endpoint; !s.listed(id) {
			delete(s.m.sick, id)
			delete(s.m.damped, id)
			delete(s.m.doubted, id)
			delete(s.m.untrusted, id)
			delete(s.m.out, id)
			delete(s.m.answered, id)
		}
	}
}

func TestThePickerDoesWhatTheScanWouldWhateverHappens(t *testing.T) {
	for seed := range uint64(400) {
		rng := rand.New(rand.NewPCG(seed, 5))
		s := &schedule{t: t, seed: seed, rng: rng, now: epoch, m: model{hops: health.NewTracker[mesh.EndpointID](health.DefaultConfig(), func() float64 { return 0.5 }),
			sick: map[mesh.EndpointID]bool{}, damped: map[mesh.EndpointID]bool{}, doubted: map[mesh.EndpointID]bool{}, untrusted: map[mesh.EndpointID]bool{}, answered: map[mesh.EndpointID]time.Time{}, out: map[mesh.EndpointID]bool{}}}
		s.p = newPicker(s.listed)
		for i := range 1 + rng.IntN(8) {
			s.pods = append(s.pods, pod(i))
		}
		s.here = s.pods
		for range 400 {
			switch rng.IntN(12) {
			case 0, 1, 2, 3:
				s.pick()
			case 4, 5, 6:
				s.finish()
			case 7, 8, 9:
				s.learn()
			case 10:
				s.now = s.now.Add(time.Duration(rng.Int64N(int64(20 * time.Second))))
			case 11:
				if rng.IntN(10) == 0 {
					s.rediscover()
				}
			}
		}
		for len(s.going) > 0 {
			s.finish()
		}
		if n := s.p.Open() + s.p.hops.Open(); n != 0 {
			t.Fatalf("seed %d: %d open although everything is done", seed, n)
		}
	}
}
