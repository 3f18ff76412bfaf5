package gateway

import (
	"context"
	"errors"
	"fmt"
	"net"

	"github.com/isthmus-mesh/isthmus/hbone"
	"github.com/isthmus-mesh/isthmus/hbone/quic"
)

// listenQUIC binds the UDP port of the number of the TCP port.
func (g *Gateway) listenQUIC() error {
	if !g.cfg.Lines.ServesQUIC() {
		return nil
	}
	if g.cfg.ReusePort {
		return errors.New("lines.transport: QUIC connections cannot be handed over to another process: use tcp, or turn reusePort off")
	}
	at := g.listener.Addr().(*net.TCPAddr)
	socket, err := net.ListenUDP("udp", &net.UDPAddr{IP: at.IP, Port: at.Port, Zone: at.Zone})
	if err != nil {
		return fmt.Errorf("listen for QUIC: %w: is another process using that UDP port?", err)
	}
	protocols := quic.Protocols(hbone.ServerProtocols(g.cfg.Instance()))
	g.quic, err = quic.Listen(socket, g.ids.ServerTLS(g.self.Identity, nil, protocols...),
		quic.ListenConfig{MaxStreams: maxStreams, MaxHandshakes: g.cfg.Limits.Handshakes})
	return err
}

// acceptQUIC serves tunnels over QUIC until ctx ends. Open connections go on until they are drained.
func (g *Gateway) acceptQUIC(ctx context.Context) {
	defer g.quic.Close()
	for {
		t, err := g.quic.Accept(ctx)
		if err != nil {
			return
		}
		g.conns.Go(func() {
			svid, err := g.ids.Get(g.background, g.self.Identity)
			if err != nil {
				t.Close()
				return
			}
			g.serveTunnels(t, svid.NotAfter())
		})
	}
}
