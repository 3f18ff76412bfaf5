package picker

import (
	"fmt"
	"math/rand/v2"
	"testing"
	"time"

	"github.com/isthmus-mesh/isthmus/health"
	"github.com/isthmus-mesh/isthmus/mesh"
	"github.com/isthmus-mesh/isthmus/nodeproxy/warmset"
)

// spread picks n times and returns how often each place was chosen.
func spread(t *testing.T, p *Picker, d *Destination, n int) map[string]int {
	t.Helper()
	out := map[string]int{}
	for range n {
		c, err := p.Pick(d, Tried{}, nil, epoch)
		if err != nil {
			t.Fatal(err)
		}
		switch {
		case c.Pod != nil:
			out[c.Pod.UID]++
		default:
			out[c.Share.Network+" by "+c.Gateway.Name]++
			out[c.Share.Network]++
		}
		p.Opened(&c, epoch)
		p.Done(&c, Outcome{}, epoch)
	}
	return out
}

func TestWhenEverythingIsSickAShareCountsWithItsCapacity(t *testing.T) {
	s := layout{distribution: "Any", east: 2, west: 18, gateways: 1}.snapshot(t, 1)
	c := defaults()
	var ids [2][]mesh.EndpointID
	for i, n := range []string{"east", "west"} {
		for _, w := range s.Members(s.Service(host), n) {
			ids[i] = append(ids[i], w.Endpoint)
		}
	}
	c.Health = func(k Share) (Health, bool) {
		if k.Network == "east" {
			return delivers(2, 0, sorted(ids[0])...), true
		}
		return delivers(18, 0, sorted(ids[1])...), true
	}
	p := New(c)
	got := spread(t, p, resolve(t, p, s, epoch), 1000)
	if n := got["west"]; n < 890 || n > 910 {
		t.Errorf("18 of 20 pods are behind a gateway, all are sick, and it got %d of 1000 choices; want 900", n)
	}
}

func TestASharesWeightIsTheBestGatewayOfEachGroup(t *testing.T) {
	west := func(groups ...Group) Health { return Health{Groups: groups} }
	by := func(name string, healthy uint32) Delivery {
		return Delivery{Gateway: name, Ready: 10, ReadyCapacity: 10, Healthy: healthy, HealthyCapacity: healthy}
	}
	for _, x := range []struct {
		name           string
		health         Health
		west, gw1, gw2 int // of 2000, beside ten pods of east
	}{
		{"both see all", west(Group{by("gw-1", 10), by("gw-2", 10)}), 1000, 500, 500},
		{"one sees nothing, and its sibling all", west(Group{by("gw-1", 0), by("gw-2", 10)}), 1000, 0, 1000},
		{"one sees half", west(Group{by("gw-1", 5), by("gw-2", 10)}), 1000, 333, 667},
		{"two groups", west(Group{by("gw-1", 5)}, Group{by("gw-2", 10)}), 1200, 400, 800},
		{"nobody can deliver", west(Group{by("gw-1", 0), by("gw-2", 0)}), 0, 0, 0},
		{"nobody says", west(), 1000, 500, 500},
	} {
		s := layout{distribution: "Any", east: 10, west: 10, gateways: 2}.snapshot(t, 1)
		c := defaults()
		c.Health = func(k Share) (Health, bool) { return x.health, k.Network == "west" }
		p := New(c)
		got := spread(t, p, resolve(t, p, s, epoch), 2000)
		for place, want := range map[string]int{"west": x.west, "west by gw-1": x.gw1, "west by gw-2": x.gw2} {
			if n := got[place]; n < want-20 || n > want+20 {
				t.Errorf("%s: %s got %d of 2000; want %d", x.name, place, n, want)
			}
		}
	}
}

