package gateway

import (
	"context"
	"slices"
	"strconv"
	"time"

	"github.com/isthmus-mesh/isthmus/discovery/excerpt"
	"github.com/isthmus-mesh/isthmus/federation"
	"github.com/isthmus-mesh/isthmus/federation/healthstream"
	"github.com/isthmus-mesh/isthmus/federation/ledger"
	"github.com/isthmus-mesh/isthmus/federation/peer"
	fedrecord "github.com/isthmus-mesh/isthmus/federation/record"
	"github.com/isthmus-mesh/isthmus/mesh"
)

// listenToNodes builds this gateway's end of the streams of its network's node
// proxies.
func (g *Gateway) listenToNodes(metrics *peer.Metrics) (*healthstream.Server, error) {
	account, err := g.cfg.nodeAccount()
	if err != nil {
		return nil, err
	}
	observers, err := g.observers()
	if err != nil {
		return nil, err
	}
	g.excerpts = excerpt.NewIndex(g.cfg.Network, g.store.Current())
	if g.kube != nil {
		g.excerpts.AwaitCluster()
	}
	return healthstream.NewServer(healthstream.ServerConfig{
		Excerpts: g.excerpts, Offer: g.offer,
		Name: g.cfg.Name, Network: g.cfg.Network, Log: g.log, Metrics: metrics,
		Prover:  g.prover(account),
		Place:   g.place,
		Source:  shares{g},
		Settled: g.settled,
		Holds:   g.holds,

		Observers: observers,
		OnEdge:    g.takeEdges,
		OnDetach: func(name string) {
			if !g.handover.yields() { // else this process has sent it away
				g.backends.left(g.store.Current(), name)
			}
		},
	}), nil
}

// place says on which node of this network a pod is.
func (g *Gateway) place(id mesh.EndpointID) (node string, ok bool) {
	if w := g.listed(id); w != nil {
		return w.Node, true
	}
	return "", false
}

// witnessed answers what is believed of a port by the word of the node proxy beside
// it.
func (g *Gateway) witnessed(network string, id mesh.EndpointID, port uint16) (federation.EndpointFact, time.Duration, bool) {
	if g.nodes == nil {
		return federation.EndpointFact{}, 0, false
	}
	return g.nodes.Endpoint(network, id, port)
}

// takeEdges takes in what has changed in the word of this network's node proxies. A
// pod of which nothing is known any more is usable. A port that no service leads to is
// nobody's: nothing is kept of it, or said.
func (g *Gateway) takeEdges(edges []healthstream.Edge) {
	snap := g.store.Current()
	var touched []*mesh.Workload
	for _, e := range edges {
		readmitted := "answers"
		if !e.Known {
			e.Fact.Endpoint, e.Fact.Port, readmitted = e.Endpoint, e.Port, "expired"
		}
		w := g.listed(e.Endpoint)
		if w == nil {
			w = &mesh.Workload{} // gone: it takes along what was said, lest that be held against the next one of its name
		} else if e.Fact.State != federation.Healthy && !leadsTo(snap, w, e.Port) {
			continue
		}
		if g.backends.reported(e.Fact.EndpointFact, w.Node) && w.Endpoint != 0 {
			g.edge(w, e.Fact.EndpointFact, readmitted)
		}
		if w.Endpoint != 0 && (len(touched) == 0 || touched[len(touched)-1] != w) {
			touched = append(touched, w)
		}
	}
	g.deliveries.touched(time.Now(), touched...)
}

// leadsTo reports whether any port of w's services is this one of w.
func leadsTo(snap *mesh.Snapshot, w *mesh.Workload, port uint16) bool {
	for _, svc := range snap.ServicesOf(w.UID) {
		if slices.ContainsFunc(svc.Ports, func(p mesh.Port) bool { return w.Target(p) == port }) {
			return true
		}
	}
	return false
}

// edgeEvery is how often a line says of one port that it was ejected, or readmitted,
// and of all ports of one node together beyond the first 64 of them.
const edgeEvery = 10 * time.Second

