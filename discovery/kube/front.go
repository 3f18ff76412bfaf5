package kube

import (
	"cmp"
	"fmt"
	"maps"
	"net/netip"
	"slices"
	"strings"
	"sync"

	corev1 "k8s.io/api/core/v1"

	"github.com/isthmus-mesh/isthmus/discovery"
	"github.com/isthmus-mesh/isthmus/internal/hostport"
	"github.com/isthmus-mesh/isthmus/mesh"
)

// Address is where something listens: an IP address or a host name, and a port.
type Address struct {
	Host string
	Port uint16
}

// front finds the gateways of the cluster's own network, where they run and where other networks
// dial them. The zero value finds nothing.
type front struct {
	gateways name   // the Service whose pods they are
	service  name   // the Service that other networks dial
	quic     name   // the Service that other networks dial by QUIC, if it is another one
	self     string // the pod that asks, if it is one
	listed   map[name]struct{}
	begun    bool // the network itself has been said
}

// parseName reads namespace/name; what cannot be is no name.
func parseName(s string) name {
	namespace, n, _ := strings.Cut(s, "/")
	return name{namespace, n}
}

// IsObject reports, as an error with the remedy, that s is not namespace/name of an object.
func IsObject(s string) error {
	namespace, n, ok := strings.Cut(s, "/")
	if !ok || discovery.NetworkName(namespace) != nil || !hostport.IsName(n) {
		return fmt.Errorf("%.80q is not a Service: write namespace/name, such as isthmus-system/isthmus-gateway", s)
	}
	return nil
}

// affectsGateways reports whether e may change the records that readGateways returns.
func (c *Cluster) affectsGateways(e Event) bool {
	f := &c.front
	if f.gateways == (name{}) {
		return false
	}
	switch n := (name{e.Namespace, e.Name}); e.Kind {
	case EndpointSlices, Pods:
		return !f.begun || e.Namespace == f.gateways.namespace
	case Services:
		return !f.begun || n == f.gateways || n == f.service
	case Nodes:
		for p := range f.listed {
			if _, runs := c.onNode[e.Name][p]; runs {
				return true
			}
		}
	}
	return !f.begun
}

// localityOf returns the locality of gateway p. Each part is the label of the Service that other
// networks dial, else of the Service that lists the gateways, else of the node of p. A label without
// a value counts as absent.
func (c *Cluster) localityOf(p *keptPod) discovery.Locality {
	label := func(key string) string {
		for _, n := range []name{c.front.service, c.front.gateways} {
			if svc := c.services[n]; svc != nil && svc.Labels[key] != "" {
				return svc.Labels[key]
			}
		}
		if node := c.nodes[p.Spec.NodeName]; node != nil {
			return node.Labels[key]
		}
		return ""
	}
	return discovery.Locality{Region: label(labelRegion), Zone: label(labelZone), Subzone: label(labelSubzone)}
}

// readGateways returns the records of the network and its gateways that have changed.
func (c *Cluster) readGateways() (out []discovery.Change) {
	f := &c.front
	if !f.begun {
		f.begun = true
		out = append(out, discovery.Change{Key: key(discovery.KindNetwork, name{name: c.network}), Record: discovery.Network{Name: c.network}})
	}
	now := map[name]struct{}{}
	for slice := range c.inService[f.gateways] {
		s := c.slices[slice]
		for i := range s.Endpoints {
			n := podOf(s, &s.Endpoints[i])
			p := c.pods[n]
			if p == nil || p.Status.Phase == corev1.PodSucceeded || p.Status.Phase == corev1.PodFailed {
				continue
			}
			at, err := netip.ParseAddr(p.Status.PodIP)
			if err != nil || !usable(at) {
				continue // it will have one
			}
			now[n] = struct{}{}
			out = append(out, discovery.Change{Key: c.gatewayKey(n), Record: discovery.Gateway{
				Name: n.name, Network: c.network, Address: netip.AddrPortFrom(at.Unmap(), mesh.HBONEPort), ServiceAccount: n.namespace + "/" + cmp.Or(p.Spec.ServiceAccountName, "default"), Locality: c.localityOf(p)}})
		}
	}
	for n := range f.listed {
		if _, there := now[n]; !there {
			out = append(out, discovery.Change{Key: c.gatewayKey(n)})
		}
	}
	f.listed = now
	slices.SortStableFunc(out, func(a, b discovery.Change) int {
		return cmp.Or(cmp.Compare(a.Key.Kind, b.Key.Kind), cmp.Compare(a.Key.Name, b.Key.Name))
	})
	return slices.CompactFunc(out, func(a, b discovery.Change) bool { return a.Key == b.Key })
}

func (c *Cluster) gatewayKey(n name) discovery.Key {
	return discovery.Key{Kind: discovery.KindGateway, Source: discovery.Cluster, Name: c.network + "/" + n.name}
}

