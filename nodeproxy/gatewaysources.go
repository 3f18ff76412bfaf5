package nodeproxy

import (
	"net/netip"
	"sync"
	"time"

	"github.com/isthmus-mesh/isthmus/mesh"
)

// sourceMemory is how long an address counts as a gateway's after discovery has
// ceased to list it: one that drains goes on forwarding.
const sourceMemory = time.Hour

// gatewaySources remembers from which addresses gateways of the own network were
// seen to connect. The zero value is ready. Safe for concurrent use.
type gatewaySources struct {
	mu   sync.Mutex
	last map[netip.Addr]time.Time // when discovery last listed it
}

// has reports whether addr is, or was within sourceMemory, a gateway's.
func (g *gatewaySources) has(snap *mesh.Snapshot, network string, addr netip.Addr, now time.Time) bool {
	addr = addr.Unmap()
	listed := snap.FromGateway(network, addr)
	g.mu.Lock()
	defer g.mu.Unlock()
	if listed {
		if g.last == nil {
			g.last = map[netip.Addr]time.Time{}
		}
		g.last[addr] = now
		return true
	}
	last, ok := g.last[addr]
	if ok && now.Sub(last) >= sourceMemory {
		delete(g.last, addr)
		return false
	}
	return ok
}

// forget drops what is older than sourceMemory.
func (g *gatewaySources) forget(now time.Time) {
	g.mu.Lock()
	defer g.mu.Unlock()
	for a, t := range g.last {
		if now.Sub(t) >= sourceMemory {
			delete(g.last, a)
		}
	}
}

// every lets one event through per interval. Safe for concurrent use.
type every struct {
	interval time.Duration

	mu   sync.Mutex
	last time.Time
}

func (e *every) allow(now time.Time) bool {
	e.mu.Lock()
	defer e.mu.Unlock()
	if !e.last.IsZero() && now.Sub(e.last) < e.interval {
		return false
	}
	e.last = now
	return true
}
