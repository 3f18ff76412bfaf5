package warmset

import (
	"slices"
	"testing"
	"time"

	"github.com/isthmus-mesh/isthmus/mesh"
)

// run lets time pass in steps of 50 ms, with rate connections a second that end at
// once, and gateways that answer at once.
func (w *world) run(d time.Duration, rate float64) {
	for end, owed := w.now.Add(d), 0.0; w.now.Before(end); {
		w.now = w.now.Add(50 * time.Millisecond)
		for owed += rate / 20; owed >= 1; owed-- {
			w.choose()
			for len(w.open) > 0 {
				w.done(0)
			}
		}
		w.due()
		for _, id := range w.requests() {
			w.answer(w.inFlight[id], false)
		}
		for len(w.open) > 0 {
			w.done(0)
		}
		w.check()
	}
}

func (w *world) holds() (ids []mesh.EndpointID) {
	for _, sl := range w.set.slots {
		if sl.session != nil {
			ids = append(ids, sl.session.Endpoint)
		}
	}
	slices.Sort(ids)
	return ids
}

func (w *world) has(id mesh.EndpointID) bool { return slices.Contains(w.holds(), id) }

// The number of slots follows the demand, between 2 and 64 and the endpoints there
// are: up at once, down as what was is forgotten.
func TestSlotsFollowTheDemand(t *testing.T) {
	for _, c := range []struct {
		pods     int
		rate     float64
		from, to int
	}{
		{1, 100, 1, 1},
		{3, 1, 2, 3},
		{3, 10, 3, 3},
		{60, 10, 18, 23},
		{1000, 10, 18, 23},
		{1000, 30, 54, 64},
		{1000, 500, 64, 64},
	} {
		w := newWorld(t, 1, c.pods)
		w.revise()
		w.run(20*time.Second, c.rate)
		if n := len(w.holds()); n < c.from || n > c.to {
			t.Errorf("%d pods, %g connections a second: %d slots after 20 s, want %d to %d", c.pods, c.rate, n, c.from, c.to)
		}
		w.run(10*time.Minute, 0.1)
		if n, want := len(w.set.slots), min(2, c.pods); c.pods > 3 && n != want {
			t.Errorf("%d pods, once %g connections a second and now one in ten: %d slots, want %d", c.pods, c.rate, n, want)
		}
	}
}

func TestAsManySlotsAsPodsAreNotRenewed(t *testing.T) {
	w := newWorld(t, 1, 10)
	w.revise()
	w.run(30*time.Second, 20)
	if got := w.holds(); !slices.Equal(got, w.known) {
		t.Fatalf("holds %v, want each of 10 once", got)
	}
	before := w.set.next
	w.run(3*time.Minute, 20)
	if w.set.next != before {
		t.Errorf("%d more requests and sessions in three minutes, want none", w.set.next-before)
	}
}

// 32 uses, give or take 16, or a minute.
func TestUsedSlotsAreRenewed(t *testing.T) {
	w := newWorld(t, 1, 1000)
	w.revise()
	w.run(20*time.Second, 10)
	seen := map[mesh.EndpointID]bool{}
	uses := 0
	for range 100 {
		for _, e := range w.set.held {
			uses = max(uses, e.uses)
		}
		for _, id := range w.holds() {
			seen[id] = true
		}
		w.run(time.Second, 10)
	}
	if uses > 3*usesPerSlot/2+1 {
		t.Errorf("a slot was used %d times, want at most %d", uses, 3*usesPerSlot/2)
	}
	if len(seen) < 40 {
		t.Errorf("%d pods had a turn in 1000 connections, want at least 40", len(seen))
	}
	held := w.holds()
	w.set.demand = demand{}
	w.run(90*time.Second, 0.2) // 18 connections: each slot for its age
	kept := 0
	for _, id := range w.holds() {
		if slices.Contains(held, id) {
			kept++
		}
	}
	if kept > 1 {
		t.Errorf("%d of %d endpoints were kept for 90 s, want a minute", kept, len(held))
	}
}

