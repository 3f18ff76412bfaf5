package discovery

import (
	"github.com/isthmus-mesh/isthmus/mesh"
)

// Build fills in defaults and returns the snapshot that c describes, without what
// cannot be used, and why it cannot, in the order trust domain, networks, gateways,
// services, shares, workloads, policies, and within those in c's order. It keeps nothing of c.
func Build(revision uint64, c Config) (*mesh.Snapshot, []Problem) {
	b := NewBuilder(revision - 1)
	b.SetTrustDomain(c.TrustDomain)
	b.SetRootNamespace(c.RootNamespace)
	l := c.List()
	b.Apply(l.changes()...)
	s, _, _ := b.Commit()
	return s, l.Locate(append(l.Faults(), b.Problems()...))
}
