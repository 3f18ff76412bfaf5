package picker

import (
	"cmp"
	"errors"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/isthmus-mesh/isthmus/balance"
	"github.com/isthmus-mesh/isthmus/health"
	"github.com/isthmus-mesh/isthmus/health/standing"
	"github.com/isthmus-mesh/isthmus/mesh"
	"github.com/isthmus-mesh/isthmus/route"
)

// Destination is where flows of one kind may go: a port of a service, as asked for
// from one place by one name; or one pod. Get it from Picker.Resolve before each
// connection, and keep it no longer than that.
type Destination struct {
	picker *Picker
	key    destinationKey
	draws  *balance.Draws
	direct route.Plan                    // of a pod that was addressed itself
	plan   atomic.Pointer[route.Plan]    // never changed once it is here
	snap   atomic.Pointer[mesh.Snapshot] // that the plan holds for
	asked  atomic.Int64                  // when it was last resolved, in Unix nanoseconds

	mu      sync.Mutex
	parts   []part
	members []*member // by candidate of the plan
	index   balance.Index
	shares  []int // candidates that are shares, by falling rank
	places  standing.Places
	own     *share // what is said of this network's pods; nil without any
	said    Health // by own
	alarms  standing.Alarms[*member]
	dazed   bool
	left    bool // it holds nothing any more
	scratch []balance.Candidate
}

// part is what a plan was made from, by network.
type part struct {
	members  []*mesh.Workload // of the own network
	share    *mesh.Export     // of another
	gateways []*mesh.Gateway
	reached  bool // by the service's scope
}

// member is one candidate of a destination.
type member struct {
	destination *Destination
	at          int // of the plan; -1: none any more
	pod         *mesh.Workload
	cell        *standing.Cell[health.Key] // of pod

	share *share // else
	gates []*gate
	ways  []string // see Way
	paths []*standing.Cell[Path]
}

// Plan is where the flow may go, as of the last Resolve. Do not modify.
func (d *Destination) Plan() *route.Plan { return d.plan.Load() }

