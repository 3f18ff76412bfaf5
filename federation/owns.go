package federation

import (
	"fmt"

	"github.com/spiffe/go-spiffe/v2/spiffeid"

	"github.com/isthmus-mesh/isthmus/mesh"
)

// ForeignError is a record from somebody who may not speak of its subject.
type ForeignError struct {
	Signer  spiffeid.ID
	Origin  string
	Subject string
	Reason  string
}

func (e *ForeignError) Error() string {
	return fmt.Sprintf("federation record about %s from origin %q, signed by %q: %s", e.Subject, e.Origin, e.Signer, e.Reason)
}

// Owns says whether the gateway identity signer may publish r: it must be, by
// discovery, the identity of the gateway of r's network that r names as its
// origin. The error is a [*ForeignError].
func Owns(signer spiffeid.ID, r Record, gateways []*mesh.Gateway) error {
	foreign := func(reason string) error {
		return &ForeignError{signer, r.Origin.Name, fmt.Sprintf("network %q", r.Network), reason}
	}
	known := false
	for _, g := range gateways {
		if g.Identity != signer || signer.IsZero() {
			continue
		}
		known = true
		if g.Network == r.Network && OriginName(g.Network, g.Name) == r.Origin.Name {
			return nil
		}
	}
	if !known {
		return foreign("the signer is no gateway that discovery knows")
	}
	return foreign("the signer is not that gateway; a gateway may speak only for its own network")
}

// OwnsEndpoint says whether the node proxy of node on network may report r:
// only endpoints, only of its network, only of its node, and only in its own
// name. onNode says which endpoints live on the node; nil trusts the report.
// The error is a [*ForeignError] without a signer.
func OwnsEndpoint(network, node string, r Record, onNode func(mesh.EndpointID) bool) error {
	foreign := func(reason string) error {
		return &ForeignError{Origin: r.Origin.Name, Subject: fmt.Sprintf("network %q", r.Network), Reason: reason}
	}
	switch {
	case r.Endpoint == nil:
		return foreign("a node proxy may report endpoints only")
	case r.Network != network:
		return foreign(fmt.Sprintf("node %q is on network %q", node, network))
	case r.Origin.Name != OriginName(network, node):
		return foreign(fmt.Sprintf("node %q may publish only as %q", node, OriginName(network, node)))
	case onNode != nil && !onNode(r.Endpoint.Endpoint):
		return foreign(fmt.Sprintf("endpoint %s is not on node %q", r.Endpoint.Endpoint, node))
	}
	return nil
}
