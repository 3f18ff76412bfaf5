package picker

import (
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/isthmus-mesh/isthmus/health"
	"github.com/isthmus-mesh/isthmus/health/standing"
	"github.com/isthmus-mesh/isthmus/mesh"
)

// At is where an attempt ended.
type At uint8

const (
	Nowhere    At = iota // before anything was tried
	AtGateway            // its address, TLS or session
	AtNetwork            // the gateway answered: nothing to offer for this service
	AtEndpoint           // the pod, its node proxy, or the application behind it
)

// Outcome is how a Choice ended. The zero value says that it is over, and nothing
// about anybody's health.
type Outcome struct {
	At        At
	Fault     bool            // the health of At moves
	Reason    string          // of a failure; empty: it did not fail
	Error     string          // of the same, for people
	Left      bool            // who asked for it has left: it says nothing
	Endpoint  mesh.EndpointID // which endpoint, if the far side said so
	Responded bool            // the far side sent something, if only a no
	Silent    bool            // Endpoint answered nothing at all: that says nothing of other pods
	// Hop says that the gateway itself has no way to Endpoint: nothing is wrong with
	// that by way of others. Of a pod of the own network it says that the pod's node proxy did
	// not answer: nothing is known of the application behind it.
	Hop bool
	// Unreached says of AtGateway that there was no session with it: its address or its
	// handshake did not answer where this connection begins, which may be a pod whose packets
	// do not get there. A question of our own says whether it is the gateway's doing.
	Unreached bool
}

// Scope is what an edge is about: the values are those of the label scope.
type Scope string

const (
	ScopeEndpoint Scope = "endpoint"
	ScopeShare    Scope = "network_service" // all of it, or what one gateway delivers of it
	ScopeGateway  Scope = "gateway"
)

// Edge is something that went out or came back by this node proxy's own evidence.
type Edge struct {
	Scope    Scope
	Edge     health.Edge // never NoEdge
	Reason   string      // of the last failure; empty if it came back
	Network  string
	Service  string          // ScopeShare
	Port     uint16          // target port of an endpoint, service port of a share
	Endpoint mesh.EndpointID // ScopeEndpoint
	Workload string          // its UID
	Origin   string          // ScopeEndpoint: UID of the captured pod for which alone it is out, if not empty
	Gateway  string          // ScopeGateway; ScopeShare: by way of it alone, if not empty
}

func edges(list []Edge, e health.Edge, reason string, about Edge) []Edge {
	if e == health.NoEdge {
		return list
	}
	if about.Edge = e; e == health.EdgeEjected {
		about.Reason = reason
	}
	return append(list, about)
}

// Opened takes in that a far application has accepted; the connection goes on.
func (p *Picker) Opened(c *Choice, now time.Time) []Edge {
	c.opened = true
	p.remember(c, Outcome{}, now)
	if c.gate != nil {
		c.gate.responded(true, now)
	}
	return p.judge(c, health.Success, Outcome{}, now)
}

// Done takes in that the connection, or the attempt, is over. A fault of one that
// was Opened is an outcome of its own: its tunnel broke before anybody had spoken
// through it.
func (p *Picker) Done(c *Choice, o Outcome, now time.Time) (list []Edge) {
	if o.Reason != "" {
		p.remember(c, o, now)
	}
	if c.gate != nil && !c.opened {
		c.gate.responded(o.Responded, now)
	}
	switch {
	case c.opened && o.Fault:
		c.again(p, now)
		list = p.judge(c, health.Failure, o, now)
	case !c.opened:
		list = p.judge(c, health.Failure, o, now)
	}
	if c.cell != nil {
		c.cell.Close()
	}
	if c.held {
		p.pods.Release(c.cell)
	}
	if c.gate != nil {
		c.share.whole.Close()
		c.path.Close()
		c.gate.cell.Close()
	}
	return list
}

// again dates what follows by now.
func (c *Choice) again(p *Picker, now time.Time) {
	if c.gate == nil {
		c.tries.pod = c.cell.Again(now)
		c.beginFromOrigin(p, now)
		return
	}
	c.tries.whole, c.tries.path, c.tries.gate = c.share.whole.Again(now), c.path.Again(now), c.gate.cell.Again(now)
}

