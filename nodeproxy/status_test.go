package nodeproxy

import (
	"strings"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/rs/zerolog"

	"github.com/isthmus-mesh/isthmus/federation"
	"github.com/isthmus-mesh/isthmus/federation/healthstream"
	"github.com/isthmus-mesh/isthmus/federation/record"
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
		"all are drained":            {mesh.ScopeGlobal, []bool{true, true}, []string{"west"}, "draining"},
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
		case row.Draining:
			got = "draining"
		}
		if got != c.want {
			t.Errorf("%s: %q, want %q", name, got, c.want)
		}
		if well := (&answer.Status{Services: []answer.Row{row}}).Well(); ok && well != (c.want == "") {
			t.Errorf("%s: well: %v", name, well)
		}
	}
}

// Connections go by the gateways that are heard: own evidence may never say of another one
// that it is away.
func TestAStatusNamesTheGatewaysOfAnotherNetworkThatNobodyHears(t *testing.T) {
	cfg := DefaultConfig()
	cfg.Node, cfg.Network = "east-1", "east"
	v := newView(cfg, nil, func(string) {}, zerolog.Nop(), NewMetrics(prometheus.NewRegistry()))
	fell := time.Unix(1e9, 0)
	live := func(gateway, group string) healthstream.Delivery {
		return healthstream.Delivery{Gateway: gateway, Group: group, Live: true}
	}
	for name, c := range map[string]struct {
		told    []healthstream.Delivery
		drained bool
		out     []answer.Gateway
		want    string
	}{
		"both are heard":                     {told: []healthstream.Delivery{live("gw-1", ""), live("gw-2", "")}},
		"one is not":                         {told: []healthstream.Delivery{live("gw-1", "")}, want: "gw-2"},
		"one fell silent":                    {told: []healthstream.Delivery{live("gw-1", "a"), {Gateway: "gw-2", Group: "a", Instance: record.Instance{2}}}, want: "gw-2 silent"},
		"it may have nothing to say":         {told: []healthstream.Delivery{live("gw-1", "a")}},
		"discovery drains it":                {told: []healthstream.Delivery{live("gw-1", "")}, drained: true},
		"own evidence says more":             {told: []healthstream.Delivery{live("gw-1", "")}, out: []answer.Gateway{{Network: "west", Name: "gw-2"}}},
		"nobody is heard, so nobody is told": {told: []healthstream.Delivery{}},
	} {
		snap := mesh.NewSnapshot(1, mesh.Parts{Networks: []mesh.Network{{Name: "east"}, {Name: "west"}}, Gateways: []*mesh.Gateway{
			{Name: "gw-1", Network: "west"}, {Name: "gw-2", Network: "west", Drained: c.drained}}})
		h := heardOf{}.and(healthstream.Known{Deliveries: c.told, Silent: map[record.Instance]time.Time{{2}: fell}})
		got := ""
		for _, g := range v.unheard(snap, map[string]heardOf{"west": h}, c.out) {
			if got += g.Name; g.Since.Equal(fell) {
				got += " silent"
			}
		}
		if got != c.want {
			t.Errorf("%s: %q, want %q", name, got, c.want)
		}
	}
}
