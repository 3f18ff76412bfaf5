package picker

import (
	"slices"
	"time"

	"github.com/isthmus-mesh/isthmus/mesh"
)

// Health is what the owners of a share say of it. Slices are shared: do not
// modify.
type Health struct {
	// Groups are the gateways that speak of it, those together that see the same
	// pods: what one of them can deliver, its siblings can deliver instead.
	Groups []Group
	// Most is the greatest weight that the share has by that, however much all groups
	// together can deliver; 0 is no bound.
	Most uint32
	// Exceptions are the endpoints that are ready and left out, by the word of their
	// witnesses, sorted.
	Exceptions []mesh.EndpointID
	// Absent are endpoints that are not ready, terminating or gone, sorted: what was held
	// against them is explained, and they get no session.
	Absent []mesh.EndpointID
	// Returned is when the witnesses last took endpoints back: news about one pod says
	// nothing of another.
	Returned map[mesh.EndpointID]time.Time
}

// Group is what each of some gateways that see the same pods can deliver.
type Group []Delivery

// Delivery is what one gateway can deliver of a share.
type Delivery struct {
	Gateway                        string // name; empty: every gateway of the network
	Group                          string // its group's name
	Ready, Healthy                 uint32 // endpoints
	ReadyCapacity, HealthyCapacity uint32 // their weights
	Draining                       bool   // it is about to leave: it takes connections while no other one does
	// Said is since when it has said what it says; zero: nobody knows.
	Said time.Time
	// Unreachable are endpoints that this gateway alone cannot reach, sorted.
	Unreachable []mesh.EndpointID
}

// able reports whether d has somebody healthy to offer.
func (d *Delivery) able() bool { return d.Healthy > 0 }

// capacity is what d has to offer; of one that does not say, its endpoints count 1.
func (d *Delivery) capacity() float64 {
	if d.HealthyCapacity > 0 {
		return float64(d.HealthyCapacity)
	}
	return float64(d.Healthy)
}

func (d *Delivery) size() float64 { return float64(max(d.ReadyCapacity, d.Ready)) }

// of returns what gateway can deliver; nil if nobody says so.
func (h *Health) of(gateway string) *Delivery {
	for _, g := range h.Groups {
		for i := range g {
			if g[i].Gateway == gateway || g[i].Gateway == "" {
				return &g[i]
			}
		}
	}
	return nil
}

// drains reports whether g is about to leave, by discovery or by its own word.
func (h *Health) drains(g *mesh.Gateway) bool {
	d := h.of(g.Name)
	return g.Drained || d != nil && d.Draining
}

// unreachable reports whether gateway says that it cannot reach id.
func (h *Health) unreachable(gateway string, id mesh.EndpointID) bool {
	d := h.of(gateway)
	return d != nil && slices.Contains(d.Unreachable, id)
}

// ready is how many endpoints the share has at most, by any gateway's word.
func (h *Health) ready() (n int) {
	for _, g := range h.Groups {
		for i := range g {
			n = max(n, int(g[i].Ready))
		}
	}
	return n
}

// absent reports whether id is not ready, terminating or gone.
func (h *Health) absent(id mesh.EndpointID) bool {
	_, is := slices.BinarySearch(h.Absent, id)
	return is
}

// excepted reports whether id is left out, whichever gateway is asked.
func (h *Health) excepted(id mesh.EndpointID) bool {
	_, out := slices.BinarySearch(h.Exceptions, id)
	return out
}
