package gateway

import (
	"fmt"
	"net"
	"slices"
	"strconv"
	"sync"
	"time"

	"github.com/isthmus-mesh/isthmus/discovery/kube"
	"github.com/isthmus-mesh/isthmus/federation/record"
	"github.com/isthmus-mesh/isthmus/internal/hostport"
	"github.com/isthmus-mesh/isthmus/internal/strictyaml"
)

// Address is where other networks dial this gateway.
type Address struct {
	Hosts   []string `yaml:"hosts" doc:"where other networks dial this gateway: IP addresses or host names with ports, such as 203.0.113.7:15008 or gw.example.com:15008. Gateways behind one load balancer have the same ones. Without hosts and service: its address in discovery"`
	Service string   `yaml:"service" doc:"instead of hosts: namespace/name of the Kubernetes Service in front of this gateway; its current addresses are used. These are those of its load balancer; with type NodePort, those of the nodes; otherwise externalIPs, or the address of the node if the pod has a hostPort or hostNetwork. Needs discovery.kube" env:"ISTHMUS_ADDRESS_SERVICE"`
	// QUICService is empty where Service has both protocols.
	QUICService string `yaml:"quicService" doc:"namespace/name of the Kubernetes Service that other networks dial for QUIC (lines.transport), if it is not service: for a UDP-only load balancer" env:"ISTHMUS_ADDRESS_QUIC_SERVICE"`
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
	if a.QUICService != "" {
		v.Field("address.quicService", kube.IsObject(a.QUICService))
		if a.Service == "" {
			v.Fail("address.quicService", "%q: address.service is empty: set it to the Service of TCP", a.QUICService)
		}
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

// addresses returns where other networks dial this gateway, and the reason if there is no
// address or it is not current.
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
		return g.introduction.last.keep(at, problem, time.Now())
	default:
		self := g.itself()
		out = append(out, record.Address{Host: self.Address.Addr().String(), Port: self.Address.Port()})
	}
	return slices.Compact(out), ""
}

// quicAddresses returns where other networks dial this gateway by QUIC. Empty means addresses.
// problem is the reason if there is none.
func (g *Gateway) quicAddresses() (out []record.Address, problem string) {
	if g.cfg.Address.QUICService == "" || !g.cfg.Lines.ServesQUIC() {
		return nil, ""
	}
	at, problem := g.kube.FrontQUIC()
	return g.introduction.lastQUIC.keep(at, problem, time.Now())
}

// lastAddressFor is the time for which the last addresses of the Service are published after it has none. A load
// balancer's controller may empty the status for a moment, and without an address the network is unreachable for
// all others. If the load balancer was removed, connections to it fail, which is no worse. A new owner of its
// address has no certificate of the gateways.
const lastAddressFor = 10 * time.Minute

// lastAddress has the latest addresses of a Service. The zero value has none. Safe for
// concurrent use.
type lastAddress struct {
	mu   sync.Mutex
	at   []record.Address
	lost time.Time // when it lost them; zero if it has addresses
}

// keep returns the addresses to publish, current or latest, and the reason if they are not
// current.
func (l *lastAddress) keep(found []kube.Address, problem string, now time.Time) (out []record.Address, wrong string) {
	for _, a := range found[:min(len(found), record.MaxAddresses)] {
		out = append(out, record.Address{Host: a.Host, Port: a.Port})
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	if len(out) > 0 {
		l.at, l.lost = out, time.Time{}
	} else if l.lost.IsZero() {
		l.lost = now
	}
	until := l.lost.Add(lastAddressFor)
	switch {
	case problem == "":
		return out, ""
	case len(out) > 0 || len(l.at) == 0:
	case now.Before(until):
		return l.at, fmt.Sprintf("the address for other networks is lost, and the last one (%s) is told until %s: %s", net.JoinHostPort(l.at[0].Host, strconv.Itoa(int(l.at[0].Port))), until.Format(time.RFC3339), problem)
	default:
		l.at = nil
	}
	return out, "no address for other networks: " + problem
}

// unreachable says why other networks cannot dial this gateway.
func (g *Gateway) unreachable() (list []string) {
	if _, problem := g.addresses(); problem != "" {
		list = append(list, problem)
	}
	if _, problem := g.quicAddresses(); problem != "" {
		list = append(list, "QUIC: "+problem)
	}
	return list
}
