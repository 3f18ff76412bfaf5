package gateway

import (
	"testing"
	"time"

	"github.com/isthmus-mesh/isthmus/federation"
	"github.com/isthmus-mesh/isthmus/federation/damping"
	"github.com/isthmus-mesh/isthmus/federation/healthstream"
	"github.com/isthmus-mesh/isthmus/health"
)

// Both pods of a service answer and flap: nobody else is well, so both are used and said
// to be healthy, and the gateway's own status says so too.
func TestStatusSaysWhatIsUsed(t *testing.T) {
	for i, reasons := range [][2]string{{damping.Reason, damping.Reason}, {damping.Reason, "refused"}, {"refused", "refused"}} {
		b := newBeliever(t)
		snap := b.store.Current()
		svc := snap.Named("hello.default.svc.cluster.local")
		for n, uid := range []string{"hello-1", "hello-2"} {
			key := health.Key{Endpoint: snap.Workload(uid).Endpoint, Port: 8080}
			e := healthstream.Edge{Target: healthstream.Target(key), Known: true}
			e.Fact.EndpointFact = federation.EndpointFact{Endpoint: key.Endpoint, Port: 8080, State: federation.Ejected, Reason: reasons[n]}
			b.facts[key] = e.Fact.EndpointFact
			b.takeEdges([]healthstream.Edge{e})
		}
		row, said := b.statusOf(svc, svc.Ports[0], snap.Members(svc, "west"), time.Now()), b.last()
		if row.Healthy != said.Healthy || row.Ready != said.Ready || len(row.Out) != len(said.Exceptions) || row.Healthy != uint32(2-i) {
			t.Errorf("%v: status says %d of %d healthy, %d out; other networks are told %d of %d, %d out; want %d of 2",
				reasons, row.Healthy, row.Ready, len(row.Out), said.Healthy, said.Ready, len(said.Exceptions), 2-i)
		}
	}
}
