package file

import (
	"net/netip"
	"strings"
	"testing"

	"github.com/rs/zerolog"

	"github.com/isthmus-mesh/isthmus/discovery"
)

// A gateway without a file hears of the cluster from Kubernetes, a node proxy from gateways.
func TestWithoutAFileAProblemNamesWhoTellsIt(t *testing.T) {
	for says, without := range map[string]func(string, string, *discovery.Store, zerolog.Logger) *Watcher{"told by Kubernetes": Without, "told by a gateway of this network": Excerpt} {
		w := without("one", "cluster.local", &discovery.Store{}, zerolog.Nop())
		w.Apply(discovery.Change{Key: discovery.Key{Kind: discovery.KindNetwork, Source: discovery.Cluster, Name: "one"}, Record: discovery.Network{Name: "one"}},
			discovery.Change{Key: discovery.Key{Kind: discovery.KindWorkload, Source: discovery.Cluster, Name: "demo/web"},
				Record: discovery.Workload{UID: "web", Network: "one", Addresses: []netip.Addr{netip.MustParseAddr("10.0.1.1")}},
				Faults: []discovery.Problem{{Cause: discovery.CauseValue, Field: "metadata.labels[x]", Value: "odd", Message: "means nothing"}}})
		status := w.Status()
		if f := status.Findings(); len(f) != 1 || !strings.HasPrefix(f[0], "discovery: "+says+": of workload") {
			t.Errorf("%q, want %q", f, says)
		}
	}
}
