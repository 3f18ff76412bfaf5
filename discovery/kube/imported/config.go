package imported

import (
	"net/netip"

	"github.com/isthmus-mesh/isthmus/controller/vip"
	"github.com/isthmus-mesh/isthmus/internal/strictyaml"
)

// Config has the ranges of addresses to accept from ServiceImports. The zero Config accepts none.
type Config struct {
	IPv4  netip.Prefix   `yaml:"ipv4" default:"240.240.0.0/16" doc:"range of IPv4 addresses that are accepted from ServiceImports: vips.ipv4 of isthmus-controller. Empty accepts none"`
	IPv6  netip.Prefix   `yaml:"ipv6" default:"2001:2::/48" doc:"as ipv4, for IPv6"`
	InUse []netip.Prefix `yaml:"inUse" doc:"ranges within these that are in use, such as those of nodes: an address of a ServiceImport in one is a problem and not used. Addresses of Services and pods are found automatically"`
}

// DefaultConfig returns what a key that is left out means.
func DefaultConfig() Config {
	r := vip.DefaultRanges()
	return Config{IPv4: r.V4, IPv6: r.V6}
}

func (c Config) ranges() vip.Ranges { return vip.Ranges{V4: c.IPv4, V6: c.IPv6} }

// Validate names each field that cannot be, its value and the remedy.
func (c Config) Validate() error {
	var v strictyaml.Check
	if c.ranges() != (vip.Ranges{}) {
		c.ranges().Check(func(field, format string, args ...any) { v.Fail(field, format, args...) })
	}
	return v.Err()
}
