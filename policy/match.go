package policy

import (
	"net/netip"
	"slices"
	"strings"
)

// peer is a connection with the names in its identity; without identity all are empty.
type peer struct {
	Connection
	principal string
	account   Account
}

func peerOf(c Connection) peer {
	p := peer{Connection: c}
	p.From = plain(c.From)
	p.Destination = netip.AddrPortFrom(plain(c.Destination.Addr()), c.Destination.Port())
	if c.Source.IsZero() {
		return p
	}
	p.principal = strings.TrimPrefix(c.Source.String(), "spiffe://")
	if parts := strings.Split(c.Source.Path(), "/"); len(parts) == 5 && parts[1] == "ns" && parts[3] == "sa" {
		p.account = Account{parts[2], parts[4]}
	}
	return p
}

// plain is a as ranges have it: no range holds an address with a zone, which says by which interface it is
// reached.
func plain(a netip.Addr) netip.Addr { return a.Unmap().WithZone("") }

// matched returns the index of the first rule that matches, or -1.
func (a *Authorization) matched(p *peer) int {
	return slices.IndexFunc(a.Rules, func(r Rule) bool { return r.matches(p) })
}

func (r Rule) matches(p *peer) bool {
	for _, c := range r {
		if !c.matches(p) {
			return false
		}
	}
	return true
}

func (c Clause) matches(p *peer) bool {
	return len(c) == 0 || slices.ContainsFunc(c, func(m Match) bool { return !m.empty() && m.matches(p) })
}

func (m *Match) empty() bool {
	return m.Principals.empty() && m.Namespaces.empty() && m.ServiceAccounts.empty() && m.SourceIPs.empty() && m.DestinationIPs.empty() && m.DestinationPorts.empty()
}

func (m *Match) matches(p *peer) bool {
	in := func(a netip.Addr) func(netip.Prefix) bool {
		return func(n netip.Prefix) bool { return n.Contains(a) }
	}
	return m.Principals.matches(func(t Text) bool { return p.principal != "" && t.matches(p.principal) }) &&
		m.Namespaces.matches(func(t Text) bool { return p.account.Namespace != "" && t.matches(p.account.Namespace) }) &&
		m.ServiceAccounts.matches(func(a Account) bool { return p.account != (Account{}) && a == p.account }) &&
		m.SourceIPs.matches(in(p.From)) &&
		m.DestinationIPs.matches(in(p.Destination.Addr())) &&
		m.DestinationPorts.matches(func(n uint16) bool { return n == p.Destination.Port() })
}

func (f Field[T]) empty() bool { return len(f.Is)+len(f.Not) == 0 }

func (f Field[T]) matches(is func(T) bool) bool {
	return (len(f.Is) == 0 || slices.ContainsFunc(f.Is, is)) && !slices.ContainsFunc(f.Not, is)
}

func (t Text) matches(s string) bool {
	switch t.How {
	case Prefix:
		return strings.HasPrefix(s, t.Value)
	case Suffix:
		return strings.HasSuffix(s, t.Value)
	case Present:
		return s != ""
	}
	return s == t.Value
}
