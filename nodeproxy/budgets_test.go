package nodeproxy

import (
	"net/netip"
	"testing"

	"github.com/isthmus-mesh/isthmus/discovery"
	"github.com/isthmus-mesh/isthmus/internal/retrybudget"
)

func TestTheRetryBudgetsOfWhatIsGoneAreForgotten(t *testing.T) {
	c := discovery.DefaultConfig()
	c.Networks = []discovery.Network{{Name: "west"}}
	c.Services = []discovery.Service{{Name: "hello", Ports: []discovery.ServicePort{{Name: "a", Port: 80, TargetPort: 8080}}}}
	c.Workloads = []discovery.Workload{{UID: "y", Network: "west", Node: "west-1", Addresses: []netip.Addr{netip.MustParseAddr("10.1.0.2")}}}
	with, problems := discovery.Build(1, c)
	if problems != nil {
		t.Fatal(problems)
	}
	p := newTestProxy(t, with)
	self := p.self.String()
	service, pod, other := self+" hello.default.svc.cluster.local:80", self+" y", "spiffe://cluster.local/ns/default/sa/gone y"
	p.budget = retrybudget.New(1, 0)
	spent := func(key string) bool { return !p.budget.Spend(key, retrybudget.AfterRefusal) }
	for _, key := range []string{service, pod, other} {
		if spent(key) || !spent(key) {
			t.Fatalf("%s has another budget than one repeat", key)
		}
	}
	p.rediscover(t.Context())
	if !spent(service) || !spent(pod) {
		t.Error("a snapshot that changes nothing gives new repeats")
	}
	if spent(other) {
		t.Error("an identity that no pod of this node has keeps its budget")
	}
	p.store.Swap(listing(t, "10.0.0.1"))
	p.rediscover(t.Context())
	if spent(service) || spent(pod) {
		t.Error("what is gone keeps its budget")
	}
}
