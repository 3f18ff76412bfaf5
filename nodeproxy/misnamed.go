package nodeproxy

import (
	"fmt"

	"github.com/isthmus-mesh/isthmus/discovery"
	"github.com/isthmus-mesh/isthmus/identity"
	"github.com/isthmus-mesh/isthmus/mesh"
)

// misnamedGateway is a gateway that shows another identity than it should, and where the
// one that was expected is written.
type misnamedGateway struct {
	err    error
	remedy string
}

func (e *misnamedGateway) Error() string { return e.err.Error() + ": " + e.remedy }
func (e *misnamedGateway) Unwrap() error { return e.err }

// renamed says which key is to have which value if it is g that has shown itself as
// another one.
func (p *Proxy) renamed(g *mesh.Gateway, shown *identity.PeerError) string {
	file, key := "gateways[] of network "+g.Network+" in the discovery file", "serviceAccount"
	if p.links.Has(g.Network) && !p.watcher.Lists(discovery.Key{Kind: discovery.KindGateway, Name: g.Network + "/" + g.Name}) {
		file, key = "network "+g.Network+" in federation.networks ("+p.links.Path()+")", "gatewayServiceAccount"
	}
	if namespace, account, err := identity.Names(shown.Got); err == nil && shown.Got.MemberOf(g.Identity.TrustDomain()) {
		return fmt.Sprintf("if this is gateway %s, write %s: %s/%s at %s", g.Name, key, namespace, account, file)
	}
	return fmt.Sprintf("if this is gateway %s, correct its %s at %s, or its certificate", g.Name, key, file)
}
