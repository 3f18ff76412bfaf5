package discovery

import (
	"net/netip"
	"strings"

	"github.com/spiffe/go-spiffe/v2/spiffeid"
)

// isLabel reports whether s is a DNS label (RFC 1123): 1 to 63 lower-case
// letters, digits and hyphens, a hyphen neither first nor last.
func isLabel(s string) bool {
	if s == "" || len(s) > 63 || s[0] == '-' || s[len(s)-1] == '-' {
		return false
	}
	for i := range len(s) {
		if c := s[i]; c != '-' && (c < 'a' || c > 'z') && (c < '0' || c > '9') {
			return false
		}
	}
	return true
}

// NetworkName returns what is wrong with name as that of a network, or nil.
func NetworkName(name string) error {
	var r reader
	if r.label(at{"name"}, name); len(r.problems) > 0 {
		return r.problems[0]
	}
	return nil
}

// isHostname reports whether s is a name of DNS labels, at most 253 long, that
// nobody could take for an IP address.
func isHostname(s string) bool {
	if s == "" || len(s) > 253 {
		return false
	}
	for part := range strings.SplitSeq(s, ".") {
		if !isLabel(part) {
			return false
		}
	}
	last := s[strings.LastIndexByte(s, '.')+1:]
	return strings.Trim(last, "0123456789") != ""
}

// isUID reports whether s can name a workload in logs, headers and hashes:
// 1 to 253 printable ASCII characters without a space.
func isUID(s string) bool {
	if s == "" || len(s) > 253 {
		return false
	}
	for i := range len(s) {
		if s[i] <= ' ' || s[i] > '~' {
			return false
		}
	}
	return true
}

// usable reports whether a can be the address of one machine.
func usable(a netip.Addr) bool {
	return a.IsValid() && !a.IsUnspecified() && !a.IsMulticast() && a.Zone() == "" && a != netip.AddrFrom4([4]byte{255, 255, 255, 255})
}

// label checks a required name, without which the object is none.
func (r *reader) label(path at, s string) bool {
	switch {
	case isLabel(s):
		return true
	case s == "":
		r.out(CauseMissing, path, nil, "is missing: write lower-case letters, digits and hyphens")
	default:
		r.out(CauseValue, path, s, "is not a name: use at most 63 lower-case letters, digits and hyphens")
	}
	return false
}

// word returns s, the name of something outside the mesh; if it cannot be one,
// it counts as left out.
func (r *reader) word(path at, s string) string {
	if s != "" && !isUID(s) {
		r.drop(CauseValue, path, s, "is not a name: use at most 253 printable ASCII characters and no space")
		return ""
	}
	return s
}

// or returns s, or fallback if s is empty.
func or(s, fallback string) string {
	if s == "" {
		return fallback
	}
	return s
}

// names makes the identities of one trust domain.
type names struct {
	td         spiffeid.TrustDomain
	identities map[identityKey]spiffeid.ID
}

type identityKey struct{ namespace, account string }

// TrustDomain returns what is wrong with name as that of a trust domain, or nil. It
// may be empty.
func TrustDomain(name string) error {
	if _, problems := newNames(name); len(problems) > 0 {
		return problems[0]
	}
	return nil
}

// newNames also returns what is wrong with the name of the trust domain, which
// then is DefaultTrustDomain.
func newNames(name string) (*names, []Problem) {
	name = or(name, DefaultTrustDomain)
	td, err := spiffeid.TrustDomainFromString(name)
	var r reader
	if err != nil || td.Name() != name {
		r.drop(CauseValue, at{"trustDomain"}, name, "is not a SPIFFE trust domain: use lower-case letters, digits, dots, hyphens and underscores, such as %s", DefaultTrustDomain)
		td = spiffeid.RequireTrustDomainFromString(DefaultTrustDomain)
	}
	return &names{td: td, identities: map[identityKey]spiffeid.ID{}}, r.problems
}

// identity returns spiffe://<td>/ns/<namespace>/sa/<account>; without one the
// object is out.
func (r *reader) identity(path at, namespace, account string) spiffeid.ID {
	key := identityKey{namespace, account}
	if id, ok := r.names.identities[key]; ok {
		return id
	}
	id, err := spiffeid.FromSegments(r.names.td, "ns", namespace, "sa", account)
	if err != nil {
		r.out(CauseValue, path, account, "cannot be part of a SPIFFE ID: use letters, digits, dots, hyphens and underscores")
		return spiffeid.ID{}
	}
	if len(r.names.identities) >= maxIdentities {
		clear(r.names.identities) // of pods that are long gone
	}
	r.names.identities[key] = id
	return id
}

// maxIdentities bounds how many identities are kept to share their memory.
const maxIdentities = 1 << 16