// revise brings d in line with snap.
func (d *Destination) revise(snap *mesh.Snapshot, svc *mesh.Service, f route.Flow, now time.Time) error {
	d.asked.Store(now.UnixNano())
	if d.snap.Load() == snap {
		return nil
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.left {
		return errLeft
	}
	if d.snap.Load() == snap {
		return nil
	}
	parts := partsOf(snap, svc, f.Source.Network)
	if old := d.plan.Load(); old != nil && old.Service == svc && slices.EqualFunc(parts, d.parts, part.same) {
		d.snap.Store(snap)
		return nil
	}
	plan := &route.Plan{}
	if err := route.ResolveInto(plan, snap, f); err != nil {
		return err
	}
	d.parts = parts
	d.replace(plan, now)
	d.plan.Store(plan)
	d.snap.Store(snap)
	return nil
}

func partsOf(snap *mesh.Snapshot, svc *mesh.Service, from string) []part {
	networks := snap.Networks(svc)
	out := make([]part, len(networks))
	for i, n := range networks {
		out[i] = part{gateways: snap.Gateways(n), reached: snap.Reaches(svc, from, n)}
		if n == from {
			out[i].members = snap.Members(svc, n)
		} else if x, ok := snap.Share(svc, n); ok {
			out[i].share = x.Export
		}
	}
	return out
}

// same compares memory: snapshots share what has not changed.
func (p part) same(q part) bool {
	return p.reached == q.reached && p.share == q.share && same(p.members, q.members) && same(p.gateways, q.gateways)
}

func same[T any](a, b []*T) bool {
	return len(a) == len(b) && (len(a) == 0 || &a[0] == &b[0])
}

// replace takes over the members that plan still has; the caller holds mu.
func (d *Destination) replace(plan *route.Plan, now time.Time) {
	var pods, shares []*member // as they were; pods by UID
	for _, m := range d.members {
		if m.at = -1; m.pod != nil {
			pods = append(pods, m)
		} else {
			shares = append(shares, m)
		}
	}
	d.members = make([]*member, 0, len(plan.Candidates))
	d.shares = d.shares[:0]
	d.places.Reset()
	d.alarms.Clear()
	d.holdOwn(plan, now)
	for i := range plan.Candidates {
		c := &plan.Candidates[i]
		if c.Workload == nil {
			d.members = append(d.members, d.shareMember(i, plan, c, now))
			d.shares = append(d.shares, i)
			continue
		}
		for len(pods) > 0 && pods[0].pod.UID < c.Workload.UID {
			pods[0].leave()
			pods = pods[1:]
		}
		key := health.Key{Endpoint: c.Workload.Endpoint, Port: c.Workload.Target(plan.Port)}
		var m *member
		if len(pods) > 0 && pods[0].cell.Key() == key {
			m, pods = pods[0], pods[1:]
		} else {
			m = &member{destination: d, cell: d.picker.pods.Hold(key)}
			m.cell.Watch(m)
		}
		m.at, m.pod = i, c.Workload
		d.members = append(d.members, m)
	}
	for _, m := range append(pods, shares...) {
		m.leave()
	}
	slices.SortStableFunc(d.shares, func(a, b int) int { return cmp.Compare(plan.Candidates[b].Rank, plan.Candidates[a].Rank) })
	d.scratch = d.scratch[:0]
	for i, m := range d.members {
		c := balance.Candidate{Rank: plan.Candidates[i].Rank}
		if m.pod != nil {
			c = d.weigh(m, &plan.Candidates[i], now)
		}
		d.scratch = append(d.scratch, c)
	}
	d.index.Reset(d.scratch)
}

// holdOwn follows what is said of the own network's pods, if plan has any.
func (d *Destination) holdOwn(plan *route.Plan, now time.Time) {
	any := slices.ContainsFunc(plan.Candidates, func(c route.Candidate) bool { return c.Workload != nil })
	if any && d.own == nil {
		d.own = d.picker.hold(Share{d.picker.config.Network, plan.Service.Hostname, plan.Port.Service})
		d.own.watch(d)
	}
	if d.own != nil {
		d.said = d.own.current(now)
	}
}

func (d *Destination) shareMember(i int, plan *route.Plan, c *route.Candidate, now time.Time) *member {
	m := &member{destination: d, at: i, share: d.picker.hold(Share{c.Network, plan.Service.Hostname, plan.Port.Service})}
	m.share.current(now)
	for _, g := range c.Gateways {
		m.ways = append(m.ways, Way(g))
		m.gates = append(m.gates, d.picker.gate(g))
		m.paths = append(m.paths, d.picker.paths.Hold(Path{m.share.key, g.Name}))
	}
	return m
}

// leave gives up what m holds.
func (m *member) leave() {
	if m.pod != nil {
		m.cell.Unwatch(m)
		m.destination.picker.pods.Release(m.cell)
		return
	}
	for _, p := range m.paths {
		m.destination.picker.paths.Release(p)
	}
	m.destination.picker.release(m.share)
}

// errLeft is what revise returns for a destination that Retain has dropped.
var errLeft = errors.New("the destination was dropped")

// leave gives up what d holds unless it was asked for since.
func (d *Destination) leave(since time.Time) bool {
	d.mu.Lock()
	defer d.mu.Unlock()
	// Whoever asks stores asked first and then looks at snap: one of us sees the other.
	snap := d.snap.Swap(nil)
	if d.asked.Load() > since.UnixNano() {
		d.snap.Store(snap)
		return false
	}
	for _, m := range d.members {
		m.at = -1
		m.leave()
	}
	if d.own != nil {
		d.own.unwatch(d)
		d.picker.release(d.own)
	}
	d.members, d.shares, d.own, d.left = nil, nil, nil, true
	d.places.Reset()
	d.alarms.Clear()
	d.index.Reset(nil)
	return true
}

// Changed implements [standing.Watcher]: the cell of m says something else.
func (m *member) Changed(now time.Time) {
	m.destination.mu.Lock()
	defer m.destination.mu.Unlock()
	m.destination.refresh(m, now)
}

// refresh weighs a pod again; the caller holds mu.
func (d *Destination) refresh(m *member, now time.Time) {
	if m.at >= 0 {
		d.index.Set(m.at, d.weigh(m, &d.plan.Load().Candidates[m.at], now))
	}
}

func (d *Destination) weigh(m *member, c *route.Candidate, now time.Time) balance.Candidate {
	s := m.cell.Score(now)
	d.alarms.Set(m, s.Next)
	return balance.Candidate{
		Weight: float64(c.Capacity) * s.Weight, Size: float64(c.Capacity), Faint: s.Faint, Rank: c.Rank,
		Usable: s.Usable && !d.said.excepted(m.pod.Endpoint),
	}
}

// pass lets time pass for those that change by it alone.
func (d *Destination) pass(now time.Time) {
	for _, m := range d.alarms.Due(now) {
		d.refresh(m, now)
	}
}

// heard takes in that something else is said of the own network's pods.
func (d *Destination) heard(now time.Time) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.own == nil {
		return
	}
	before := d.said
	d.said = d.own.current(now)
	for _, list := range [...][]mesh.EndpointID{before.Exceptions, d.said.Exceptions} {
		for _, id := range list {
			if i, ok := d.place(id); ok && before.excepted(id) != d.said.excepted(id) {
				d.refresh(d.members[i], now)
			}
		}
	}
}

// place finds the pod of an endpoint among the candidates.
func (d *Destination) place(id mesh.EndpointID) (int, bool) {
	return d.places.Find(id, len(d.members), func(i int) mesh.EndpointID {
		if m := d.members[i]; m.pod != nil {
			return m.pod.Endpoint
		}
		return 0
	})
}

// Load implements [balance.Loads].
func (d *Destination) Load(i int) float64 {
	if m := d.members[i]; m.pod != nil {
		return float64(m.cell.Open())
	} else {
		return float64(m.share.whole.Open())
	}
}
