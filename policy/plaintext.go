package policy

import (
	"net/netip"
	"slices"
)

// HoldForPlainText names the AuthorizationPolicies by which some connections without identity are denied, to some port or
// all: DENY policies that may match one, and ALLOW policies if none of them allows every one. Those in dry run are not
// among them. It looks at rules alone: a range of addresses counts as one in which there are clients, and clients beside
// it.
func (e *Effective) HoldForPlainText() (deny, allow []Name) {
	for _, a := range e.deny {
		if slices.ContainsFunc(a.Rules, Rule.mayMatchPlain) {
			deny = append(deny, a.Name())
		}
	}
	if slices.ContainsFunc(e.allow, func(a *Authorization) bool { return slices.ContainsFunc(a.Rules, Rule.matchesAllPlain) }) {
		return deny, nil
	}
	return deny, e.allows
}

// MayDenyPlain reports whether some connection without identity may be denied. If not, Decide allows every one.
func (e *Effective) MayDenyPlain() bool {
	deny, allow := e.HoldForPlainText()
	return e.Demands() != (Name{}) || len(deny)+len(allow) > 0
}

// mayMatchPlain reports whether some connection without identity matches.
func (r Rule) mayMatchPlain() bool {
	return !slices.ContainsFunc(r, func(c Clause) bool {
		return len(c) > 0 && !slices.ContainsFunc(c, func(m Match) bool { return !m.empty() && !m.wantsIdentity() })
	})
}

// matchesAllPlain reports whether every connection without identity matches, wherever it comes from and goes to.
func (r Rule) matchesAllPlain() bool {
	return !slices.ContainsFunc(r, func(c Clause) bool {
		return len(c) > 0 && !slices.ContainsFunc(c, func(m Match) bool {
			return !m.empty() && !m.wantsIdentity() && anywhere(m.SourceIPs) && anywhere(m.DestinationIPs) && m.DestinationPorts.empty()
		})
	})
}

// wantsIdentity reports whether nothing without an identity matches.
func (m *Match) wantsIdentity() bool {
	return len(m.Principals.Is)+len(m.Namespaces.Is)+len(m.ServiceAccounts.Is) > 0
}

// anywhere reports whether f matches every address.
func anywhere(f Field[netip.Prefix]) bool {
	all := func(n netip.Prefix) bool { return n.Bits() == 0 }
	four := slices.ContainsFunc(f.Is, func(n netip.Prefix) bool { return all(n) && n.Addr().Is4() })
	six := slices.ContainsFunc(f.Is, func(n netip.Prefix) bool { return all(n) && n.Addr().Is6() })
	return len(f.Not) == 0 && (len(f.Is) == 0 || four && six)
}
