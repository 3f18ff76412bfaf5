package gateway

import (
	"errors"
	"net/netip"

	"github.com/isthmus-mesh/isthmus/identity"
	"github.com/isthmus-mesh/isthmus/internal/strictyaml"
	"github.com/isthmus-mesh/isthmus/mesh"
)

// checkKnown is what is wrong with the words of c by the discovery file as it is now.
// left is what that lists and cannot be used: no reason not to start, and perhaps that
// of what is unknown.
func (c Config) checkKnown() (left, err error) {
	if c.Discovery.File == "" {
		return nil, nil // Validate has said so
	}
	snap, left, err := c.Discovery.Load()
	if err != nil {
		return nil, err
	}
	_, err = c.find(snap)
	return left, err
}

// find returns what discovery says about this gateway, or every word of the
// configuration that discovery does not know, with the nearest that it does.
func (c Config) find(snap *mesh.Snapshot) (*mesh.Gateway, error) {
	var v strictyaml.Check
	path := c.Discovery.File
	if path == "" { // the cluster will list it
		id, domain, account := identity.ParseAccount(c.TrustDomain, c.ServiceAccount)
		at, _ := c.address()
		return &mesh.Gateway{Name: c.Name, Network: c.Network, Address: at, Federation: at, Identity: id, Sources: []netip.Prefix{netip.PrefixFrom(at.Addr(), at.Addr().BitLen())}}, errors.Join(domain, account)
	}
	if _, err := c.nodeAccount(); err == nil && c.TrustDomain != snap.TrustDomain() { // else Validate has said so
		v.Fail("trustDomain", "%q: the mesh of %s is in %q: correct one of them", c.TrustDomain, path, snap.TrustDomain())
	}
	if c.Network == "" || c.Name == "" {
		return nil, v.Err() // Validate has said so
	}
	if !snap.HasNetwork(c.Network) {
		v.Fail("network", "%q is not a network of %s: %s", c.Network, path, strictyaml.Suggest(c.Network, snap.AllNetworks()))
		return nil, v.Err()
	}
	var names []string
	for _, x := range snap.Gateways(c.Network) {
		if x.Name == c.Name {
			return x, v.Err()
		}
		names = append(names, x.Name)
	}
	v.Fail("name", "%s lists no gateway %q on network %q; add it there or correct the name: %s", path, c.Name, c.Network, strictyaml.Suggest(c.Name, names))
	return nil, v.Err()
}
