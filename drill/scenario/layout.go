package scenario

import (
	"fmt"
	"hash/fnv"
	"math/rand/v2"
	"net/netip"
	"slices"
	"sync"

	"github.com/isthmus-mesh/isthmus/mesh"
)

// Layout places every process of a scenario on addresses of one /16 of
// 127.0.0.0/8. It is immutable once made, and safe for concurrent use.
type Layout struct {
	Second   byte // 127.<Second>.0.0/16
	Scenario *Scenario
	Pods     []Pod
	Gateways []Gateway
	Nodes    []Node
	Clients  []Client
	Relays   []Relay

	byEndpoint map[string]int
	byName     map[string]int

	once    sync.Once
	victims map[string]bool // of any fault; filled by once
}

// Pod is one application process.
type Pod struct {
	Name     string // also its UID
	Network  string
	Node     string
	Capacity uint32
	Address  netip.Addr
	Endpoint string // mesh.EndpointID as text
}

// Gateway is one gateway process.
type Gateway struct {
	Name, Network  string
	Address, Admin netip.AddrPort
}

// Node is one node proxy process.
type Node struct {
	Name, Network string
	Admin         netip.AddrPort
}

// Client is a client workload on a node and its listeners at the node proxy.
type Client struct {
	Name, Network, Node string
	Address             netip.Addr
	// Listen has one address per port of the scenario, in the order of Ports. Its
	// number is the target port, which needs no privilege.
	Listen []netip.AddrPort
}

// Relay stands between the gateways of network From and gateway To, for gossip.
type Relay struct {
	From    string // network
	To      string // gateway
	Network string // of To
	Listen  netip.AddrPort
	Forward netip.AddrPort
}

// NewLayout places s on 127.<second>.0.0/16. Each network has eight /24s,
// of which it uses six: gateways, pods, clients, node proxies' admin addresses,
// clients' listeners, relays.
func NewLayout(s *Scenario, second byte) *Layout {
	l := &Layout{Second: second, Scenario: s, byEndpoint: map[string]int{}, byName: map[string]int{}}
	for i, n := range s.Networks {
		for g := range n.Gateways {
			a := l.addr(i, 1, g+1)
			l.Gateways = append(l.Gateways, Gateway{Name: fmt.Sprintf("%s-gw-%d", n.Name, g+1), Network: n.Name, Address: netip.AddrPortFrom(a, mesh.HBONEPort), Admin: netip.AddrPortFrom(a, 15000)})
		}
		for j := range n.Nodes {
			l.Nodes = append(l.Nodes, Node{Name: nodeName(n.Name, j), Network: n.Name, Admin: netip.AddrPortFrom(l.addr(i, 4, j+1), 15000)})
		}
		for j, name := range podNames(n) {
			p := Pod{Name: name, Network: n.Name, Node: nodeName(n.Name, j%n.Nodes), Capacity: n.Capacity, Address: l.addr(i, 2, j+1), Endpoint: mesh.EndpointIDOf(n.Name, name).String()}
			l.byEndpoint[p.Endpoint], l.byName[p.Name] = len(l.Pods), len(l.Pods)
			l.Pods = append(l.Pods, p)
		}
		l.clients(i, n)
	}
	l.relays()
	return l
}

func nodeName(network string, i int) string { return fmt.Sprintf("%s-node-%d", network, i+1) }

func podNames(n Network) []string {
	out := make([]string, n.Pods)
	for i := range out {
		out[i] = fmt.Sprintf("%s-%d", n.Name, i+1)
	}
	return out
}

// addr returns host of block (0 to 7) of network i.
func (l *Layout) addr(i, block, host int) netip.Addr {
	return netip.AddrFrom4([4]byte{127, l.Second, byte(8*i + block), byte(host)})
}

func (l *Layout) clients(i int, n Network) {
	for _, g := range l.Scenario.Clients {
		if g.Network != n.Name {
			continue
		}
		for j := range g.Nodes {
			c := Client{Name: fmt.Sprintf("%s-client-%d", n.Name, j+1), Network: n.Name, Node: nodeName(n.Name, j), Address: l.addr(i, 3, j+1)}
			for _, p := range l.Scenario.Ports() {
				c.Listen = append(c.Listen, netip.AddrPortFrom(l.addr(i, 5, j+1), p.Target))
			}
			l.Clients = append(l.Clients, c)
		}
	}
}

