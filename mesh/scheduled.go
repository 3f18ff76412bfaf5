package mesh

import "slices"

// A workload that has been scheduled to a node and has no address yet is none to anybody but the node proxy of its
// node, which has to know as whom it will call: it is no member of a service, nobody is told of it, and it is not
// among Workloads, OnNode or NumWorkloads.

// Scheduled returns the workload with this UID that has no address yet, or nil.
func (s *Snapshot) Scheduled(uid string) *Workload { return s.scheduled.get(textKey(uid)) }

// ScheduledOn returns the workloads of a node of network that have no address yet, by UID.
func (s *Snapshot) ScheduledOn(network, node string) []*Workload {
	return s.awaited.get(nodeKey{network, node})
}

// AllScheduled returns every workload without an address, in no order.
func (s *Snapshot) AllScheduled() (out []*Workload) {
	for _, w := range s.scheduled.all() {
		out = append(out, w)
	}
	return out
}

// OutsideOn returns the workloads of a node of network that are of another network, or are not in the mesh at all
// because something is wrong with them. The node proxy of that node is told of their UIDs, so that nobody waits until
// they are captured.
func (s *Snapshot) OutsideOn(network, node string) []*Workload {
	out := slices.Clone(s.awaited.get(nodeKey{"", node}))
	for _, n := range s.allNetworks {
		if n.Name != network {
			out = slices.Concat(out, s.OnNode(n.Name, node), s.ScheduledOn(n.Name, node))
		}
	}
	return out
}

// awaitedAt is where w, which has no address, is listed: by its node alone if it is not in the mesh.
func awaitedAt(w *Workload) nodeKey {
	if w.Outside {
		return nodeKey{"", w.Node}
	}
	return nodeKey{w.Network, w.Node}
}

// PutScheduled adds w, which has no address, in place of the one with its UID. The edit owns w.
func (e *Edit) PutScheduled(w *Workload) {
	e.DeleteScheduled(w.UID)
	e.s.scheduled.put(e.by, textKey(w.UID), w)
	k := awaitedAt(w)
	list := slices.Clone(e.s.awaited.get(k))
	i, _ := search(list, w.UID)
	e.s.awaited.put(e.by, k, slices.Insert(list, i, w))
}

// DeleteScheduled removes the workload with this UID that has no address yet.
func (e *Edit) DeleteScheduled(uid string) {
	old := e.s.Scheduled(uid)
	if old == nil {
		return
	}
	e.s.scheduled.del(e.by, textKey(uid))
	k := awaitedAt(old)
	if left := without(e.s.awaited.get(k), old); len(left) > 0 {
		e.s.awaited.put(e.by, k, left)
	} else {
		e.s.awaited.del(e.by, k)
	}
}
