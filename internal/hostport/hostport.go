// Package hostport reads what people write for where a machine listens.
package hostport

import (
	"fmt"
	"net/netip"
	"strconv"
	"strings"
)

// Split takes apart an IP address or a host name with a port.
func Split(s string) (host string, port uint16, err error) {
	if at, err := netip.ParseAddrPort(s); err == nil {
		a := at.Addr().Unmap()
		if at.Port() == 0 || a.Zone() != "" || a.IsUnspecified() || a.IsMulticast() {
			return "", 0, fmt.Errorf("%.80q is not where one machine listens: write a unicast address without a zone, and a port from 1 to 65535", s)
		}
		return a.String(), at.Port(), nil
	}
	host, text, _ := strings.Cut(s, ":")
	n, err := strconv.ParseUint(text, 10, 16)
	if err != nil || n == 0 || !IsName(host) {
		return "", 0, fmt.Errorf("%.80q is not an address: write an IP address or a host name and a port, such as 203.0.113.7:15008 or gw.example.com:15008", s)
	}
	return host, uint16(n), nil
}

// IsName reports whether s may be a host name, by RFC 1123 with underscores: at most 253 letters,
// digits, hyphens and dots.
func IsName(s string) bool {
	s = strings.TrimSuffix(s, ".")
	if s == "" || len(s) > 253 {
		return false
	}
	if _, err := netip.ParseAddr(s); err == nil {
		return false
	}
	for part := range strings.SplitSeq(s, ".") {
		if part == "" || len(part) > 63 || part[0] == '-' || part[len(part)-1] == '-' ||
			strings.ContainsFunc(part, func(r rune) bool {
				return (r < 'a' || r > 'z') && (r < 'A' || r > 'Z') && (r < '0' || r > '9') && r != '-' && r != '_'
			}) {
			return false
		}
	}
	return true
}
