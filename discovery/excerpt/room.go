package excerpt

import (
	"fmt"
	"net/netip"
	"unsafe"

	"github.com/isthmus-mesh/isthmus/discovery"
)

// Whoever speaks as a gateway of the own network cannot fill a node proxy with what it makes up:
// what is beyond these is left out, and said to be.
const (
	// MaxWorkloads and MaxServices are how many of either a node proxy holds; services of the pods
	// of its own node always.
	MaxWorkloads = 20_000
	MaxServices  = 4_000
	// MaxLocal is how many pods of its own node it holds: some four times as many as
	// Kubernetes has been seen to run on one.
	MaxLocal = 2_000
	// MaxBytes is what all that is held may cost in memory: several times what [MaxWorkloads]
	// and [MaxServices] of the usual kind do.
	MaxBytes = 64 << 20
	// maxStaged is the same of one change, while it comes.
	maxStaged = 32 << 20
	// maxLeft is of how many objects it is remembered that they were left out.
	maxLeft = 10_000
	// room is which part of each bound must be free before what was left out is asked for again.
	roomPart = 10
)

const boundOfBytes = "64 MiB in all"

var (
	boundOfWorkloads = fmt.Sprintf("%d workloads", MaxWorkloads)
	boundOfLocal     = fmt.Sprintf("%d workloads of this node", MaxLocal)
	boundOfPolicies  = fmt.Sprintf("%d policies", MaxPolicies)
	boundOfServices  = fmt.Sprintf("%d services", MaxServices)
)

// What costs say of objects is near what they take, and never much less: an object that says nothing
// takes some hundred bytes, in maps and as the record that is made of it.
const (
	costOfObject  = 512
	costOfString  = int(unsafe.Sizeof("")) + 48 // listed, and perhaps in an index
	costOfAddress = int(unsafe.Sizeof(netip.Addr{}))
	costOfPort    = int(unsafe.Sizeof(discovery.ServicePort{}))
	costOfPrefix  = int(unsafe.Sizeof(netip.Prefix{}))
)

func costOfStrings(list ...string) (n int) {
	for _, s := range list {
		n += costOfString + len(s)
	}
	return n
}

func costOfService(s discovery.Service) int {
	n := costOfObject + costOfStrings(s.Name, s.Namespace, s.Hostname, s.Scope, s.TrafficDistribution) + costOfStrings(s.Aliases...) + len(s.VIPs)*costOfAddress
	n += costOfPorts(s.Ports)
	if x := s.Import; x != nil {
		n += costOfObject + costOfStrings(x.Aliases...) + len(x.VIPs)*costOfAddress + costOfPorts(x.Ports)
	}
	return n
}

func costOfPorts(ports []discovery.ServicePort) (n int) {
	for _, p := range ports {
		n += costOfPort + len(p.Name) + len(p.TargetName) + len(p.Protocol)
	}
	return n
}

func costOfWorkload(w discovery.Workload) int {
	n := costOfObject + costOfStrings(w.UID, w.Name, w.Namespace, w.ServiceAccount, w.Node, w.Cluster, w.Locality.Region, w.Locality.Zone, w.Locality.Subzone) + costOfStrings(w.Services...) + len(w.Addresses)*costOfAddress
	for _, p := range w.Ports {
		n += costOfPort + len(p.Name)
	}
	for k, v := range w.Labels {
		n += costOfStrings(k, v)
	}
	return n
}

// costOfOutside is what a pod takes that is not in the mesh.
func costOfOutside(uid string) int { return costOfObject + costOfStrings(uid) }

// cost is what b takes; decode bounds how many of each it has.
func (b *base) cost() (n int) {
	for _, x := range b.networks {
		n += costOfObject + costOfStrings(x.Name, x.Segment)
	}
	for _, g := range b.gateways {
		n += costOfObject + costOfStrings(g.Name, g.ServiceAccount) + len(g.Sources)*costOfPrefix
	}
	return n
}

// noRoomFor returns which bound does not let w be held, in place of old if that is; "" if
// none.
func (h *Held) noRoomFor(w, old discovery.Workload, had bool) string {
	bytes := h.bytes + costOfWorkload(w)
	if had {
		bytes -= costOfWorkload(old)
	}
	switch {
	case w.Node == h.node && (!had || old.Node != h.node) && h.here >= MaxLocal:
		return boundOfLocal
	case w.Node != h.node && !had && len(h.pods) >= MaxWorkloads:
		return boundOfWorkloads
	case bytes > MaxBytes:
		return boundOfBytes
	}
	return ""
}

func (h *Held) noRoomForService(host string, s, old discovery.Service, had bool) string {
	bytes := h.bytes + costOfService(s)
	if had {
		bytes -= costOfService(old)
	}
	switch {
	case !had && len(h.services) >= MaxServices && !h.local(host):
		return boundOfServices
	case bytes > MaxBytes:
		return boundOfBytes
	}
	return ""
}

// leave notes that there is no room for x.
func (h *Held) leave(x thing, why string) {
	if h.bound = why; len(h.left) < maxLeft {
		h.left[x] = struct{}{}
	}
}

// roomAgain forgets what was left out: everything is told anew.
func (h *Held) roomAgain() {
	clear(h.left)
	h.bound = ""
}

// Again reports whether something was left out, and there is room by now: then the gateway that
// leads is to tell everything once more. For a service there is when a pod of this node has become
// its member, of which that gateway tells as if the service was held.
func (h *Held) Again() bool {
	if h.bound == "" || h.anew {
		return false
	}
	if len(h.left) == 0 { // what was left out is gone
		h.bound = ""
		return false
	}
	free := func(is, most int) bool { return is <= most-most/roomPart }
	if !free(h.bytes, MaxBytes) {
		return false
	}
	for x := range h.left {
		if x.kind == discovery.KindService && h.local(x.name) {
			return true
		}
	}
	return free(len(h.pods), MaxWorkloads) && free(h.here, MaxLocal) && free(len(h.services), MaxServices) && free(len(h.policies), MaxPolicies)
}
