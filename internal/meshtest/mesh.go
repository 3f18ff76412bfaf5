package meshtest

import (
	"cmp"
	"crypto/rand"
	"fmt"
	"maps"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/spiffe/go-spiffe/v2/spiffeid"
	"go.yaml.in/yaml/v3"

	"github.com/isthmus-mesh/isthmus/discovery"
	"github.com/isthmus-mesh/isthmus/federation/networkkey/keyfile"
	"github.com/isthmus-mesh/isthmus/gateway"
	"github.com/isthmus-mesh/isthmus/identity"
	"github.com/isthmus-mesh/isthmus/mesh"
	"github.com/isthmus-mesh/isthmus/nodeproxy"
)

// HBONEPort is where every pod's node proxy and every gateway listens.
const HBONEPort = mesh.HBONEPort

// Mesh is one mesh under construction or running. Describe it, Start it, change
// Config and Write it again. It belongs to the goroutine of the test.
type Mesh struct {
	// Config is what the next Write puts into the discovery file.
	Config discovery.Config
	// CA signs everybody's certificates.
	CA *identity.CA
	// EachGateway and EachNode, if set, change a process's configuration before
	// it starts.
	EachGateway func(*gateway.Config)
	EachNode    func(*nodeproxy.Config)
	// Quiet turns the logs of processes off, for benchmarks.
	Quiet bool

	t         testing.TB
	dir       string
	prefix    [3]byte
	hosts     byte
	pods      []*Pod
	outbounds map[string][]nodeproxy.Outbound // by node
	processes []*Process
}

// New returns an empty mesh of its own addresses. When the test ends everything
// that it started is stopped and looked after.
func New(t testing.TB) *Mesh {
	t.Helper()
	return NewIn(t, discovery.DefaultTrustDomain)
}

// NewIn is New in another trust domain.
func NewIn(t testing.TB, trustDomain string) *Mesh {
	t.Helper()
	m := &Mesh{t: t, dir: t.TempDir(), outbounds: map[string][]nodeproxy.Outbound{}}
	alive.Add(1)
	t.Cleanup(func() { noLeaks(t) }) // runs last: cleanups go backwards
	m.prefix = claim(t)
	m.Config = discovery.DefaultConfig()
	m.Config.TrustDomain = trustDomain
	var err error
	m.CA, err = identity.InitCA(m.caDir(), spiffeid.RequireTrustDomainFromString(m.Config.TrustDomain))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(m.stop)
	return m
}

func (m *Mesh) stop() {
	for _, p := range m.processes {
		p.cancel()
	}
	for _, p := range m.processes {
		p.wait(m.t)
		p.checkConnections(m.t)
		p.checkLabels(m.t)
		p.Log.checkKeys(m.t, p.Name)
	}
	if !m.t.Failed() {
		return
	}
	for _, p := range m.processes {
		m.t.Logf("last lines of %s:\n%s", p.Name, p.Log.tail(25))
	}
}

// Keys returns where the gateways of network find their keys, and makes those of
// all networks that have none yet.
func (m *Mesh) Keys(network string) keyfile.Ring {
	m.t.Helper()
	var names []string
	for _, n := range m.Config.Networks {
		names = append(names, n.Name)
	}
	rings, err := keyfile.InitAll(filepath.Join(m.dir, "networks"), names, rand.Reader)
	if err != nil {
		m.t.Fatal(err)
	}
	return rings[network]
}

func (m *Mesh) caDir() string { return filepath.Join(m.dir, "ca") }

// File is the path of the discovery file.
func (m *Mesh) File() string { return filepath.Join(m.dir, "mesh.yaml") }

// Dir is the temporary folder of the mesh.
func (m *Mesh) Dir() string { return m.dir }

// Addr returns an address that nothing uses yet.
func (m *Mesh) Addr() netip.Addr {
	m.t.Helper()
	m.hosts++
	if m.hosts >= 250 {
		m.t.Fatal("a mesh has at most 249 addresses")
	}
	return netip.AddrFrom4([4]byte{m.prefix[0], m.prefix[1], m.prefix[2], m.hosts})
}

// Networks declares networks.
func (m *Mesh) Networks(names ...string) {
	for _, n := range names {
		m.Config.Networks = append(m.Config.Networks, discovery.Network{Name: n})
	}
}

