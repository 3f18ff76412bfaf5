package excerpt

import (
	"cmp"

	"github.com/isthmus-mesh/isthmus/discovery"
	pb "github.com/isthmus-mesh/isthmus/federation/federationpb"
	"github.com/isthmus-mesh/isthmus/policy"
)

// change is one change, decoded.
type change struct {
	whole        bool
	base         *base
	names        []named
	services     map[string]discovery.Service
	pods         map[string]discovery.Workload
	scheduled    map[string]discovery.Workload
	outside      []string              // UIDs
	policies     map[string]toldPolicy // by name
	known        *policy.Revisions     // nil: as before
	full         map[string]string     // namespaces of which there were too many: what closes them
	gonePolicies []gonePolicy
	goneServices []string
	gonePods     []string

	texts int // bytes of policies

	cost int // of what has come of it, in bytes

	odd int   // objects that make no sense
	why error // of the first of them
}

// toldPolicy is a policy as it was told.
type toldPolicy struct {
	text     string
	revision uint64
}

// gonePolicy is one that is not for pods of this node, up to a revision.
type gonePolicy struct {
	name     string
	revision uint64 // 0: that is not known
}

type named struct {
	asked string
	target
}

func newChange(whole bool) *change {
	return &change{whole: whole, services: map[string]discovery.Service{}, pods: map[string]discovery.Workload{}, scheduled: map[string]discovery.Workload{}, policies: map[string]toldPolicy{}, full: map[string]string{}}
}

// add counts what is kept of a change until it is whole.
func (c *change) add(cost int) error {
	if c.cost += cost; c.cost > maxStaged {
		return malformed("a change of more than %d bytes", maxStaged)
	}
	return nil
}

// decode adds one message to c.
func (h *Held) decode(m *pb.Excerpt, c *change) error {
	odd := func(err error) {
		c.odd++
		c.why = cmp.Or(c.why, err)
	}
	if err := c.add(costOfObject); err != nil { // also of one that says nothing
		return err
	}
	if m.GetBase() != nil {
		b, err := decodeBase(m.GetBase(), h.network, h.trustDomain, odd)
		if err != nil {
			return err
		}
		if err := c.add(b.cost()); err != nil {
			return err
		}
		c.base = &b
	}
	for _, n := range m.GetNames() {
		if err := checkNames("name", n.GetAsked(), n.GetService(), n.GetWorkload()); err != nil {
			odd(err)
			continue
		}
		if err := c.add(costOfObject + len(n.GetAsked()) + len(n.GetService()) + len(n.GetWorkload())); err != nil {
			return err
		}
		c.names = append(c.names, named{n.GetAsked(), target{n.GetService(), n.GetWorkload()}})
	}
	for _, s := range m.GetServices() {
		x, host, err := decodeService(s)
		if err != nil {
			odd(err)
			continue
		}
		if err := c.add(costOfService(x)); err != nil {
			return err
		}
		c.services[host] = x
	}
	for _, w := range m.GetWorkloads() {
		x, err := decodeWorkload(w, h.network)
		if err != nil {
			odd(err)
			continue
		}
		if err := c.add(costOfWorkload(x)); err != nil {
			return err
		}
		c.pods[x.UID] = x
	}
	if k := m.GetPoliciesKnown(); k != nil {
		c.known = &policy.Revisions{Authorizations: k.GetAuthorizationPolicies(), PeerAuthentications: k.GetPeerAuthentications()}
	}
	for _, w := range m.GetScheduled() {
		x, err := h.decodeScheduled(w)
		if err != nil {
			odd(err)
			continue
		}
		if err := c.add(costOfWorkload(x)); err != nil {
			return err
		}
		c.scheduled[x.UID] = x
	}
	for _, uid := range m.GetOutside() {
		if err := checkNames("workload", uid); err != nil || uid == "" {
			odd(cmp.Or(err, malformed("workload without a UID")))
			continue
		}
		if err := c.add(costOfOutside(uid)); err != nil {
			return err
		}
		c.outside = append(c.outside, uid)
	}
	for _, p := range m.GetPolicies() {
		name, text, revision := p.GetName(), p.GetObject(), p.GetRevision()
		if len(name) > 2*maxName {
			return malformed("policy %.80q", name)
		}
		if len(c.policies)-len(c.full) >= MaxPolicies {
			ns := policy.ParseName(name).Namespace
			if _, has := c.full[ns]; has || len(ns) > maxName {
				continue
			}
			name, text = closedNamespace(ns)
			revision = 0
			c.full[ns] = name
		}
		if c.texts+len(text) > maxStagedPolicies {
			text = closedPolicy(name, "no room").text
		}
		c.texts += len(text)
		if err := c.add(costOfObject + len(name) + len(text)); err != nil {
			return err
		}
		c.policies[name] = toldPolicy{text, revision}
	}
	for _, gone := range [][]string{m.GetGoneServices(), m.GetGoneWorkloads(), m.GetGonePolicies()} {
		for _, g := range gone {
			if err := c.add(costOfString + len(g)); err != nil {
				return err
			}
		}
	}
	for i, name := range m.GetGonePolicies() {
		g := gonePolicy{name: name}
		if list := m.GetGoneRevisions(); i < len(list) { // an older gateway says none
			g.revision = list[i]
		}
		c.gonePolicies = append(c.gonePolicies, g)
	}
	c.goneServices = append(c.goneServices, m.GetGoneServices()...)
	c.gonePods = append(c.gonePods, m.GetGoneWorkloads()...)
	return nil
}
