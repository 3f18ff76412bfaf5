package gateway_test

import (
	"context"
	"crypto/tls"
	"net"
	"testing"
	"time"

	"github.com/isthmus-mesh/isthmus/gateway"
	"github.com/isthmus-mesh/isthmus/hbone/quic"
	"github.com/isthmus-mesh/isthmus/internal/lines"
)

// deaf is a socket that drops what it receives.
type deaf struct{ net.PacketConn }

func (d deaf) ReadFrom(p []byte) (int, net.Addr, error) {
	for {
		if _, _, err := d.PacketConn.ReadFrom(p); err != nil {
			return 0, nil, err
		}
	}
}

// A QUIC handshake that its client does not finish fails after timeouts.handshake. quic-go's own limit is 10 s.
func TestQUICHandshakeTimeout(t *testing.T) {
	const limit = time.Second
	s := newUDPSite(t, lines.QUIC, lines.QUIC, func(s *site) {
		each := s.EachGateway
		s.EachGateway = func(c *gateway.Config) { each(c); c.Timeouts.Handshake = limit }
	})
	socket, err := net.ListenUDP("udp", nil)
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(t.Context(), limit)
	defer cancel()
	quic.Dial(ctx, deaf{socket}, net.UDPAddrFromAddrPort(s.GatewayAt("west", "gw-1")),
		&tls.Config{InsecureSkipVerify: true, NextProtos: []string{"h3"}}, quic.DialConfig{})
	for end := time.Now().Add(6 * limit); s.Process("gateway west/gw-1").Metric(t, `isthmus_peers_refused_total{reason="handshake"}`) == 0; time.Sleep(10 * time.Millisecond) {
		if time.Now().After(end) {
			t.Fatalf("the handshake has not failed %v after it began", 7*limit)
		}
	}
}