// judge ends the attempts of c, each by its own layer.
func (p *Picker) judge(c *Choice, result health.Outcome, o Outcome, now time.Time) (list []Edge) {
	if c.unjudged {
		return nil
	}
	of := func(fault bool) health.Outcome {
		if result == health.Success || o.Fault && fault {
			return result
		}
		return health.Neutral
	}
	if c.gate == nil {
		return p.judgePod(c, of(o.At == AtEndpoint), o, now)
	}
	about := Edge{Scope: ScopeShare, Network: c.Share.Network, Service: c.Share.Service, Port: c.Share.Port}
	list = edges(list, c.share.whole.End(c.tries.whole, of(o.At == AtNetwork || o.At == AtEndpoint), o.Reason, now), o.Reason, about)
	about.Gateway = c.Gateway.Name
	// A pod that is named has failed by itself; see Share.hint.
	list = edges(list, c.path.End(c.tries.path, of(o.At == AtNetwork || o.At == AtEndpoint && o.Endpoint == 0), o.Reason, now), o.Reason, about)
	hop := of(o.At == AtGateway)
	if o.Fault && (o.At == AtNetwork || o.At == AtEndpoint) {
		hop = health.Success // it did its part
	}
	list = p.gateEnded(list, c.gate, c.tries.gate, hop, o, now)
	if o.Fault && o.At == AtEndpoint && o.Endpoint != 0 && p.config.Endpoints {
		by := ""
		if o.Hop {
			by = c.Gateway.Name
		}
		c.share.hint(o.Endpoint, by, o.Silent, now)
	}
	return list
}

// judgePod ends an attempt at a pod of the own network. That its node proxy did not answer is held against it for the origin of
// the connection alone, until others meet the same.
func (p *Picker) judgePod(c *Choice, result health.Outcome, o Outcome, now time.Time) (list []Edge) {
	k := c.cell.Key()
	if result != health.Failure || !o.Hop {
		if result == health.Success || o.Responded {
			list = originEdge(list, p.origins.answered(c.origin, k, c.tries.fromOrigin, now), "", c.Pod, k, c.origin)
		}
		return p.podEdge(list, c.cell.End(c.tries.pod, result, o.Reason, now), o.Reason, c.Pod, k, now)
	}
	edge, forAll := p.origins.unanswered(c.origin, k, c.tries.fromOrigin, o.Reason, now)
	list = originEdge(list, edge, o.Reason, c.Pod, k, c.origin)
	if edge = health.NoEdge; forAll {
		edge = p.unanswered(c.cell, c.tries.pod, o.Reason, now)
	} else {
		edge = c.cell.End(c.tries.pod, health.Neutral, o.Reason, now)
	}
	return p.podEdge(list, edge, o.Reason, c.Pod, k, now)
}

// gateEnded ends an attempt at g. What failed behind its handshake a question of our own does
// not find, and so its answers are held back for that.
func (p *Picker) gateEnded(list []Edge, g *gate, a health.Attempt, result health.Outcome, o Outcome, now time.Time) []Edge {
	if result == health.Failure && o.Unreached {
		return p.gateEdge(list, g.cell.Unanswered(a, o.Reason, now), o.Reason, g.key, now)
	}
	edge := g.cell.End(a, result, o.Reason, now)
	if result == health.Failure {
		p.gateFlaps.failed(g.key, edge, now)
	}
	return p.gateEdge(list, edge, o.Reason, g.key, now)
}

// gateEdge is edges for the gateway of key.
func (p *Picker) gateEdge(list []Edge, e health.Edge, reason, key string, now time.Time) []Edge {
	if e == health.EdgeReadmitted {
		p.gateFlaps.readmitted(key, now)
	}
	network, name, _ := strings.Cut(key, "/")
	return edges(list, e, reason, Edge{Scope: ScopeGateway, Network: network, Gateway: name})
}

