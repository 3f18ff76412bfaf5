package route

import (
	"net/netip"
	"strconv"
	"strings"
)

// maxHost is the longest DNS name in characters (RFC 1035 section 2.3.4).
const maxHost = 253

// target is a parsed authority: either host or addr is set.
type target struct {
	host string
	addr netip.Addr
	port uint16
}

// parseAuthority reads host:port or ip:port, an IPv6 address in brackets.
func parseAuthority(s string) (target, error) {
	bad := func(detail string) (target, error) { return target{}, &Error{BadAuthority, s, detail} }
	colon := strings.LastIndexByte(s, ':')
	if colon < 0 {
		return bad("no port: write host:port")
	}
	port, err := strconv.ParseUint(s[colon+1:], 10, 16)
	if err != nil || port == 0 {
		return bad("the port is not a number from 1 to 65535")
	}
	host := s[:colon]
	if addr, ok := parseAddr(host); ok {
		return target{addr: addr, port: uint16(port)}, nil
	}
	host = strings.TrimSuffix(host, ".")
	if !isHost(host) {
		return bad("the host is neither a hostname nor an IP address")
	}
	return target{host: host, port: uint16(port)}, nil
}

// parseAddr reads an IPv4 address or an IPv6 address in brackets. Addresses
// with a zone mean something on one machine only.
func parseAddr(s string) (netip.Addr, bool) {
	if strings.HasPrefix(s, "[") && strings.HasSuffix(s, "]") {
		a, err := netip.ParseAddr(s[1 : len(s)-1])
		return a.Unmap(), err == nil && a.Zone() == "" && a.Is6()
	}
	a, err := netip.ParseAddr(s)
	return a, err == nil && a.Is4()
}

// isHost accepts the characters of DNS names and the underscore.
func isHost(s string) bool {
	if s == "" || len(s) > maxHost {
		return false
	}
	for i := range len(s) {
		switch c := s[i]; {
		case 'a' <= c && c <= 'z', 'A' <= c && c <= 'Z', '0' <= c && c <= '9', c == '-', c == '.', c == '_':
		default:
			return false
		}
	}
	return true
}
