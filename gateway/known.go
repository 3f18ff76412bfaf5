package gateway

import (
	"github.com/isthmus-mesh/isthmus/internal/strictyaml"
	"github.com/isthmus-mesh/isthmus/mesh"
)

// find returns what discovery says about this gateway, or every word of the
// configuration that discovery does not know, with the nearest that it does.
func (g *Gateway) find() (*mesh.Gateway, error) {
	var v strictyaml.Check
	snap, file := g.store.Current(), g.cfg.Discovery.File
	if g.cfg.TrustDomain != snap.TrustDomain() {
		v.Fail("trustDomain", "%q: the mesh of %s is in %q: correct one of them", g.cfg.TrustDomain, file, snap.TrustDomain())
	}
	if !snap.HasNetwork(g.cfg.Network) {
		v.Fail("network", "%q is not a network of %s: %s", g.cfg.Network, file, strictyaml.Suggest(g.cfg.Network, snap.AllNetworks()))
		return nil, v.Err()
	}
	var names []string
	for _, x := range snap.Gateways(g.cfg.Network) {
		if x.Name == g.cfg.Name {
			return x, v.Err()
		}
		names = append(names, x.Name)
	}
	v.Fail("name", "%s lists no gateway %q on network %q; add it there or correct the name: %s", file, g.cfg.Name, g.cfg.Network, strictyaml.Suggest(g.cfg.Name, names))
	return nil, v.Err()
}
