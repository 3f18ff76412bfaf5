package imported

import (
	"fmt"
	"net/netip"
	"slices"
	"sync"

	"github.com/isthmus-mesh/isthmus/controller/imports"
	"github.com/isthmus-mesh/isthmus/discovery"
	"github.com/isthmus-mesh/isthmus/discovery/kube"
	"github.com/isthmus-mesh/isthmus/mesh"
)

// taken is which addresses imports may have: those of the ranges that nothing else of the
// cluster has. Safe for concurrent use.
type taken struct {
	Config
	changed chan struct{} // one slot

	mu sync.Mutex
	of map[discovery.Key][]netip.Addr // of the cluster's objects, in the ranges: as a rule, none
}

func newTaken(c Config) *taken {
	return &taken{Config: c, changed: make(chan struct{}, 1), of: map[discovery.Key][]netip.Addr{}}
}

// beside is a sink that takes notice of addresses.
type beside struct {
	*taken
	next kube.Sink
}

// Apply implements [kube.Sink].
func (b beside) Apply(changes ...discovery.Change) *mesh.Snapshot {
	b.note(changes)
	return b.next.Apply(changes...)
}

func (t *taken) note(changes []discovery.Change) {
	t.mu.Lock()
	defer t.mu.Unlock()
	for _, c := range changes {
		var has []netip.Addr
		switch r := c.Record.(type) {
		case discovery.Service:
			has = r.VIPs
		case discovery.Workload:
			has = r.Addresses
		}
		var in []netip.Addr
		for _, a := range has {
			if a = a.Unmap(); t.ranges().Contains(a) {
				in = append(in, a)
			}
		}
		if slices.Equal(in, t.of[c.Key]) {
			continue
		}
		if delete(t.of, c.Key); len(in) > 0 {
			t.of[c.Key] = in
		}
		select {
		case t.changed <- struct{}{}:
		default:
		}
	}
}

// maxAddresses is how many addresses of an import are read: it has one of each family.
const maxAddresses = 16

// admit returns which addresses of an import count, and why the others do not; holders are
// the older imports by theirs.
func (t *taken) admit(i imports.Import, holders map[netip.Addr]imports.Import) (out []netip.Addr, faults []discovery.Problem) {
	refuse := func(c discovery.Cause, field, value, format string, args ...any) {
		faults = append(faults, discovery.Problem{Out: !i.Ours, Cause: c, Field: field, Value: value, Message: fmt.Sprintf(format, args...)})
	}
	switch {
	case len(i.IPs) == 0:
		return nil, nil
	case !i.Ours:
		refuse(discovery.CauseUnsupported, "ServiceImport", i.Name.String(), "was not made by isthmus-controller: none of its addresses leads anywhere through this gateway, and whoever made it answers them: where another network of Isthmus exports the service, delete it, and isthmus-controller makes its own")
		return nil, faults
	}
	for n, a := range i.IPs {
		field := fmt.Sprintf("ServiceImport.spec.ips[%d]", n)
		if n == maxAddresses {
			refuse(discovery.CauseValue, field, a.String(), "is one of more than %d addresses, which are not taken: delete the import, and isthmus-controller makes it anew", maxAddresses)
			break
		}
		if !t.ranges().Contains(a) {
			refuse(discovery.CauseValue, field, a.String(), "is not in the ranges of virtual addresses and is not taken: give this gateway the ranges that isthmus-controller has (vips), or delete the import, and isthmus-controller makes it anew")
		} else if p, in := t.inUse(a); in {
			refuse(discovery.CauseConflict, field, a.String(), "is in %s, which others use (vips.inUse), and is not taken: give isthmus-controller and the gateways ranges that nobody else uses (vips)", p)
		} else if k, has := t.holder(a); has {
			refuse(discovery.CauseConflict, field, a.String(), "is the address of %s of this cluster and is not taken: give isthmus-controller and the gateways ranges that no Service and no pod has (vips)", k)
		} else if o, has := holders[a]; has {
			refuse(discovery.CauseConflict, field, a.String(), "is the address of ServiceImport %s too, which is older and has it: delete this one, and isthmus-controller makes it anew", o.Name)
		} else {
			out = append(out, a)
		}
	}
	return out, faults
}

func (t *taken) inUse(a netip.Addr) (netip.Prefix, bool) {
	for _, p := range t.InUse {
		if p.Contains(a) {
			return p, true
		}
	}
	return netip.Prefix{}, false
}

// holder is the object of the cluster that has a; of several, always the same.
func (t *taken) holder(a netip.Addr) (first discovery.Key, ok bool) {
	t.mu.Lock()
	defer t.mu.Unlock()
	for k, has := range t.of {
		if slices.Contains(has, a) && (!ok || k.String() < first.String()) {
			first, ok = k, true
		}
	}
	return first, ok
}
