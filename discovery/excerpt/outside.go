package excerpt

import (
	"github.com/isthmus-mesh/isthmus/discovery"
	"github.com/isthmus-mesh/isthmus/mesh"
)

// Who asks a node proxy about a pod of its node waits until it has heard of it. So a gateway also tells of pods that
// are none of its mesh's: nothing but that they are not.

// outsider returns the workload uid if it is of another network than x, or not in the mesh; else nil.
func (x *Index) outsider(s *mesh.Snapshot, uid string) *mesh.Workload {
	if w := s.Scheduled(uid); w != nil {
		if w.Outside || w.Network != x.network {
			return w
		}
		return nil
	}
	if w := s.Workload(uid); w != nil && w.Network != x.network {
		return w
	}
	return nil
}

// reviseOutside has the node of a pod told whether it is outside, if that is different now.
func (x *Index) reviseOutside(prev *mesh.Snapshot, uid string, woken set) {
	nodeOf := func(w *mesh.Workload) string {
		if w == nil {
			return ""
		}
		return w.Node
	}
	before, now := nodeOf(x.outsider(prev, uid)), nodeOf(x.outsider(x.snap, uid))
	if before == now {
		return
	}
	for _, node := range []string{before, now} {
		if node == "" {
			continue
		}
		for r := range x.byNode[node] {
			r.duePods[uid] = struct{}{}
			woken[r] = struct{}{}
		}
	}
}

// takeOutside takes which pods of this node are outside. What is held of a pod of that UID goes before that: a gateway
// that leads now may only not have heard yet that it came in.
func (h *Held) takeOutside(c *change) {
	if c.whole {
		for uid := range h.outside {
			h.notOutside(uid)
		}
	}
	for uid := range c.pods {
		h.notOutside(uid)
	}
	for uid := range c.scheduled {
		h.notOutside(uid)
	}
	for _, uid := range c.gonePods {
		h.notOutside(uid)
	}
	for _, uid := range c.outside {
		h.putOutside(uid)
	}
}

func (h *Held) putOutside(uid string) {
	h.notOutside(uid)
	x, cost := thing{discovery.KindWorkload, uid}, costOfOutside(uid)
	switch {
	case len(h.outside) >= MaxLocal:
		h.leave(x, boundOfLocal)
		return
	case h.bytes+cost > MaxBytes:
		h.leave(x, boundOfBytes)
		return
	}
	h.outside[uid] = struct{}{}
	h.bytes += cost
	h.touch(podKey(uid))
}

func (h *Held) notOutside(uid string) {
	if _, is := h.outside[uid]; is {
		delete(h.outside, uid)
		h.bytes -= costOfOutside(uid)
		h.touch(podKey(uid))
	}
}
