package picker

import (
	"sync"
	"time"

	"github.com/isthmus-mesh/isthmus/federation/damping"
	"github.com/isthmus-mesh/isthmus/health"
	"github.com/isthmus-mesh/isthmus/health/standing"
	"github.com/isthmus-mesh/isthmus/mesh"
)

// maxDamped bounds how many ports of pods are remembered whose node proxies have flapped; of
// more, answers count at once.
const maxDamped = 4096

// flaps remembers how often ports of pods of the own network went out because the pod's node
// proxy did not answer, so that one which answers a question and no connection is not taken
// back again and again. Safe for concurrent use.
type flaps struct {
	mu     sync.Mutex
	damper *damping.Damper
}

// failed notes a failure of the way to k; edge is what came of it.
func (f *flaps) failed(k health.Key, edge health.Edge, now time.Time) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if edge == health.EdgeEjected {
		f.damper.Expire(now)
		f.damper.Ejected(damping.Key(k), now)
	} else {
		f.damper.Failed(damping.Key(k), now)
	}
}

// answered returns when k may come back, whose node proxy has answered.
func (f *flaps) answered(k health.Key, now time.Time) time.Time {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.damper.Answered(damping.Key(k), now)
}

func (f *flaps) readmitted(k health.Key, now time.Time) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.damper.Readmitted(damping.Key(k), now)
}

func (f *flaps) retain(keep func(health.Key) bool, now time.Time) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.damper.Retain(func(k damping.Key) bool { return keep(health.Key(k)) })
	f.damper.Expire(now)
}

// unanswered ends an attempt at a pod's port that its node proxy did not answer.
func (p *Picker) unanswered(c *standing.Cell[health.Key], a health.Attempt, reason string, now time.Time) health.Edge {
	edge := c.Unanswered(a, reason, now)
	p.flaps.failed(c.Key(), edge, now)
	return edge
}

// podEdge is edges for a port of w, a pod of the own network.
func (p *Picker) podEdge(list []Edge, e health.Edge, reason string, w *mesh.Workload, k health.Key, now time.Time) []Edge {
	if e == health.EdgeReadmitted {
		p.flaps.readmitted(k, now)
	}
	return edges(list, e, reason, Edge{Scope: ScopeEndpoint, Network: w.Network, Port: k.Port, Endpoint: k.Endpoint, Workload: w.UID})
}

// Unanswered reports whether the port of the pod that was chosen has failed since it last was
// good, and each time because the pod's node proxy did not answer.
func (c *Choice) Unanswered() bool { return c.cell != nil && c.cell.UnansweredOnly() }

// PodAsked is what a question to a pod's node proxy has come to.
type PodAsked struct {
	Edges []Edge
	// Out says that a port of the pod is still out because its node proxy did not answer.
	Out bool
	// By is when the next question is due at the latest: before a connection tries the pod,
	// or when one more answer has it back. Zero: at any time.
	By time.Time
}

// AskedPod takes in what a question of our own to the node proxy of w, a pod of the own
// network, found; reason is of a failure. It is about those ports of w alone that have failed
// in no other way: an answer takes them back, later each time if they flap, and none whose
// application is ill by the word of its witness.
func (p *Picker) AskedPod(w *mesh.Workload, snap *mesh.Snapshot, o health.Outcome, reason string, now time.Time) (r PodAsked) {
	for _, c := range p.pods.Troubled() {
		k := c.Key()
		if k.Endpoint != w.Endpoint || !c.UnansweredOnly() {
			continue
		}
		edge, held := health.NoEdge, time.Time{}
		switch st, _ := c.State(now); {
		case o == health.Failure:
			edge = p.unanswered(c, c.Again(now), reason, now)
		case o == health.Success && st.Phase != health.Healthy && !p.reportedOut(w, k.Port, snap):
			if held = p.flaps.answered(k, now); !held.After(now) {
				edge = c.Readmit("", now)
			}
		}
		r.Edges = p.podEdge(r.Edges, edge, reason, w, k, now)
		if st, _ := c.State(now); st.Phase != health.Healthy {
			r.Out = true
			r.by(held, now)
			r.by(st.Until, now)
		}
	}
	return r
}

// by has the next question put at t at the latest, if that is to come.
func (r *PodAsked) by(t, now time.Time) {
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
