package gateway

import (
	"strconv"
	"time"

	"github.com/isthmus-mesh/isthmus/discovery/file"
	"github.com/isthmus-mesh/isthmus/federation/peer"
	"github.com/isthmus-mesh/isthmus/health"
	"github.com/isthmus-mesh/isthmus/identity"
	"github.com/isthmus-mesh/isthmus/mesh"
)

// state is the admin dump: what decisions are made from.
type state struct {
	Name       string            `json:"name"`
	Network    string            `json:"network"`
	Revision   uint64            `json:"revision"`
	Discovery  file.Status       `json:"discovery"`
	Identities []identity.Status `json:"identities"`
	Draining   bool              `json:"draining"`
	Pods       []belief          `json:"pods"`
	Nodes      []string          `json:"nodes"`
	Members    []string          `json:"members"`
	Records    []peer.View       `json:"records"`
	Sessions   int               `json:"sessions"`
}

// belief is what this gateway believes about one pod.
type belief struct {
	Endpoint  string    `json:"endpoint"`
	Workload  string    `json:"workload"`
	State     string    `json:"state"` // by discovery
	Hop       string    `json:"hop"`
	HopHealth float64   `json:"hopHealth"`
	Until     time.Time `json:"hopEjectedUntil,omitzero"`
	Open      int       `json:"open"` // connections now, over all ports
	// Ports maps each target port of the pod's services to what the witness
	// beside it says; unknown is usable.
	Ports map[string]string `json:"ports"`
}

func (g *Gateway) dump() any {
	snap := g.store.Current()
	s := state{Name: g.cfg.Name, Network: g.cfg.Network, Revision: snap.Revision, Discovery: g.watcher.Status(), Identities: g.ids.Status(), Draining: g.draining.Load(),
		Pods: g.backends.dump(snap, time.Now()), Records: g.ledger.Snapshot(), Nodes: []string{}, Members: []string{}}
	if g.fed != nil {
		s.Nodes, s.Members = g.nodes.Nodes(), g.fed.Members()
	}
	s.Sessions = g.sessions.Len()
	return s
}

func (b *backends) dump(s *mesh.Snapshot, now time.Time) []belief {
	out := []belief{}
	for _, w := range s.Workloads() {
		if w.Network != b.network {
			continue
		}
		b.mu.Lock()
		hop := b.hops.State(w.Endpoint, now)
		b.mu.Unlock()
		line := belief{Endpoint: w.Endpoint.String(), Workload: w.UID, State: w.State.String(), Hop: hop.Phase.String(),
			HopHealth: hop.Health, Until: hop.Until, Ports: map[string]string{}}
		for _, svc := range s.ServicesOf(w.UID) {
			for _, p := range svc.Ports {
				witness, open := b.dumpPort(w, p.Target)
				line.Ports[strconv.Itoa(int(p.Target))] = witness
				line.Open += open
			}
		}
		out = append(out, line)
	}
	return out
}

func (b *backends) dumpPort(w *mesh.Workload, target uint16) (witness string, open int) {
	witness = "unknown"
	if f, _, ok := b.facts.Endpoint(b.network, w.Endpoint, target); ok {
		witness = f.State.String()
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	return witness, b.open[health.Key{Endpoint: w.Endpoint, Port: target}]
}
