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
		c.again(now)
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
func (c *Choice) again(now time.Time) {
	if c.gate == nil {
		c.tries.pod = c.cell.Again(now)
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
		var edge health.Edge
		if end := of(o.At == AtEndpoint); end == health.Failure && o.Hop {
			edge = p.unanswered(c.cell, c.tries.pod, o.Reason, now)
		} else {
			edge = c.cell.End(c.tries.pod, end, o.Reason, now)
		}
		return p.podEdge(list, edge, o.Reason, c.Pod, c.cell.Key(), now)
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
	list = edges(list, c.gate.cell.End(c.tries.gate, hop, o.Reason, now), o.Reason, gatewayEdge(c.gate.key))
	if o.Fault && o.At == AtEndpoint && o.Endpoint != 0 && p.config.Endpoints {
		by := ""
		if o.Hop {
			by = c.Gateway.Name
		}
		c.share.hint(o.Endpoint, by, o.Silent, now)
	}
	return list
}

func gatewayEdge(key string) Edge {
	network, name, _ := strings.Cut(key, "/")
	return Edge{Scope: ScopeGateway, Network: network, Gateway: name}
}

// Asked takes in what a question of our own to the gateway of key found; reason and text,
// which is for people, are of a failure.
func (p *Picker) Asked(key string, o health.Outcome, reason, text string, now time.Time) []Edge {
	p.mu.Lock()
	g := p.gates[key]
	p.mu.Unlock()
	if g == nil {
		return nil // gone
	}
	if reason != "" {
		p.unreached.failed(key, Outcome{Reason: reason, Error: text, Fault: o == health.Failure}, now)
	}
	edge := health.NoEdge
	switch o {
	case health.Success:
		p.unreached.succeeded(key)
		edge = g.cell.Readmit("", now)
	case health.Failure:
		edge = g.cell.Fail(reason, now)
	}
	return edges(nil, edge, reason, gatewayEdge(key))
}

// GatewayOut returns when a connection may try the gateway of key, which is out; zero
// if it is not out, or may be tried now.
func (p *Picker) GatewayOut(key string, now time.Time) time.Time {
	p.mu.Lock()
	g := p.gates[key]
	p.mu.Unlock()
	if g == nil {
		return time.Time{}
	}
	if st, _ := g.cell.State(now); st.Phase == health.Ejected {
		return st.Until
	}
	return time.Time{}
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
