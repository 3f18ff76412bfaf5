package picker

import (
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/isthmus-mesh/isthmus/health"
	"github.com/isthmus-mesh/isthmus/health/standing"
	"github.com/isthmus-mesh/isthmus/mesh"
)

// OriginKey is a port of a pod of the own network as the connections of one captured pod reach it.
type OriginKey struct {
	Origin string // UID of the captured pod in whose network namespace they begin
	health.Key
}

const (
	// maxPerOrigin bounds how many ports of pods are remembered that one captured pod does not reach; of more, each
	// connection finds out by itself.
	maxPerOrigin = 256
	// agreeWithin is how long ago another captured pod has met what this one does, for it to be taken for the doing of the
	// pod that does not answer.
	agreeWithin = time.Minute
)

// origins are the pods of the own network whose node proxies do not answer what begins in the network namespace of one
// captured pod. A NetworkPolicy may keep that one from them, or what it does with its own packets, and others of this node
// reach them all the same: they are out for that one alone. When another one meets the same, and nobody has been answered
// since, it is held against them for all. Safe for concurrent use.
type origins struct {
	book  *standing.Book[OriginKey]
	flaps flaps[OriginKey]
	some  atomic.Bool // of is not empty: while all is well, nothing costs a lock

	mu  sync.Mutex
	of  map[string]map[health.Key]*standing.Cell[OriginKey] // by origin
	met map[health.Key]meeting
}

// meeting is who was not answered last, since anybody was.
type meeting struct {
	origin string // "": a connection that begins in the network namespace of this process
	at     time.Time
}

func newOrigins(c health.Config, jitter func() float64) *origins {
	return &origins{book: standing.NewBook[OriginKey](c, jitter), flaps: newFlaps[OriginKey](),
		of: map[string]map[health.Key]*standing.Cell[OriginKey]{}, met: map[health.Key]meeting{}}
}

// cell returns what is known of k as origin reaches it; nil: nothing.
func (o *origins) cell(origin string, k health.Key) *standing.Cell[OriginKey] {
	if origin == "" || !o.some.Load() {
		return nil
	}
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.of[origin][k]
}

// out calls f for each port of a pod that is out for origin alone.
func (o *origins) out(origin string, now time.Time, f func(health.Key, *standing.Cell[OriginKey])) {
	if origin == "" || !o.some.Load() {
		return
	}
	o.mu.Lock()
	defer o.mu.Unlock()
	for k, c := range o.of[origin] {
		if !c.Score(now).Usable {
			f(k, c)
		}
	}
}

// ports are those of a pod that have not answered origin since they last did.
func (o *origins) ports(origin string, id mesh.EndpointID) (list []uint16) {
	if origin == "" || !o.some.Load() {
		return nil
	}
	o.mu.Lock()
	defer o.mu.Unlock()
	for k, c := range o.of[origin] {
		if k.Endpoint == id && c.UnansweredOnly() {
			list = append(list, k.Port)
		}
	}
	return list
}

// unanswered takes in that k did not answer origin, in attempt a if anything was known before, and reports whether others
// have met the same, or origin is this process itself, which holds it against k for all.
func (o *origins) unanswered(origin string, k health.Key, a health.Attempt, reason string, now time.Time) (edge health.Edge, forAll bool) {
	o.mu.Lock()
	last, known := o.met[k]
	known = known && now.Sub(last.at) < agreeWithin
	forAll = origin == "" || known && last.origin != origin
	if !known || last.origin == origin {
		o.met[k] = meeting{origin, now}
	}
	c := o.of[origin][k]
	if c == nil && origin != "" && o.room(origin) {
		c = o.book.Hold(OriginKey{origin, k})
		if o.of[origin] == nil {
			o.of[origin] = map[health.Key]*standing.Cell[OriginKey]{}
		}
		o.of[origin][k] = c
	}
	o.some.Store(true)
	o.mu.Unlock()
	if c == nil {
		return health.NoEdge, forAll
	}
	edge = c.Unanswered(a, reason, now)
	o.flaps.failed(c.Key(), edge, now)
	return edge, forAll
}

