package names

import (
	"net/netip"
	"slices"
	"strings"

	"github.com/isthmus-mesh/isthmus/mesh"
)

// entry is what a name of a service has.
type entry struct {
	addresses []netip.Addr
	ports     []mesh.Port
}

// entryOf returns what name has of svc, so that connections to these addresses go where
// route leads those that ask for name itself: names that stand for what other networks export have the
// virtual addresses of that where there are any, and their ports are the service's and those that
// only others have.
func entryOf(svc *mesh.Service, name string) entry {
	x := svc.Import
	switch {
	case x == nil, strings.EqualFold(name, svc.Hostname):
		return entry{svc.VIPs, svc.Ports}
	case x.HasAlias(name) && !svc.Exported():
		return entry{x.VIPs, x.Ports}
	case x.HasAlias(name), svc.Everywhere(name):
		e := entry{x.VIPs, withMore(svc.Ports, x.Ports)}
		if len(e.addresses) == 0 && (svc.Takeover || !x.HasAlias(name)) {
			e.addresses = svc.VIPs
		}
		return e
	}
	return entry{svc.VIPs, svc.Ports}
}

// withMore returns own and those of others whose numbers it lacks.
func withMore(own, others []mesh.Port) []mesh.Port {
	out := slices.Clone(own)
	for _, p := range others {
		if !slices.ContainsFunc(own, func(o mesh.Port) bool { return o.Service == p.Service }) {
			out = append(out, p)
		}
	}
	return out
}