func TestAGatewayThatHasNothingOfAShareIsLeftOutForThatShareAlone(t *testing.T) {
	s := layout{distribution: "Any", west: 10, gateways: 2}.snapshot(t, 1)
	p := New(defaults())
	d := resolve(t, p, s, epoch)
	failed := 0
	for range 100 {
		c, err := p.Pick(d, Tried{}, nil, epoch)
		if err != nil {
			t.Fatal(err)
		}
		if c.Gateway.Name == "gw-1" {
			failed++
			for _, e := range p.Done(&c, Outcome{At: AtNetwork, Fault: true, Responded: true, Reason: "unreachable"}, epoch) {
				if e.Scope != ScopeShare || e.Gateway != "gw-1" || e.Edge != health.EdgeEjected || e.Reason != "unreachable" {
					t.Errorf("edge %+v; want gw-1's way to the share ejected", e)
				}
			}
			continue
		}
		p.Opened(&c, epoch)
		p.Done(&c, Outcome{}, epoch)
	}
	if failed != 2 {
		t.Errorf("%d connections met the gateway that has nothing; the threshold is 2", failed)
	}
	if st, _ := p.gateways.Find("west/gw-1").State(epoch); st.Phase != health.Healthy {
		t.Errorf("the gateway itself is %v: it has responded", st.Phase)
	}
}

func TestPodsThatAreNamedDoNotBringTheirShareDown(t *testing.T) {
	s := layout{distribution: "Any", west: 10, gateways: 1}.snapshot(t, 1)
	p := New(defaults())
	d := resolve(t, p, s, epoch)
	for range 10 {
		c, _ := p.Pick(d, Tried{}, nil, epoch)
		p.Done(&c, Outcome{At: AtEndpoint, Endpoint: s.Workload("west-00001").Endpoint, Fault: true, Responded: true, Reason: "refused"}, epoch)
	}
	if c, err := p.Pick(d, Tried{}, nil, epoch); err != nil || c.Dazed {
		t.Errorf("%v, dazed %v: one pod of ten was named ten times, and the whole share is out", err, c.Dazed)
	}
}

func TestADestinationFollowsWhatASnapshotChanges(t *testing.T) {
	l := layout{distribution: "Any", east: 2, west: 2, gateways: 1, absent: map[string]bool{}}
	p := New(defaults())
	s := l.snapshot(t, 1)
	networks := func(s *mesh.Snapshot) int {
		t.Helper()
		n := 0
		for _, c := range resolve(t, p, s, epoch).Plan().Candidates {
			if c.Workload == nil {
				n++
			}
		}
		return n
	}
	change := func(how func(*mesh.Edit)) *mesh.Snapshot {
		e := s.Edit()
		how(e)
		s = e.Snapshot(s.Revision + 1)
		return s
	}
	before := resolve(t, p, s, epoch).Plan()
	if resolve(t, p, change(func(*mesh.Edit) {}), epoch).Plan() != before {
		t.Error("a new plan, though nothing of it changed")
	}
	segment := func(name string) func(*mesh.Edit) {
		return func(e *mesh.Edit) {
			svc := *s.Service(host)
			svc.Scope = mesh.ScopeSegment
			e.PutService(&svc)
			e.SetNetworks([]mesh.Network{{Name: "east"}, {Name: "west", Segment: name}, {Name: "north"}})
		}
	}
	if n := networks(change(segment(""))); n != 1 {
		t.Errorf("%d other networks of the same segment; want west", n)
	}
	if n := networks(change(func(e *mesh.Edit) {
		e.SetNetworks([]mesh.Network{{Name: "east"}, {Name: "west", Segment: "far"}, {Name: "north"}})
	})); n != 0 {
		t.Errorf("%d other networks, though west went to another segment", n)
	}
	gone := s.Workload("east-00001")
	if got := spread(t, p, resolve(t, p, change(func(e *mesh.Edit) { e.DeleteWorkload(gone.UID) }), epoch), 10); got[gone.UID] > 0 {
		t.Errorf("a pod that is gone was chosen: %v", got)
	}
	p.Retain(s, epoch)
	if p.pods.Len() != 1 {
		t.Errorf("%d pods are kept; want the one that is left", p.pods.Len())
	}
	p.Retain(s, epoch.Add(time.Hour))
	if n := p.pods.Len() + p.shares.Len() + p.paths.Len() + len(*p.destinations.Load()) + len(p.known); n != 0 {
		t.Errorf("%d things are kept for a destination that nobody has asked for in an hour", n)
	}
	if got := spread(t, p, resolve(t, p, s, epoch), 10); got["east-00000"] != 10 {
		t.Errorf("after that: %v", got)
	}
}

