package nodeproxy

import (
	"maps"
	"net/netip"
	"sync"
	"time"

	"github.com/isthmus-mesh/isthmus/mesh"
)

// sourceMemory is the time for which an address counts as a gateway's after discovery has
// stopped listing it: a draining gateway still forwards.
const sourceMemory = time.Hour

// gatewaySources remembers from which addresses gateways of the own network
// connect to pods. The zero value is ready. Safe for concurrent use.
type gatewaySources struct {
	mu     sync.Mutex
	listed []netip.Prefix             // by the snapshot of the last revise
	last   map[netip.Prefix]time.Time // when discovery stopped listing it
}

// has reports whether addr is a gateway's, or was within sourceMemory. Results of the
// last revise still count, so that no gateway looks like a pod between a new
// snapshot and the revise for it.
func (g *gatewaySources) has(snap *mesh.Snapshot, network string, addr netip.Addr, now time.Time) bool {
	addr = addr.Unmap()
	if snap.FromGateway(network, addr) {
		return true
	}
	g.mu.Lock()
	defer g.mu.Unlock()
	for _, p := range g.listed {
		if p.Contains(addr) {
			return true
		}
	}
	for p, t := range g.last {
		if p.Contains(addr) && now.Sub(t) < sourceMemory {
			return true
		}
	}
	return false
}

// revise takes note of a new snapshot: whatever the one before listed was a
// gateway's until now. It drops what is older than sourceMemory.
func (g *gatewaySources) revise(snap *mesh.Snapshot, network string, now time.Time) {
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.last == nil {
		g.last = map[netip.Prefix]time.Time{}
	}
	for _, p := range g.listed {
		g.last[p] = now
	}
	g.listed = nil
	for _, gw := range snap.Gateways(network) {
		g.listed = append(g.listed, gw.Sources...)
	}
	maps.DeleteFunc(g.last, func(_ netip.Prefix, t time.Time) bool { return now.Sub(t) >= sourceMemory })
}
