package gossip

import (
	"crypto/tls"
	"fmt"
	"math/rand/v2"
	"slices"
	"time"

	"github.com/spiffe/go-spiffe/v2/spiffeid"
	"google.golang.org/protobuf/proto"

	"github.com/isthmus-mesh/isthmus/federation/federationpb"
	"github.com/isthmus-mesh/isthmus/federation/networkkey"
	"github.com/isthmus-mesh/isthmus/federation/peer"
	"github.com/isthmus-mesh/isthmus/federation/record"
	"github.com/isthmus-mesh/isthmus/internal/link"
	"github.com/isthmus-mesh/isthmus/mesh"
)

const (
	maxIntroduction = 2048 // bytes: certificate, signature and two names

	// bindingLabel is that of the TLS exporter (RFC 8446, 7.5) whose value both ends
	// of a connection sign, and nobody on another connection can use.
	bindingLabel = "EXPORTER-isthmus-introduction/1"
	bindingBytes = 32
)

// The ends of a connection sign different things: neither can send back what the
// other has signed.
const (
	endDialled  byte = 1
	endAccepted byte = 2
)

// state is that of the TLS connection.
func (c *conn) state() (tls.ConnectionState, error) {
	secure, ok := c.Conn.(interface{ ConnectionState() tls.ConnectionState })
	if !ok {
		return tls.ConnectionState{}, fmt.Errorf("introduce: %T is no TLS connection", c.Conn)
	}
	return secure.ConnectionState(), nil
}

// binding is what an end of c signs to prove that it holds the key of its instance.
func (c *conn) binding(dialled bool) ([]byte, error) {
	state, err := c.state()
	if err != nil {
		return nil, err
	}
	b, err := state.ExportKeyingMaterial(bindingLabel, nil, bindingBytes)
	if err != nil {
		return nil, fmt.Errorf("introduce: TLS exporter: %w", err)
	}
	if dialled {
		return append(b, endDialled), nil
	}
	return append(b, endAccepted), nil
}

// introduce says who we are and proves it, behind prefix.
func (c *conn) introduce(prefix []byte) error {
	binding, err := c.binding(c.dialled)
	if err != nil {
		return err
	}
	b, err := proto.Marshal(c.transport.f.introduction(binding))
	if err != nil {
		return fmt.Errorf("introduce: %w", err)
	}
	_, err = c.Write(link.AppendFrame(prefix, b))
	return err
}

// introduction is that of this instance, for the connection of binding.
func (f *Federation) introduction(binding []byte) *federationpb.Introduction {
	f.mu.Lock()
	defer f.mu.Unlock()
	id := f.instance.ID()
	return &federationpb.Introduction{
		Network: f.cfg.Network, Gateway: f.cfg.Name, Instance: id[:],
		Certificate: f.instance.Certificate(), Signature: f.instance.SignIntroduction(binding),
	}
}

// hear reads who the other end is, which has proved to be id by TLS: a gateway that
// discovery lists with this identity. All gateways may share one, so it proves as
// well that its network has certified it as that gateway's instance.
func (c *conn) hear(id spiffeid.ID) error {
	b, err := link.ReadFrame(c, maxIntroduction, nil)
	if err != nil {
		return err
	}
	var m federationpb.Introduction
	if err := proto.Unmarshal(b, &m); err != nil {
		return &peer.MalformedError{Cause: err}
	}
	if len(m.GetInstance()) != len(c.instance) {
		return &peer.MalformedError{Cause: fmt.Errorf("instance of %d bytes, want %d", len(m.GetInstance()), len(c.instance))}
	}
	f := c.transport.f
	c.instance = record.Instance(m.GetInstance())
	if c.instance == f.Instance() {
		return errSelf
	}
	c.gateway, c.identity, c.local = m.GetNetwork()+"/"+m.GetGateway(), id, m.GetNetwork() == f.cfg.Network
	if c.door != "" && c.door != m.GetNetwork() {
		return &peer.IdentityError{Cause: fmt.Errorf("what was dialed as network %s is gateway %.80q of network %.80q", c.door, m.GetGateway(), m.GetNetwork())}
	}
	if !slices.ContainsFunc(f.cfg.Peers(), c.is) && !c.transport.doors.admits(m.GetNetwork(), id) {
		return &peer.IdentityError{Cause: fmt.Errorf("%q is not the identity of gateway %.80q of network %.80q, by discovery", id, m.GetGateway(), m.GetNetwork())}
	}
	return c.proven(&m, f.held().Known, time.Now())
}

// is says whether the other end of c is g.
func (c *conn) is(g *mesh.Gateway) bool {
	return g.Identity == c.identity && len(c.gateway) == len(g.Network)+1+len(g.Name) && c.gateway == g.Network+"/"+g.Name
}

// proven checks by the keys of networks that m comes from whom it names.
func (c *conn) proven(m *federationpb.Introduction, known networkkey.Known, now time.Time) error {
	if len(m.GetCertificate()) == 0 {
		return &peer.IdentityError{Cause: fmt.Errorf("gateway %.80q of network %.80q introduces itself without the certificate of its instance: update it, it is older than this one", m.GetGateway(), m.GetNetwork())}
	}
	certificate, err := known.Verify(m.GetCertificate(), now)
	if err != nil {
		return err
	}
	if certificate.Network != m.GetNetwork() || certificate.Gateway != m.GetGateway() {
		return &peer.IdentityError{Cause: fmt.Errorf("gateway %.80q of network %.80q shows the certificate of gateway %.80q of network %.80q",
			m.GetGateway(), m.GetNetwork(), certificate.Gateway, certificate.Network)}
	}
	if err := certificate.Is(c.instance); err != nil {
		return &peer.IdentityError{Cause: err}
	}
	binding, err := c.binding(!c.dialled)
	if err != nil {
		return err
	}
	if !certificate.VerifyIntroduction(binding, m.GetSignature()) {
		return &peer.IdentityError{Cause: fmt.Errorf("the signature of the introduction is not that of instance %s of gateway %.80q of network %.80q", c.instance, m.GetGateway(), m.GetNetwork())}
	}
	c.raw, c.certificate = m.GetCertificate(), certificate
	return c.setExpiry(now)
}

// stillKnown says whether the network of the other end is known by the key that
// vouched for it.
func (c *conn) stillKnown(known networkkey.Known) error {
	_, err := known.Verify(c.raw, c.certificate.NotAfter)
	return err
}

// setExpiry notes when the first of the certificates ends by which the other end has
// proved itself: nobody is heard for longer on them. Whoever has dialed gives up a
// little earlier, and dials again with new ones while the connection the other way
// goes on.
func (c *conn) setExpiry(now time.Time) error {
	state, err := c.state()
	if err != nil {
		return err
	}
	c.expiry = c.certificate.NotAfter.Add(networkkey.Tolerance)
	for _, leaf := range state.PeerCertificates[:min(1, len(state.PeerCertificates))] {
		if leaf.NotAfter.Before(c.expiry) {
			c.expiry = leaf.NotAfter
		}
	}
	if left := c.expiry.Sub(now); c.dialled && left > time.Minute {
		c.expiry = c.expiry.Add(-left/20 - rand.N(left/10))
	}
	return nil
}
