package picker

import (
	"slices"
	"sync"
	"time"

	"github.com/isthmus-mesh/isthmus/federation/damping"
	"github.com/isthmus-mesh/isthmus/health"
	"github.com/isthmus-mesh/isthmus/health/standing"
	"github.com/isthmus-mesh/isthmus/mesh"
)

// maxDamped bounds how many ports of pods, and how many gateways, are remembered that have
// flapped; of more, answers count at once.
const maxDamped = 4096

// flaps remembers how often gateways, or ports of pods of the own network because the pod's
// node proxy did not answer, went out, so that one which answers a question and serves no
// connection is not taken back again and again. Safe for concurrent use.
type flaps[K comparable] struct {
	mu     sync.Mutex
	damper *damping.Damper[K]
}

func newFlaps[K comparable]() flaps[K] { return flaps[K]{damper: damping.New[K](maxDamped)} }

// failed notes a failure of k, or of the way there; edge is what came of it.
func (f *flaps[K]) failed(k K, edge health.Edge, now time.Time) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if edge == health.EdgeEjected {
		f.damper.Expire(now)
		f.damper.Ejected(k, now)
	} else {
		f.damper.Failed(k, now)
	}
}

// answered returns when k may come back, which has answered a question.
func (f *flaps[K]) answered(k K, now time.Time) time.Time {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.damper.Answered(k, now)
}

func (f *flaps[K]) readmitted(k K, now time.Time) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.damper.Readmitted(k, now)
}

func (f *flaps[K]) retain(keep func(K) bool, now time.Time) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.damper.Retain(keep)
	f.damper.Expire(now)
}

// unanswered ends an attempt at a pod's port that its node proxy did not answer.
func (p *Picker) unanswered(c *standing.Cell[health.Key], a health.Attempt, reason string, now time.Time) health.Edge {
	edge := c.Unanswered(a, reason, now)
	p.podFlaps.failed(c.Key(), edge, now)
	return edge
}

// podEdge is edges for a port of w, a pod of the own network.
func (p *Picker) podEdge(list []Edge, e health.Edge, reason string, w *mesh.Workload, k health.Key, now time.Time) []Edge {
	if e == health.EdgeReadmitted {
		p.podFlaps.readmitted(k, now)
	}
	return edges(list, e, reason, Edge{Scope: ScopeEndpoint, Network: w.Network, Port: k.Port, Endpoint: k.Endpoint, Workload: w.UID})
}

// Unanswered reports whether the port of the pod that was chosen has failed since it last was
// good, for all or for the origin of c alone, and each time because the pod's node proxy did not answer.
func (p *Picker) Unanswered(c *Choice) bool {
	if c.cell == nil {
		return false
	}
	x := p.origins.cell(c.origin, c.cell.Key())
	return c.cell.UnansweredOnly() || x != nil && x.UnansweredOnly()
}

// Asked is what a question of our own to a gateway, or to a pod's node proxy, has come to.
type Asked struct {
	Edges []Edge
	// Out says that the gateway is still out, or a port of the pod because its node proxy did
	// not answer.
	Out bool
	// By is when the next question is due at the latest: before a connection tries who is out,
	// or when one more answer has it back. Zero: at any time.
	By time.Time
}

// AskedPod takes in what a question of our own to the node proxy of w, a pod of the own
// network, found, which was put where the connections of origin begin; reason is of a failure. It is about those ports of w
// alone that have failed in no other way: an answer takes them back, later each time if they flap, and none whose
// application is ill by the word of its witness. It takes them back for all, and a failure holds for all only
// if others have met the same.
func (p *Picker) AskedPod(w *mesh.Workload, snap *mesh.Snapshot, origin string, o health.Outcome, reason string, now time.Time) (r Asked) {
	shared := map[uint16]*standing.Cell[health.Key]{}
	ports := p.origins.ports(origin, w.Endpoint)
	for _, c := range p.pods.Troubled() {
		if k := c.Key(); k.Endpoint == w.Endpoint && c.UnansweredOnly() {
			shared[k.Port] = c
			ports = append(ports, k.Port)
		}
	}
	slices.Sort(ports)
	for _, port := range slices.Compact(ports) {
		k := health.Key{Endpoint: w.Endpoint, Port: port}
		edge, held, forAll := p.origins.asked(origin, k, o, reason, now)
		r.Edges = originEdge(r.Edges, edge, reason, w, k, origin)
		if x := p.origins.cell(origin, k); x != nil {
			st, _ := x.State(now)
			r.is(st, held, now)
		}
		if c := shared[port]; c != nil {
			p.askedShared(&r, c, w, snap, o, forAll, reason, now)
		}
	}
	return r
}

// askedShared is AskedPod for what is known of a port of w for all; forAll says that a failure holds for all.
func (p *Picker) askedShared(r *Asked, c *standing.Cell[health.Key], w *mesh.Workload, snap *mesh.Snapshot, o health.Outcome, forAll bool, reason string, now time.Time) {
	k, edge, held := c.Key(), health.NoEdge, time.Time{}
	switch st, _ := c.State(now); {
	case o == health.Failure && forAll:
		edge = p.unanswered(c, c.Again(now), reason, now)
	case o == health.Success && st.Phase != health.Healthy && !p.reportedOut(w, k.Port, snap):
		if held = p.podFlaps.answered(k, now); !held.After(now) {
			edge = c.Readmit("", now)
		}
	}
	r.Edges = p.podEdge(r.Edges, edge, reason, w, k, now)
	st, _ := c.State(now)
	r.is(st, held, now)
}

// is takes in the state of what was asked, and until when its answer is held back.
func (r *Asked) is(st health.State, held, now time.Time) {
	if st.Phase != health.Healthy {
		r.Out = true
		r.by(held, now)
		r.by(st.Until, now)
	}
}

// by has the next question put at t at the latest, if that is to come.
func (r *Asked) by(t, now time.Time) {
	if t.After(now) && (r.By.IsZero() || t.Before(r.By)) {
		r.By = t
	}
}

// reportedOut reports whether the witness of w says that the application behind target is ill.
func (p *Picker) reportedOut(w *mesh.Workload, target uint16, snap *mesh.Snapshot) bool {
	for _, svc := range snap.ServicesOf(w.UID) {
		for _, port := range svc.Ports {
			if w.Target(port) != target {
				continue
			}
			if h, known := p.config.Health(Share{Network: w.Network, Service: svc.Hostname, Port: port.Service}); known && h.excepted(w.Endpoint) {
				return true
			}
		}
	}
	return false
}