// Service declares a global service in namespace default with port pairs:
// service port, target port, service port, target port. It returns its hostname.
func (m *Mesh) Service(name string, ports ...uint16) string {
	s := discovery.Service{Name: name, Global: true}
	for i := 0; i+1 < len(ports); i += 2 {
		s.Ports = append(s.Ports, discovery.ServicePort{Name: fmt.Sprintf("p%d", ports[i]), Port: ports[i], TargetPort: ports[i+1]})
	}
	m.Config.Services = append(m.Config.Services, s)
	return name + ".default.svc.cluster.local"
}

// EditService changes the description of a service; Write makes it known.
func (m *Mesh) EditService(name string, edit func(*discovery.Service)) {
	for i := range m.Config.Services {
		if m.Config.Services[i].Name == name {
			edit(&m.Config.Services[i])
			return
		}
	}
	m.t.Fatalf("no service %q", name)
}

// Gateway declares a gateway of a network, which Start will run.
func (m *Mesh) Gateway(network, name string) {
	m.Config.Gateways = append(m.Config.Gateways, discovery.Gateway{
		Name: name, Network: network, Address: netip.AddrPortFrom(m.Addr(), HBONEPort), ServiceAccount: "isthmus-system/gateway-" + network,
	})
}

// GatewayAt is the address of a gateway in discovery.
func (m *Mesh) GatewayAt(network, name string) netip.AddrPort {
	m.t.Helper()
	return m.gatewayConfig(network, name).Address
}

func (m *Mesh) gatewayConfig(network, name string) *discovery.Gateway {
	m.t.Helper()
	for i, g := range m.Config.Gateways {
		if g.Network == network && g.Name == name {
			return &m.Config.Gateways[i]
		}
	}
	m.t.Fatalf("no gateway %q on network %q", name, network)
	return nil
}

// Pod is one workload of the mesh.
type Pod struct {
	UID     string
	Name    string
	Network string
	Node    string
	Addr    netip.Addr
	// Socks is where the pod's applications find SOCKS5, once its node runs.
	Socks netip.AddrPort

	m *Mesh
}

// Pod declares a workload with its own address and service account (its name up
// to the last hyphen), serving the named services.
func (m *Mesh) Pod(network, node, name string, services ...string) *Pod {
	p := &Pod{UID: network + "/default/" + name, Name: name, Network: network, Node: node, Addr: m.Addr(), m: m}
	p.Socks = netip.AddrPortFrom(p.Addr, 15080)
	w := discovery.Workload{UID: p.UID, Name: name, ServiceAccount: accountOf(name), Network: network, Node: node, Cluster: network, Addresses: []netip.Addr{p.Addr}}
	for _, s := range services {
		w.Services = append(w.Services, s+".default.svc.cluster.local")
	}
	m.Config.Workloads = append(m.Config.Workloads, w)
	m.pods = append(m.pods, p)
	return p
}

func accountOf(name string) string {
	for i := len(name) - 1; i > 0; i-- {
		if name[i] == '-' {
			return name[:i]
		}
	}
	return name
}

// At is an address of the pod.
func (p *Pod) At(port uint16) netip.AddrPort { return netip.AddrPortFrom(p.Addr, port) }

// Endpoint is the pod's identifier in logs and headers.
func (p *Pod) Endpoint() mesh.EndpointID { return mesh.EndpointIDOf(p.Network, p.UID) }

// Identity is the pod's SPIFFE ID.
func (p *Pod) Identity() spiffeid.ID {
	return spiffeid.RequireFromPathf(p.m.CA.TrustDomain(), "/ns/default/sa/%s", accountOf(p.Name))
}

// Edit changes the pod's description; Write makes it known.
func (p *Pod) Edit(edit func(*discovery.Workload)) {
	for i := range p.m.Config.Workloads {
		if p.m.Config.Workloads[i].UID == p.UID {
			edit(&p.m.Config.Workloads[i])
			return
		}
	}
	p.m.t.Fatalf("pod %s is not in the discovery file", p.UID)
}

// Remove takes the pod out of the description; Write makes it known.
func (p *Pod) Remove() {
	for i, w := range p.m.Config.Workloads {
		if w.UID == p.UID {
			p.m.Config.Workloads = append(p.m.Config.Workloads[:i:i], p.m.Config.Workloads[i+1:]...)
			return
		}
	}
}

