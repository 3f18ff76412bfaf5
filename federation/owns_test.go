package federation

import (
	"errors"
	"strings"
	"testing"

	"github.com/spiffe/go-spiffe/v2/spiffeid"

	"github.com/isthmus-mesh/isthmus/mesh"
)

func TestOwns(t *testing.T) {
	id := func(s string) spiffeid.ID {
		return spiffeid.RequireFromString("spiffe://cluster.local/ns/isthmus-system/sa/" + s)
	}
	gateways := []*mesh.Gateway{
		{Name: "gw-1", Network: "west", Identity: id("gateway-west")},
		{Name: "gw-2", Network: "west", Identity: id("gateway-west")},
		{Name: "gw-1", Network: "north", Identity: id("gateway-north")},
		{Name: "gw-3", Network: "west"},
	}
	about := func(network, origin string) Record {
		r := summary(origin, 1, 1, 8, 0)
		r.Network = network
		return r
	}
	for _, c := range []struct {
		name   string
		signer spiffeid.ID
		record Record
		want   string
	}{
		{"own network", id("gateway-west"), about("west", "west/gw-2"), ""},
		{"other network", id("gateway-north"), about("west", "north/gw-1"), "only for its own network"},
		{"in a sibling network's name", id("gateway-north"), about("west", "west/gw-1"), "not that gateway"},
		{"unknown gateway", id("gateway-west"), about("west", "west/gw-9"), "not that gateway"},
		{"a node proxy", id("nodeproxy"), about("west", "west/gw-1"), "no gateway that discovery knows"},
		{"nobody", spiffeid.ID{}, about("west", "west/gw-3"), "no gateway that discovery knows"},
	} {
		err := Owns(c.signer, c.record, gateways)
		var foreign *ForeignError
		if (err == nil) != (c.want == "") || err != nil && (!errors.As(err, &foreign) || !strings.Contains(err.Error(), c.want)) {
			t.Errorf("%s: got %v, want %q", c.name, err, c.want)
		}
	}
}

func TestOwnsEndpoint(t *testing.T) {
	report := Record{Network: "west", Origin: Origin{"west/node-1", 1}, Sequence: 1, Endpoint: &EndpointFact{Endpoint: 7, Port: 80}}
	elsewhere, disguised, poisonous := report, report, summary("west/node-1", 1, 1, 0, 0)
	elsewhere.Network, disguised.Origin.Name = "north", "west/node-2"
	local := func(id mesh.EndpointID) bool { return id == 7 }
	remote := func(mesh.EndpointID) bool { return false }
	for _, c := range []struct {
		name   string
		record Record
		onNode func(mesh.EndpointID) bool
		want   string
	}{
		{"own endpoint", report, local, ""},
		{"trusting", report, nil, ""},
		{"other node's endpoint", report, remote, "is not on node"},
		{"other network", elsewhere, nil, "is on network"},
		{"other node's name", disguised, nil, "may publish only as"},
		{"summary", poisonous, nil, "endpoints only"},
	} {
		err := OwnsEndpoint("west", "node-1", c.record, c.onNode)
		if (err == nil) != (c.want == "") || err != nil && !strings.Contains(err.Error(), c.want) {
			t.Errorf("%s: got %v, want %q", c.name, err, c.want)
		}
	}
}

func TestDefault(t *testing.T) {
	for _, c := range []struct {
		name   string
		record Record
		want   bool
	}{
		{"all healthy", summary("o", 1, 1, 10, 0), true},
		{"one out", summary("o", 1, 1, 9, 0), false},
		{"draining", Record{Summary: &SummaryFact{Draining: true}}, false},
		{"healthy endpoint", Record{Endpoint: &EndpointFact{Health: 1}}, true},
		{"weak endpoint", Record{Endpoint: &EndpointFact{Health: 0.5}}, false},
		{"ejected endpoint", Record{Endpoint: &EndpointFact{State: Ejected, Health: 1}}, false},
	} {
		if got := c.record.Default(); got != c.want {
			t.Errorf("%s: got %v, want %v", c.name, got, c.want)
		}
	}
}
