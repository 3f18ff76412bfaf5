package gateway

import (
	"context"
	"errors"
	"fmt"
	"net"
	"time"

	"github.com/isthmus-mesh/isthmus/hbone"
	"github.com/isthmus-mesh/isthmus/hbone/quic"
	"github.com/isthmus-mesh/isthmus/identity"
)

// listenQUIC binds the UDP port with the number of the TCP port.
func (g *Gateway) listenQUIC() error {
	if !g.cfg.Lines.ServesQUIC() {
		return nil
	}
	at := g.listener.Addr().(*net.TCPAddr)
	socket, err := net.ListenUDP("udp", &net.UDPAddr{IP: at.IP, Port: at.Port, Zone: at.Zone})
	if err != nil {
		return fmt.Errorf("listen for QUIC: %w: is another process using that UDP port?", err)
	}
	protocols := quic.Protocols(hbone.ServerProtocols(g.cfg.Instance()))
	g.quic, err = quic.Listen(socket, g.ids.ServerTLS(g.self.Identity, nil, protocols...),
		quic.ListenConfig{MaxStreams: maxStreams, MaxHandshakes: g.cfg.Limits.Handshakes, Handshake: g.cfg.Timeouts.Handshake,
			Refused: g.refusedQUIC, Memory: quic.Memory{Budget: g.cfg.Memory}})
	if err != nil {
		return err
	}
	if size, enough := g.quic.ReceiveBuffer(); !enough {
		g.log.Info().Int("bytes", size).Str("remedy", "sysctl -w net.core.rmem_max=7340032 on the node").Msg("small receive buffer for QUIC: bursts may lose packets")
	}
	return nil
}

// refusedQUIC counts a handshake that failed or was refused, and logs a failed one.
func (g *Gateway) refusedQUIC(from net.Addr, err error) {
	reason := "overload"
	if !errors.Is(err, quic.ErrHandshakes) {
		reason = g.refusals.Note("outer", "", from, err)
	}
	g.metrics.refused.WithLabelValues(reason).Inc()
}

// acceptQUIC serves tunnels over QUIC until ctx is done. Open connections stay until they are
// drained.
func (g *Gateway) acceptQUIC(ctx context.Context) {
	defer g.quic.Close()
	var own, before *identity.SVID
	var replaced time.Time
	for {
		t, err := g.quic.Accept(ctx)
		if err != nil {
			if ctx.Err() == nil {
				g.log.Error().Err(err).Str("remedy", "restart the gateway").Msg("QUIC is no longer served")
			}
			return
		}
		svid, err := g.ids.Get(g.background, g.self.Identity)
		if err != nil {
			t.Close()
			continue
		}
		if svid != own {
			own, before, replaced = svid, own, time.Now()
		}
		expiry := own.NotAfter()
		if before != nil && time.Since(replaced) < 2*g.cfg.Timeouts.Handshake { // the handshake may have used that one
			expiry = earlier(expiry, before.NotAfter())
		}
		g.conns.Go(func() { g.serveTunnels(t, expiry) })
	}
}
