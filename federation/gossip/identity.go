package gossip

import (
	"context"
	"net/netip"

	"github.com/spiffe/go-spiffe/v2/spiffeid"

	"github.com/isthmus-mesh/isthmus/identity"
	"github.com/isthmus-mesh/isthmus/internal/link"
	"github.com/isthmus-mesh/isthmus/mesh"
)

// ALPN is what the TLS listener of a gateway offers for gossip.
const ALPN = "isthmus-federation/1"

// Identity is a [link.Source] that also holds the SVID to sign with and the bundle
// to verify by; [*identity.Manager] is one.
type Identity interface {
	link.Source
	Get(ctx context.Context, id spiffeid.ID) (*identity.SVID, error)
}

// dialAddress is where federation dials g.
func dialAddress(g *mesh.Gateway) netip.AddrPort {
	if g.Federation.IsValid() {
		return g.Federation
	}
	return g.Address
}
