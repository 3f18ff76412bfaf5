//go:build !race

// The simulation is of one goroutine in virtual time: the race detector would find
// nothing, and take twenty times as long.

package warmset

import (
	"container/heap"
	"fmt"
	"math/rand/v2"
	"slices"
	"testing"
	"time"

	"github.com/isthmus-mesh/isthmus/balance"
	"github.com/isthmus-mesh/isthmus/mesh"
)

// town is sources that connect through two gateways to the pods of one share, in
// simulated time. Gateways choose as they do: by turns and by the sessions that each
// carries, and knowing nothing of each other; connections inside sessions they do not see.
type town struct {
	rng      *rand.Rand
	now      time.Time
	sources  []*source
	gateways map[string]*gateway
	got      []int // connections, by pod
	plain    int   // of them chosen by a gateway
	opened   int   // sessions
	queue    moments
	serial   int
	arrived  int // connections

	share  Share
	out    []time.Time     // by pod: since when it is out; zero: it is not
	absent []time.Duration // by pod, before that
}

type source struct {
	set  *Set
	wake time.Time
	held map[uint64]Answer
}

type gateway struct {
	draws    *balance.Draws
	index    balance.Index
	sessions sessions
	from, to int // the pods that it reaches
}

type sessions []float64

func (s sessions) Load(i int) float64 { return s[i] }

var there = balance.Candidate{Weight: 1, Usable: true}

type moment struct {
	at     time.Time
	serial int
	do     func()
}

type moments []moment

func (m moments) Len() int { return len(m) }
func (m moments) Less(i, j int) bool {
	return m[i].at.Before(m[j].at) || m[i].at.Equal(m[j].at) && m[i].serial < m[j].serial
}
func (m moments) Swap(i, j int) { m[i], m[j] = m[j], m[i] }
func (m *moments) Push(x any)   { *m = append(*m, x.(moment)) }
func (m *moments) Pop() any {
	last := len(*m) - 1
	x := (*m)[last]
	*m = (*m)[:last]
	return x
}

const (
	roundTrip = 80 * time.Millisecond
	lasting   = 2 * time.Second // a connection, on average
)

func (t *town) after(d time.Duration, do func()) {
	t.serial++
	heap.Push(&t.queue, moment{t.now.Add(d), t.serial, do})
}

func newTown(seed uint64, sources, pods int) *town { return newTownOf(seed, sources, []int{pods}, 2) }

// newTownOf has so many gateways in front of each group of pods.
func newTownOf(seed uint64, sources int, groups []int, each int) *town {
	pods := 0
	for _, n := range groups {
		pods += n
	}
	t := &town{rng: rand.New(rand.NewPCG(seed, 7)), now: epoch, gateways: map[string]*gateway{}, got: make([]int, pods)}
	t.out, t.absent = make([]time.Time, pods), make([]time.Duration, pods)
	t.share = Share{Healthy: pods, Expect: accounts[:1]}
	from := 0
	for i := range each * len(groups) {
		name, n := fmt.Sprint("gw-", i), groups[i/each]
		t.share.Gateways = append(t.share.Gateways, name)
		g := &gateway{draws: balance.NewDraws(t.rng.Uint64()), sessions: make([]float64, pods), from: from, to: from + n}
		if i%each == each-1 {
			from += n
		}
		g.index.Reset(slices.Repeat([]balance.Candidate{there}, pods))
		g.index.TakeTurns(func(pod int) balance.Turn { return balance.NewTurn(balance.PlaceInRound(uint64(pod), i%each)) })
		t.gateways[name] = g
	}
	for range sources {
		s := &source{set: New(t.rng.Float64, t.rng.Uint64()), held: map[uint64]Answer{}}
		t.sources = append(t.sources, s)
	}
	t.revise()
	return t
}

