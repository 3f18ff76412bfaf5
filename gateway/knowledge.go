package gateway

import (
	"context"
	"fmt"
	"time"

	"github.com/spiffe/go-spiffe/v2/spiffeid"

	"github.com/isthmus-mesh/isthmus/federation"
	"github.com/isthmus-mesh/isthmus/federation/gossip"
	"github.com/isthmus-mesh/isthmus/federation/healthstream"
	"github.com/isthmus-mesh/isthmus/federation/peer"
	"github.com/isthmus-mesh/isthmus/health"
	"github.com/isthmus-mesh/isthmus/mesh"
)

// federate builds this gateway's two ways of hearing and telling.
func (g *Gateway) federate() error {
	var err error
	if g.node, err = g.cfg.nodeID(); err != nil {
		return err
	}
	advertise := g.cfg.Federation.Advertise
	if !advertise.IsValid() {
		advertise = g.self.Federation
	}
	metrics := peer.NewMetrics(g.registry)
	g.nodes = healthstream.NewServer(healthstream.ServerConfig{
		Name: g.cfg.Name, Network: g.cfg.Network, Ledger: g.ledger, Log: g.log, Metrics: metrics,
		Authorize: func(id spiffeid.ID, _ string) error { return g.mayReport(id) },
		OnNode: func(node string, id mesh.EndpointID) bool {
			w := g.store.Current().WorkloadByEndpoint(id)
			return w != nil && w.Network == g.cfg.Network && w.Node == node
		},
		OnReport: g.takeReport,
		OnDetach: func(name string) { g.backends.left(g.store.Current(), name) },
	})
	g.fed, err = gossip.New(gossip.Config{
		Name: g.cfg.Name, Network: g.cfg.Network, Self: g.self.Identity, Incarnation: g.origin.Incarnation,
		Identity: g.ids, Peers: g.peers, Advertise: advertise, Ledger: g.ledger, Log: g.log, Metrics: metrics,
	})
	return err
}

func (g *Gateway) mayReport(id spiffeid.ID) error {
	if id != g.node {
		return fmt.Errorf("identity %s may not report health: want %s", id, g.node)
	}
	return nil
}

// peers lists every other gateway of every network.
func (g *Gateway) peers() []*mesh.Gateway {
	snap := g.store.Current()
	var out []*mesh.Gateway
	for _, n := range snap.GatewayNetworks() {
		for _, x := range snap.Gateways(n) {
			if n != g.cfg.Network || x.Name != g.cfg.Name {
				out = append(out, x)
			}
		}
	}
	return out
}

// publish tells every network.
func (g *Gateway) publish(r ...federation.Record) {
	if g.fed != nil && len(r) > 0 {
		g.fed.Publish(r...)
	}
}

// tellNodes puts records into the ledger, from which this network's node
// proxies are told, and no further. They have an origin of their own, because
// the federation counts the sequence of what it publishes itself.
func (g *Gateway) tellNodes(r ...federation.Record) {
	if g.nodes == nil {
		return
	}
	for i := range r {
		r[i].Origin = g.origin
		r[i].Sequence = g.sequence.Add(1)
	}
	g.ledger.MergeAll(r)
}

// takeReport takes in what a node proxy of this network newly reports about its own
// pods; the ledger has it already.
func (g *Gateway) takeReport(_ string, records []federation.Record) {
	snap := g.store.Current()
	for _, r := range records {
		w := snap.WorkloadByEndpoint(r.Endpoint.Endpoint)
		if w == nil {
			continue // gone since it was checked
		}
		if g.backends.reported(health.Key{Endpoint: r.Endpoint.Endpoint, Port: r.Endpoint.Port}, r.Endpoint.State == federation.Healthy) {
			g.edge(w, *r.Endpoint, "answers")
		}
		g.summary.touched(w, time.Now())
	}
}

// watchLedger takes what the ledger no longer holds, because nobody has vouched for
// it in time or because its node proxy has started anew, as the change that it is:
// a pod of which nothing is known is usable.
func (g *Gateway) watchLedger(ctx context.Context) {
	sub := g.ledger.OnChange()
	defer sub.Close()
	for {
		select {
		case <-ctx.Done():
			return
		case <-sub.C():
		}
		subjects, all := sub.Take()
		if all {
			subjects = g.backends.sickSubjects()
		}
		for _, k := range subjects {
			g.expired(k)
		}
	}
}

// expired readmits the pod and port of k if nothing is known of them any more.
func (g *Gateway) expired(k federation.Key) {
	if k.Kind != federation.KindEndpoint || k.Network != g.cfg.Network {
		return
	}
	w := g.listed(k.Endpoint)
	if w == nil {
		return // forget has seen to it
	}
	if g.backends.expired(health.Key{Endpoint: k.Endpoint, Port: k.Port}) {
		g.edge(w, federation.EndpointFact{Endpoint: k.Endpoint, Port: k.Port}, "expired")
		g.summary.touched(w, time.Now())
	}
}

// edge notes that the pod w changed; readmitted is why, if it came back.
func (g *Gateway) edge(w *mesh.Workload, f federation.EndpointFact, readmitted string) {
	edge, reason := "ejected", f.Reason
	if f.State == federation.Healthy {
		edge, reason = "readmitted", readmitted
	}
	g.metrics.edges.WithLabelValues("endpoint", edge).Inc()
	e := g.log.Info().Str("edge", edge).Str("scope", "endpoint").Str("network", w.Network).Uint16("port", f.Port).
		Stringer("endpoint", f.Endpoint).Str("workload", w.UID).Str("reason", reason).Str("source", "report")
	if svcs := g.store.Current().ServicesOf(w.UID); len(svcs) > 0 {
		e = e.Str("service", svcs[0].Hostname)
	}
	e.Msg("outlier changed")
}