// room makes room for one more of origin, if there is some: by those that have answered since. The caller holds mu.
func (o *origins) room(origin string) bool {
	cells := o.of[origin]
	if len(cells) < maxPerOrigin {
		return true
	}
	for k, c := range cells {
		if !c.UnansweredOnly() {
			delete(cells, k)
			o.book.Release(c)
		}
	}
	return len(cells) < maxPerOrigin
}

// answered takes in that k has answered origin, by a connection.
func (o *origins) answered(origin string, k health.Key, a health.Attempt, now time.Time) health.Edge {
	if !o.some.Load() {
		return health.NoEdge
	}
	o.mu.Lock()
	delete(o.met, k)
	c := o.of[origin][k]
	o.mu.Unlock()
	if c == nil {
		return health.NoEdge
	}
	edge := c.End(a, health.Success, "", now)
	if edge == health.EdgeReadmitted {
		o.flaps.readmitted(c.Key(), now)
	}
	return edge
}

// asked takes in what a question of our own, put where the connections of origin begin, has found of k.
func (o *origins) asked(origin string, k health.Key, result health.Outcome, reason string, now time.Time) (edge health.Edge, held time.Time, forAll bool) {
	c := o.cell(origin, k)
	switch {
	case result == health.Failure:
		a := health.Attempt{}
		if c != nil {
			a = c.Again(now)
		}
		edge, forAll = o.unanswered(origin, k, a, reason, now)
	case result == health.Success:
		o.mu.Lock()
		delete(o.met, k)
		o.mu.Unlock()
		if c == nil {
			break
		}
		if st, _ := c.State(now); st.Phase == health.Healthy {
			break
		}
		if held = o.flaps.answered(c.Key(), now); !held.After(now) {
			if edge = c.Readmit("", now); edge == health.EdgeReadmitted {
				o.flaps.readmitted(c.Key(), now)
			}
		}
	}
	return edge, held, forAll
}

// outFor are the origins for which alone k is out, sorted.
func (o *origins) outFor(k health.Key, now time.Time) (list []string) {
	if !o.some.Load() {
		return nil
	}
	o.mu.Lock()
	defer o.mu.Unlock()
	for origin, cells := range o.of {
		if c := cells[k]; c != nil && !c.Score(now).Usable {
			list = append(list, origin)
		}
	}
	slices.Sort(list)
	return list
}

// explain appends what is held against k for origin alone.
func (o *origins) explain(list []standing.Cause, origin string, k health.Key, now time.Time) []standing.Cause {
	for _, x := range standing.OfCell(nil, o.cell(origin, k), now) {
		x.From = origin
		list = append(list, x)
	}
	return list
}

// retain forgets what concerns pods that are not declared and origins that there are no more, and what time has forgiven.
func (o *origins) retain(declared func(health.Key) bool, there func(origin string) bool, now time.Time) {
	keep := func(k OriginKey) bool { return there(k.Origin) && declared(k.Key) }
	o.book.Prune(keep, now)
	o.flaps.retain(keep, now)
	o.mu.Lock()
	defer o.mu.Unlock()
	for k, x := range o.met {
		if !declared(k) || now.Sub(x.at) >= agreeWithin {
			delete(o.met, k)
		}
	}
	for origin, cells := range o.of {
		for k, c := range cells {
			if !keep(c.Key()) || !c.Troubled() {
				delete(cells, k)
				o.book.Release(c)
			}
		}
		if len(cells) == 0 {
			delete(o.of, origin)
		}
	}
	o.some.Store(len(o.of)+len(o.met) > 0)
}

// originEdge is edges for a port of w as origin alone reaches it.
func originEdge(list []Edge, e health.Edge, reason string, w *mesh.Workload, k health.Key, origin string) []Edge {
	return edges(list, e, reason, Edge{Scope: ScopeEndpoint, Network: w.Network, Port: k.Port, Endpoint: k.Endpoint, Workload: w.UID, Origin: origin})
}
