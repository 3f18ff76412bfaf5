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
	policies     map[string]string // texts, by name
	full         map[string]string // namespaces of which there were too many: what closes them
	gonePolicies []string
	goneServices []string
	gonePods     []string

	texts int // bytes of policies

	cost int // of what has come of it, in bytes

	odd int   // objects that make no sense
	why error // of the first of them
}

type named struct {
	asked string
	target
}

func newChange(whole bool) *change {
	return &change{whole: whole, services: map[string]discovery.Service{}, pods: map[string]discovery.Workload{}, policies: map[string]string{}, full: map[string]string{}}
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
	for _, p := range m.GetPolicies() {
		name, text := p.GetName(), p.GetObject()
		if len(name) > 2*maxName {
			return malformed("policy %.80q", name)
		}
		if len(c.policies)-len(c.full) >= MaxPolicies {
			ns := policy.ParseName(name).Namespace
			if _, has := c.full[ns]; has || len(ns) > maxName {
				continue
			}
			name, text = closedNamespace(ns)
			c.full[ns] = name
		}
		if c.texts+len(text) > maxStagedPolicies {
			text = closedPolicy(name, "no room").text
		}
		c.texts += len(text)
		if err := c.add(costOfObject + len(name) + len(text)); err != nil {
			return err
		}
		c.policies[name] = text
	}
	c.gonePolicies = append(c.gonePolicies, m.GetGonePolicies()...)
	for _, gone := range [][]string{m.GetGoneServices(), m.GetGoneWorkloads(), m.GetGonePolicies()} {
		for _, g := range gone {
			if err := c.add(costOfString + len(g)); err != nil {
				return err
			}
		}
	}
	c.goneServices = append(c.goneServices, m.GetGoneServices()...)
	c.gonePods = append(c.gonePods, m.GetGoneWorkloads()...)
	return nil
}
