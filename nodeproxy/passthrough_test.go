package nodeproxy

import (
	"encoding/json"
	"net/http/httptest"
	"net/netip"
	"strings"
	"testing"

	"github.com/isthmus-mesh/isthmus/discovery"
	"github.com/isthmus-mesh/isthmus/internal/answer"
	"github.com/isthmus-mesh/isthmus/nodeproxy/pods"
)

// With scope vips a connection to an address that is none of the mesh's never comes here: it is not refused.
func TestExplainSaysWhatIsNotCaptured(t *testing.T) {
	snap, problems := discovery.Build(1, discovery.Config{
		Networks: []discovery.Network{{Name: "east"}},
		Workloads: []discovery.Workload{
			{UID: "shop", Name: "shop", Namespace: "demo", Network: "east", Node: "n", Addresses: []netip.Addr{netip.MustParseAddr("10.0.0.1")}, ServiceAccount: "shop"},
			{UID: "other", Name: "other", Namespace: "demo", Network: "east", Node: "n", Addresses: []netip.Addr{netip.MustParseAddr("10.0.0.2")}, ServiceAccount: "other"},
		},
	})
	if len(problems) > 0 {
		t.Fatal(problems)
	}
	for _, c := range []struct {
		scope, destination string
		want               bool
	}{
		{pods.ScopeVIPs, "192.0.2.7:80", true},
		{pods.ScopeVIPs, "10.0.0.2:80", true},     // a pod of the mesh, by its own address
		{pods.ScopeVIPs, "240.240.0.9:80", false}, // a virtual address
		{pods.ScopeVIPs, "10.96.0.1:80", false},   // of a service that leads to other networks
		{pods.ScopeVIPs, "x.demo.svc:80", false},  // a name may lead to a virtual address
		{pods.ScopeAll, "192.0.2.7:80", false},
	} {
		p := newTestProxy(t, snap)
		p.cfg.Network, p.cfg.Node, p.cfg.Capture = "east", "n", pods.DefaultConfig()
		p.cfg.Capture.Scope = c.scope
		p.pods = pods.Fake(p.podOptions(), p.podParent(), map[string]pods.FakePod{"shop": {Addresses: []netip.Addr{netip.MustParseAddr("10.96.0.1")}}})
		w := httptest.NewRecorder()
		p.explain(w, httptest.NewRequest("GET", "/explain?source=shop&destination="+c.destination, nil))
		var e answer.Explanation
		if err := json.Unmarshal(w.Body.Bytes(), &e); err != nil {
			t.Fatal(err)
		}
		if (e.NotCaptured != "") != c.want || c.want && (e.Refused != "" || !e.Serves() || !strings.Contains(e.NotCaptured, "capture.scope to all")) {
			t.Errorf("scope %s, %s: %s; not captured: want %t", c.scope, c.destination, w.Body, c.want)
		}
	}
}
