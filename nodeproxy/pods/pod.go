package pods

import (
	"context"
	"net/netip"
	"slices"

	"github.com/isthmus-mesh/isthmus/nodeproxy/podns"
)

// Leads reports whether the rules for h name that address: what the pod opens to it comes here with any scope.
func (c *Set) Leads(h *Pod, a netip.Addr) bool {
	if c.cfg.holds(a) {
		return true
	}
	c.mu.Lock()
	list := h.rules.Addresses
	c.mu.Unlock()
	_, found := slices.BinarySearchFunc(list, a, netip.Addr.Compare)
	return found
}

// UID is that of the workload.
func (h *Pod) UID() string { return h.uid }

// Namespace is where its sockets are: open at least as long as it is captured, and nobody else's to close.
func (h *Pod) Namespace() *podns.Namespace { return h.place.ns }

// Context is that of what is carried for it in plain text: it outlives the capture by as long as that may drain.
func (h *Pod) Context() context.Context { return h.data }

// Server is what serves it.
func (h *Pod) Server() Server { return h.server }