// Who is out leaves at once, and is asked for by name within a second of being
// back, whether everybody is held or few are.
func TestWhoIsOutLeavesAndComesBack(t *testing.T) {
	for _, pods := range []int{3, 10, 1000} {
		for seed := range uint64(20) {
			w := newWorld(t, seed, pods)
			w.revise()
			w.run(20*time.Second, 20)
			sick := w.holds()[0]
			w.pods[sick].out = true
			w.revise()
			if w.has(sick) {
				t.Fatal("a slot holds an endpoint that is out")
			}
			w.run(3*time.Second, 20)
			if w.has(sick) {
				t.Fatal("a slot holds an endpoint that is out")
			}
			w.pods[sick].out = false
			w.revise()
			w.run(time.Second, 20)
			if !w.has(sick) {
				t.Errorf("%d pods, seed %d: an endpoint that was back is not held a second later", pods, seed)
			}
		}
	}
}

func TestMoreEndpointsHaveASlotWithinFiveSeconds(t *testing.T) {
	w := newWorld(t, 1, 5)
	w.revise()
	w.run(20*time.Second, 20)
	w.add()
	w.revise()
	w.run(5*time.Second, 20)
	if !w.has(w.known[5]) {
		t.Error("one of six, each of which has a slot, has none after 5 s")
	}
	w = newWorld(t, 1, 100)
	w.revise()
	w.run(20*time.Second, 20)
	for range 900 {
		w.add()
	}
	w.revise()
	w.run(5*time.Second, 0.0001) // unused slots as well
	fresh := 0
	for _, id := range w.holds() {
		if id > 100 {
			fresh++
		}
	}
	if n := len(w.holds()); fresh < n*6/10 {
		t.Errorf("%d of %d slots hold new ones after ten times as many were ready for 5 s, want about nine in ten", fresh, n)
	}
}

// A gateway that is lost takes no endpoint with it.
func TestALostGateway(t *testing.T) {
	w := newWorld(t, 1, 10)
	w.revise()
	w.run(20*time.Second, 20)
	through := map[string]int{}
	for _, sl := range w.set.slots {
		through[sl.session.Gateway]++
	}
	if through["gw-1"] != 5 || through["gw-2"] != 5 {
		t.Errorf("sessions go through %v, want half through each", through)
	}
	before := w.holds()
	w.share.Gateways = []string{"gw-2"}
	w.revise()
	if n := len(w.holds()); n != 5 {
		t.Errorf("%d slots are left, want those through gw-2", n)
	}
	w.run(time.Second, 20)
	if got := w.holds(); !slices.Equal(got, before) {
		t.Errorf("holds %v after a second, want %v as before", got, before)
	}
}

func TestWhoMayNotAnswerAnyMoreLeaves(t *testing.T) {
	w := newWorld(t, 1, 100)
	w.revise()
	w.run(20*time.Second, 20)
	w.share.Expect = accounts[:1]
	w.revise()
	for _, sl := range w.set.slots {
		if sl.session != nil && sl.session.Identity != accounts[0] {
			t.Fatalf("held is %s", sl.session.Identity)
		}
	}
}

// Nobody waits for the background: a connection that finds nothing held goes where
// the gateway says, and what comes of it is kept.
func TestTheFirstConnectionFillsASlot(t *testing.T) {
	w := newWorld(t, 1, 10)
	w.revise()
	c, ok := w.set.Choose(w.now, "", nil)
	if ok || c.ID == 0 {
		t.Fatalf("chosen %+v, %t; want a request for a slot", c, ok)
	}
	if r := w.set.Due(w.now); len(r) != 1 {
		t.Errorf("asked for %+v beside it; want one more", r)
	}
	kept := w.set.Opened(c.ID, Answer{Endpoint: 3, Identity: accounts[0], Gateway: "gw-1"}, w.now)
	w.set.Use(c.ID, w.now)
	if then, ok := w.set.Choose(w.now, "", nil); !kept || !ok || then.Endpoint != 3 || then.ID != c.ID {
		t.Errorf("then chosen %+v, %t; want the endpoint that answered", then, ok)
	}
}

