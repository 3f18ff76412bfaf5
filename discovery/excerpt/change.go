package excerpt

import (
	"cmp"

	"github.com/isthmus-mesh/isthmus/discovery"
	pb "github.com/isthmus-mesh/isthmus/federation/federationpb"
)

// change is one change, decoded.
type change struct {
	whole        bool
	base         *base
	names        []named
	services     map[string]discovery.Service
	pods         map[string]discovery.Workload
	goneServices []string
	gonePods     []string

	odd int   // objects that make no sense
	why error // of the first of them
}

type named struct {
	asked string
	target
}

func (h *Held) decode(stage []*pb.Excerpt) (c change, err error) {
	odd := func(err error) {
		c.odd++
		c.why = cmp.Or(c.why, err)
	}
	c = change{whole: stage[0].GetWhole(), services: map[string]discovery.Service{}, pods: map[string]discovery.Workload{}}
	for _, m := range stage {
		if m.GetBase() != nil {
			b, err := decodeBase(m.GetBase(), h.network, h.trustDomain, odd)
			if err != nil {
				return c, err
			}
			c.base = &b
		}
		for _, n := range m.GetNames() {
			if err := checkNames("name", n.GetAsked(), n.GetService(), n.GetWorkload()); err != nil {
				odd(err)
				continue
			}
			c.names = append(c.names, named{n.GetAsked(), target{n.GetService(), n.GetWorkload()}})
		}
		for _, s := range m.GetServices() {
			x, host, err := decodeService(s)
			if err != nil {
				odd(err)
				continue
			}
			c.services[host] = x
		}
		for _, w := range m.GetWorkloads() {
			x, err := decodeWorkload(w, h.network)
			if err != nil {
				odd(err)
				continue
			}
			c.pods[x.UID] = x
		}
		c.goneServices = append(c.goneServices, m.GetGoneServices()...)
		c.gonePods = append(c.gonePods, m.GetGoneWorkloads()...)
	}
	return c, nil
}
