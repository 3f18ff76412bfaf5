package gateway

import (
	"context"
	"crypto/tls"
	"errors"
	"net"
	"net/netip"
	"os"
	"syscall"
	"time"

	"github.com/spiffe/go-spiffe/v2/spiffeid"
	"golang.org/x/sys/unix"

	"github.com/isthmus-mesh/isthmus/federation/gossip"
	"github.com/isthmus-mesh/isthmus/federation/healthstream"
	"github.com/isthmus-mesh/isthmus/hbone"
	"github.com/isthmus-mesh/isthmus/internal/accept"
	"github.com/isthmus-mesh/isthmus/internal/admission"
	"github.com/isthmus-mesh/isthmus/internal/pending"
	"github.com/isthmus-mesh/isthmus/internal/tcp"
)

// listen binds address and applies more to the socket. With reuse, several processes of one user may
// bind the address at the same time, if all use reuse.
func listen(address netip.AddrPort, reuse bool, more ...tcp.Control) (*net.TCPListener, error) {
	if reuse {
		more = append(more, func(_, _ string, c syscall.RawConn) error {
			var serr error
			err := c.Control(func(fd uintptr) { serr = unix.SetsockoptInt(int(fd), unix.SOL_SOCKET, unix.SO_REUSEPORT, 1) })
			return errors.Join(err, serr)
		})
	}
	cfg := net.ListenConfig{Control: tcp.Controls(more...)}
	l, err := cfg.Listen(context.Background(), "tcp", address.String())
	if err != nil {
		return nil, err
	}
	return l.(*net.TCPListener), nil
}

// acceptGrace is how long a stopping gateway keeps accepting. Closing the listener resets the
// connections in its kernel queue, even if another process listens on the same address.
const acceptGrace = 50 * time.Millisecond

// accept accepts connections until acceptGrace after ctx is done, and serves each by its protocol.
func (g *Gateway) accept(ctx context.Context) error {
	stop := context.AfterFunc(ctx, func() { g.listener.SetDeadline(time.Now().Add(acceptGrace)) })
	defer stop()
	defer g.listener.Close()
	handshakes := pending.New(g.cfg.Limits.Handshakes)
	protocols := hbone.ServerProtocols(g.cfg.Instance())
	if g.fed != nil {
		protocols = append(protocols, gossip.ALPN, healthstream.ALPN)
		if g.cfg.ReusePort {
			protocols = append(protocols, handoverALPN)
		}
	}
	tlsConfig := g.ids.ServerTLS(g.self.Identity, nil, protocols...)
	if g.quic != nil {
		g.conns.Go(func() { g.acceptQUIC(ctx) })
	}
	var failures accept.Failures
	for {
		conn, err := g.listener.Accept()
		if err != nil {
			if errors.Is(err, os.ErrDeadlineExceeded) {
				return nil
			}
			if errors.Is(err, net.ErrClosed) {
				return err
			}
			pauseAccepting(ctx, failures.Failed(g.log, err, time.Now()))
			continue
		}
		failures.Succeeded()
		entry, evicted := handshakes.Enter(conn, admission.AddressKey(addressOf(conn.RemoteAddr())))
		if evicted {
			g.metrics.refused.WithLabelValues("overload").Inc()
		}
		if entry == nil {
			conn.Close()
			continue
		}
		if g.cfg.Lines.UnsentBytes == 0 { // inherited otherwise
			g.boundMemory(conn, false)
		}
		g.conns.Go(func() {
			t, expiry, err := g.handshake(conn, entry.TLS(tlsConfig))
			entry.Leave()
			if kind := entry.Probe(err); kind != "" {
				g.metrics.probed.WithLabelValues(kind).Inc()
				return
			}
			if err != nil {
				refusal := g.refusals.Note("outer", "", conn.RemoteAddr(), err)
				g.metrics.refused.WithLabelValues(refusal).Inc()
				return
			}
			g.serve(t, expiry)
		})
	}
}

// pauseAccepting waits for d, or until shortly after ctx is done: then accept has acceptGrace left.
func pauseAccepting(ctx context.Context, d time.Duration) {
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-t.C:
	case <-ctx.Done():
		time.Sleep(min(d, acceptGrace/10))
	}
}

// addressOf returns the IP address of a TCP or UDP address, and the zero address otherwise.
func addressOf(a net.Addr) netip.Addr {
	if t, ok := a.(interface{ AddrPort() netip.AddrPort }); ok {
		return t.AddrPort().Addr()
	}
	return netip.Addr{}
}