// hottest is the most that one pod got, against the mean.
func hottest(got map[string]int, pods int, n int) float64 {
	most := 0
	for i := range pods {
		most = max(most, got[fmt.Sprintf("east-%05d", i)])
	}
	return float64(most) * float64(pods) / float64(n)
}

func TestPodsAreChosenEvenly(t *testing.T) {
	for pods, bound := range map[int]float64{3: 1.05, 60: 1.2, 1000: 5} {
		s := layout{distribution: "Any", east: pods, gateways: 1}.snapshot(t, 1)
		p := New(defaults())
		d := resolve(t, p, s, epoch)
		n := 5 * pods
		if pods < 10 {
			n = 100 * pods
		}
		if got := hottest(spread(t, p, d, n), pods, n); got > bound {
			t.Errorf("%d pods, %d choices: the hottest got %.2f times the mean; want at most %v", pods, n, got, bound)
		}
		if got := hottest(spread(t, p, d, 200*pods), pods, 200*pods); got > min(bound, 1.6) {
			t.Errorf("%d pods, 200 choices for each: the hottest got %.2f times the mean", pods, got)
		}
	}
}

func TestAChoiceAmongTenThousandAllocatesNothing(t *testing.T) {
	for _, sick := range []int{0, 1000} {
		p, d := crowd(t, 10000, sick)
		allocs := testing.AllocsPerRun(200, func() {
			c, _ := p.Pick(d, Tried{}, nil, epoch)
			p.Opened(&c, epoch)
			p.Done(&c, Outcome{}, epoch)
		})
		if allocs != 0 {
			t.Errorf("%v allocations for one choice among 10 000 of which %d are sick", allocs, sick)
		}
	}
}

// crowd is a service of n pods of which some were ejected by own evidence.
func crowd(tb testing.TB, n, sick int) (*Picker, *Destination) {
	s := layout{distribution: "PreferClose", east: n, gateways: 1}.snapshot(tb, 1)
	p := New(defaults())
	d := resolve(tb, p, s, epoch)
	rng := rand.New(rand.NewPCG(1, 2))
	for range sick {
		i := rng.IntN(n)
		for range 2 {
			d.members[i].cell.Fail("refused", epoch)
		}
	}
	return p, d
}

func BenchmarkPick(b *testing.B) {
	for _, n := range []int{10, 1000, 10000} {
		for _, sick := range []int{0, n / 10} {
			b.Run(fmt.Sprintf("endpoints=%d/sick=%d", n, sick), func(b *testing.B) {
				p, d := crowd(b, n, sick)
				now := epoch.Add(time.Second)
				b.ReportAllocs()
				for b.Loop() {
					c, _ := p.Pick(d, Tried{}, nil, now)
					p.Done(&c, Outcome{}, now)
				}
			})
		}
	}
	b.Run("endpoints=10000/resolve", func(b *testing.B) {
		s := layout{distribution: "PreferClose", east: 10000, gateways: 1}.snapshot(b, 1)
		p := New(defaults())
		f := flow(s)
		b.ReportAllocs()
		for b.Loop() {
			if _, err := p.Resolve(s, f, epoch); err != nil {
				b.Fatal(err)
			}
		}
	})
	b.Run("shares=2/gateways=2", func(b *testing.B) {
		s := layout{distribution: "Any", west: 100, north: 100, gateways: 2}.snapshot(b, 1)
		p := New(defaults())
		d := resolve(b, p, s, epoch)
		b.ReportAllocs()
		for b.Loop() {
			c, _ := p.Pick(d, Tried{}, nil, epoch)
			p.Opened(&c, epoch)
			p.Done(&c, Outcome{}, epoch)
		}
	})
}

