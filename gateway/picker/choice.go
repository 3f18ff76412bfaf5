package picker

import (
	"time"

	"github.com/isthmus-mesh/isthmus/health"
	"github.com/isthmus-mesh/isthmus/health/standing"
	"github.com/isthmus-mesh/isthmus/mesh"
)

// Choice is one pod that was chosen, until Done.
type Choice struct {
	Pod    *mesh.Workload
	Target uint16 // port of its application
	Dazed  bool   // nobody of the service is known to be healthy

	hop     *standing.Cell[mesh.EndpointID]
	port    *standing.Cell[health.Key]
	attempt health.Attempt
}

// Outcome is how a choice ended.
type Outcome struct {
	Health health.Outcome // of the hop
	Reason string         // of a failure
}

// Edge is a hop that went out or came back by this gateway's own evidence.
type Edge struct {
	Edge   health.Edge // never NoEdge
	Reason string      // of the last failure; empty if it came back
	Pod    *mesh.Workload
}

// Pick chooses a pod of s for one connection. ok is false when every member was
// tried already, or none is what the request wants.
func (p *Picker) Pick(s *Service, r Request, now time.Time) (c Choice, ok bool) {
	c, ok = s.pick(r, now)
	if ok && c.attempt.Probe() {
		c.hop.Tell(now)
	}
	return c, ok
}

func (s *Service) pick(r Request, now time.Time) (Choice, bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	i, dazed, ok := s.choose(r, now)
	if !ok {
		return Choice{}, false
	}
	m := s.members[i]
	c := Choice{Pod: m.pod, Target: m.port.Key().Port, Dazed: dazed, hop: m.hop, port: m.port}
	m.port.Begin(now)
	if c.attempt = m.hop.Begin(now); c.attempt.Probe() {
		s.refresh(m, now) // at once: nobody else is to be its probe
	}
	return c, true
}

// Opened takes in that the pod's node proxy sent its first bytes; the connection
// goes on.
func (p *Picker) Opened(c *Choice, now time.Time) []Edge {
	if p.config.Listed(c.Pod.Endpoint) {
		c.hop.Answered(now)
	}
	return p.judge(c, Outcome{Health: health.Success}, now)
}

// Done takes in that the connection, or the attempt, is over.
func (p *Picker) Done(c *Choice, o Outcome, now time.Time) []Edge {
	edges := p.judge(c, o, now) // first: who closes the last one may let go of the cell
	c.hop.Close()
	c.port.Close()
	return edges
}

func (p *Picker) judge(c *Choice, o Outcome, now time.Time) []Edge {
	if o.Health == health.Success && c.hop.Troubled() && p.untrusted(c.Pod.Endpoint) || !p.config.Listed(c.Pod.Endpoint) {
		o.Health = health.Neutral
	}
	return p.edge(c.Pod, c.hop.End(c.attempt, o.Health, o.Reason, now), o.Reason, now)
}

func (p *Picker) edge(w *mesh.Workload, e health.Edge, reason string, now time.Time) []Edge {
	if e == health.NoEdge {
		return nil
	}
	p.change(w.Endpoint, func(m *mark) { m.turned = now })
	if e == health.EdgeReadmitted {
		reason = ""
	}
	return []Edge{{e, reason, w}}
}

func (p *Picker) untrusted(id mesh.EndpointID) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.marks[id].untrusted
}
