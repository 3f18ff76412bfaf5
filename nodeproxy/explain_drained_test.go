package nodeproxy

import (
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/rs/zerolog"

	"github.com/isthmus-mesh/isthmus/federation/healthstream"
	"github.com/isthmus-mesh/isthmus/health/standing"
	"github.com/isthmus-mesh/isthmus/internal/answer"
	"github.com/isthmus-mesh/isthmus/mesh"
	"github.com/isthmus-mesh/isthmus/route"
)

// A gateway that is drained takes no part in any plan: explain names it all the same, or
// whoever looks for it thinks that this process has never heard of it.
func TestExplainNamesAGatewayThatIsDrained(t *testing.T) {
	cfg := DefaultConfig()
	cfg.Node, cfg.Network = "east-1", "east"
	v := newView(cfg, func(string, string) (healthstream.Known, bool) { return healthstream.Known{}, false }, func(string) {}, zerolog.Nop(), NewMetrics(prometheus.NewRegistry()))
	snap := mesh.NewSnapshot(1, mesh.Parts{Networks: []mesh.Network{{Name: "east"}, {Name: "west"}}, Gateways: []*mesh.Gateway{{Name: "gw-1", Network: "west"}, {Name: "gw-2", Network: "west", Drained: true}}})
	x := answer.Verdict{Verdict: standing.Verdict{Kind: "share", Name: "west", In: true}}
	v.detail(&x, snap, &route.Plan{Authority: "hello:80"}, time.Now())
	var got []string
	for _, g := range x.Gateways {
		got = append(got, g.Sentence(time.Now()))
	}
	if len(got) != 1 || got[0] != "gw-2 out: drained" {
		t.Errorf("%q, want that gw-2 is drained", got)
	}
}
