package nodeproxy

import (
	"math/rand/v2"
	"slices"
	"time"

	"github.com/rs/zerolog"

	"github.com/isthmus-mesh/isthmus/federation"
	"github.com/isthmus-mesh/isthmus/federation/healthstream"
	"github.com/isthmus-mesh/isthmus/federation/record"
	"github.com/isthmus-mesh/isthmus/hbone/header"
	"github.com/isthmus-mesh/isthmus/health"
	"github.com/isthmus-mesh/isthmus/mesh"
	"github.com/isthmus-mesh/isthmus/nodeproxy/picker"
	"github.com/isthmus-mesh/isthmus/nodeproxy/warm"
)

// view is what this node proxy believes about the places that connections may
// go to. The picker decides; view gives it the clock and what federation says, and
// tells the log, the metrics and the prober of gateways what came of it. Safe for
// concurrent use.
type view struct {
	*picker.Picker
	network string
	scope   string
	reports bool // use what federation says
	known   func(network, service string) (healthstream.Known, bool)
	probe   func(gateway string)            // a gateway failed: ask it until it answers
	works   func(gateway string)            // a connection has found that a gateway works that was out
	podBack func(mesh.EndpointID)           // a pod of the own network is no longer out, by a connection or its owners
	revise  func(match func(warm.Key) bool) // what warm sets know has changed
	// nameElsewhere returns the UID of an endpoint's workload on another network, "" if
	// nobody has said it.
	nameElsewhere func(mesh.EndpointID) string
	most          func(network string) uint32 // greatest weight of one service there; 0 is no bound
	log           zerolog.Logger
	metrics       *Metrics
}

// nameOf returns the UID of an endpoint's workload, "" if nobody has said it.
func (v *view) nameOf(snap *mesh.Snapshot, id mesh.EndpointID) string {
	if w := snap.WorkloadByEndpoint(id); w != nil {
		return w.UID
	}
	return v.nameElsewhere(id)
}

func newView(c Config, known func(network, service string) (healthstream.Known, bool), probe func(gateway string), log zerolog.Logger, m *Metrics) *view {
	v := &view{
		network: c.Network, scope: c.OutlierDetection.Scope, reports: c.Federation.Health && c.OutlierDetection.Scope == ScopeEndpoint,
		known: known, probe: probe, works: func(string) {}, podBack: func(mesh.EndpointID) {}, revise: func(func(warm.Key) bool) {}, nameElsewhere: func(mesh.EndpointID) string { return "" }, most: func(string) uint32 { return 0 }, log: log, metrics: m,
	}
	off := c.OutlierDetection.Config
	off.Mode = health.ModeOff
	all, shares := c.OutlierDetection.Config, off
	switch c.OutlierDetection.Scope {
	case ScopeNone:
		all = off
	case ScopeNetworkService:
		shares = c.OutlierDetection.Config
	}
	v.Picker = picker.New(picker.Config{
		Network: c.Network, Own: all, Gateways: all, Paths: all, Shares: shares, Endpoints: c.OutlierDetection.Scope == ScopeEndpoint,
		Health: v.shareHealth, Jitter: rand.Float64, Seed: rand.Uint64,
	})
	return v
}

// reported is what comes of what federation says of a share.
func (v *view) reported(s picker.Share) (federation.SummaryFact, bool) {
	if !v.reports {
		return federation.SummaryFact{}, false
	}
	k, _ := v.known(s.Network, s.Service)
	f, ok := k.Summaries[s.Port]
	return f, ok
}

// shareHealth is what federation says of a share: what each of its network's gateways
// can deliver, together no more than the link to it lets them, and whom the witnesses
// there leave out.
func (v *view) shareHealth(s picker.Share) (picker.Health, bool) {
	if !v.reports {
		return picker.Health{}, false
	}
	k, _ := v.known(s.Network, s.Service)
	f, ok := k.Summaries[s.Port]
	if !ok {
		return picker.Health{}, false
	}
	return picker.Health{Exceptions: f.Exceptions, Absent: absentOf(k.Deliveries, s.Port), Returned: k.Returned[s.Port], Groups: groupsOf(k.Deliveries, s.Port), Most: v.most(s.Network)}, true
}

