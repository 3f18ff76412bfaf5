package warmset

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"testing"
	"time"

	"github.com/spiffe/go-spiffe/v2/spiffeid"

	"github.com/isthmus-mesh/isthmus/mesh"
)

var epoch = time.Date(2026, 11, 22, 12, 0, 0, 0, time.UTC)

// world is a share and a source that uses it, with a twin of what the set's owner
// has to keep count of.
type world struct {
	t     *testing.T
	rng   *rand.Rand
	now   time.Time
	set   *Set
	share Share
	pods  map[mesh.EndpointID]*pod
	known []mesh.EndpointID // of pods, in the order in which they came
	parts int               // groups of gateways, each of which reaches pods of its own; zero is one

	inFlight map[uint64]Request
	sessions map[uint64]int // that the owner has: open connections
	leaving  map[uint64]int // that it was told to end, with connections
	open     []uint64       // a connection each
	trace    []string
}

type pod struct {
	identity spiffeid.ID
	weight   uint32
	out      bool
}

var accounts = []spiffeid.ID{spiffeid.RequireFromString("spiffe://x/a"), spiffeid.RequireFromString("spiffe://x/b"), spiffeid.RequireFromString("spiffe://x/c")}

func newWorld(t *testing.T, seed uint64, pods int) *world {
	rng := rand.New(rand.NewPCG(seed, 1))
	w := &world{t: t, rng: rng, now: epoch, set: New(rng.Float64, seed), pods: map[mesh.EndpointID]*pod{},
		inFlight: map[uint64]Request{}, sessions: map[uint64]int{}, leaving: map[uint64]int{}}
	w.share.Gateways, w.share.Expect = []string{"gw-1", "gw-2"}, accounts
	for range pods {
		w.add()
	}
	return w
}

func (w *world) add() {
	id := mesh.EndpointID(len(w.known) + 1)
	w.pods[id] = &pod{identity: accounts[w.rng.IntN(len(accounts))], weight: uint32(w.rng.IntN(3))}
	w.known = append(w.known, id)
}

func (w *world) say(format string, args ...any) {
	w.trace = append(w.trace, fmt.Sprintf(format, args...))
}

// revise tells the set what is so now.
func (w *world) revise() {
	w.share.Healthy, w.share.Out, w.share.Offers = 0, nil, map[string]Offer{}
	for _, id := range w.known {
		if w.pods[id].out {
			w.share.Out = append(w.share.Out, id)
		} else if slices.ContainsFunc(w.share.Gateways, func(g string) bool { return w.reaches(g, id) }) {
			w.share.Healthy++
		}
	}
	for _, g := range w.share.Gateways {
		n := 0
		for _, id := range w.known {
			if !w.pods[id].out && w.reaches(g, id) {
				n++
			}
		}
		w.share.Offers[g] = Offer{Group: fmt.Sprint(w.part(g)), Healthy: n, Weight: float64(max(1, n))}
	}
	share := w.share
	share.Out, share.Expect, share.Gateways = slices.Clone(share.Out), slices.Clone(share.Expect), slices.Clone(share.Gateways)
	w.set.Revise(share, w.now)
	w.collect()
}

// part is the group of a gateway.
func (w *world) part(gateway string) int { return int(gateway[len(gateway)-1]) % max(1, w.parts) }

func (w *world) reaches(gateway string, id mesh.EndpointID) bool {
	return int(id)%max(1, w.parts) == w.part(gateway)
}

// collect takes what the set has ended.
func (w *world) collect() {
	for _, id := range w.set.Ended() {
		n, has := w.sessions[id]
		if !has {
			w.fail("session %d was ended, which nobody has", id)
		}
		delete(w.sessions, id)
		if n > 0 {
			w.leaving[id] = n
		}
	}
}

func (w *world) due() {
	for _, r := range w.set.Due(w.now) {
		if len(r.Avoid) > MaxSlots || r.Pin != 0 && r.Avoid != nil || !slices.Contains(w.share.Gateways, r.Gateway) {
			w.fail("odd request %+v", r)
		}
		w.inFlight[r.ID] = r
	}
	w.collect()
}

// choose is a connection.
func (w *world) choose() {
	gateway, mine := w.share.Gateways[w.rng.IntN(len(w.share.Gateways))], w.rng.IntN(2) == 0
	c, ok := w.set.Choose(w.now, gateway, func(x Choice) bool { return !x.Joined || !mine || x.Gateway == gateway })
	switch {
	case ok:
		if _, has := w.sessions[c.ID]; !has {
			w.fail("chosen was session %d, which nobody has", c.ID)
		}
		w.begin(c.ID)
	case c.ID != 0 && !c.Joined:
		w.inFlight[c.ID] = Request{ID: c.ID, Gateway: gateway}
	case c.Joined && (mine && c.Gateway != gateway || c.Gateway != w.inFlight[c.ID].Gateway || c.Pin != w.inFlight[c.ID].Pin):
		w.fail("a connection that goes by %s (alone: %v) waits for %+v; that is %+v", gateway, mine, c, w.inFlight[c.ID])
	}
}