// addresses is where other networks dial the gateways, sorted, and, if there is nothing, why and what
// to do.
func (c *Cluster) addresses() (out []Address, problem string) {
	return c.addressesOf(c.front.service, corev1.ProtocolTCP)
}

// quicAddresses is where other networks dial the gateways by QUIC, if they have a Service of its own
// for that, and if there is nothing, why.
func (c *Cluster) quicAddresses() (out []Address, problem string) {
	return c.addressesOf(c.front.quic, corev1.ProtocolUDP)
}

// addressesOf is where Service n with a port of protocol is dialed.
func (c *Cluster) addressesOf(n name, protocol corev1.Protocol) (out []Address, problem string) {
	if n == (name{}) {
		return nil, ""
	}
	svc := c.services[n]
	if svc == nil {
		return nil, fmt.Sprintf("there is no Service %s: create it, or correct %s", n, map[corev1.Protocol]string{corev1.ProtocolTCP: "address.service", corev1.ProtocolUDP: "address.quicService"}[protocol])
	}
	port := tunnelPort(svc, protocol)
	if port == nil {
		return nil, fmt.Sprintf("Service %s has no %s port: give it one that leads to port %d of the gateways", n, protocol, mesh.HBONEPort)
	}
	switch svc.Spec.Type {
	case corev1.ServiceTypeLoadBalancer:
		for _, in := range svc.Status.LoadBalancer.Ingress {
			if a, err := netip.ParseAddr(in.IP); err == nil && usable(a) {
				out = append(out, Address{a.Unmap().String(), uint16(port.Port)})
			} else if hostport.IsName(in.Hostname) {
				out = append(out, Address{strings.TrimSuffix(in.Hostname, "."), uint16(port.Port)})
			}
		}
		if len(out) == 0 {
			problem = fmt.Sprintf("the load balancer of Service %s is pending: `kubectl describe service -n %s %s` says why; a cluster that nobody gives load balancers needs type NodePort, or address.hosts", n, n.namespace, n.name)
		}
	case corev1.ServiceTypeNodePort:
		if port.NodePort > 0 {
			out = c.nodeAddresses(uint16(port.NodePort))
		}
		if len(out) == 0 {
			problem = fmt.Sprintf("no node with a gateway of Service %s has an address: see `kubectl get nodes -o wide`, or write address.hosts", n)
		}
	default:
		for _, ip := range svc.Spec.ExternalIPs {
			if a, err := netip.ParseAddr(ip); err == nil && usable(a) {
				out = append(out, Address{a.Unmap().String(), uint16(port.Port)})
			}
		}
		if len(out) == 0 {
			out = c.hostPorts()
		}
		if len(out) == 0 {
			problem = fmt.Sprintf("Service %s of type %s has no address outside the cluster: make it LoadBalancer or NodePort, give it externalIPs or its pods a hostPort, or write address.hosts", n, cmp.Or(svc.Spec.Type, corev1.ServiceTypeClusterIP))
		}
	}
	slices.SortFunc(out, func(a, b Address) int { return cmp.Or(cmp.Compare(a.Host, b.Host), cmp.Compare(a.Port, b.Port)) })
	return slices.Compact(out), problem
}

// tunnelPort is that of svc which leads to gateways: the one of that number, else the
// first for protocol.
func tunnelPort(svc *corev1.Service, protocol corev1.Protocol) (found *corev1.ServicePort) {
	for i := range svc.Spec.Ports {
		p := &svc.Spec.Ports[i]
		if cmp.Or(p.Protocol, corev1.ProtocolTCP) != protocol || p.Port < 1 || p.Port > 65535 {
			continue
		}
		if found == nil || p.TargetPort.IntVal == mesh.HBONEPort && found.TargetPort.IntVal != mesh.HBONEPort {
			found = p
		}
	}
	return found
}

// behind are the pods of the Service that other networks dial.
func (c *Cluster) behind() (out []*keptPod) {
	for slice := range c.inService[c.front.service] {
		s := c.slices[slice]
		for i := range s.Endpoints {
			if p := c.pods[podOf(s, &s.Endpoints[i])]; p != nil && !slices.Contains(out, p) {
				out = append(out, p)
			}
		}
	}
	return out
}

// hostPorts are where the asking pod is reached on its node, by a hostPort of its tunnel port: on the network
// of the node that port itself, which the API server writes as a hostPort where the pod lists it. If no
// pod asks they are those of all pods: who answers says which it is.
func (c *Cluster) hostPorts() (out []Address) {
	pods := c.behind()
	if p := c.pods[name{c.front.service.namespace, c.front.self}]; p != nil {
		pods = []*keptPod{p}
	}
	for _, p := range pods {
		ports := p.HostPorts
		if len(ports) == 0 && p.Spec.HostNetwork {
			ports = []corev1.ContainerPort{{HostPort: mesh.HBONEPort}}
		}
		for _, port := range ports {
			out = append(out, c.onNodeOf(p, port)...)
		}
	}
	return out
}