// absentOf are the endpoints that are not ready, terminating or gone by what gateways
// deliver together, sorted.
func absentOf(deliveries []healthstream.Delivery, port uint16) (out []mesh.EndpointID) {
	h, _ := healthstream.HealthOf(deliveries, port)
	for _, e := range h.Exceptions {
		switch e.Cause {
		case record.NotReady, record.Terminating, record.Gone:
			out = append(out, e.Endpoint)
		}
	}
	slices.Sort(out)
	return slices.Compact(out)
}

// groupsOf puts the deliveries of gateways that see the same pods together. Of two
// instances of one gateway that hand over, the one that was chosen counts.
func groupsOf(deliveries []healthstream.Delivery, port uint16) []picker.Group {
	var names []string
	groups := map[string]picker.Group{}
	for _, d := range healthstream.BestOfGateways(deliveries, port) {
		h := d.Health[port]
		x := picker.Delivery{Gateway: d.Gateway, Group: d.Group, Ready: h.Ready, Healthy: h.Healthy, ReadyCapacity: h.ReadyCapacity, HealthyCapacity: h.HealthyCapacity, Draining: d.Draining, Said: d.Said(port)}
		for _, e := range h.Exceptions {
			if e.Cause == record.Hop {
				x.Unreachable = append(x.Unreachable, e.Endpoint)
			}
		}
		slices.Sort(x.Unreachable)
		if groups[d.Group] == nil {
			names = append(names, d.Group)
		}
		groups[d.Group] = append(groups[d.Group], x)
	}
	var out []picker.Group
	for _, n := range names {
		out = append(out, groups[n])
	}
	return out
}

// choose picks where the next attempt of a connection goes.
func (v *view) choose(d *picker.Destination, t tried, kept picker.Kept, now time.Time) (picker.Choice, *failure) {
	c, err := v.Pick(d, t, kept, now)
	if err != nil {
		_, final := err.(*picker.NoCandidateError)
		return c, &failure{reason: reasonNoRoute, final: final, err: err}
	}
	if c.Dazed {
		v.metrics.dazed.Inc()
	}
	if service := d.Plan().Authority; c.Turned && c.Dazed {
		v.log.Warn().Str("service", service).Msg("dazed: no endpoint is healthy, all are used alike")
	} else if c.Turned {
		v.log.Info().Str("service", service).Msg("no longer dazed")
	}
	return c, nil
}

// opened takes in that the attempt succeeded.
func (v *view) opened(c *picker.Choice, now time.Time) { v.met(v.Opened(c, now)) }

// met is tell of what a connection has found, or others have said. A gateway or a pod that
// came back by that needs no more probes, or many if it fails again.
func (v *view) met(edges []picker.Edge) {
	v.tell(edges)
	for _, e := range edges {
		switch {
		case e.Edge != health.EdgeReadmitted:
		case e.Scope == picker.ScopeGateway:
			v.works(e.Network + "/" + e.Gateway)
		case e.Scope == picker.ScopeEndpoint:
			v.podBack(e.Endpoint)
		}
	}
}

// failed takes in that the attempt failed, or a tunnel that broke after it had been
// opened and before anybody spoke through it.
func (v *view) failed(c *picker.Choice, f *failure, now time.Time) {
	v.met(v.Done(c, picker.Outcome{At: picker.At(f.at), Fault: f.fault, Reason: f.reason, Error: header.Error(f.err.Error()), Left: f.reason == reasonCancelled,
		Endpoint: f.endpoint, Responded: f.answered(), Silent: f.silent(), Hop: f.hop, Unreached: f.unreached()}, now))
	if f.faultOf(atGateway) && c.Gateway != nil && v.scope != ScopeNone {
		v.probe(picker.GatewayKey(c.Gateway))
	}
}

// unopened takes in that a session was not opened in the background. When a gateway is
// lost, that may be all that anybody meets of it: connections go on sessions by another.
func (v *view) unopened(g *mesh.Gateway, f *failure, now time.Time) {
	if !f.faultOf(atGateway) || v.scope == ScopeNone {
		return
	}
	key := picker.GatewayKey(g)
	v.tell(v.Unopened(key, picker.Outcome{At: picker.AtGateway, Fault: true, Reason: f.reason, Error: header.Error(f.err.Error()), Unreached: f.unreached()}, now))
	v.probe(key)
}

