package excerpt

import (
	"cmp"
	"net/netip"
	"slices"
	"strings"

	"github.com/isthmus-mesh/isthmus/discovery"
)

// claims is what the leader's own words have: what is in doubt gives way to them.
type claims struct {
	names     map[string]bool // of services
	addresses map[netip.Addr]bool
}

func (h *Held) claims() (c claims) {
	if len(h.doubted) == 0 {
		return c
	}
	c = claims{map[string]bool{}, map[netip.Addr]bool{}}
	for host, s := range h.services {
		if !h.firm(host) {
			continue
		}
		c.names[globalNameOf(s.Name, s.Namespace)] = true
		for _, a := range s.Aliases {
			c.names[strings.ToLower(a)] = true
		}
		for _, a := range s.VIPs {
			c.addresses[a.Unmap()] = true
		}
		if x := s.Import; x != nil {
			for _, a := range x.Aliases {
				c.names[strings.ToLower(a)] = true
			}
			for _, a := range x.VIPs {
				c.addresses[a.Unmap()] = true
			}
		}
	}
	for uid, w := range h.pods {
		if _, doubted := h.doubted[thing{discovery.KindWorkload, uid}]; doubted {
			continue
		}
		for _, a := range w.Addresses {
			c.addresses[a.Unmap()] = true
		}
	}
	return c
}

// without returns s without what others claim.
func (c claims) without(s discovery.Service) discovery.Service {
	s.Aliases = slices.DeleteFunc(slices.Clone(s.Aliases), func(a string) bool { return c.names[strings.ToLower(a)] })
	s.VIPs = slices.DeleteFunc(slices.Clone(s.VIPs), func(a netip.Addr) bool { return c.addresses[a.Unmap()] })
	if x := s.Import; x != nil {
		s.Import = &discovery.Import{Ports: x.Ports, Aliases: slices.DeleteFunc(slices.Clone(x.Aliases), func(a string) bool { return c.names[strings.ToLower(a)] }),
			VIPs: slices.DeleteFunc(slices.Clone(x.VIPs), func(a netip.Addr) bool { return c.addresses[a.Unmap()] })}
	}
	return s
}

// taken reports whether another pod has an address of w: then w is gone.
func (c claims) taken(w discovery.Workload) bool {
	return slices.ContainsFunc(w.Addresses, func(a netip.Addr) bool { return c.addresses[a.Unmap()] })
}

func podKey(uid string) discovery.Key {
	return discovery.Key{Kind: discovery.KindWorkload, Source: discovery.Cluster, Name: uid}
}

func serviceKey(host string) discovery.Key {
	return discovery.Key{Kind: discovery.KindService, Source: discovery.Cluster, Name: host}
}

func networkKey(name string) discovery.Key {
	return discovery.Key{Kind: discovery.KindNetwork, Source: discovery.Cluster, Name: name}
}

func gatewayKey(g discovery.Gateway) discovery.Key {
	return discovery.Key{Kind: discovery.KindGateway, Source: discovery.Cluster, Name: g.Network + "/" + g.Name}
}

func (h *Held) touch(k discovery.Key) { h.touched[k] = struct{}{} }

// changes returns the touched records as they are now.
func (h *Held) changes() (out []discovery.Change) {
	c := h.claims()
	for k := range h.touched {
		out = append(out, discovery.Change{Key: k, Record: h.record(k, c)})
	}
	clear(h.touched)
	slices.SortFunc(out, func(a, b discovery.Change) int {
		return cmp.Or(cmp.Compare(a.Key.Kind, b.Key.Kind), cmp.Compare(a.Key.Name, b.Key.Name))
	})
	return out
}

// record returns what is held under k, nil if nothing is. Members are such of services
// that are held, and of services elsewhere on the network only if these are followed: of
// others not all members would be there.
func (h *Held) record(k discovery.Key, c claims) discovery.Record {
	switch k.Kind {
	case discovery.KindNetwork:
		for _, n := range h.base.networks {
			if n.Name == k.Name {
				if n.Name == h.network {
					n.Nodes = []string{h.node}
				}
				return n
			}
		}
	case discovery.KindGateway:
		for _, g := range h.base.gateways {
			if gatewayKey(g) == k {
				return g
			}
		}
	case discovery.KindPolicy:
		if p, ok := h.policies[k.Name]; ok {
			return p.record
		}
	case discovery.KindRootNamespace:
		if h.base.root != "" {
			return discovery.RootNamespace{Name: h.base.root}
		}
	case discovery.KindService:
		if s, ok := h.services[k.Name]; ok {
			if c.names != nil && !h.firm(k.Name) {
				s = c.without(s)
				h.giving[k] = struct{}{}
			}
			return s
		}
	case discovery.KindWorkload:
		if w, ok := h.pods[k.Name]; ok {
			if _, doubted := h.doubted[thing{discovery.KindWorkload, k.Name}]; doubted && c.taken(w) {
				h.giving[k] = struct{}{}
				return nil
			}
			w.Services = slices.DeleteFunc(slices.Clone(w.Services), func(host string) bool {
				_, held := h.services[host]
				return !held || w.Node != h.node && h.hosts[host] == 0
			})
			return w
		}
		if _, outside := h.outside[k.Name]; outside {
			return discovery.Workload{UID: k.Name, Network: h.network, Node: h.node, Scheduled: true, Outside: true}
		}
	}
	return nil
}