// revise tells every source what is so now.
func (t *town) revise() {
	t.share.Healthy, t.share.Out, t.share.Offers = 0, nil, map[string]Offer{}
	for name, g := range t.gateways {
		o := Offer{Group: fmt.Sprint(g.from)}
		for _, since := range t.out[g.from:g.to] {
			if since.IsZero() {
				o.Healthy++
			}
		}
		o.Weight = float64(o.Healthy)
		t.share.Offers[name] = o
	}
	for i, since := range t.out {
		if since.IsZero() {
			t.share.Healthy++
		} else {
			t.share.Out = append(t.share.Out, mesh.EndpointID(i+1))
		}
	}
	for _, s := range t.sources {
		s.set.Revise(t.share, t.now)
		t.background(s)
	}
}

// churn takes one pod after the other out, each for a while, and for a while one
// of the gateways.
func (t *town) churn(every, away, lost, found time.Duration) {
	all := t.share.Gateways
	t.after(lost, func() { t.share.Gateways = all[1:]; t.revise() })
	t.after(found, func() { t.share.Gateways = all; t.revise() })
	var next func()
	next = func() {
		i := t.rng.IntN(len(t.out))
		if t.out[i].IsZero() {
			t.out[i] = t.now
			t.after(away, func() {
				t.absent[i] += t.now.Sub(t.out[i])
				t.out[i] = time.Time{}
				t.revise()
			})
			t.revise()
		}
		t.after(every, next)
	}
	t.after(every, next)
}

func (g *gateway) reaches(id mesh.EndpointID) bool { return int(id) > g.from && int(id) <= g.to }

// asks is the choice of a pod by g.
func (t *town) asks(g *gateway, r Request) mesh.EndpointID {
	if r.Pin != 0 && g.reaches(r.Pin) {
		return r.Pin
	} else if r.Pin != 0 {
		return 0
	}
	for i := range t.out {
		pod := there
		pod.Usable = t.out[i].IsZero() && g.reaches(mesh.EndpointID(i+1))
		g.index.Set(i, pod)
	}
	for _, id := range r.Avoid {
		g.index.Mask(int(id - 1))
	}
	_, v := g.draws.Next()
	i, ok := g.index.PickInTurn(v, g.sessions)
	if g.index.Unmask(); !ok {
		i, _ = g.index.PickInTurn(v, g.sessions)
	}
	g.index.Took(i)
	return mesh.EndpointID(i + 1)
}

// open has s open what r asks for, and connected is the connection that it is for,
// if any.
func (t *town) open(s *source, r Request, connected bool) {
	g := t.gateways[r.Gateway]
	t.after(roundTrip/2, func() {
		id := t.asks(g, r)
		if id == 0 {
			t.after(roundTrip/2, func() { s.set.Failed(r.ID, true, t.now); t.background(s) })
			return
		}
		a := Answer{Endpoint: id, Weight: 1, Identity: accounts[0], Gateway: r.Gateway}
		g.sessions[a.Endpoint-1]++
		t.opened++
		if connected {
			t.arrives(a.Endpoint)
		}
		t.after(3*roundTrip/2, func() {
			if !s.set.Opened(r.ID, a, t.now) {
				g.sessions[a.Endpoint-1]--
			} else if s.held[r.ID] = a; connected {
				s.set.Use(r.ID, t.now)
				t.after(t.lasts(), func() { s.set.Done(r.ID) })
			}
			t.background(s)
		})
	})
}

func (t *town) arrives(id mesh.EndpointID) {
	t.got[id-1]++
	t.arrived++
}

func (t *town) lasts() time.Duration {
	return time.Duration(t.rng.ExpFloat64() * float64(lasting))
}

// background does what the set of s wants.
func (t *town) background(s *source) {
	for _, r := range s.set.Due(t.now) {
		t.open(s, r, false)
	}
	for _, id := range s.set.Ended() {
		a := s.held[id]
		delete(s.held, id)
		t.gateways[a.Gateway].sessions[a.Endpoint-1]--
	}
	if next := s.set.Next(t.now); !next.IsZero() && (!s.wake.After(t.now) || next.Before(s.wake)) {
		s.wake = next
		t.after(max(time.Millisecond, next.Sub(t.now)), func() { t.background(s) })
	}
}

