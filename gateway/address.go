package gateway

import (
	"fmt"
	"slices"

	"github.com/isthmus-mesh/isthmus/discovery/kube"
	"github.com/isthmus-mesh/isthmus/federation/record"
	"github.com/isthmus-mesh/isthmus/internal/hostport"
	"github.com/isthmus-mesh/isthmus/internal/strictyaml"
)

// Address is where other networks dial this gateway.
type Address struct {
	Hosts   []string `yaml:"hosts" doc:"where other networks dial this gateway: IP addresses or host names with ports, such as 203.0.113.7:15008 or gw.example.com:15008. All gateways behind one load balancer give the same ones. Without hosts and service it is the address in discovery"`
	Service string   `yaml:"service" doc:"instead of hosts: namespace/name of the Kubernetes Service before this gateway, whose address is followed: that of its load balancer, or, of type NodePort, those of the nodes. It needs discovery.kube" env:"ISTHMUS_ADDRESS_SERVICE"`
}

func (a Address) check(v *strictyaml.Check, cluster bool) {
	for i, h := range a.Hosts {
		if _, _, err := hostport.Split(h); err != nil {
			v.Fail(fmt.Sprintf("address.hosts[%d]", i), "%w", err)
		}
	}
	if len(a.Hosts) > record.MaxAddresses {
		v.Fail("address.hosts", "%d of them: want at most %d", len(a.Hosts), record.MaxAddresses)
	}
	switch {
	case a.Service == "":
	case len(a.Hosts) > 0:
		v.Fail("address.service", "%q: address.hosts says where this gateway is, too: remove one of the two", a.Service)
	case !cluster:
		v.Fail("address.service", "%q: there is no cluster to ask: set discovery.kube, or write address.hosts", a.Service)
	default:
		v.Field("address.service", kube.IsObject(a.Service))
	}
}

// addresses is where other networks dial this gateway, as far as is known, and why nobody
// can if that is so.
func (g *Gateway) addresses() (out []record.Address, problem string) {
	switch {
	case len(g.cfg.Address.Hosts) > 0:
		for _, h := range g.cfg.Address.Hosts {
			if host, port, err := hostport.Split(h); err == nil {
				out = append(out, record.Address{Host: host, Port: port})
			}
		}
	case g.cfg.Address.Service != "":
		at, problem := g.kube.Front()
		for _, a := range at[:min(len(at), record.MaxAddresses)] {
			out = append(out, record.Address{Host: a.Host, Port: a.Port})
		}
		if problem != "" {
			return out, "no address for other networks: " + problem
		}
	default:
		self := g.itself()
		out = append(out, record.Address{Host: self.Address.Addr().String(), Port: self.Address.Port()})
	}
	return slices.Compact(out), ""
}

// unreachable says why other networks cannot dial this gateway.
func (g *Gateway) unreachable() []string {
	if _, problem := g.addresses(); problem != "" {
		return []string{problem}
	}
	return nil
}