// done takes in that the connection is over.
func (v *view) done(c *picker.Choice) { v.tell(v.Done(c, picker.Outcome{}, time.Now())) }

// gatewayAnswered is what a probe of the gateway key found, and reports whether it
// answers and is not out, or else by when the next question is due at the latest: one that
// refuses this node proxy by a limit answers.
func (v *view) gatewayAnswered(key string, err error, now time.Time) (back bool, by time.Time) {
	outcome, reason, text := probed(atGateway, hopOuter, err)
	r := v.AskedGateway(key, outcome, reason, text, now)
	v.tell(r.Edges)
	return outcome == health.Success && !r.Out, r.By
}

// probed is what a question of our own to the next hop found; reason and text are of one that
// was not answered. Who refuses this node proxy by a limit answers.
func probed(at layer, hop string, err error) (o health.Outcome, reason, text string) {
	if err == nil {
		return health.Success, "", ""
	}
	switch f := hopFailure(at, hop, err); {
	case f.fault:
		return health.Failure, f.reason, header.Error(err.Error())
	case f.overload():
		return health.Success, "", ""
	default:
		return health.Neutral, f.reason, header.Error(err.Error())
	}
}

// unanswered reports whether the pod of c, an attempt that ended with f, is to be asked whether
// its node proxy answers: the pod is of the own network, and has failed in no other way.
func (v *view) unanswered(c *picker.Choice, f *failure) bool {
	return v.scope != ScopeNone && c.Pod != nil && f.hop && f.fault && v.Unanswered(c)
}

// podAnswered is what a probe of the node proxy of w found, put where the connections of origin begin. out says that a port of w is
// still out because that did not answer, by when the next question is due at the latest. A question that
// was late by our own doing says nothing.
func (v *view) podAnswered(w *mesh.Workload, snap *mesh.Snapshot, origin string, err error, late bool, now time.Time) (out bool, by time.Time) {
	outcome, reason, _ := probed(atEndpoint, hopSingle, err)
	if late {
		outcome = health.Neutral
	}
	r := v.AskedPod(w, snap, origin, outcome, reason, now)
	v.tell(r.Edges)
	return r.Out, r.By
}

// heard takes in that federation says something else of a share.
func (v *view) heard(s picker.Share, snap *mesh.Snapshot, now time.Time) {
	if v.reports {
		v.met(v.Heard(s, snap, now))
		v.revise(func(k warm.Key) bool { return k.Network == s.Network && k.Service == s.Service && k.Port == s.Port })
	}
}

// relinked takes in that links bound weights otherwise.
func (v *view) relinked(snap *mesh.Snapshot, now time.Time) {
	for _, s := range v.Shares() {
		v.heard(s, snap, now)
	}
}

// tell counts and logs edges.
func (v *view) tell(edges []picker.Edge) {
	for _, e := range edges {
		name, reason := "readmitted", "answers"
		if e.Edge == health.EdgeEjected {
			name, reason = "ejected", e.Reason
		}
		v.metrics.edges.WithLabelValues(string(e.Scope), name).Inc()
		line := v.log.Info().Str("edge", name).Str("scope", string(e.Scope)).Str("network", e.Network)
		switch e.Scope {
		case picker.ScopeEndpoint:
			line.Uint16("port", e.Port).Stringer("endpoint", e.Endpoint).Str("workload", e.Workload)
			if e.Origin != "" {
				line.Str("from", e.Origin)
			}
		case picker.ScopeShare:
			line.Str("service", e.Service).Uint16("port", e.Port)
		}
		if e.Gateway != "" {
			line.Str("gateway", e.Gateway)
		}
		line.Str("reason", reason).Str("source", "own").Msg("outlier changed")
		if e.Gateway != "" {
			v.revise(func(k warm.Key) bool { return k.Network == e.Network && (e.Service == "" || k.Service == e.Service) })
		}
	}
}