func (w *world) begin(id uint64) {
	w.sessions[id]++
	w.open = append(w.open, id)
}

// done ends a connection.
func (w *world) done(i int) {
	id := w.open[i]
	w.open = slices.Delete(w.open, i, i+1)
	w.set.Done(id)
	for _, of := range []map[uint64]int{w.sessions, w.leaving} {
		if n, has := of[id]; has {
			if of[id] = n - 1; n == 1 {
				delete(w.leaving, id)
			}
			return
		}
	}
	w.fail("a connection of session %d ended, which nobody has", id)
}

// answer ends one request: as an honest gateway would, or as an odd one.
func (w *world) answer(r Request, odd bool) {
	delete(w.inFlight, r.ID)
	id := r.Pin
	if id == 0 {
		id = w.gatewayChooses(r.Gateway, r.Avoid)
	}
	if odd {
		switch w.rng.IntN(4) {
		case 0:
			w.set.Failed(r.ID, r.Pin != 0 && w.rng.IntN(2) == 0, w.now)
			return
		case 1:
			id = w.known[w.rng.IntN(len(w.known))] // whoever it is: stale, out, held twice
		case 2:
			id = 0
		}
	}
	p := w.pods[id]
	if p == nil {
		p = &pod{identity: accounts[0]}
	}
	if !odd && (p.out || !w.reaches(r.Gateway, id)) {
		w.set.Failed(r.ID, r.Pin != 0, w.now)
		return
	}
	if w.set.Opened(r.ID, Answer{Endpoint: id, Weight: p.weight, Identity: p.identity, Gateway: r.Gateway}, w.now) {
		w.sessions[r.ID] = 0
		if w.rng.IntN(2) == 0 { // it was for a connection
			w.set.Use(r.ID, w.now)
			w.begin(r.ID)
		}
	}
	w.collect()
}

func (w *world) gatewayChooses(gateway string, avoid []mesh.EndpointID) mesh.EndpointID {
	var may, rest []mesh.EndpointID
	for _, id := range w.known {
		switch {
		case w.pods[id].out, !w.reaches(gateway, id):
		case slices.Contains(avoid, id):
			rest = append(rest, id)
		default:
			may = append(may, id)
		}
	}
	if may == nil {
		may = rest
	}
	if may == nil {
		return 0
	}
	return may[w.rng.IntN(len(may))]
}

func (w *world) requests() (ids []uint64) {
	for id := range w.inFlight {
		ids = append(ids, id)
	}
	slices.Sort(ids) // the draws must not depend on a map
	return ids
}

// check holds the set to what it promises.
func (w *world) check() {
	s := w.set
	if len(s.slots) > min(MaxSlots, s.share.Healthy) {
		w.fail("%d slots of %d healthy endpoints", len(s.slots), s.share.Healthy)
	}
	live := map[uint64]bool{}
	for i, sl := range s.slots {
		if e := sl.session; e != nil {
			if slices.Contains(s.share.Out, e.Endpoint) || !slices.Contains(s.share.Expect, e.Identity) || !slices.Contains(s.share.Gateways, e.Gateway) {
				w.fail("slot %d holds %+v, which it may not", i, e.Answer)
			}
			if s.held[e.ID] != e || e.left || live[e.ID] {
				w.fail("slot %d holds session %d, which has left, is unknown, or is in two slots", i, e.ID)
			}
			live[e.ID] = true
		} else if sl.request == 0 && sl.due.IsZero() && !(sl.asleep && s.asleep) {
			w.fail("slot %d is empty, and nobody fills it", i)
		}
		if _, known := s.requests[sl.request]; sl.request != 0 && (!known || s.requests[sl.request] != sl) {
			w.fail("slot %d waits for request %d, which is not its own", i, sl.request)
		}
	}
	if len(s.requests) > MaxSlots+len(w.inFlight) || len(s.requests) != len(w.inFlight) {
		w.fail("%d requests in flight, the owner has %d", len(s.requests), len(w.inFlight))
	}
	if len(live) != len(w.sessions) || len(s.held) != len(w.sessions)+len(w.leaving) {
		w.fail("%d sessions in slots and %d held; the owner has %d and ends %d", len(live), len(s.held), len(w.sessions), len(w.leaving))
	}
	for id, e := range s.held {
		if n := w.sessions[id] + w.leaving[id]; e.open != n {
			w.fail("session %d: %d connections counted, there are %d", id, e.open, n)
		}
		if _, has := w.sessions[id]; has == e.left {
			w.fail("session %d has left: %t; the owner has it: %t", id, e.left, has)
		}
	}
	if s.open != len(w.open) {
		w.fail("%d connections counted in all, there are %d", s.open, len(w.open))
	}
	if len(s.away) > maxAway {
		w.fail("%d endpoints are remembered", len(s.away))
	}
	if next := s.Next(w.now); len(s.slots) > 0 && !s.asleep && len(s.share.Gateways) > 0 && len(s.requests) == 0 && next.IsZero() {
		w.fail("nothing is in flight, and nobody will ask")
	}
}

