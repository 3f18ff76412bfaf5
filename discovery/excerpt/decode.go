package excerpt

import (
	"cmp"
	"fmt"
	"net/netip"
	"strings"

	"github.com/isthmus-mesh/isthmus/discovery"
	pb "github.com/isthmus-mesh/isthmus/federation/federationpb"
	"github.com/isthmus-mesh/isthmus/mesh"
)

// Limits of one object, beyond which it is malformed.
const (
	maxName    = 253
	maxListed  = 1024 // of anything in an object
	maxMembers = 4096 // services of one workload, and its named ports
)

// malformed is an object that no gateway of ours says.
func malformed(format string, a ...any) error {
	return fmt.Errorf("malformed excerpt: "+format, a...)
}

func checkNames(what string, names ...string) error {
	for _, n := range names {
		if len(n) > maxName {
			return malformed("%s of %d bytes: want at most %d", what, len(n), maxName)
		}
	}
	return nil
}

func checkNumber(what string, n, most int) error {
	if n > most {
		return malformed("%d %s: want at most %d", n, what, most)
	}
	return nil
}

// base is a decoded pb.Base.
type base struct {
	trustDomain string
	root        string // namespace of policies for all; "": none are told
	networks    []discovery.Network
	gateways    []discovery.Gateway
}

// decodeBase refuses one that does not list network: what a gateway says that has no idea
// of its own network is no state to be in.
func decodeBase(m *pb.Base, network, trustDomain string, odd func(error)) (base, error) {
	out := base{trustDomain: m.GetTrustDomain(), root: m.GetRootNamespace()}
	if err := checkNames("root namespace", out.root); err != nil {
		return base{}, err
	}
	if out.trustDomain != trustDomain {
		return base{}, malformed("trust domain %.80q: this node proxy is in %q", out.trustDomain, trustDomain)
	}
	if err := checkNumber("networks", len(m.GetNetworks()), maxListed); err != nil {
		return base{}, err
	}
	if err := checkNumber("gateways", len(m.GetGateways()), maxListed); err != nil {
		return base{}, err
	}
	lists := false
	for _, n := range m.GetNetworks() {
		if err := checkNames("network", n.GetName(), n.GetSegment()); err != nil {
			odd(err)
			continue
		}
		lists = lists || n.GetName() == network
		out.networks = append(out.networks, discovery.Network{Name: n.GetName(), Segment: n.GetSegment()})
	}
	if !lists {
		return base{}, malformed("it does not list network %q", network)
	}
	for _, g := range m.GetGateways() {
		x, err := decodeGateway(g, network)
		if err != nil {
			odd(err)
			continue
		}
		out.gateways = append(out.gateways, x)
	}
	return out, nil
}

func decodeGateway(m *pb.ExcerptGateway, network string) (discovery.Gateway, error) {
	g := discovery.Gateway{Name: m.GetName(), Network: network, ServiceAccount: m.GetServiceAccount(), Drained: m.GetDrained(),
		Locality: discovery.Locality{Region: m.GetRegion(), Zone: m.GetZone(), Subzone: m.GetSubzone()}}
	if err := cmp.Or(checkNames("gateway", g.Name, g.Locality.Region, g.Locality.Zone, g.Locality.Subzone), checkNumber("sources", len(m.GetSources()), maxListed)); err != nil {
		return g, err
	}
	if len(g.ServiceAccount) > 2*maxName {
		return g, malformed("service account of %d bytes", len(g.ServiceAccount))
	}
	if err := g.Address.UnmarshalBinary(m.GetAddress()); err != nil {
		return g, malformed("address of gateway %q: %v", g.Name, err)
	}
	if b := m.GetFederation(); len(b) == 0 {
		// it is the address
	} else if err := g.FederationAddress.UnmarshalBinary(b); err != nil {
		return g, malformed("federation address of gateway %q: %v", g.Name, err)
	}
	for _, b := range m.GetSources() {
		var p netip.Prefix
		if err := p.UnmarshalBinary(b); err != nil {
			return g, malformed("source of gateway %q: %v", g.Name, err)
		}
		g.Sources = append(g.Sources, p)
	}
	return g, nil
}

// decodeService returns a service and its hostname.
func decodeService(m *pb.ExcerptService) (s discovery.Service, hostname string, err error) {
	s = discovery.Service{Name: m.GetName(), Namespace: m.GetNamespace(), Hostname: m.GetHostname(), Aliases: m.GetAliases(), Scope: m.GetScope(), Takeover: m.GetTakeover(), PublishNotReady: m.GetPublishNotReady()}
	if err := cmp.Or(checkNames("service", s.Name, s.Namespace, s.Hostname, s.Scope, m.GetDistribution()), checkNames("alias", s.Aliases...),
		checkNumber("aliases", len(s.Aliases), maxListed), checkNumber("virtual addresses", len(m.GetVips()), maxListed), checkNumber("ports", len(m.GetPorts()), maxListed)); err != nil {
		return s, "", err
	}
	if s.VIPs, err = decodeAddresses(m.GetVips()); err != nil {
		return s, "", err
	}
	switch mesh.Source(m.GetDistributionFrom()) {
	case mesh.FromService:
		s.TrafficDistribution = m.GetDistribution()
	case mesh.FromNamespace:
		s.Inherited.Namespace = m.GetDistribution()
	case mesh.FromMesh:
		s.Inherited.Mesh = m.GetDistribution()
	}
	if s.Ports, err = decodePorts(m.GetPorts()); err != nil {
		return s, "", err
	}
	if s.Import, err = decodeImport(m.GetImport()); err != nil {
		return s, "", err
	}
	hostname = strings.ToLower(cmp.Or(s.Hostname, hostnameOf(s.Name, s.Namespace)))
	if s.Name == "" || s.Namespace == "" || len(hostname) > maxName {
		return s, "", malformed("service %.80q of namespace %.80q", s.Name, s.Namespace)
	}
	return s, hostname, nil
}

