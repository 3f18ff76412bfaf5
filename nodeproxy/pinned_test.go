package nodeproxy

import (
	"testing"

	"github.com/isthmus-mesh/isthmus/hbone"
	"github.com/isthmus-mesh/isthmus/hbone/header"
	"github.com/isthmus-mesh/isthmus/mesh"
)

// What a gateway says of the pod that it was asked for is about that pod. That the pod
// has too much to do is nobody's fault: a fault would end the keeping of sessions with
// all pods of the service for a minute, and make each connection dearer when the service
// can afford it least.
func TestWhatAGatewaySaysOfAPinnedPod(t *testing.T) {
	const pod, other = mesh.EndpointID(7), mesh.EndpointID(8)
	for _, c := range []struct {
		reason   header.Reason
		named    mesh.EndpointID
		at       layer
		endpoint mesh.EndpointID
		fault    bool
	}{
		{header.ReasonPinnedGone, 0, atEndpoint, pod, true},
		{header.ReasonUnreachable, pod, atEndpoint, pod, true},
		{header.ReasonNotExported, 0, atEndpoint, pod, false},
		{header.ReasonOverload, pod, atEndpoint, pod, false},
		{header.ReasonOverload, other, atGateway, other, false},
		{header.ReasonOverload, 0, atGateway, 0, false},
		{header.ReasonDraining, 0, atGateway, 0, true},
	} {
		h := hbone.Header{header.NameReason: string(c.reason)}
		if c.named != 0 {
			h[header.NameEndpoint] = c.named.String()
		}
		f := outerResponse(&hbone.StatusError{Status: 503, Header: h})
		f.pinned(pod)
		if f.at != c.at || f.endpoint != c.endpoint || f.fault != c.fault {
			t.Errorf("%s of %v: at %d, endpoint %v, fault %v; want %d, %v, %v", c.reason, c.named, f.at, f.endpoint, f.fault, c.at, c.endpoint, c.fault)
		}
	}
}