// edge notes that the pod w changed; readmitted is why, if it came back.
func (g *Gateway) edge(w *mesh.Workload, f federation.EndpointFact, readmitted string) {
	edge, reason := "ejected", f.Reason
	if f.State == federation.Healthy {
		edge, reason = "readmitted", readmitted
	}
	g.metrics.edges.WithLabelValues("endpoint", edge).Inc()
	e := g.edges.Sample(g.log.Info(), w.Node, edge+" "+w.UID+":"+strconv.Itoa(int(f.Port)))
	if e == nil {
		return
	}
	e.Str("edge", edge).Str("scope", "endpoint").Str("network", w.Network).Uint16("port", f.Port).
		Stringer("endpoint", f.Endpoint).Str("workload", w.UID).Str("reason", reason).Str("source", "report")
	if svcs := g.store.Current().ServicesOf(w.UID); len(svcs) > 0 {
		e = e.Str("service", svcs[0].Hostname)
	}
	e.Msg("outlier changed")
}

// tellFollowers tells the node proxies that follow a service what has changed in it
// on other networks.
func (g *Gateway) tellFollowers(ctx context.Context) {
	sub := g.fed.Subscribe()
	defer sub.Close()
	for {
		select {
		case <-ctx.Done():
			return
		case <-sub.C():
		}
		var services, exports []string
		all := false
		for _, c := range sub.Take() {
			if c.Network == g.cfg.Network { // of the own one this gateway tells its own word
				continue
			}
			all = all || c.All || c.Key.Service == ""
			services = append(services, c.Key.Service)
			if c.Key.Kind == fedrecord.KindExport {
				exports = append(exports, c.Key.Service)
			}
		}
		if all {
			g.nodes.ChangedAll()
			g.nodes.ExportedAll()
			continue
		}
		slices.Sort(services)
		g.nodes.Changed(slices.Compact(services)...)
		slices.Sort(exports)
		g.nodes.Exported(slices.Compact(exports)...)
	}
}

// shares is what this gateway tells its node proxies: of other networks what their
// gateways have written, and of its own what it can deliver itself. Its siblings
// tell theirs.
type shares struct{ *Gateway }

// holds are the other networks of which this gateway holds all that a live instance says
// that knows everything, sorted.
func (g *Gateway) holds() (networks []string) {
	if g.fed == nil {
		return nil // New has not come that far
	}
	g.fed.Read(func(l *ledger.Ledger) {
		for _, n := range l.Networks() {
			if n != g.cfg.Network && l.Synchronised(n) {
				networks = append(networks, n)
			}
		}
	})
	return networks
}

// Shares implements [healthstream.Source].
func (g shares) Shares(service string) (out []healthstream.Share) {
	if g.fed == nil {
		return nil // New has not come that far
	}
	g.fed.Read(func(l *ledger.Ledger) {
		for _, w := range l.Words(service) {
			if w.Network == g.cfg.Network {
				continue
			}
			if len(out) == 0 || out[len(out)-1].Network != w.Network {
				out = append(out, healthstream.Share{Network: w.Network})
			}
			s := &out[len(out)-1]
			s.Instances = append(s.Instances, healthstream.Voice{Instance: w.Instance, Gateway: w.Gateway, Group: w.Group, Draining: w.Draining, Live: w.Live, Entries: w.Entries,
				Certificate: w.Certificate, Introduction: w.Introduction})
		}
	})
	own := healthstream.Voice{Instance: g.fed.Instance(), Gateway: g.cfg.Name, Group: g.cfg.Federation.Group, Draining: g.givesWay(), Live: true}
	for _, r := range g.deliveries.of(service) {
		if e, err := fedrecord.Encode(r); err == nil {
			e.Sequence = 1 // nobody else passes it on
			own.Entries = append(own.Entries, e)
		}
	}
	if len(own.Entries) > 0 {
		out = append(out, healthstream.Share{Network: g.cfg.Network, Instances: []healthstream.Voice{own}})
	}
	return out
}
