package excerpt

import (
	"net/netip"
	"slices"

	"github.com/isthmus-mesh/isthmus/discovery"
	"github.com/isthmus-mesh/isthmus/mesh"
)

// TakenOver is asked for, as if it were a name, by a node proxy that captures: it is told of every service
// whose own addresses lead to other networks too, without its members, and so knows
// which addresses these are before a pod connects to one.
const TakenOver = "*"

// reserved are addresses that no cluster gives its Services, and the mesh gives those of other networks: who
// captures knows them as ranges.
var reserved = []netip.Prefix{netip.MustParsePrefix("240.0.0.0/4"), netip.MustParsePrefix("2001:2::/48")}

// takenOver reports whether svc, which may be nil, has an address that is to be captured by itself.
func takenOver(svc *mesh.Service) bool {
	return svc != nil && svc.Exported() && svc.Takeover && slices.ContainsFunc(svc.VIPs, capturedAlone)
}

func capturedAlone(a netip.Addr) bool {
	return !slices.ContainsFunc(reserved, func(r netip.Prefix) bool { return r.Contains(a) })
}

// reviseTakenOver wakes those who are told of services like that.
func (x *Index) reviseTakenOver(before, now *mesh.Service, host string, woken set) {
	if !takenOver(before) && !takenOver(now) {
		return
	}
	for r := range x.byName[TakenOver] {
		r.dueServices[host] = struct{}{}
		woken[r] = struct{}{}
	}
}

// takeOver adds all services like that.
func (b *batch) takeOver() {
	for _, svc := range b.reader.index.snap.Services() {
		if takenOver(svc) {
			b.services[svc.Hostname] = struct{}{}
		}
	}
}

// followsTakenOver reports whether r is told of services like that.
func (r *Reader) followsTakenOver() bool {
	_, follows := r.names[TakenOver]
	return follows
}

// keepsTakenOver reports whether s is one that a node proxy that captures is told of.
func (h *Held) keepsTakenOver(s discovery.Service) bool {
	_, follows := h.names[TakenOver]
	return follows && (s.Takeover || s.Global) && slices.ContainsFunc(s.VIPs, capturedAlone)
}
