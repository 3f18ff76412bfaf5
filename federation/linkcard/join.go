package linkcard

import (
	"errors"
	"fmt"
	"slices"

	"github.com/isthmus-mesh/isthmus/federation/networkkey/keyfile"
)

// ErrOtherKeys says that a network of this name is linked already, with none of the
// card's keys.
var ErrOtherKeys = errors.New("it is linked already, and none of its keys is on the card: either two clusters have this name, or the key was made anew; unlink it first if that was you")

// Join adds the network of a card to the file of known networks of own, or brings what is
// there up to date. The roots of the card vouch for its trust domain alone. What operators
// have written of namespaces, capacity and the account of gateways stays.
func Join(f keyfile.File, own Card, c Card) (keyfile.File, error) {
	if c.Network == own.Network {
		return f, fmt.Errorf("network %q: both clusters call their network so: names are unique among linked networks; make one of them anew with another", c.Network)
	}
	f.Networks = slices.Clone(f.Networks)
	i := slices.IndexFunc(f.Networks, func(n keyfile.Network) bool { return n.Name == c.Network })
	if i < 0 {
		i = len(f.Networks)
		f.Networks = append(f.Networks, keyfile.Network{Name: c.Network})
	} else if !slices.ContainsFunc(c.Keys, func(k string) bool { return slices.Contains(f.Networks[i].Keys, k) }) {
		return f, fmt.Errorf("network %q: %w", c.Network, ErrOtherKeys)
	}
	n := &f.Networks[i]
	n.Keys = slices.Clone(c.Keys)
	// The first names the trust domain of the gateways there.
	rest := slices.DeleteFunc(slices.Clone(n.TrustBundles), func(b keyfile.TrustBundle) bool { return b.TrustDomain == c.TrustDomain })
	n.TrustBundles = append([]keyfile.TrustBundle{{TrustDomain: c.TrustDomain, Roots: c.Roots}}, rest...)
	setAddresses(&n.Link, c.Addresses)
	return f, nil
}

// Drop removes a network; there is false if it was not listed.
func Drop(f keyfile.File, network string) (out keyfile.File, there bool) {
	out.Networks = slices.DeleteFunc(slices.Clone(f.Networks), func(n keyfile.Network) bool { return n.Name == network })
	return out, len(out.Networks) < len(f.Networks)
}
