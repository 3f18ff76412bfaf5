package discovery

import (
	"net/netip"
	"strings"
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

// label checks a required name.
func (b *builder) label(path at, s string) bool {
	if isLabel(s) {
		return true
	}
	if s == "" {
		b.problem(path, nil, "is missing: write lower-case letters, digits and hyphens")
	} else {
		b.problem(path, s, "is not a name: use at most 63 lower-case letters, digits and hyphens")
	}
	return false
}

// word checks an optional name of something outside the mesh.
func (b *builder) word(path at, s string) {
	if s != "" && !isUID(s) {
		b.problem(path, s, "is not a name: use at most 253 printable ASCII characters and no space")
	}
}