// handshake returns the connection and when the local certificate for it expires. The time may be
// that of the previous certificate, shortly before.
func (g *Gateway) handshake(conn net.Conn, cfg *tls.Config) (*hbone.TLSTransport, time.Time, error) {
	ctx, cancel := context.WithTimeout(g.background, g.cfg.Timeouts.Handshake)
	defer cancel()
	svid, err := g.ids.Get(ctx, g.self.Identity)
	if err != nil {
		conn.Close()
		return nil, time.Time{}, err
	}
	t, err := hbone.ServerTLS(ctx, conn, cfg)
	return t, svid.NotAfter(), err
}

// serve runs the protocol that the peer negotiated until the connection closes.
func (g *Gateway) serve(t *hbone.TLSTransport, expiry time.Time) {
	id := t.Peer().ID
	switch t.Protocol() {
	case gossip.ALPN:
		if !g.isGateway(id) {
			g.metrics.refused.WithLabelValues("not_gateway").Inc()
			g.lines.Sample(g.log.Warn(), id.String(), "not_gateway").Stringer("peer", id).Msg("refused federation with an identity that is no gateway in discovery")
			t.Close()
			return
		}
		g.fed.Accept(t.NetConn(), id)
	case handoverALPN:
		g.serveSuccessor(t)
	case healthstream.ALPN:
		g.serveReports(t, expiry)
	default:
		g.serveTunnels(t, expiry)
	}
}

// serveReports serves the health stream of a node proxy. The stream counts as a session of its
// client, like any other. Other clients are refused before the Hello.
func (g *Gateway) serveReports(t *hbone.TLSTransport, expiry time.Time) {
	id := t.Peer().ID
	if err := g.nodes.Admit(id); err != nil {
		g.metrics.refused.WithLabelValues("not_node").Inc()
		g.nodes.Refuse(id, err)
		t.Close()
		return
	}
	client := admission.Client{Identity: id.String(), Address: addressOf(t.RemoteAddr())}
	admitted, err := g.clients.Session(client, time.Now())
	if err != nil {
		g.clients.Refused(err, client)
		t.Close()
		return
	}
	defer admitted.Release()
	ctx, cancel := context.WithDeadline(g.background, earlier(expiry, t.Peer().NotAfter))
	defer cancel()
	ctx, end := g.handover.stream(ctx)
	defer end()
	g.nodes.Accept(ctx, t.NetConn(), id) // the node proxy attaches again with its next certificate
}

func earlier(a, b time.Time) time.Time {
	if b.Before(a) {
		return b
	}
	return a
}

// maxStreams is how many CONNECTs one session may have open.
const maxStreams = 1000

// serveTunnels holds a client back, without HTTP/2 settings, until this gateway has settled. A gateway
// that has just started would choose pods that its siblings have ejected. Clients with another
// gateway use it until then.
func (g *Gateway) serveTunnels(t hbone.Transport, expiry time.Time) {
	client := admission.Client{Identity: t.Peer().ID.String(), Address: addressOf(t.RemoteAddr())}
	admitted, err := g.clients.Session(client, time.Now())
	if err != nil {
		g.clients.Refused(err, client)
		hbone.NewServer(t, hbone.DefaultConfig(), nil).Decline(g.background, err.Error())
		return
	}
	defer admitted.Release()
	select {
	case <-g.settled:
	case <-g.background.Done():
		t.Close()
		return
	}
	cfg := hbone.DefaultConfig()
	cfg.Memory = g.cfg.Memory
	g.diagnose.Apply(&cfg)
	cfg.MaxStreams = maxStreams
	cfg.NotAfter, cfg.ExpiryGrace = expiry, g.cfg.Timeouts.CertificateGrace
	// A stock client drops the inner connection when both directions are closed, and the outer
	// stream with it. It sends no END_STREAM if the server closed first (1 902 of 8 000 with
	// ztunnel 62d82653).
	cfg.CancelEnds = true
	cfg.Refused = func(why hbone.Refusal) { g.metrics.streams.WithLabelValues(string(why)).Inc() }
	cfg.Screen = func(in *hbone.Incoming) hbone.Handler { return g.screen(in, client, admitted) }
	if session := hbone.NewServer(t, cfg, nil); g.untrusted(session) { // its root was removed during the handshake
		err = hbone.ErrUntrusted
		session.Decline(g.background, "the root that signed the certificate was removed from federation.networks")
	} else {
		err = g.sessions.Serve(g.background, session)
	}
	g.metrics.sessions.WithLabelValues(string(hbone.OutcomeOf(err))).Inc()
	g.lines.Sample(g.log.Debug(), client.Identity, "session").Str("peer", client.Identity).AnErr("cause", err).Msg("outer session ended")
}

func (g *Gateway) isGateway(id spiffeid.ID) bool {
	if g.doors.shows(id) {
		return true
	}
	snap := g.store.Current()
	for _, n := range snap.GatewayNetworks() {
		for _, x := range snap.Gateways(n) {
			if x.Identity == id {
				return true
			}
		}
	}
	return false
}