// Who asks while all that may be held is being opened waits for one of those.
func TestABurstWaitsForWhatIsBeingOpened(t *testing.T) {
	w := newWorld(t, 1, 2)
	w.revise()
	waits := map[uint64]int{}
	for i := range 12 {
		c, ok := w.set.Choose(w.now, "", nil)
		if ok || c.ID == 0 || c.Joined != (i >= 2) {
			t.Fatalf("connection %d: %+v, %t", i, c, ok)
		}
		waits[c.ID]++
	}
	for id, n := range waits {
		if n != 6 || len(waits) != 2 {
			t.Errorf("%d wait for session %d of %d; want half", n, id, len(waits))
		}
	}
}

// Who may not go by one of the gateways waits for what is opened by way of the other, and
// for nothing if nothing is.
func TestAConnectionWaitsForNoGatewayThatDoesNotFit(t *testing.T) {
	w := newWorld(t, 1, 2)
	w.revise()
	var opened [2]Choice
	for i, gateway := range []string{"gw-1", "gw-2"} {
		opened[i], _ = w.set.Choose(w.now, gateway, nil)
	}
	by := func(gateway string) func(Choice) bool { return func(c Choice) bool { return c.Gateway == gateway } }
	for range 5 {
		if c, _ := w.set.Choose(w.now, "gw-2", by("gw-2")); c != (Choice{ID: opened[1].ID, Answer: Answer{Gateway: "gw-2"}, Joined: true}) {
			t.Errorf("waits for %+v; want %x, by gw-2", c, opened[1].ID)
		}
		if c, ok := w.set.Choose(w.now, "gw-3", by("gw-3")); ok || c != (Choice{}) {
			t.Errorf("waits for %+v; want nothing", c)
		}
	}
}

// byGateway counts the sessions held, by gateway.
func (w *world) byGateway() map[string]int { return w.set.Status(w.now).By }

// When a gateway is back, or one more is known, sessions with the same endpoints go by
// it, half of them.
func TestSessionsAreSpreadOverAGatewayThatIsBack(t *testing.T) {
	w := newWorld(t, 1, 10)
	w.share.Gateways = []string{"gw-1"}
	w.revise()
	w.run(20*time.Second, 40)
	before := w.holds()
	if by := w.byGateway(); by["gw-1"] != 10 {
		t.Fatalf("held by %v", by)
	}
	w.share.Gateways = []string{"gw-2", "gw-1"}
	w.revise()
	w.run(6*time.Second, 40)
	if by := w.byGateway(); by["gw-1"] != 5 || by["gw-2"] != 5 {
		t.Errorf("after six seconds with two gateways: %v", by)
	}
	if got := w.holds(); !slices.Equal(got, before) {
		t.Errorf("holds %v, want %v as before", got, before)
	}
}

// Of sessions that are renewed those change that go by the other gateway, and the pods
// with them; a few sessions more by one gateway are evened out by renewal, however often
// something is learned of the share meanwhile.
func TestNobodyKeepsItsTurnBecauseTheGatewayChanges(t *testing.T) {
	w := newWorld(t, 1, 1000)
	w.share.Gateways = []string{"gw-1"}
	w.revise()
	w.run(20*time.Second, 20)
	w.share.Gateways = []string{"gw-1", "gw-2"}
	for range 60 {
		w.revise()
		for _, sl := range w.set.slots {
			if sl.pin != 0 {
				t.Fatalf("pod %v is asked for by name after its turn", sl.pin)
			}
		}
		w.run(100*time.Millisecond, 20)
	}
	if by := w.byGateway(); by["gw-2"] < by["gw-1"]/2 {
		t.Errorf("six seconds after the second gateway is back: %v", by)
	}
	before := w.set.next
	for range 300 {
		w.revise()
		w.run(100*time.Millisecond, 20)
	}
	if n := w.set.next - before; n > 2*600/usesPerSlot {
		t.Errorf("%d sessions were opened for 600 connections", n)
	}
}

// What a gateway cannot reach goes by the other one.
func TestWhatAGatewayCannotReachGoesByTheOther(t *testing.T) {
	w := newWorld(t, 1, 10)
	w.revise()
	w.run(20*time.Second, 40)
	lost := w.set.slots[0].session.Endpoint
	by := w.set.slots[0].session.Gateway
	w.share.Reaches = func(gateway string, e mesh.EndpointID) bool { return gateway != by || e != lost }
	w.revise()
	w.run(3*time.Second, 40)
	for _, sl := range w.set.slots {
		if e := sl.session; e != nil && e.Endpoint == lost && e.Gateway == by {
			t.Errorf("%v is held by way of %s, which cannot reach it", lost, by)
		}
	}
	if !slices.Contains(w.holds(), lost) {
		t.Errorf("%v is not held, though the other gateway reaches it", lost)
	}
}