// way is by what each gateway offers: that of a random pod, and one of a random gateway
// of those that reach it.
func (t *town) way() string {
	may := t.share.Gateways
	if g := t.gateways[may[0]]; g.to-g.from < len(t.out) {
		pod := mesh.EndpointID(t.rng.IntN(len(t.out)) + 1)
		may = slices.DeleteFunc(slices.Clone(may), func(name string) bool { return !t.gateways[name].reaches(pod) })
	}
	return may[t.rng.IntN(len(may))]
}

func (t *town) connect(s *source) {
	if c, ok := s.set.Choose(t.now, "", nil); ok {
		t.arrives(c.Endpoint)
		t.after(t.lasts(), func() { s.set.Done(c.ID) })
	} else {
		t.plain++
		if c.Joined {
			c.ID = 0 // as far as the others go, it is alone
		}
		t.open(s, Request{ID: c.ID, Gateway: t.way()}, true)
	}
	t.background(s)
}

// run has every source connect at random, rate times a second, total times in all.
func (t *town) run(rate float64, total int) {
	pause := func() time.Duration { return time.Duration(t.rng.ExpFloat64() / rate * float64(time.Second)) }
	for i, s := range t.sources {
		left := total / len(t.sources)
		if i < total%len(t.sources) {
			left++
		}
		var next func()
		next = func() {
			t.connect(s)
			if left--; left > 0 {
				t.after(pause(), next)
			}
		}
		t.after(pause(), next)
	}
	for n := 0; len(t.queue) > 0 && n < total*40; n++ {
		m := heap.Pop(&t.queue).(moment)
		t.now = m.at
		m.do()
		if t.arrived == total {
			return
		}
	}
	panic(fmt.Sprintf("after %v not all %d connections were made: sets ask for too much", t.now.Sub(epoch), total))
}

// hottest is the connections of the pod with the most for the time that it was
// there, against the mean.
func (t *town) hottest() float64 {
	most, sum, there := 0.0, 0, 0.0
	for i, n := range t.got {
		was := t.now.Sub(epoch) - t.absent[i]
		if !t.out[i].IsZero() {
			was -= t.now.Sub(t.out[i])
		}
		most, sum, there = max(most, float64(n)/was.Seconds()), sum+n, there+was.Seconds()
	}
	return most * there / float64(sum)
}

// evenness is what each case measures: how hot the hottest pod is, how many sessions
// a source has in the end, what share of connections waited for a gateway's choice,
// and how many connections a session carried.
func evenness(seed uint64, sources, pods int, rate float64, perPod int) (hottest, sessions, plain, perSession float64) {
	t := newTown(seed, sources, pods)
	t.run(rate, pods*perPod)
	for _, s := range t.sources {
		sessions += float64(len(s.held)) / float64(sources)
	}
	return t.hottest(), sessions, float64(t.plain) / float64(pods*perPod), float64(pods*perPod) / float64(t.opened)
}

var evennessCases = []struct {
	sources, pods int
	rate          float64 // of each source
	perPod        int     // connections
	bound         float64 // of the hottest pod against the mean
}{
	{3, 3, 2, 1000, 1.05},
	{3, 3, 20, 1000, 1.05},
	{3, 60, 5, 1000, 1.2},
	{3, 60, 20, 1000, 1.2},
	{3, 60, 50, 100, 1.2},
	{3, 1000, 20, 12, 4.5}, // one turn of 48, and a few more: the budget is 5
	{200, 1000, 4.2, 12, 4.5},
	{3, 1000, 50, 200, 1.6},
	{200, 1000, 4.2, 200, 1.6},
}

// The load is spread over pods that nobody has a list of: the bounds are those for
// 3, 60 and 1 000 pods. The longest cases are the benchmark's.
func TestConnectionsAreSpreadEvenly(t *testing.T) {
	for _, c := range evennessCases {
		if c.pods*c.perPod > 60_000 {
			continue
		}
		if h, _, _, _ := evenness(1, c.sources, c.pods, c.rate, c.perPod); h > c.bound {
			t.Errorf("%d sources, %d pods, %g connections a second each: the hottest pod has %.2f times the mean, want at most %.2f", c.sources, c.pods, c.rate, h, c.bound)
		}
	}
}