// relays makes one for each pair of a network and another network's gateway.
func (l *Layout) relays() {
	for to, g := range l.Gateways {
		for from, n := range l.Scenario.Networks {
			if n.Name == g.Network {
				continue
			}
			i := slices.IndexFunc(l.Scenario.Networks, func(n Network) bool { return n.Name == g.Network })
			l.Relays = append(l.Relays, Relay{From: n.Name, To: g.Name, Network: g.Network,
				Listen: netip.AddrPortFrom(l.addr(i, 6, from+1), uint16(20000+to)), Forward: g.Address})
		}
	}
}

// Pod returns the pod called name.
func (l *Layout) Pod(name string) (Pod, bool) {
	i, ok := l.byName[name]
	if !ok {
		return Pod{}, false
	}
	return l.Pods[i], true
}

// PodByEndpoint returns the pod with this endpoint ID.
func (l *Layout) PodByEndpoint(id string) (Pod, bool) {
	i, ok := l.byEndpoint[id]
	if !ok {
		return Pod{}, false
	}
	return l.Pods[i], true
}

// GatewaysOf returns the names of network's gateways.
func (l *Layout) GatewaysOf(network string) []string {
	var out []string
	for _, g := range l.Gateways {
		if g.Network == network {
			out = append(out, g.Name)
		}
	}
	return out
}

// Victims is what one fault hits: pods with their target ports, or a process.
type Victims struct {
	Pods    []string // sorted as in the layout
	Ports   []uint16 // target ports that the fault takes from those pods
	Process string   // gateway or node proxy that is hit
}

// VictimsOf resolves the fault at index i of the scenario; the seed decides
// which pods a number means. The pods of a node proxy that is hit are victims;
// those behind a gateway are not: another gateway reaches them, and package
// measure knows when none does.
func (l *Layout) VictimsOf(i int) Victims {
	f := l.Scenario.Faults[i]
	v := Victims{}
	for _, p := range l.Scenario.Ports() {
		if f.Target.Port == "" || f.Target.Port == p.Name {
			v.Ports = append(v.Ports, p.Target)
		}
	}
	var chosen func(Pod) bool
	switch f.AimedAt() {
	case atNetworks:
		return Victims{}
	case AtGateway:
		return Victims{Process: l.GatewaysOf(f.Target.Network)[f.Target.Gateway-1]}
	case AtNode:
		v.Process = nodeName(f.Target.Network, f.Target.Node-1)
		chosen = func(p Pod) bool { return p.Node == v.Process }
	default:
		names := l.podsOf(i)
		chosen = func(p Pod) bool { return slices.Contains(names, p.Name) }
	}
	for _, p := range l.Pods {
		if chosen(p) {
			v.Pods = append(v.Pods, p.Name)
		}
	}
	return v
}

func (l *Layout) podsOf(i int) []string {
	f := l.Scenario.Faults[i]
	if len(f.Target.Names) > 0 {
		return f.Target.Names
	}
	all := podNames(*l.Scenario.network(f.Target.Network))
	rng := rand.New(rand.NewPCG(l.Scenario.Seed, uint64(i)+1))
	rng.Shuffle(len(all), func(a, b int) { all[a], all[b] = all[b], all[a] })
	return all[:f.Target.Pods.Of(len(all))]
}

// SecondByte draws the second byte of a /16 for try n: 1 to 129, spread so that
// drills on one machine seldom meet. From 130 on are tests beside it (internal/meshtest):
// neither sees addresses of the other that nothing listens on yet, or not any more.
func SecondByte(seed uint64, pid, try int) byte {
	h := fnv.New64a()
	fmt.Fprintf(h, "%d %d", seed, pid)
	return byte(1 + (h.Sum64()+uint64(try)*101)%129)
}

// EverVictim reports whether any fault hits the pod called name.
func (l *Layout) EverVictim(name string) bool {
	l.once.Do(func() {
		l.victims = map[string]bool{}
		for i := range l.Scenario.Faults {
			for _, p := range l.VictimsOf(i).Pods {
				l.victims[p] = true
			}
		}
	})
	return l.victims[name]
}
