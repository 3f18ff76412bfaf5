package header

import (
	"net/netip"
	"strings"
)

// Forwarded returns the forwarded header of an application connection from src;
// host is the service's hostname, empty when none is known.
func Forwarded(src netip.AddrPort, host string) string {
	s := `for="` + src.String() + `"`
	if host != "" {
		s += ";host=" + host
	}
	return s
}

// ForwardedHost returns the host= part of a forwarded header, quotes stripped.
func ForwardedHost(s string) string {
	for part := range strings.SplitSeq(s, ";") {
		k, v, ok := strings.Cut(strings.TrimSpace(part), "=")
		if ok && strings.EqualFold(k, "host") {
			return strings.Trim(v, `"`)
		}
	}
	return ""
}
