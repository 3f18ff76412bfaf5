package nodeproxy

import (
	"net/netip"

	"github.com/isthmus-mesh/isthmus/mesh"
	"github.com/isthmus-mesh/isthmus/policy"
)

// plainPolicies returns what the policies in force for w do with connections in plain text: whether they may deny some, and
// whether they deny one between these ends.
func (p *Proxy) plainPolicies(w *mesh.Workload) (mayDeny bool, denies func(from, to netip.AddrPort) bool) {
	rules := p.store.Current().Policies().For(policy.Workload{Namespace: w.Namespace, Labels: w.Labels})
	return rules.MayDenyPlain(), func(from, to netip.AddrPort) bool {
		return !rules.Decide(policy.Connection{From: from.Addr(), Destination: to}).Allowed()
	}
}