func (w *world) fail(format string, args ...any) {
	w.t.Helper()
	from := max(0, len(w.trace)-20)
	w.t.Fatalf("%s\nafter %d steps, the last ones %q", fmt.Sprintf(format, args...), len(w.trace), w.trace[from:])
}

// Whatever comes in whatever order, the set keeps its promises at every step; and
// once nothing changes any more and gateways answer, every slot is filled, each
// endpoint once if there are as many slots.
func TestModel(t *testing.T) {
	for seed := range uint64(150) {
		t.Run(fmt.Sprint("seed ", seed), func(t *testing.T) {
			w := newWorld(t, seed, int(seed%7)*int(seed%11)+1)
			w.revise()
			for range 400 {
				w.step()
				w.check()
			}
			w.settles()
			w.set.Close()
			w.collect()
			for _, id := range w.requests() {
				w.answer(w.inFlight[id], false)
			}
			for len(w.open) > 0 {
				w.done(0)
			}
			w.check()
			if len(w.sessions)+len(w.set.held)+len(w.set.requests)+len(w.set.slots) != 0 {
				w.fail("closed, and %d sessions, %d held, %d requests are left", len(w.sessions), len(w.set.held), len(w.set.requests))
			}
		})
	}
}

func (w *world) step() {
	pick := func() *pod { return w.pods[w.known[w.rng.IntN(len(w.known))]] }
	switch n := w.rng.IntN(100); {
	case n < 40:
		w.say("choose")
		w.choose()
	case n < 55 && len(w.open) > 0:
		w.say("done")
		w.done(w.rng.IntN(len(w.open)))
	case n < 75:
		ids := w.requests()
		if len(ids) > 0 {
			odd := w.rng.IntN(5) == 0
			w.say("answer, odd %t", odd)
			w.answer(w.inFlight[ids[w.rng.IntN(len(ids))]], odd)
		}
	case n < 80:
		p := pick()
		p.out = !p.out
		w.say("out %t", p.out)
		w.revise()
	case n < 82:
		w.say("one more")
		w.add()
		w.revise()
	case n < 84:
		w.share.Expect = accounts[:1+w.rng.IntN(len(accounts))]
		w.say("expect %d", len(w.share.Expect))
		w.revise()
	case n < 86:
		w.share.Gateways = [][]string{{"gw-1", "gw-2"}, {"gw-2", "gw-3"}, {"gw-1"}, {"gw-3", "gw-2", "gw-1"}}[w.rng.IntN(4)]
		w.say("gateways %v", w.share.Gateways)
		w.revise()
	case n < 87:
		w.parts = 1 + w.rng.IntN(3)
		w.say("groups %d", w.parts)
		w.revise()
	case n < 89 && len(w.sessions) > 0:
		w.say("broken")
		for _, sl := range w.set.slots {
			if sl.session != nil {
				w.set.Broken(sl.session.ID, w.now)
				break
			}
		}
		w.collect()
	default:
		w.now = w.now.Add(time.Duration(w.rng.ExpFloat64() * float64(2*time.Second)))
		w.say("wait until %v", w.now.Sub(epoch))
	}
	w.due()
}

// settles lets the rest of the world stand still.
func (w *world) settles() {
	w.share.Expect, w.share.Gateways = accounts, []string{"gw-1", "gw-2"}
	w.revise()
	for i := range 400 {
		w.now = w.now.Add(100 * time.Millisecond)
		if i < 350 {
			w.choose()
		}
		for len(w.open) > 10 {
			w.done(0)
		}
		w.due()
		for _, id := range w.requests() {
			w.answer(w.inFlight[id], false)
		}
		w.check()
	}
	s := w.set
	want := min(s.demand.slots(w.now), s.share.Healthy)
	if len(s.slots) < want {
		w.fail("%d slots, the demand asks for %d", len(s.slots), want)
	}
	has := map[mesh.EndpointID]int{}
	for i, sl := range s.slots {
		if sl.session == nil {
			w.fail("slot %d of %d is still empty: %+v", i, len(s.slots), *sl)
		}
		has[sl.session.Endpoint]++
	}
	if s.complete(w.now) && len(has) != s.share.Healthy {
		w.fail("%d of %d endpoints are held, in %d slots", len(has), s.share.Healthy, len(s.slots))
	}
}