// Outbound declares a static listener of the pod for host:port, before its node
// starts, and returns where it will be.
func (p *Pod) Outbound(to string) netip.AddrPort {
	l := netip.AddrPortFrom(p.Addr, uint16(20000+len(p.m.outbounds[p.Node])))
	p.m.outbounds[p.Node] = append(p.m.outbounds[p.Node], nodeproxy.Outbound{Workload: p.UID, Listen: l, To: to})
	return l
}

// Write puts Config into the discovery file, whole or not at all.
func (m *Mesh) Write() {
	m.t.Helper()
	m.write(m.Config, m.File())
}

// WriteOwn writes a discovery file that lists what is of one network and nothing else,
// and returns its path.
func (m *Mesh) WriteOwn(network string) string {
	m.t.Helper()
	c := discovery.DefaultConfig()
	c.TrustDomain = m.Config.TrustDomain
	elsewhere := func(of string) bool { return of != network }
	c.Networks = slices.DeleteFunc(slices.Clone(m.Config.Networks), func(n discovery.Network) bool { return elsewhere(n.Name) })
	c.Gateways = slices.DeleteFunc(slices.Clone(m.Config.Gateways), func(g discovery.Gateway) bool { return elsewhere(g.Network) })
	c.Workloads = slices.DeleteFunc(slices.Clone(m.Config.Workloads), func(w discovery.Workload) bool { return elsewhere(w.Network) })
	for _, s := range m.Config.Services {
		host := cmp.Or(s.Hostname, s.Name+"."+cmp.Or(s.Namespace, "default")+".svc.cluster.local")
		if slices.ContainsFunc(c.Workloads, func(w discovery.Workload) bool { return slices.Contains(w.Services, host) }) {
			c.Services = append(c.Services, s)
		}
	}
	path := filepath.Join(m.dir, network+".yaml")
	m.write(c, path)
	return path
}

// LinkFile writes the file by which node proxies of one network know all others, and
// gateways too that are given it, and returns its path.
func (m *Mesh) LinkFile(network string) string {
	m.t.Helper()
	known, err := keyfile.ReadKnown(m.Keys(network).List)
	if err != nil {
		m.t.Fatal(err)
	}
	delete(known, network)
	var b strings.Builder
	b.WriteString("networks:\n")
	for _, n := range slices.Sorted(maps.Keys(known)) {
		fmt.Fprintf(&b, "  - name: %s\n    gatewayServiceAccount: isthmus-system/gateway-%s\n    keys:\n", n, n)
		for _, k := range known[n] {
			fmt.Fprintf(&b, "      - %s\n", k)
		}
		var at []string
		for _, g := range m.Config.Gateways {
			if a := strconv.Quote(g.Address.String()); g.Network == n && !slices.Contains(at, a) {
				at = append(at, a)
			}
		}
		fmt.Fprintf(&b, "    addresses: [%s]\n", strings.Join(at, ", "))
	}
	path := filepath.Join(m.dir, network+".networks.yaml")
	if err := os.WriteFile(path, []byte(b.String()), 0o600); err != nil {
		m.t.Fatal(err)
	}
	return path
}

func (m *Mesh) write(c discovery.Config, path string) {
	m.t.Helper()
	var n yaml.Node
	if err := n.Encode(c); err != nil {
		m.t.Fatal(err)
	}
	prune(&n)
	data, err := yaml.Marshal(&n)
	if err != nil {
		m.t.Fatal(err)
	}
	fresh := path + ".new"
	if err := os.WriteFile(fresh, data, 0o600); err != nil {
		m.t.Fatal(err)
	}
	if err := os.Rename(fresh, path); err != nil {
		m.t.Fatal(err)
	}
}

// prune drops keys without a value: an empty list or string means "left out".
func prune(n *yaml.Node) (empty bool) {
	switch n.Kind {
	case yaml.ScalarNode:
		return n.Tag == "!!null" || n.Value == "" || n.Tag == "!!bool" && n.Value == "false" || n.Tag == "!!int" && n.Value == "0"
	case yaml.MappingNode:
		kept := n.Content[:0]
		for i := 0; i+1 < len(n.Content); i += 2 {
			if v := n.Content[i+1]; !prune(v) || n.Content[i].Value == "ready" && v.Tag != "!!null" {
				kept = append(kept, n.Content[i], v)
			}
		}
		n.Content = kept
	case yaml.SequenceNode:
		for _, c := range n.Content {
			prune(c)
		}
	}
	return len(n.Content) == 0
}
