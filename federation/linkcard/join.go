package linkcard

import (
	"crypto/x509"
	"errors"
	"fmt"
	"slices"

	"github.com/isthmus-mesh/isthmus/federation/networkkey/keyfile"
)

// ErrOtherKeys says that a network of this name is linked already, with none of the
// card's keys.
var ErrOtherKeys = errors.New("it is linked already, and none of its keys is on the card: either two clusters have this name, or the key was made anew; unlink it first if that was you")

// ErrTrustDomain says that the roots of a card would vouch for identities that others vouch
// for already.
var ErrTrustDomain = errors.New("roots of one could then vouch for every identity of the other: make one of the clusters anew with a trust domain of its own (isthmus init --trust-domain), or say --share-trust-domain if both have one administration")

// Join adds the network of a card to the file of known networks of own, or brings what is
// there up to date. The roots of the card vouch for its trust domain alone: one that is the
// own, or that of another linked network, is refused (ErrTrustDomain) unless its roots are
// believed for it already, as where clusters have one root, or share says that it is meant.
// What operators have written of namespaces, capacity and the account of gateways stays, and so
// do the roots of other trust domains: while a network changes its own, its identities are of
// both. [Beside] names them.
func Join(f keyfile.File, own Card, c Card, share bool) (keyfile.File, error) {
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
	if !share {
		if err := alone(f, own, c); err != nil {
			return f, fmt.Errorf("network %q: %w", c.Network, err)
		}
	}
	n := &f.Networks[i]
	n.Keys = slices.Clone(c.Keys)
	// The first names the trust domain of the gateways there.
	rest := slices.DeleteFunc(slices.Clone(n.TrustBundles), func(b keyfile.TrustBundle) bool { return b.TrustDomain == c.TrustDomain })
	n.TrustBundles = append([]keyfile.TrustBundle{{TrustDomain: c.TrustDomain, Roots: c.Roots}}, rest...)
	if len(rest) == 0 && c.TrustDomain == own.TrustDomain && within(c.Roots, own.Roots) {
		n.TrustBundles = nil // the own roots will do, whatever becomes of them
	}
	setAddresses(&n.Link, c.Addresses)
	return f, nil
}

// Beside are the trust domains for which roots of a card's network are believed beside that of
// the card.
func Beside(f keyfile.File, c Card) (domains []string) {
	for _, n := range f.Networks {
		for _, b := range n.TrustBundles {
			if n.Name == c.Network && b.TrustDomain != c.TrustDomain {
				domains = append(domains, b.TrustDomain)
			}
		}
	}
	return domains
}

// alone refuses a card whose roots would be new for a trust domain that is not its network's
// alone.
func alone(f keyfile.File, own, c Card) error {
	var believed []string
	for _, n := range f.Networks {
		if n.Name == c.Network {
			for _, b := range n.TrustBundles {
				if b.TrustDomain == c.TrustDomain {
					believed = append(believed, b.Roots) // somebody has said so before
				}
			}
		}
	}
	if c.TrustDomain == own.TrustDomain && !within(c.Roots, append(believed, own.Roots)...) {
		return fmt.Errorf("trustDomain: %q is that of this cluster too, with other roots: %w", c.TrustDomain, ErrTrustDomain)
	}
	for _, n := range f.Networks {
		for _, b := range n.TrustBundles {
			if n.Name != c.Network && b.TrustDomain == c.TrustDomain && !within(c.Roots, append(believed, b.Roots)...) {
				return fmt.Errorf("trustDomain: %q is that of network %q too, with other roots: %w", c.TrustDomain, n.Name, ErrTrustDomain)
			}
		}
	}
	return nil
}

// within reports whether all certificates of roots are among those of others.
func within(roots string, others ...string) bool {
	list, err := Certificates(roots)
	if err != nil {
		return false
	}
	var all []*x509.Certificate
	for _, o := range others {
		more, err := Certificates(o)
		if err != nil {
			continue // what cannot be read vouches for nobody
		}
		all = append(all, more...)
	}
	return !slices.ContainsFunc(list, func(c *x509.Certificate) bool { return !slices.ContainsFunc(all, c.Equal) })
}

// Drop removes a network; there is false if it was not listed.
func Drop(f keyfile.File, network string) (out keyfile.File, there bool) {
	out.Networks = slices.DeleteFunc(slices.Clone(f.Networks), func(n keyfile.Network) bool { return n.Name == network })
	return out, len(out.Networks) < len(f.Networks)
}
