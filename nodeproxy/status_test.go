package nodeproxy

import (
	"strings"
	"testing"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/rs/zerolog"

	"github.com/isthmus-mesh/isthmus/federation"
	"github.com/isthmus-mesh/isthmus/federation/healthstream"
	"github.com/isthmus-mesh/isthmus/internal/answer"
	"github.com/isthmus-mesh/isthmus/mesh"
)

// What is said of the pods of another network helps nobody if discovery leaves no way
// there.
func TestAStatusRowSaysWhereNoWayLeads(t *testing.T) {
	known := func(string, string) (healthstream.Known, bool) {
		return healthstream.Known{Summaries: map[uint16]federation.SummaryFact{80: {Ready: 2, Healthy: 2}}}, true
	}
	cfg := DefaultConfig()
	cfg.Node, cfg.Network, cfg.Federation.Health = "east-1", "east", true
	v := newView(cfg, known, func(string) {}, zerolog.Nop(), NewMetrics(prometheus.NewRegistry()))
	for name, c := range map[string]struct {
		scope    mesh.Scope
		drained  []bool // each gateway of west
		networks []string
		want     string // of the row of west; "none": it has none
	}{
		"one takes connections":      {mesh.ScopeGlobal, []bool{true, false}, []string{"west"}, ""},
		"all are drained":            {mesh.ScopeGlobal, []bool{true, true}, []string{"west"}, "unreached: drained"},
		"there is none":              {mesh.ScopeGlobal, nil, []string{"west"}, "unreached: discovery has none"},
		"of another segment":         {mesh.ScopeSegment, []bool{false}, []string{"west"}, "not exported: the scope of the service (segment) does not lead to network west"},
		"not exported":               {"", []bool{false}, []string{"west"}, "not exported: the scope of the service (cluster) does not lead to network west"},
		"not exported, with its own": {"", []bool{false}, []string{"east", "west"}, "none"},
	} {
		svc := &mesh.Service{Hostname: "hello", Scope: c.scope, Ports: []mesh.Port{{Service: 80, Target: 8080}}}
		p := mesh.Parts{Networks: []mesh.Network{{Name: "east", Segment: "a"}, {Name: "west", Segment: "b"}}, Services: []*mesh.Service{svc}, Members: map[string][]string{}}
		for _, drained := range c.drained {
			p.Gateways = append(p.Gateways, &mesh.Gateway{Name: "gw-" + string(rune('1'+len(p.Gateways))), Network: "west", Drained: drained})
		}
		for _, n := range c.networks {
			p.Workloads = append(p.Workloads, &mesh.Workload{UID: n, Network: n, Endpoint: mesh.EndpointIDOf(n, n)})
			p.Members["hello"] = append(p.Members["hello"], n)
		}
		snap := mesh.NewSnapshot(1, p)
		row, ok := v.row(snap, snap.Service("hello"), "west", 80, true)
		got := row.Why
		switch {
		case !ok:
			got = "none"
		case row.Unreached != "":
			got = strings.TrimPrefix(got+"; unreached: "+row.Unreached, "; ")
		}
		if got != c.want {
			t.Errorf("%s: %q, want %q", name, got, c.want)
		}
		if well := (&answer.Status{Services: []answer.Row{row}}).Well(); ok && well != (c.want == "") {
			t.Errorf("%s: well: %v", name, well)
		}
	}
}
