package nodeproxy

import (
	"slices"
	"strings"
	"time"

	"github.com/rs/zerolog"

	"github.com/isthmus-mesh/isthmus/federation"
	"github.com/isthmus-mesh/isthmus/health"
	"github.com/isthmus-mesh/isthmus/mesh"
)

// learn takes in how an attempt ended: f is nil when it succeeded.
func (v *view) learn(p pick, f *failure, now time.Time) {
	if f != nil {
		v.done(p)
	}
	if p.gateway != nil {
		v.responded(gatewayKey(p.gateway), f.responded(), now)
	}
	v.judge(p, f, now)
}

// judge ends the three attempts of p, each by its own layer.
func (v *view) judge(p pick, f *failure, now time.Time) {
	if p.unjudged {
		return
	}
	outcome := func(l ...layer) health.Outcome {
		switch {
		case f == nil:
			return health.Success
		case f.faultOf(l...):
			return health.Failure
		}
		return health.Neutral
	}
	v.mu.Lock()
	if p.pod != nil {
		edge := v.pods.End(p.podKey(), p.podTry, outcome(atEndpoint), now)
		if f.faultOf(atEndpoint) {
			v.failed[p.podKey()] = now
		}
		v.mu.Unlock()
		v.edge(edge, "endpoint", f, func(e *zerolog.Event) {
			e.Str("network", p.pod.Network).Uint16("port", p.target).Stringer("endpoint", p.pod.Endpoint).Str("workload", p.pod.UID)
		})
		return
	}
	shareEdge := v.shares.End(p.share, p.shareTry, outcome(atNetwork, atEndpoint), now)
	gatewayOutcome := outcome(atGateway)
	if f.faultOf(atNetwork, atEndpoint) {
		gatewayOutcome = health.Success // it did its part
	}
	gatewayEdge := v.gateways.End(gatewayKey(p.gateway), p.gatewayTry, gatewayOutcome, now)
	if f.faultOf(atEndpoint) && f.endpoint != 0 && v.scope == ScopeEndpoint {
		v.hints.Failed(p.hint(f.endpoint), now)
	}
	v.mu.Unlock()
	v.edge(shareEdge, "network_service", f, func(e *zerolog.Event) {
		e.Str("network", p.share.network).Str("service", p.share.service).Uint16("port", p.share.port)
	})
	v.edge(gatewayEdge, "gateway", f, func(e *zerolog.Event) {
		e.Str("network", p.gateway.Network).Str("gateway", p.gateway.Name)
	})
	if gatewayOutcome == health.Failure && v.scope != ScopeNone {
		v.probe(gatewayKey(p.gateway))
	}
}

// lost takes in a tunnel that broke after it had been opened, and counted as a
// success, and before anybody spoke through it.
func (v *view) lost(p pick, f *failure, now time.Time) {
	v.done(p)
	if !f.fault || p.unjudged {
		return
	}
	v.mu.Lock()
	if p.pod != nil {
		p.podTry = v.pods.Begin(p.podKey(), now)
	} else {
		p.shareTry = v.shares.Begin(p.share, now)
		p.gatewayTry = v.gateways.Begin(gatewayKey(p.gateway), now)
	}
	v.mu.Unlock()
	v.judge(p, f, now)
}

func (p pick) hint(id mesh.EndpointID) health.HintKey {
	return health.HintKey{HintService: health.HintService{Network: p.share.network, Service: p.share.service, Port: p.share.port}, Endpoint: id}
}

// gatewayAnswered is what a probe of the gateway key found; listed asks discovery
// whether it is still there.
func (v *view) gatewayAnswered(key string, listed func() bool, err error, now time.Time) {
	v.mu.Lock()
	if !listed() { // with mu held: forget comes after
		v.mu.Unlock()
		return
	}
	var edge health.Edge
	f := (*failure)(nil)
	if err == nil {
		edge = v.gateways.Readmit(key, now)
	} else {
		f = hopFailure(atGateway, hopOuter, err)
		outcome := health.Neutral
		if f.fault {
			outcome = health.Failure
		}
		edge = v.gateways.End(key, v.gateways.Begin(key, now), outcome, now)
	}
	v.mu.Unlock()
	network, name, _ := strings.Cut(key, "/")
	v.edge(edge, "gateway", f, func(e *zerolog.Event) { e.Str("network", network).Str("gateway", name) })
}

// takeSummary takes in what the owners of a network service say: whom they do not
// list as out, on evidence newer than what failed under our eyes, is usable
// again.
func (v *view) takeSummary(s share, f federation.SummaryFact, age time.Duration, snap *mesh.Snapshot, now time.Time) {
	if !v.reports {
		return
	}
	if s.network == v.network {
		v.readmitOwn(s, f, now.Add(-age), snap, now)
		return
	}
	v.mu.Lock()
	defer v.mu.Unlock()
	service := health.HintService{Network: s.network, Service: s.service, Port: s.port}
	for _, id := range v.hints.Known(service) {
		if !slices.Contains(f.Exceptions, id) {
			v.hints.Cleared(health.HintKey{HintService: service, Endpoint: id}, now.Add(-age), now)
		}
	}
}

func (v *view) readmitOwn(s share, f federation.SummaryFact, seen time.Time, snap *mesh.Snapshot, now time.Time) {
	svc := snap.Service(s.service)
	if svc == nil {
		return
	}
	port, _ := svc.Port(s.port)
	for _, w := range snap.Members(svc, v.network) {
		k := health.Key{Endpoint: w.Endpoint, Port: w.Target(port)}
		v.mu.Lock()
		edge := health.NoEdge
		if !slices.Contains(f.Exceptions, w.Endpoint) && v.failed[k].Before(seen) && v.pods.State(k, now).Phase != health.Healthy {
			edge = v.pods.Readmit(k, now)
		}
		v.mu.Unlock()
		v.edge(edge, "endpoint", nil, func(e *zerolog.Event) {
			e.Str("network", w.Network).Uint16("port", k.Port).Stringer("endpoint", w.Endpoint).Str("workload", w.UID)
		})
	}
}

func (v *view) edge(e health.Edge, scope string, f *failure, about func(*zerolog.Event)) {
	if e == health.NoEdge {
		return
	}
	name, reason := "readmitted", "answers"
	if e == health.EdgeEjected {
		name, reason = "ejected", "failed"
		if f != nil {
			reason = f.reason
		}
	}
	v.metrics.edges.WithLabelValues(scope, name).Inc()
	v.log.Info().Str("edge", name).Str("scope", scope).Func(about).Str("reason", reason).Str("source", "own").Msg("outlier changed")
}

func (v *view) noteDazed(authority string, dazed bool) {
	if dazed {
		v.metrics.dazed.Inc()
	}
	if v.dazed[authority] == dazed {
		return
	}
	if dazed {
		v.dazed[authority] = true
		v.log.Warn().Str("service", authority).Msg("dazed: no endpoint is healthy, all are used alike")
		return
	}
	delete(v.dazed, authority)
	v.log.Info().Str("service", authority).Msg("no longer dazed")
}

// done closes the books on p: its connection, or its attempt, is over.
func (v *view) done(p pick) {
	v.mu.Lock()
	defer v.mu.Unlock()
	var keys []any
	if p.pod != nil {
		keys = []any{p.podKey()}
	} else {
		keys = []any{p.share, gatewayKey(p.gateway)}
		if p.remote != nil {
			keys = append(keys, p.remoteKey())
		}
	}
	for _, k := range keys {
		if v.open[k]--; v.open[k] <= 0 {
			delete(v.open, k)
		}
	}
}
