package wds

import (
	"fmt"
	"net/netip"
	"slices"

	pb "github.com/isthmus-mesh/isthmus/control/wds/wdspb"
	"github.com/isthmus-mesh/isthmus/mesh"
	"github.com/isthmus-mesh/isthmus/policy"
)

// Names of Authorizations that are not an AuthorizationPolicy. No name in Kubernetes has these characters.
const (
	peerPrefix   = "peer_authentication_" // a PeerAuthentication, for our node proxies
	strictPrefix = "isthmus_strict"       // the sum of PeerAuthentications, for a stock ztunnel
)

func policyName(n policy.Name) string {
	if n.Kind == policy.KindPeerAuthentication {
		return n.Namespace + "/" + peerPrefix + n.Name
	}
	return n.Namespace + "/" + n.Name
}

// selects reports whether o has a selector.
func selects(o policy.Object) bool {
	switch o := o.(type) {
	case *policy.Authorization:
		return len(o.Selector) > 0
	case *policy.PeerAuthentication:
		return len(o.Selector) > 0
	}
	return false
}

// policies encodes new and changed policies, and adds to pods the pods that they select.
func (b *batch) policies(pods map[string]struct{}) {
	if b.root == "" {
		return
	}
	is := map[policy.Object]struct{}{}
	for _, o := range b.next.Policies().Objects() {
		is[o] = struct{}{}
	}
	namespaces, changed := map[string]bool{}, false
	touch := func(o policy.Object) {
		changed = true
		_, peer := o.(*policy.PeerAuthentication)
		if ns := o.Name().Namespace; peer || selects(o) {
			namespaces[ns] = true
		}
	}
	for _, o := range b.prev.Policies().Objects() {
		if _, stays := is[o]; stays {
			delete(is, o)
			continue
		}
		if touch(o); b.next.Policies().Get(o.Name()) == nil {
			b.remove(TypeAuthorization, policyName(o.Name()))
		}
	}
	for _, o := range b.next.Policies().Objects() {
		if _, fresh := is[o]; fresh {
			touch(o)
			b.policy(o)
		}
	}
	if !changed {
		return
	}
	if known := b.next.Policies().Known(); known != b.known {
		b.known = known
		b.mesh()
	}
	if len(namespaces) == 0 {
		return
	}
	for _, list := range [][]*mesh.Workload{b.next.Workloads(), b.next.AllScheduled()} {
		for _, w := range list {
			if w.Network == b.network && (namespaces[w.Namespace] || namespaces[b.root]) {
				pods[w.UID] = struct{}{}
			}
		}
	}
}

// policy encodes one policy. A stock ztunnel reads a PeerAuthentication as a DENY policy without rules: no effect.
func (b *batch) policy(o policy.Object) {
	n := o.Name()
	m := &pb.Authorization{Name: n.Name, Namespace: n.Namespace, Action: pb.Action_DENY, Scope: pb.Scope_WORKLOAD_SELECTOR}
	switch a, is := o.(*policy.Authorization); {
	case !is:
		m.Name = peerPrefix + n.Name
	default:
		m.DryRun, m.Rules = a.DryRun, encodeRules(a.Rules)
		if a.Action == policy.Allow {
			m.Action = pb.Action_ALLOW
		}
		if !selects(o) && n.Namespace == b.root {
			m.Scope = pb.Scope_GLOBAL
		} else if !selects(o) {
			m.Scope = pb.Scope_NAMESPACE
		}
	}
	m.Extensions = pack("Policy", &pb.Policy{Object: o.Text(), Revision: o.Revised(), Selected: selects(o)})
	group := NamespaceKey(n.Namespace)
	if n.Namespace == b.root {
		group = EveryNode
	}
	name := policyName(n)
	b.put(Resource{Type: TypeAuthorization, Name: name, Keys: []string{name, group}, Body: marshal(m)})
}

// policiesOf returns the names of the policies that select w, sorted. One of them may stand for the
// PeerAuthentications of w; it is encoded when first used.
func (b *batch) policiesOf(w *mesh.Workload) (out []string) {
	set := b.next.Policies()
	if set == nil || b.root == "" {
		return nil
	}
	for _, o := range set.All(policyWorkload(w)) {
		if selects(o) {
			out = append(out, policyName(o.Name()))
		}
	}
	if rules := set.For(policyWorkload(w)).StrictAs(); rules != nil {
		called := strictPrefix
		for _, port := range rules[0][0][0].DestinationPorts.Not {
			called += fmt.Sprintf("_except_%d", port)
		}
		for _, port := range rules[0][0][0].DestinationPorts.Is {
			called += fmt.Sprintf("_on_%d", port)
		}
		name := w.Namespace + "/" + called
		if out = append(out, name); !b.strict[name] {
			b.strict[name] = true
			m := &pb.Authorization{Name: called, Namespace: w.Namespace, Action: pb.Action_DENY, Scope: pb.Scope_WORKLOAD_SELECTOR, Rules: encodeRules(rules)}
			b.put(Resource{Type: TypeAuthorization, Name: name, Keys: []string{name}, Body: marshal(m)})
		}
	}
	slices.Sort(out)
	return out
}

func encodeRules(rules []policy.Rule) (out []*pb.Rule) {
	for _, r := range rules {
		rule := &pb.Rule{}
		for _, c := range r {
			clause := &pb.Clause{}
			for _, m := range c {
				clause.Matches = append(clause.Matches, &pb.Match{
					Namespaces: encodeTexts(m.Namespaces.Is), NotNamespaces: encodeTexts(m.Namespaces.Not),
					Principals: encodeTexts(m.Principals.Is), NotPrincipals: encodeTexts(m.Principals.Not),
					SourceIps: encodeRanges(m.SourceIPs.Is), NotSourceIps: encodeRanges(m.SourceIPs.Not),
					DestinationIps: encodeRanges(m.DestinationIPs.Is), NotDestinationIps: encodeRanges(m.DestinationIPs.Not),
					DestinationPorts: encodePorts(m.DestinationPorts.Is), NotDestinationPorts: encodePorts(m.DestinationPorts.Not),
					ServiceAccounts: encodeAccounts(m.ServiceAccounts.Is), NotServiceAccounts: encodeAccounts(m.ServiceAccounts.Not),
				})
			}
			rule.Clauses = append(rule.Clauses, clause)
		}
		out = append(out, rule)
	}
	return out
}

func encodeTexts(list []policy.Text) (out []*pb.StringMatch) {
	for _, t := range list {
		m := &pb.StringMatch{}
		switch t.How {
		case policy.Prefix:
			m.MatchType = &pb.StringMatch_Prefix{Prefix: t.Value}
		case policy.Suffix:
			m.MatchType = &pb.StringMatch_Suffix{Suffix: t.Value}
		case policy.Present:
			m.MatchType = &pb.StringMatch_Presence{Presence: &pb.Empty{}}
		default:
			m.MatchType = &pb.StringMatch_Exact{Exact: t.Value}
		}
		out = append(out, m)
	}
	return out
}

func encodeRanges(list []netip.Prefix) (out []*pb.IPRange) {
	for _, p := range list {
		out = append(out, &pb.IPRange{Address: p.Addr().AsSlice(), Length: uint32(p.Bits())})
	}
	return out
}

func encodePorts(list []uint16) (out []uint32) {
	for _, p := range list {
		out = append(out, uint32(p))
	}
	return out
}

func encodeAccounts(list []policy.Account) (out []*pb.ServiceAccountMatch) {
	for _, a := range list {
		out = append(out, &pb.ServiceAccountMatch{Namespace: a.Namespace, ServiceAccount: a.Name})
	}
	return out
}
