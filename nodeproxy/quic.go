package nodeproxy

import (
	"context"
	"crypto/tls"
	"errors"
	"net"
	"net/netip"
	"syscall"

	"github.com/isthmus-mesh/isthmus/hbone"
	"github.com/isthmus-mesh/isthmus/hbone/quic"
	"github.com/isthmus-mesh/isthmus/identity"
	"github.com/isthmus-mesh/isthmus/nodeproxy/pods"
)

// transport is what a session with the next process of a hop runs on.
type transport interface {
	hbone.Transport
	Protocol() string // ALPN
}

// dialQUIC opens a QUIC connection to a gateway as source, from the network namespace of source.
func (p *Proxy) dialQUIC(ctx context.Context, source origin, addr netip.AddrPort, cfg *tls.Config) (transport, error) {
	socket, err := p.udpOf(source)(ctx, addr)
	if err != nil {
		return nil, &dialError{err}
	}
	hctx, cancel := context.WithTimeout(ctx, p.cfg.Timeouts.Dial+p.cfg.Timeouts.Handshake)
	defer cancel()
	t, err := quic.Dial(hctx, socket, net.UDPAddrFromAddrPort(addr), cfg, quic.DialConfig{
		Silence: p.cfg.Timeouts.Dial, Memory: quic.Memory{Budget: p.cfg.Memory, Owner: source.id.String()},
	})
	switch {
	case err == nil:
		return t, nil
	case identity.ReasonOf(err) == identity.ReasonHandshake && (isTimeout(err) || errors.As(err, new(syscall.Errno))): // no process, or no path
		return nil, &dialError{err}
	}
	return nil, inHandshake(hopOuter, err)
}

// udpOf returns how source opens a UDP socket to an address.
func (p *Proxy) udpOf(source origin) func(context.Context, netip.AddrPort) (net.PacketConn, error) {
	if source.from == "" {
		return udpHere
	}
	return p.pods.UDP(source.from, udpHere)
}

func udpHere(ctx context.Context, to netip.AddrPort) (net.PacketConn, error) {
	return new(net.ListenConfig).ListenPacket(ctx, pods.UDPNetwork(to), "")
}