// Of gateways that name nobody it cannot be told whether everybody is held: sessions
// are renewed as if they were too few.
func TestSessionsWithWhoIsNotNamedAreRenewed(t *testing.T) {
	w := newWorld(t, 1, 2)
	w.revise()
	c, _ := w.set.Choose(w.now, "", nil)
	if !w.set.Opened(c.ID, Answer{Endpoint: mesh.EndpointID(c.ID), Identity: accounts[0], Gateway: "gw-1", Unnamed: true}, w.now) {
		t.Fatal("not kept")
	}
	for range 2 * usesPerSlot {
		w.set.Choose(w.now, "", nil)
	}
	w.now = w.now.Add(time.Second)
	asked := false
	for _, r := range w.set.Due(w.now) {
		asked = asked || w.set.requests[r.ID].session != nil
		if r.Pin != 0 || len(r.Avoid) > 0 {
			t.Errorf("asked for %+v, of a gateway that knows neither", r)
		}
	}
	if !asked {
		t.Error("a session that was used often enough is not renewed")
	}
}

func TestAChoiceCostsNoAllocation(t *testing.T) {
	w := newWorld(t, 1, 1000)
	w.revise()
	w.run(20*time.Second, 100)
	if n := testing.AllocsPerRun(100, func() {
		c, _ := w.set.Choose(w.now, "", nil)
		w.set.Done(c.ID)
	}); n != 0 {
		t.Errorf("%.1f allocations, want none", n)
	}
}

func BenchmarkChoose(b *testing.B) {
	w := newWorld(new(testing.T), 1, 1000)
	w.revise()
	w.run(20*time.Second, 100)
	b.ReportAllocs()
	for b.Loop() {
		c, _ := w.set.Choose(w.now, "", nil)
		w.set.Done(c.ID)
	}
}

// A gateway that opens nothing is not asked for ever by who has no use for it.
func TestWhoIsNotUsedGivesUp(t *testing.T) {
	w := newWorld(t, 1, 10)
	w.revise()
	asked := func(d time.Duration) (n int) {
		for end := w.now.Add(d); w.now.Before(end); w.now = w.now.Add(50 * time.Millisecond) {
			for _, r := range w.set.Due(w.now) {
				n++
				w.set.Failed(r.ID, false, w.now)
			}
		}
		return n
	}
	refuse := func() {
		c, ok := w.set.Choose(w.now, "", nil)
		if ok || c.ID == 0 {
			t.Fatalf("a connection goes to %+v, %v; want that it opens a session itself", c, ok)
		}
		w.set.Failed(c.ID, false, w.now)
	}
	refuse()
	asked(time.Minute)
	if n, next := asked(10*time.Minute), w.set.Next(w.now); n > 0 {
		t.Errorf("asked %d times in ten minutes without a connection, next at %v", n, next)
	}
	for range 60 { // a connection a second: it asks every 5 s, for each slot
		refuse()
		if n := asked(time.Second); n > 5 {
			t.Fatalf("asked %d times in a second, with one connection", n)
		}
	}
	w.run(10*time.Second, 1)
	if n := len(w.holds()); n < MinSlots {
		t.Errorf("%d sessions are held after the gateway is well; want %d at least", n, MinSlots)
	}
}

// While a gateway's endpoints are asked for by name, connections wait for those.
func TestConnectionsJoinWhatIsAskedForByName(t *testing.T) {
	w := newWorld(t, 1, 10)
	w.revise()
	w.run(time.Minute, 20)
	w.share.Gateways = []string{"gw-1 moved", "gw-2 moved"}
	w.revise()
	w.due()
	waits := map[mesh.EndpointID]int{}
	for range 1000 {
		c, ok := w.set.Choose(w.now, "", nil)
		if ok || !c.Joined || c.Pin == 0 || c.Pin != w.inFlight[c.ID].Pin {
			t.Fatalf("%+v, %t; want one of those that are being opened by name", c, ok)
		}
		waits[c.Pin]++
	}
	if len(waits) != 10 || waits[1] != 100 {
		t.Errorf("they wait for %v; want a tenth for each of 10", waits)
	}
}