func (p *Picker) gateOf(key string) *gate {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.gates[key]
}

// Unopened takes in that a session with the gateway of key, or by it, was not opened in the
// background, by a fault of the gateway.
func (p *Picker) Unopened(key string, o Outcome, now time.Time) []Edge {
	g := p.gateOf(key)
	if g == nil {
		return nil // gone
	}
	p.unreached.failed(key, o, now)
	return p.gateEnded(nil, g, g.cell.Again(now), health.Failure, o, now)
}

// AskedGateway takes in what a question of our own to the gateway of key found; reason and
// text, which is for people, are of a failure. An answer takes back at once what connections
// did not reach. What failed behind the handshake it takes back later each time, if that
// happens again and again, and forgives no failure before: who answers it may serve nobody.
func (p *Picker) AskedGateway(key string, o health.Outcome, reason, text string, now time.Time) (r Asked) {
	g := p.gateOf(key)
	if g == nil {
		return r // gone
	}
	if reason != "" {
		p.unreached.failed(key, Outcome{Reason: reason, Error: text, Fault: o == health.Failure}, now)
	}
	edge, held := health.NoEdge, time.Time{}
	switch st, _ := g.cell.State(now); {
	case o == health.Failure:
		edge = g.cell.Unanswered(g.cell.Again(now), reason, now)
		p.gateFlaps.failed(key, health.NoEdge, now)
	case o == health.Success:
		p.unreached.succeeded(key)
		behind := !g.cell.UnansweredOnly()
		if behind && st.Phase != health.Healthy {
			held = p.gateFlaps.answered(key, now)
		}
		if !behind || st.Phase != health.Healthy && !held.After(now) {
			edge = g.cell.Readmit("", now)
		}
	}
	r.Edges = p.gateEdge(nil, edge, reason, key, now)
	st, _ := g.cell.State(now)
	r.is(st, held, now)
	return r
}

// Shares returns the shares that are held now.
func (p *Picker) Shares() []Share {
	p.mu.Lock()
	defer p.mu.Unlock()
	return slices.Collect(maps.Keys(p.known))
}

// Heard takes in that something else is said of a share, or nothing any more: whom
// it took back, and which gateway says something else than when it failed under our
// eyes, is usable again.
func (p *Picker) Heard(k Share, snap *mesh.Snapshot, now time.Time) (list []Edge) {
	h, known := p.config.Health(k)
	if k.Network == p.config.Network && known {
		list = p.readmitOwn(k, h, snap, now)
	}
	p.mu.Lock()
	s := p.known[k]
	if s != nil {
		s.holders++
	}
	p.mu.Unlock()
	if s != nil {
		for _, d := range s.hear(now) {
			d.heard(now)
		}
		p.release(s)
	}
	if !known {
		return list
	}
	for _, c := range p.paths.Troubled() {
		if d := h.of(c.Key().Gateway); c.Key().Share == k && d != nil && d.able() && c.Failed().Before(d.Said) {
			list = edges(list, c.Readmit("", now), "", Edge{Scope: ScopeShare, Network: k.Network, Service: k.Service, Port: k.Port, Gateway: c.Key().Gateway})
		}
	}
	return list
}

func (p *Picker) readmitOwn(k Share, h Health, snap *mesh.Snapshot, now time.Time) (list []Edge) {
	svc := snap.Service(k.Service)
	if svc == nil {
		return nil
	}
	port, _ := svc.Port(k.Port)
	for _, c := range p.pods.Troubled() {
		key := c.Key()
		w := snap.WorkloadByEndpoint(key.Endpoint)
		if w == nil || w.Target(port) != key.Port || h.excepted(key.Endpoint) || !c.Failed().Before(h.Returned[key.Endpoint]) || !slices.Contains(snap.ServicesOf(w.UID), svc) {
			continue
		}
		if st, _ := c.State(now); st.Phase != health.Healthy {
			list = p.podEdge(list, c.Readmit("", now), "", w, key, now)
		}
	}
	return list
}

var _ standing.Watcher = (*member)(nil)