// isHostPort reports whether tunnels come by p of the node. On the network of the node every
// containerPort is one.
func isHostPort(p corev1.ContainerPort) bool {
	return p.HostPort > 0 && p.HostPort <= 65535 && p.ContainerPort == mesh.HBONEPort && (p.Protocol == corev1.ProtocolTCP || p.Protocol == "")
}

// onNodeOf is where port of p is reached: at the one address of its node that it is bound to, else at the
// external or else the internal ones, or, before the Node is known, those of the pod's status.
func (c *Cluster) onNodeOf(p *keptPod, port corev1.ContainerPort) (out []Address) {
	if ip, err := netip.ParseAddr(port.HostIP); err == nil && usable(ip) {
		if ip.Unmap().IsLoopback() {
			return nil // for the node alone: at other networks it is theirs
		}
		return []Address{{ip.Unmap().String(), uint16(port.HostPort)}}
	}
	if node := c.nodes[p.Spec.NodeName]; node != nil {
		out = nodeAddressesOf(node, uint16(port.HostPort))
	}
	if len(out) > 0 {
		return out
	}
	for _, h := range p.Status.HostIPs {
		if ip, err := netip.ParseAddr(h.IP); err == nil && usable(ip) {
			out = append(out, Address{ip.Unmap().String(), uint16(port.HostPort)})
		}
	}
	return out
}

// nodeAddresses are those of the nodes that gateways run on: what reaches these goes no
// further, whatever externalTrafficPolicy says.
func (c *Cluster) nodeAddresses(port uint16) (out []Address) {
	on := map[string]struct{}{}
	for _, p := range c.behind() {
		on[p.Spec.NodeName] = struct{}{}
	}
	for _, n := range slices.Sorted(maps.Keys(on)) {
		if node := c.nodes[n]; node != nil {
			out = append(out, nodeAddressesOf(node, port)...)
		}
	}
	return out
}

// nodeAddressesOf are the external ones of a node, or else the internal ones.
func nodeAddressesOf(node *corev1.Node, port uint16) (out []Address) {
	for _, kind := range []corev1.NodeAddressType{corev1.NodeExternalIP, corev1.NodeInternalIP} {
		for _, a := range node.Status.Addresses {
			if ip, err := netip.ParseAddr(a.Address); a.Type == kind && err == nil && usable(ip) {
				out = append(out, Address{ip.Unmap().String(), port})
			}
		}
		if len(out) > 0 {
			break
		}
	}
	return out
}

// fronts is what was last found of a front. The zero value is empty. Safe for concurrent use.
type fronts struct {
	mu        sync.Mutex
	addresses []Address
	problem   string
	quic      []Address
	quicWrong string // why quic is empty, though it has a Service
	known     bool
	changed   chan struct{}
}

// signal is a channel with room for one, in which there is something after a change.
func (f *fronts) signal() chan struct{} {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.changed == nil {
		f.changed = make(chan struct{}, 1)
	}
	return f.changed
}

func (f *fronts) set(c *Cluster) {
	addresses, problem := c.addresses()
	quic, quicWrong := c.quicAddresses()
	changed := f.signal()
	f.mu.Lock()
	same := f.known && problem == f.problem && slices.Equal(addresses, f.addresses) && quicWrong == f.quicWrong && slices.Equal(quic, f.quic)
	f.addresses, f.problem, f.known = addresses, problem, true
	f.quic, f.quicWrong = quic, quicWrong
	f.mu.Unlock()
	if !same {
		select {
		case changed <- struct{}{}:
		default:
		}
	}
}

// Front returns where other networks dial the gateways by address.service, and, if
// nowhere, why.
func (s *Source) Front() ([]Address, string) {
	s.front.mu.Lock()
	defer s.front.mu.Unlock()
	if !s.front.known {
		return nil, "the Kubernetes cluster is not known yet: see whether the API server can be reached"
	}
	return s.front.addresses, s.front.problem
}

// FrontQUIC returns where other networks dial the gateways by QUIC by address.quicService, and, if
// nowhere, why. Without address.quicService both are empty.
func (s *Source) FrontQUIC() ([]Address, string) {
	s.front.mu.Lock()
	defer s.front.mu.Unlock()
	return s.front.quic, s.front.quicWrong
}

// FrontChanged has a token whenever Front or FrontQUIC returns something else.
func (s *Source) FrontChanged() <-chan struct{} { return s.front.signal() }

// SetFront has s follow the Service that other networks dial, namespace/name, and that which they dial by
// QUIC, empty if it is the same. self is the pod of its namespace that asks: where it has a hostPort, its
// own address is meant. Call it before Run.
func (s *Source) SetFront(service, quic, self string) {
	s.cluster.front.service, s.cluster.front.self = parseName(service), self
	s.cluster.front.quic = parseName(quic)
}
