package peer

import (
	"context"
	"crypto/tls"
	"net/netip"

	"github.com/spiffe/go-spiffe/v2/spiffeid"

	"github.com/isthmus-mesh/isthmus/identity"
	"github.com/isthmus-mesh/isthmus/mesh"
)

// What the TLS listener of a gateway offers for the two protocols here.
const (
	ALPNFederation = "isthmus-federation/1"
	ALPNHealth     = "isthmus-health/1"
)

// TLSSource gives client configurations; [*identity.Manager] is one.
type TLSSource interface {
	ClientTLS(ctx context.Context, id spiffeid.ID, expect []spiffeid.ID, alpn ...string) (*tls.Config, error)
}

// Identity is a TLSSource that also holds the SVID to sign with and the bundle
// to verify by; [*identity.Manager] is one.
type Identity interface {
	TLSSource
	Get(ctx context.Context, id spiffeid.ID) (*identity.SVID, error)
}

// dialAddress is where federation dials g.
func dialAddress(g *mesh.Gateway) netip.AddrPort {
	if g.Federation.IsValid() {
		return g.Federation
	}
	return g.Address
}
