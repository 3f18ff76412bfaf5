package meshtest

import (
	"context"
	"crypto/tls"
	"net"
	"net/netip"
	"time"

	"github.com/rs/zerolog"
	"github.com/spiffe/go-spiffe/v2/spiffeid"

	"github.com/isthmus-mesh/isthmus/hbone"
	"github.com/isthmus-mesh/isthmus/identity"
)

// ID is spiffe://<trust domain>/ns/<ns>/sa/<sa>; account is ns/sa.
func (m *Mesh) ID(account string) spiffeid.ID {
	m.t.Helper()
	ns, sa, _ := cut(account)
	id, err := identity.WorkloadID(m.CA.TrustDomain(), ns, sa)
	if err != nil {
		m.t.Fatal(err)
	}
	return id
}

// Manager holds certificates of the mesh's CA for a peer of the test's own.
func (m *Mesh) Manager() *identity.Manager {
	return identity.NewManager(identity.CASource{CA: m.CA, TTL: time.Hour}, zerolog.Nop())
}

// NodeID is the identity of the node proxy of node on network.
func (m *Mesh) NodeID(network, node string) spiffeid.ID {
	m.t.Helper()
	id, err := identity.NodeID(m.ID("isthmus-system/nodeproxy"), network, node)
	if err != nil {
		m.t.Fatal(err)
	}
	return id
}

// TLS is how a client as id dials somebody who must be one of expect.
func (m *Mesh) TLS(id spiffeid.ID, alpn string, expect ...spiffeid.ID) *tls.Config {
	m.t.Helper()
	c, err := m.Manager().ClientTLS(context.Background(), id, expect, alpn)
	if err != nil {
		m.t.Fatal(err)
	}
	return c
}

// Session opens an HBONE session of the test's own, as id, with the peer at
// addr, who must be one of expect. It is closed when the test ends.
func (m *Mesh) Session(id spiffeid.ID, addr netip.AddrPort, expect ...spiffeid.ID) (*hbone.Session, error) {
	m.t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), ExchangeTimeout)
	defer cancel()
	conn, err := net.Dial("tcp4", addr.String())
	if err != nil {
		return nil, err
	}
	t, err := hbone.ClientTLS(ctx, conn, m.TLS(id, "h2", expect...))
	if err != nil {
		return nil, err
	}
	s, err := hbone.NewClient(ctx, t, hbone.DefaultConfig())
	if err != nil {
		return nil, err
	}
	m.t.Cleanup(func() { s.Close(nil) })
	return s, nil
}
