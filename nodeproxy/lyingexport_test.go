package nodeproxy

import (
	"errors"
	"net/netip"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/rs/zerolog"
	"github.com/spiffe/go-spiffe/v2/spiffeid"

	"github.com/isthmus-mesh/isthmus/discovery"
	"github.com/isthmus-mesh/isthmus/federation"
	"github.com/isthmus-mesh/isthmus/federation/healthstream"
	"github.com/isthmus-mesh/isthmus/federation/record"
	"github.com/isthmus-mesh/isthmus/route"
)

// A compromised gateway of the own network tells its node proxies of exports that no
// network has made: of a service of the mesh with other identities and ports, and of one
// that there is not. Which services other networks have, at which gateways, and who may
// answer, is the word of discovery, and of what is proven; what the gateway gets is the
// weight. With proofs, see TestAnExportThatTheOwnGatewayForgesOrReplaysLeadsNowhere.
func TestAnExportThatTheOwnGatewayInventsLeadsNowhere(t *testing.T) {
	c := discovery.DefaultConfig()
	c.Networks = []discovery.Network{{Name: "east"}, {Name: "west"}}
	c.Gateways = []discovery.Gateway{{Name: "gw-1", Network: "west", ServiceAccount: "isthmus-system/gateway-west", Address: netip.MustParseAddrPort("10.2.0.1:15008")}}
	c.Services = []discovery.Service{{Name: "hello", Global: true, Ports: []discovery.ServicePort{{Name: "a", Port: 80, TargetPort: 8080}}}}
	c.Workloads = []discovery.Workload{
		{UID: "shop", Network: "east", Node: "east-1", Addresses: []netip.Addr{netip.MustParseAddr("10.1.0.2")}},
		{UID: "hello-1", Network: "west", Node: "west-1", ServiceAccount: "hello", Addresses: []netip.Addr{netip.MustParseAddr("10.2.0.2")}, Services: []string{"hello.default.svc.cluster.local"}},
	}
	snap, problems := discovery.Build(1, c)
	if problems != nil {
		t.Fatal(problems)
	}
	evil := spiffeid.RequireFromString("spiffe://cluster.local/ns/default/sa/evil")
	invented := func(_, service string) (healthstream.Known, bool) {
		d := healthstream.Delivery{Instance: record.Instance{1}, Gateway: "evil", Live: true, Health: map[uint16]record.Health{},
			Export: &record.Export{Name: "hello", Namespace: "default", Identities: []spiffeid.ID{evil}, Capacity: record.MaxCapacity}}
		k := healthstream.Known{Summaries: map[uint16]federation.SummaryFact{}}
		for _, port := range []uint16{80, 443} {
			d.Export.Ports = append(d.Export.Ports, record.Port{Port: port})
			d.Health[port] = record.Health{Ready: 9, Healthy: 9, ReadyCapacity: record.MaxCapacity, HealthyCapacity: record.MaxCapacity}
			k.Summaries[port] = federation.SummaryFact{Service: service, Port: port, Ready: 9, Healthy: 9, ReadyCapacity: record.MaxCapacity, HealthyCapacity: record.MaxCapacity}
		}
		k.Deliveries = []healthstream.Delivery{d}
		return k, true
	}
	cfg := DefaultConfig()
	cfg.Network = "east"
	cfg.Federation.Health, cfg.OutlierDetection.Scope = true, ScopeEndpoint
	v := newView(cfg, invented, func(string) {}, zerolog.Nop(), NewMetrics(prometheus.NewRegistry()))
	flow := flowTo("hello.default.svc.cluster.local", 80)
	flow.Source = snap.Workload("shop")
	d, err := v.Resolve(snap, flow, time.Now())
	if err != nil {
		t.Fatal(err)
	}
	for range 100 {
		choice, f := v.choose(d, tried{}, nil, time.Now())
		if f != nil {
			t.Fatal(f)
		}
		if len(choice.Expect) != 1 || choice.Expect[0] != snap.Workload("hello-1").Identity || choice.Gateway.Name != "gw-1" || choice.Gateway.Address.String() != "10.2.0.1:15008" {
			t.Fatalf("%v may answer by way of %+v; want hello by way of gw-1", choice.Expect, choice.Gateway)
		}
		v.done(&choice)
	}
	for host, port := range map[string]uint16{"hello.default.svc.cluster.local": 443, "invented.default.svc.cluster.local": 80} {
		flow := flowTo(host, port)
		flow.Source = snap.Workload("shop")
		var refused *route.Error
		if d, err := v.Resolve(snap, flow, time.Now()); !errors.As(err, &refused) {
			t.Errorf("%s:%d leads to %+v, %v; want it refused", host, port, d.Plan(), err)
		}
	}
}