// A gateway that has fewer endpoints than there are is not asked for the others again
// and again, by a whole session each time; but at once when anything changes.
func TestAGatewayWithFewerEndpointsIsAskedSeldom(t *testing.T) {
	w := newWorld(t, 1, 10)
	w.revise()
	for id := mesh.EndpointID(6); id <= 10; id++ {
		w.pods[id].out = true // nobody says so
	}
	before := w.set.next
	w.run(10*time.Minute, 20)
	if n := w.set.next - before; n > 100 {
		t.Errorf("%d sessions were opened in 10 min to hold 5", n)
	}
	w.pods[6].out = false
	w.share.Gateways = []string{"gw-2", "gw-1"}
	w.revise()
	w.run(2*time.Second, 20)
	if !w.has(6) {
		t.Error("one that the gateway has since something changed is not held after 2 s")
	}
}

// Of two gateways one does not name whom it chooses: with those sessions nobody can tell
// whether everybody is held, so all are renewed, and every pod has its turn.
func TestOneGatewayNamesAndTheOtherDoesNot(t *testing.T) {
	for _, rate := range []int{5, 20, 60} {
		w := newWorld(t, 1, 20)
		w.revise()
		is, got := map[uint64]mesh.EndpointID{}, map[mesh.EndpointID]int{}
		for range 20 * 60 * 10 { // 10 min
			w.now = w.now.Add(50 * time.Millisecond)
			for n := w.rng.IntN(2*rate/20 + 1); n >= 0; n-- {
				c, ok := w.set.Choose(w.now, "", nil)
				switch {
				case ok:
					got[is[c.ID]]++
					w.set.Done(c.ID)
				case c.ID != 0 && !c.Joined:
					w.inFlight[c.ID] = Request{ID: c.ID, Gateway: w.share.Gateways[w.rng.IntN(2)]}
				}
			}
			for _, r := range w.set.Due(w.now) {
				w.inFlight[r.ID] = r
			}
			for _, id := range w.requests() {
				r := w.inFlight[id]
				delete(w.inFlight, id)
				a := Answer{Endpoint: r.Pin, Gateway: r.Gateway}
				if r.Gateway == "gw-2" { // a stock one: it knows no pin
					a.Unnamed, a.Endpoint, r.Avoid = true, 0, nil
				}
				if a.Endpoint == 0 {
					a.Endpoint = w.gatewayChooses(r.Gateway, r.Avoid)
				}
				e := a.Endpoint
				a.Identity = w.pods[e].identity
				if a.Unnamed {
					a.Endpoint = mesh.EndpointID(id)
				}
				if w.set.Opened(id, a, w.now) {
					is[id] = e
				}
			}
			w.set.Ended()
		}
		if len(got) < 20 {
			t.Errorf("at %d a second %d of 20 pods got no connection in 10 min: %v", rate, 20-len(got), got)
		}
	}
}

// A session whose endpoint is silent gets connections only while all are so.
func TestSilentSessionsAreAvoided(t *testing.T) {
	w := newWorld(t, 1, 4)
	w.revise()
	w.run(20*time.Second, 20)
	silent := map[uint64]bool{}
	w.set.Avoid = func(id uint64) bool { return silent[id] }
	chosen := func() map[uint64]int {
		got := map[uint64]int{}
		for range 200 {
			c, ok := w.set.Choose(w.now, "", nil)
			if !ok {
				t.Fatalf("nobody is chosen, with %d sessions of %d silent", len(silent), len(w.set.slots))
			}
			got[c.ID]++
			w.set.Done(c.ID)
		}
		return got
	}
	before := chosen()
	if len(before) < 3 {
		t.Fatalf("chosen are %v, want several", before)
	}
	for id := range before {
		silent[id] = true
		got := chosen()
		if len(silent) == len(before) {
			if len(got) != len(before) {
				t.Errorf("all are silent: chosen are %v, want all", got)
			}
			return
		}
		for id := range got {
			if silent[id] {
				t.Errorf("%d connections on a silent session, with %d of %d silent", got[id], len(silent), len(before))
			}
		}
	}
}
