package meshtest

import (
	"net/netip"

	"github.com/isthmus-mesh/isthmus/discovery"
	"github.com/isthmus-mesh/isthmus/internal/testlb"
)

// Behind puts the gateways of a network that are declared behind one address of a load
// balancer, which is the one that discovery has of all of them from now on. They find each
// other, and node proxies of the network find them, at their own.
func (m *Mesh) Behind(network string, policy testlb.Policy) (*testlb.Balancer, *testlb.Front) {
	m.t.Helper()
	b := &testlb.Balancer{Policy: policy}
	front := netip.AddrPortFrom(m.Addr(), HBONEPort)
	f, err := testlb.Serve(b, front)
	if err != nil {
		m.t.Fatal(err)
	}
	m.t.Cleanup(f.Close)
	var backends []string
	for i := range m.Config.Gateways {
		if g := &m.Config.Gateways[i]; g.Network == network {
			g.FederationAddress, g.Address = g.Address, front
			backends = append(backends, g.FederationAddress.String())
		}
	}
	b.Set(backends...)
	return b, f
}

// GatewayBehind declares one more gateway at the address that others of the network share.
func (m *Mesh) GatewayBehind(network, name, like string) {
	m.t.Helper()
	m.Gateway(network, name)
	g, other := m.gatewayConfig(network, name), m.gatewayConfig(network, like)
	g.FederationAddress, g.Address = g.Address, other.Address
}

// RemoveGateway takes a gateway out of the description; Write makes it known.
func (m *Mesh) RemoveGateway(network, name string) {
	var left []discovery.Gateway
	for _, g := range m.Config.Gateways {
		if g.Network != network || g.Name != name {
			left = append(left, g)
		}
	}
	m.Config.Gateways = left
}

// OwnAddress is where a gateway listens itself.
func (m *Mesh) OwnAddress(network, name string) netip.AddrPort {
	m.t.Helper()
	g := m.gatewayConfig(network, name)
	if g.FederationAddress.IsValid() {
		return g.FederationAddress
	}
	return g.Address
}
