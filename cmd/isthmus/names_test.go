package main

import (
	"testing"

	"github.com/isthmus-mesh/isthmus/health/standing"
	"github.com/isthmus-mesh/isthmus/internal/answer"
	"github.com/isthmus-mesh/isthmus/mesh"
)

// A node proxy that knows west by its share alone calls its pods by their IDs; a gateway
// of west, who is asked as well, knows their names, and what both believe is compared.
func TestPodsOfAShareHaveTheNamesThatTheirGatewayGivesThem(t *testing.T) {
	const sick, well = "west/demo/hello-1", "west/demo/hello-2"
	id := mesh.EndpointIDOf("west", sick).String()
	out := []standing.Cause{{Word: standing.HeldReported}}
	client := answer.Explanation{Process: "node proxy east-1", Network: "east", Candidates: []answer.Verdict{
		{Verdict: standing.Verdict{Kind: "share", Name: "west", In: true, Endpoints: []standing.Cause{{Word: standing.HeldReported, Endpoint: id}}}},
	}}
	gateway := answer.Explanation{Process: "gateway gw-1", Network: "west", Candidates: []answer.Verdict{
		{Verdict: standing.Verdict{Kind: "pod", Name: sick, Port: 8080, Causes: out}},
		{Verdict: standing.Verdict{Kind: "pod", Name: well, Port: 8080, In: true}},
	}}
	both := []answer.Explanation{client, gateway}
	nameExplained(both)
	if got := both[0].Candidates[0].Endpoints[0]; got.Endpoint != sick || got.Port != 8080 {
		t.Errorf("the share's endpoint is called %q, port %d; want %s, port 8080", got.Endpoint, got.Port, sick)
	}
	if d := differences(both[0], both[1]); len(d) > 0 {
		t.Errorf("both hold %s as out, and %s as in; differences: %q", sick, well, d)
	}

	row := func(endpoint string) []answer.Row {
		return []answer.Row{{Row: standing.Row{Network: "west", Out: []standing.Out{{Endpoint: endpoint}}}}}
	}
	list := []answer.Status{{Network: "east", Services: row(id)}, {Network: "west", Services: row(sick)}}
	nameStatus(list)
	if got := list[0].Services[0].Out[0].Endpoint; got != sick {
		t.Errorf("status calls it %q, want %s", got, sick)
	}
}
