package pods

import (
	"net/netip"

	"github.com/rs/zerolog"

	"github.com/isthmus-mesh/isthmus/discovery"
	"github.com/isthmus-mesh/isthmus/discovery/excerpt"
	"github.com/isthmus-mesh/isthmus/mesh"
)

// alone is a Parent that knows nobody, where a file says what there is.
func alone() Parent {
	return Parent{Log: zerolog.Nop(), Store: &discovery.Store{}, Locals: func() []*mesh.Workload { return nil }, Draining: func() bool { return false },
		Gateways: func() bool { return false }, Announce: func(string, []netip.Addr) {}, Forget: func(string) {}}
}

// toldBy is p where gateways say what there is, and k keeps it.
func toldBy(p Parent, k *excerpt.Keeper) Parent {
	p.Gateways, p.Announce, p.Forget = func() bool { return true }, k.Announce, k.Forget
	return p
}
