package pathcheck

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"syscall"
	"time"

	"github.com/isthmus-mesh/isthmus/hbone"
	"github.com/isthmus-mesh/isthmus/hbone/quic"
	"github.com/isthmus-mesh/isthmus/internal/answer"
)

const (
	// quicTime bounds a check by QUIC. The client sends its first packet four times in it.
	quicTime = 3 * time.Second
)

// QUIC checks whether QUIC connects to a gateway: a handshake from a UDP socket of its own, up to the peer's SETTINGS. The
// gateway sends these after it accepted the certificate. cfg has the ALPN protocols for TCP. The socket is closed when QUIC
// returns. An error is that nothing was found out.
func QUIC(ctx context.Context, to netip.AddrPort, cfg *tls.Config) (*answer.UDP, error) {
	network, headers := "udp6", 48
	if to.Addr().Unmap().Is4() {
		network, headers = "udp4", 28
	}
	socket, err := net.ListenUDP(network, nil)
	if err != nil {
		return nil, err
	}
	defer socket.Close() // a connection that is still open closes with it
	bounded, cancel := context.WithTimeout(ctx, quicTime)
	defer cancel()
	cfg = cfg.Clone()
	cfg.NextProtos = quic.Protocols(cfg.NextProtos)
	u := &answer.UDP{PacketBytes: quic.PacketSize + headers}
	began := time.Now()
	pipe, err := quic.Dial(bounded, socket, net.UDPAddrFromAddrPort(to), cfg, quic.DialConfig{Silence: quicTime})
	took := time.Since(began)
	if err == nil {
		err = accepted(bounded, pipe)
	}
	switch errno, isErrno := errors.AsType[syscall.Errno](err); {
	case err == nil:
		u.HandshakeMS = float64(took) / 1e6
		return u, nil
	case ctx.Err() != nil:
		return nil, context.Cause(ctx)
	case pipe != nil:
		u.Failure = answer.UDPNoQUIC
	case isErrno && errno == syscall.ECONNREFUSED:
		u.Failure = answer.UDPRefused
	case isErrno:
		u.Failure, err = answer.UDPBlocked, errno
	case timedOut(err):
		u.Failure, err = answer.UDPSilent, fmt.Errorf("no response in %v", quicTime)
	default:
		u.Failure = answer.UDPNoQUIC
	}
	u.Error = err.Error()
	return u, nil
}

// accepted returns nil once the gateway sent its SETTINGS. The connection is then closed in order, as far as ctx allows.
func accepted(ctx context.Context, pipe *hbone.Pipe) error {
	cfg := hbone.DefaultConfig()
	cfg.PingEvery = -1
	session, err := hbone.NewClient(ctx, pipe, cfg)
	if err != nil {
		return err
	}
	session.Close(nil)
	select {
	case <-session.Closed():
	case <-ctx.Done():
	}
	return nil
}

func timedOut(err error) bool {
	n, ok := errors.AsType[net.Error](err)
	return ok && n.Timeout()
}
