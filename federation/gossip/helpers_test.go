package gossip

import (
	"testing"

	"github.com/prometheus/client_golang/prometheus/testutil"

	"github.com/isthmus-mesh/isthmus/federation"
	"github.com/isthmus-mesh/isthmus/federation/federationpb"
	"github.com/isthmus-mesh/isthmus/federation/peer"
	"github.com/isthmus-mesh/isthmus/identity"
)

type (
	identitySVID = identity.SVID
	envelope     = federationpb.Envelope
)

func getSVID(t testing.TB, w *world, name string) *identity.SVID {
	t.Helper()
	svid, err := w.identity.Get(t.Context(), workload(name))
	if err != nil {
		t.Fatal(err)
	}
	return svid
}

func counter(m *peer.Metrics, o federation.Outcome) int {
	return int(testutil.ToFloat64(m.Records.WithLabelValues(o.String())))
}
