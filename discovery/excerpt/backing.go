package excerpt

import "github.com/isthmus-mesh/isthmus/discovery"

// backing is what a service is held for, counted as that comes and goes: who asks whether a
// service is firm asks for each that is held.
type backing struct {
	names int // that were asked for, mean it and are not in doubt
	local int // pods of this node that are its members
	firm  int // of these, that are not in doubt
	early int // pods of this node that will be
}

func (h *Held) back(host string, f func(*backing)) {
	if host == "" {
		return
	}
	b := h.backs[host]
	if f(&b); b == (backing{}) {
		delete(h.backs, host)
	} else {
		h.backs[host] = b
	}
}

// vouch counts a pod that is held, by 1, or -1 when it ends.
func (h *Held) vouch(w discovery.Workload, by int) {
	if w.Node != h.node {
		return
	}
	h.here += by
	_, doubted := h.doubted[thing{discovery.KindWorkload, w.UID}]
	for _, host := range w.Services {
		h.back(host, func(b *backing) {
			if b.local += by; !doubted {
				b.firm += by
			}
		})
	}
}

// backed counts that doubt of x ends, by 1, or begins, by -1.
func (h *Held) backed(x thing, by int) {
	switch x.kind {
	case discovery.KindWorkload:
		if w, held := h.pods[x.name]; held && w.Node == h.node {
			for _, host := range w.Services {
				h.back(host, func(b *backing) { b.firm += by })
			}
		}
	case 0:
		h.back(h.names[x.name].host, func(b *backing) { b.names += by })
	}
}

// putEarly keeps a pod that the leader lists and that the one before has withdrawn lately.
func (h *Held) putEarly(w discovery.Workload) {
	h.notEarly(w.UID)
	if h.bytes+costOfWorkload(w) > MaxBytes {
		h.leave(thing{discovery.KindWorkload, w.UID}, boundOfBytes)
		return
	}
	h.early[w.UID] = w
	h.countEarly(w, 1)
}

func (h *Held) notEarly(uid string) {
	if w, is := h.early[uid]; is {
		delete(h.early, uid)
		h.countEarly(w, -1)
	}
}

func (h *Held) countEarly(w discovery.Workload, by int) {
	h.bytes += by * costOfWorkload(w)
	if w.Node == h.node {
		for _, host := range w.Services {
			h.back(host, func(b *backing) { b.early += by })
		}
	}
}

// firm reports whether the service is what the leader says: it is not in doubt, and not
// there for the sake of what is alone, of which the leader would tell no change.
func (h *Held) firm(host string) bool {
	_, doubted := h.doubted[thing{discovery.KindService, host}]
	b := h.backs[host]
	return !doubted && b.names+b.firm+b.early > 0
}

// local reports whether a pod of this node is a member of host, or will be.
func (h *Held) local(host string) bool {
	b := h.backs[host]
	return b.local+b.early > 0
}
