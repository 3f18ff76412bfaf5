package gateway

import (
	"errors"
	"net/netip"
	"sync"

	"github.com/isthmus-mesh/isthmus/discovery"
	"github.com/isthmus-mesh/isthmus/mesh"
)

// tunnels are those that are open, by the address that they lead to. One whose pod is gone
// goes on, as it may have until its connections end; when its address has come to be
// another pod's it ends, lest its client take that for the one that it asked for. Clients
// on other networks do not know pods by their addresses. The zero value has none. Safe for
// concurrent use.
type tunnels struct {
	mu sync.Mutex
	at map[netip.Addr]map[*tunnel]struct{}
}

// tunnel is one of them.
type tunnel struct {
	pod   mesh.EndpointID
	end   func() // called with tunnels.mu held
	ended bool
}

var errReassigned = errors.New("the pod is gone, and its address belongs to another one")

// open notes a tunnel to w. Closed has to be called when it is over, and tells whether it
// was ended.
func (t *tunnels) open(w *mesh.Workload, current func() *mesh.Snapshot, end func()) (closed func() (ended bool)) {
	x, at := &tunnel{pod: w.Endpoint, end: end}, w.Addresses[0]
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.at == nil {
		t.at = map[netip.Addr]map[*tunnel]struct{}{}
	}
	if t.at[at] == nil {
		t.at[at] = map[*tunnel]struct{}{}
	}
	t.at[at][x] = struct{}{}
	t.look(at, w.Network, current()) // it may have changed since w was chosen
	return func() bool {
		t.mu.Lock()
		defer t.mu.Unlock()
		if delete(t.at[at], x); len(t.at[at]) == 0 {
			delete(t.at, at)
		}
		return x.ended
	}
}

// revised ends those whose address has come to be another pod's of network by changes, of
// which snap is the result.
func (t *tunnels) revised(network string, snap *mesh.Snapshot, changes discovery.Changes) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if changes.All {
		for at := range t.at {
			t.look(at, network, snap)
		}
		return
	}
	for uid := range changes.Workloads {
		if w := snap.Workload(uid); w != nil && w.Network == network {
			for _, at := range w.Addresses {
				t.look(at, network, snap)
			}
		}
	}
}

// look ends those to an address that now belongs to another pod. Called with mu held.
func (t *tunnels) look(at netip.Addr, network string, snap *mesh.Snapshot) {
	if len(t.at[at]) == 0 {
		return
	}
	now := snap.WorkloadAt(network, at)
	if now == nil {
		return
	}
	for x := range t.at[at] {
		if x.pod != now.Endpoint && !x.ended {
			x.ended = true
			x.end()
		}
	}
}
