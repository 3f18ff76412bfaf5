package vip

import (
	"fmt"
	"net/netip"
)

// Ranges are where virtual addresses are from: of each family, unless its prefix is not
// valid.
type Ranges struct{ V4, V6 netip.Prefix }

// maxNumbers is how many numbers there are at most: those of a /16.
const maxNumbers = 1 << 16

// DefaultRanges are those that Istio takes such addresses from too.
func DefaultRanges() Ranges {
	return Ranges{netip.MustParsePrefix("240.240.0.0/16"), netip.MustParsePrefix("2001:2::/48")}
}

// size is how many numbers there are, of which has says whether they can be used.
func (r Ranges) size() uint32 {
	n := uint32(maxNumbers)
	any := false
	for _, p := range []netip.Prefix{r.V4, r.V6} {
		if !p.IsValid() {
			continue
		}
		any = true
		if host := p.Addr().BitLen() - p.Bits(); host < 16 {
			n = min(n, 1<<host)
		}
	}
	if !any {
		return 0
	}
	return n
}

// has reports whether a number can be used: neither the address of a network nor one for
// everybody on it, of however it is divided.
func (r Ranges) has(number uint32) bool {
	low := number & 0xff
	return number < r.size() && low != 0 && low != 0xff && number != r.size()-1
}

// usable is how many numbers can be used.
func (r Ranges) usable() int {
	size := int(r.size())
	return size/256*254 + max(0, size%256-2)
}

// at returns the addresses of a number, the one of IPv4 first.
func (r Ranges) at(number uint32) (out []netip.Addr) {
	for _, p := range []netip.Prefix{r.V4, r.V6} {
		if p.IsValid() {
			out = append(out, plus(p.Masked().Addr(), number))
		}
	}
	return out
}

// numberOf is the number whose addresses all of these are, as far as their ranges are
// known here.
func (r Ranges) numberOf(addresses []netip.Addr) (number uint32, ok bool) {
	for _, a := range addresses {
		p := r.V6
		if a.Is4() {
			p = r.V4
		}
		if !p.IsValid() || !p.Contains(a) {
			return 0, false
		}
		b := a.AsSlice()
		n := uint32(b[len(b)-2])<<8 | uint32(b[len(b)-1])
		first := p.Masked().Addr().AsSlice()
		n -= uint32(first[len(first)-2])<<8 | uint32(first[len(first)-1])
		if plus(p.Masked().Addr(), n) != a || ok && n != number || !r.has(n) {
			return 0, false
		}
		number, ok = n, true
	}
	return number, ok
}

// plus is a with number added to its last four bytes.
func plus(a netip.Addr, number uint32) netip.Addr {
	b := a.AsSlice()
	for i := len(b) - 1; i >= 0 && number > 0; i-- {
		sum := uint32(b[i]) + number&0xff
		b[i] = byte(sum)
		number = number>>8 + sum>>8
	}
	out, _ := netip.AddrFromSlice(b)
	return out
}

// Contains reports whether a is in one of the ranges.
func (r Ranges) Contains(a netip.Addr) bool {
	return r.V4.IsValid() && r.V4.Contains(a) || r.V6.IsValid() && r.V6.Contains(a)
}

// Overlaps returns which of the ranges has addresses in common with p.
func (r Ranges) Overlaps(p netip.Prefix) (netip.Prefix, bool) {
	for _, own := range []netip.Prefix{r.V4, r.V6} {
		if own.IsValid() && own.Overlaps(p) {
			return own, true
		}
	}
	return netip.Prefix{}, false
}

// Check names what is wrong with the ranges, by field.
func (r Ranges) Check(fail func(field, format string, args ...any)) {
	check := func(field string, p netip.Prefix, v4 bool, such string) {
		if p == (netip.Prefix{}) {
			return
		}
		host := p.Addr().BitLen() - p.Bits()
		switch {
		case !p.IsValid() || p.Addr().Is4() != v4 || p.Masked() != p:
			fail(field, "%q is not such a range: write the first address and the length of the prefix, such as %s", p, such)
		case host < 4:
			fail(field, "%q has room for %d services: write a shorter prefix, such as %s", p, max(0, 1<<max(0, host)-2), such)
		case p.Addr().IsLoopback() || p.Addr().IsMulticast() || p.Addr().IsLinkLocalUnicast():
			fail(field, "%q is a range that no packet leaves a machine by: write such as %s", p, such)
		}
	}
	check("vips.ipv4", r.V4, true, "240.240.0.0/16")
	check("vips.ipv6", r.V6, false, "2001:2::/48")
	if r.size() == 0 {
		fail("vips", "%s", fmt.Sprintf("neither ipv4 nor ipv6 is a range: write one of them, such as ipv4: %s", "240.240.0.0/16"))
	}
}
