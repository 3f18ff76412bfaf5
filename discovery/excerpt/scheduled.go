package excerpt

import (
	"net/netip"
	"slices"

	"github.com/isthmus-mesh/isthmus/discovery"
	pb "github.com/isthmus-mesh/isthmus/federation/federationpb"
	"github.com/isthmus-mesh/isthmus/mesh"
)

// here returns the pods of a node, those that have no address yet among them: policies for these are told before they
// can be reached.
func (x *Index) here(node string) []*mesh.Workload {
	return slices.Concat(x.snap.OnNode(x.network, node), x.snap.ScheduledOn(x.network, node))
}

// reviseScheduled has the node of a pod that has, or had, no address yet told of it.
func (x *Index) reviseScheduled(prev *mesh.Snapshot, uid string, woken set) {
	own := func(s *mesh.Snapshot) *mesh.Workload {
		if w := s.Scheduled(uid); w != nil && w.Network == x.network && !w.Outside {
			return w
		}
		return nil
	}
	x.reviseOutside(prev, uid, woken)
	before, now := own(prev), own(x.snap)
	if before == now {
		return
	}
	for _, w := range []*mesh.Workload{before, now} {
		if w == nil {
			continue
		}
		for r := range x.byNode[w.Node] {
			r.duePods[uid] = struct{}{}
			if repoliced(before, now) {
				r.reconsider(x.snap.Policies(), w)
			}
			woken[r] = struct{}{}
		}
	}
}

// awaits says whether w, which has no address yet, is a pod of the node of r.
func (r *Reader) awaits(w *mesh.Workload) bool {
	return w != nil && w.Network == r.index.network && w.Node == r.node && !w.Outside
}

// decodeScheduled returns a pod of this node that has no address yet.
func (h *Held) decodeScheduled(m *pb.ExcerptWorkload) (discovery.Workload, error) {
	w, err := decodeWorkload(m, h.network)
	if err == nil && w.Node != h.node {
		err = malformed("workload %.80q without an address is on node %.80q", w.UID, w.Node)
	}
	w.Addresses, w.Services = nil, nil
	return w, err
}

// announced are the addresses that a pod of this node has by the word of this node.
type announced struct {
	addresses []netip.Addr
	before    []netip.Addr // which a gateway had told of it, and may tell again until it has heard; nil: none
}

// Announce says which addresses a pod of this node has, before a gateway does: from then on it is held as one that is
// not ready, if a gateway has told that it is to be here, or as soon as one does. Where a gateway has told other
// addresses, these are of a sandbox that is no more: what it tells next goes before that, unless it is the same again.
func (h *Held) Announce(uid string, addresses []netip.Addr) []discovery.Change {
	w, scheduled := h.scheduled[uid]
	if scheduled {
		h.announced[uid] = announced{addresses: addresses}
		w.Addresses = addresses
		h.putPod(w)
		return h.changes()
	}
	w, told := h.pods[uid]
	switch {
	case !told:
		h.announced[uid] = announced{addresses: addresses}
		return h.changes()
	case w.Node != h.node:
		return nil
	}
	before := w.Addresses
	if a := h.announced[uid]; a.before != nil {
		before = a.before
	}
	if delete(h.announced, uid); !sameAddresses(before, addresses) {
		h.announced[uid] = announced{addresses, before}
		before = addresses
	}
	h.move(w, before)
	return h.changes()
}

// sameAddresses reports whether a and b are the same, in whatever order.
func sameAddresses(a, b []netip.Addr) bool {
	return len(a) == len(b) && !slices.ContainsFunc(a, func(x netip.Addr) bool { return !slices.Contains(b, x) })
}

// move gives a pod that is held other addresses, whether it is in doubt or not.
func (h *Held) move(w discovery.Workload, addresses []netip.Addr) {
	h.unenter(w, true)
	w.Addresses = addresses
	h.enter(w)
	h.touch(podKey(w.UID))
}

// Forget ends what Announce has begun: the pod has no address that a gateway does not tell.
func (h *Held) Forget(uid string) []discovery.Change {
	a, is := h.announced[uid]
	if !is {
		return nil
	}
	delete(h.announced, uid)
	w, held := h.pods[uid]
	if _, scheduled := h.scheduled[uid]; scheduled {
		h.dropPod(uid)
	} else if held && a.before != nil {
		h.move(w, a.before)
	}
	return h.changes()
}

// takeScheduled takes which pods have no address yet. Those whose addresses were announced become listed with these. Of one
// that had an address by the word of another gateway, this one may only not have heard yet.
func (h *Held) takeScheduled(c *change, another bool) {
	for uid, w := range c.pods {
		h.dropScheduled(uid)
		if a, is := h.announced[uid]; is && w.Node == h.node && sameAddresses(w.Addresses, a.before) {
			w.Addresses = a.addresses
			c.pods[uid] = w
		} else {
			delete(h.announced, uid)
		}
	}
	for _, uid := range c.gonePods {
		h.dropScheduled(uid)
		delete(h.announced, uid)
	}
	for uid := range h.scheduled {
		if _, listed := c.scheduled[uid]; c.whole && !listed {
			h.dropScheduled(uid)
		}
	}
	for uid, w := range c.scheduled {
		if _, listed := c.pods[uid]; listed || !h.putScheduled(w) {
			continue
		}
		if a, is := h.announced[uid]; is {
			h.announced[uid] = announced{addresses: a.addresses}
			w.Addresses = a.addresses
			c.pods[uid] = w
		} else if !another {
			h.dropPod(uid)
		}
	}
}

func (h *Held) putScheduled(w discovery.Workload) bool {
	h.dropScheduled(w.UID)
	x, cost := thing{discovery.KindWorkload, w.UID}, costOfWorkload(w)
	switch {
	case len(h.scheduled) >= MaxLocal:
		h.leave(x, boundOfLocal)
		return false
	case h.bytes+cost > MaxBytes:
		h.leave(x, boundOfBytes)
		return false
	}
	delete(h.left, x)
	h.scheduled[w.UID] = w
	h.bytes += cost
	return true
}

func (h *Held) dropScheduled(uid string) {
	if w, is := h.scheduled[uid]; is {
		delete(h.scheduled, uid)
		h.bytes -= costOfWorkload(w)
	}
}