// With one pod in ten away at any time, and one of two gateways for a third of it, the
// load is spread over who is there.
func TestConnectionsAreSpreadEvenlyWhilePodsComeAndGo(t *testing.T) {
	for _, c := range []struct {
		pods  int
		rate  float64
		bound float64
	}{{3, 20, 1.1}, {60, 20, 1.3}, {60, 50, 1.2}} {
		w := newTown(1, 3, c.pods)
		w.churn(20*time.Second/time.Duration(c.pods)*5, 10*time.Second, 100*time.Second, 200*time.Second)
		w.run(c.rate, int(300*3*c.rate))
		if h := w.hottest(); h > c.bound {
			t.Errorf("%d pods, %g connections a second: the hottest has %.2f times the mean, want at most %.2f", c.pods, c.rate, h, c.bound)
		} else {
			t.Logf("%d pods, %g connections a second: the hottest has %.2f times the mean; %.1f connections per session", c.pods, c.rate, h, 900*c.rate/float64(w.opened))
		}
	}
}

// Gateways of several groups reach each other pods of their own: every pod of each has
// its part, whether all are held or take turns.
func TestConnectionsAreSpreadEvenlyOverGroups(t *testing.T) {
	for _, c := range []struct {
		groups []int
		each   int     // gateways of each group
		rate   float64 // of each of three sources
		perPod int
		bound  float64
	}{
		{[]int{1, 1}, 1, 1, 1000, 1.1},
		{[]int{2}, 2, 1, 1000, 1.1}, // both see all
		{[]int{3, 1}, 1, 0.5, 1000, 1.2},
		{[]int{3, 1}, 1, 10, 1000, 1.1},
		{[]int{3, 1}, 2, 10, 1000, 1.1},
		{[]int{1, 1, 1}, 1, 10, 1000, 1.1}, // more groups than two
		{[]int{10, 1}, 1, 0.5, 1000, 1.2},
		{[]int{10, 1}, 1, 10, 1000, 1.1},
		{[]int{10, 1}, 2, 0.5, 1000, 1.2},
		{[]int{60, 20}, 2, 5, 1000, 1.2},
	} {
		w, pods := newTownOf(1, 3, c.groups, c.each), 0
		for _, n := range c.groups {
			pods += n
		}
		w.run(c.rate, pods*c.perPod)
		least, hottest := float64(slices.Min(w.got))/float64(c.perPod), float64(slices.Max(w.got))/float64(c.perPod)
		t.Logf("groups %v, %d gateways of each, %g connections a second: from %.2f to %.2f of the mean; %.1f connections per session", c.groups, c.each, c.rate, least, hottest, float64(pods*c.perPod)/float64(w.opened))
		if hottest > c.bound || least < 2-c.bound {
			t.Errorf("groups %v, %d gateways of each, %g connections a second: pods have from %.2f to %.2f of the mean %v, want %.2f at most and %.2f at least", c.groups, c.each, c.rate, least, hottest, w.got, c.bound, 2-c.bound)
		}
	}
}

func BenchmarkEvenness(b *testing.B) {
	for _, c := range evennessCases {
		b.Run(fmt.Sprintf("%d sources %d pods %g a second %d per pod", c.sources, c.pods, c.rate, c.perPod), func(b *testing.B) {
			var worst, sessions, plain, perSession float64
			n := 0
			for b.Loop() {
				h, s, p, u := evenness(uint64(n+1), c.sources, c.pods, c.rate, c.perPod)
				worst, sessions, plain, perSession = max(worst, h), sessions+s, plain+p, perSession+u
				n++
			}
			b.ReportMetric(worst, "hottest/mean")
			b.ReportMetric(sessions/float64(n), "sessions/source")
			b.ReportMetric(100*plain/float64(n), "%chosen-by-gateway")
			b.ReportMetric(perSession/float64(n), "connections/session")
			b.ReportMetric(0, "ns/op")
			if worst > c.bound {
				b.Errorf("the hottest pod has %.2f times the mean, want at most %.2f", worst, c.bound)
			}
		})
	}
}