func sorted(ids []mesh.EndpointID) []mesh.EndpointID {
	for i := range ids {
		for j := i; j > 0 && ids[j] < ids[j-1]; j-- {
			ids[j], ids[j-1] = ids[j-1], ids[j]
		}
	}
	return ids
}

// Of a group each gateway that can deliver has its part of what the group has.
func TestConnectionsGoToGroupsByWhatEachHas(t *testing.T) {
	snap := layout{west: 20, gateways: 3}.snapshot(t, 1)
	c := defaults()
	gw := func(name string, healthy uint32) Delivery {
		return Delivery{Gateway: name, Ready: healthy, Healthy: healthy, ReadyCapacity: healthy, HealthyCapacity: healthy}
	}
	c.Health = func(s Share) (Health, bool) {
		return Health{Groups: []Group{{gw("gw-1", 30), gw("gw-2", 30)}, {gw("gw-3", 10)}}}, s.Network == "west"
	}
	p := New(c)
	got := map[string]int{}
	d, err := p.Resolve(snap, flow(snap), epoch)
	if err != nil {
		t.Fatal(err)
	}
	for range 4000 {
		c, err := p.Pick(d, Tried{}, nil, epoch)
		if err != nil {
			t.Fatal(err)
		}
		got[c.Gateway.Name]++
	}
	for name, want := range map[string]int{"gw-1": 1500, "gw-2": 1500, "gw-3": 1000} {
		if n := got[name]; n < want*9/10 || n > want*11/10 {
			t.Errorf("%s got %d connections, want about %d", name, n, want)
		}
	}
}

// What a warm set knows of a gateway is what that says; one that says nothing counts as
// one of the largest group, and is no group beside the others.
func TestAWarmSetTakesASilentGatewayForOneOfTheLargestGroup(t *testing.T) {
	snap := layout{west: 20, gateways: 3}.snapshot(t, 1)
	c := defaults()
	c.Health = func(Share) (Health, bool) {
		return Health{Groups: []Group{{{Gateway: "gw-1", Group: "a", Ready: 4, Healthy: 3, HealthyCapacity: 6}}, {{Gateway: "gw-2", Group: "b", Ready: 10, Healthy: 10}}}}, true
	}
	got := New(c).Warm(Share{"west", host, 80}, snap.Gateways("west"), 20, epoch).Offers
	for i, want := range []warmset.Offer{{Group: "a", Healthy: 3, Weight: 6}, {Group: "b", Healthy: 10, Weight: 10}, {Group: "b", Healthy: 10, Weight: 10}} {
		if g := Way(snap.Gateways("west")[i]); got[g] != want {
			t.Errorf("%s offers %+v, want %+v", g, got[g], want)
		}
	}
}

// Gateways of one group see the same pods, those of another one others: a warm set is to
// know of all.
func TestAWarmSetKnowsThePodsOfAllGroups(t *testing.T) {
	snap := layout{west: 20, gateways: 2}.snapshot(t, 1)
	for _, x := range []struct {
		groups []Group
		want   int
	}{
		{[]Group{{{Gateway: "gw-1", Ready: 10, Healthy: 10}}, {{Gateway: "gw-2", Ready: 10, Healthy: 8}}}, 18},
		{[]Group{{{Gateway: "gw-1", Ready: 10, Healthy: 10}, {Gateway: "gw-2", Ready: 10, Healthy: 8}}}, 10},
		{[]Group{{{Gateway: "gw-1", Ready: 10, Healthy: 10, Draining: true}}, {{Gateway: "gw-2", Ready: 10, Healthy: 8}}}, 8},
		{nil, 20},
	} {
		c := defaults()
		c.Health = func(Share) (Health, bool) { return Health{Groups: x.groups}, true }
		w := New(c).Warm(Share{"west", host, 80}, snap.Gateways("west"), 20, epoch)
		if w.Healthy != x.want {
			t.Errorf("%+v: %d endpoints, want %d", x.groups, w.Healthy, x.want)
		}
	}
}