func decodeImport(m *pb.ExcerptImport) (*discovery.Import, error) {
	if m == nil {
		return nil, nil
	}
	if err := cmp.Or(checkNames("alias", m.GetAliases()...), checkNumber("aliases", len(m.GetAliases()), maxListed), checkNumber("virtual addresses", len(m.GetVips()), maxListed), checkNumber("ports", len(m.GetPorts()), maxListed)); err != nil {
		return nil, err
	}
	x := &discovery.Import{Aliases: m.GetAliases()}
	var err error
	if x.VIPs, err = decodeAddresses(m.GetVips()); err == nil {
		x.Ports, err = decodePorts(m.GetPorts())
	}
	return x, err
}

func decodePorts(list []*pb.ExcerptPort) (out []discovery.ServicePort, err error) {
	for _, p := range list {
		if err := checkPort(p); err != nil {
			return nil, err
		}
		out = append(out, discovery.ServicePort{Name: p.GetName(), Port: uint16(p.GetPort()), TargetPort: uint16(p.GetTarget()), TargetName: p.GetTargetName(), Protocol: p.GetProtocol()})
	}
	return out, nil
}

func checkPort(p *pb.ExcerptPort) error {
	if p.GetPort() > 65535 || p.GetTarget() > 65535 {
		return malformed("port %d to %d", p.GetPort(), p.GetTarget())
	}
	return checkNames("port", p.GetName(), p.GetTargetName(), p.GetProtocol())
}

var stateFromWire = map[pb.WorkloadState]string{
	pb.WorkloadState_WORKLOAD_STATE_READY: "ready", pb.WorkloadState_WORKLOAD_STATE_NOT_READY: "notReady",
	pb.WorkloadState_WORKLOAD_STATE_TERMINATING: "terminating", pb.WorkloadState_WORKLOAD_STATE_SERVING: "serving",
}

// decodeWorkload returns a workload of network. A state of a later version is not ready.
func decodeWorkload(m *pb.ExcerptWorkload, network string) (w discovery.Workload, err error) {
	w = discovery.Workload{UID: m.GetUid(), Name: m.GetName(), Namespace: m.GetNamespace(), ServiceAccount: m.GetServiceAccount(), Network: network, Node: m.GetNode(), Cluster: m.GetCluster(),
		Locality: discovery.Locality{Region: m.GetRegion(), Zone: m.GetZone(), Subzone: m.GetSubzone()}, State: cmp.Or(stateFromWire[m.GetState()], "notReady"), Services: m.GetServices(), Labels: m.GetLabels()}
	if err := cmp.Or(checkNames("workload", w.UID, w.Name, w.Namespace, w.ServiceAccount, w.Node, w.Cluster, w.Locality.Region, w.Locality.Zone, w.Locality.Subzone), checkNames("service of a workload", w.Services...),
		checkNumber("services of a workload", len(w.Services), maxMembers), checkNumber("addresses", len(m.GetAddresses()), maxListed), checkNumber("ports", len(m.GetPorts()), maxMembers)); err != nil {
		return w, err
	}
	if w.UID == "" {
		return w, malformed("workload without a UID")
	}
	if err := checkNumber("labels", len(w.Labels), maxListed); err != nil {
		return w, err
	}
	for k, v := range w.Labels {
		if len(k)+len(v) > 2*maxName { // a prefix, a name and a value
			return w, malformed("label of %d bytes", len(k)+len(v))
		}
	}
	if w.Addresses, err = decodeAddresses(m.GetAddresses()); err != nil {
		return w, err
	}
	if c := m.GetCapacity(); c != 0 {
		w.Capacity = &c
	}
	if m.GetPlain() {
		w.Protocol = "TCP"
	}
	for _, p := range m.GetPorts() {
		if err := checkPort(p); err != nil {
			return w, err
		}
		w.Ports = append(w.Ports, discovery.NamedPort{Name: p.GetName(), Port: uint16(p.GetTarget())})
	}
	return w, nil
}

func decodeAddresses(list [][]byte) (out []netip.Addr, err error) {
	for _, b := range list {
		a, ok := netip.AddrFromSlice(b)
		if !ok {
			return nil, malformed("address of %d bytes", len(b))
		}
		out = append(out, a)
	}
	return out, nil
}

// accountOf is the service account of g as discovery writes it: namespace/name.
func accountOf(g *mesh.Gateway) string {
	parts := strings.Split(g.Identity.Path(), "/") // "", ns, <namespace>, sa, <account>
	if len(parts) != 5 {
		return ""
	}
	return parts[2] + "/" + parts[4]
}
