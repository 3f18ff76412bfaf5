package pods

import (
	"fmt"
	"net/netip"
	"slices"
	"time"

	"github.com/isthmus-mesh/isthmus/mesh"
	"github.com/isthmus-mesh/isthmus/nodeproxy/capture"
)

const (
	routesEvery = 30 * time.Second // how often it is looked whether captured pods have routes
	routesAgain = time.Second      // of a pod that has none, or whose node is not exempt from its policies
)

// destinations are virtual addresses that pods of this node may call: the first one of each family.
func destinations(snap *mesh.Snapshot) (list []netip.Addr) {
	for _, s := range snap.Services() {
		for _, a := range virtual(s) {
			if !slices.ContainsFunc(list, func(b netip.Addr) bool { return a.Is4() == b.Is4() }) {
				list = append(list, a)
			}
		}
		if len(list) == 2 {
			break
		}
	}
	return list
}

// routeDue reports whether it is time to look for routes in the pod of h.
func (c *Set) routeDue(h *Pod, now time.Time) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	every := routesEvery
	if h.unrouted.IsValid() || h.unexempt != nil {
		every = routesAgain
	}
	return now.Sub(h.routed) >= every
}

// lookForRoutes looks whether w, which is captured as h, has a route for virtual addresses, to some of which to is: without
// one a connect fails in the pod before any rule sees it. Families that w has no address of are nothing to it.
func (c *Set) lookForRoutes(h *Pod, w *mesh.Workload, to []netip.Addr) {
	var none netip.Addr
	for _, a := range to {
		if slices.ContainsFunc(w.Addresses, func(b netip.Addr) bool { return a.Is4() == b.Is4() }) && capture.Unrouted(h.place.ns, a) {
			none = a
			break
		}
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	h.routed, h.unrouted = time.Now(), none
}

// Unreached says which captured pods have no route for virtual addresses.
func (c *Set) Unreached(nameOf func(uid string) string) (list []string) {
	for _, h := range c.List() {
		c.mu.Lock()
		a := h.unrouted
		c.mu.Unlock()
		if a.IsValid() {
			list = append(list, fmt.Sprintf("pod %s has no route for virtual addresses, such as %s: its connects to them fail at once (network is unreachable): give it a default route, or one for capture.ranges; whichever interface it leads to, nothing is sent there", nameOf(h.uid), a))
		}
	}
	slices.Sort(list)
	return list
}
