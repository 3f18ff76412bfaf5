package nodeproxy

import (
	"cmp"
	"context"
	"errors"
	"math/rand/v2"
	"net"
	"net/netip"
	"strings"
	"sync"
	"syscall"
	"time"

	"github.com/spiffe/go-spiffe/v2/spiffeid"

	"github.com/isthmus-mesh/isthmus/hbone"
	"github.com/isthmus-mesh/isthmus/hbone/pool"
	"github.com/isthmus-mesh/isthmus/hbone/quic"
	"github.com/isthmus-mesh/isthmus/identity"
	"github.com/isthmus-mesh/isthmus/internal/lines"
	"github.com/isthmus-mesh/isthmus/mesh"
	"github.com/isthmus-mesh/isthmus/nodeproxy/picker"
	"github.com/isthmus-mesh/isthmus/nodeproxy/pods"
)

// A lost packet delays all connections of a session with a pod, which has one QUIC stream. NewReno, which is all that quic-go
// has, allows a QUIC connection some ten packets in each round trip at 1 % loss. So both carry fewer streams than over TCP.
// TestSmallMessagesByTransport measures it.
const (
	quicStreams  = 8 // connections in a session with a pod
	quicSessions = 2 // sessions with pods in a QUIC connection
)

// transport is what a session with the next process of a hop runs on.
type transport interface {
	hbone.Transport
	Protocol() string // ALPN
}

// dialOuter dials a gateway of a network over a transport, and does the TLS handshake. expiry is when the local certificate
// expires.
func (p *Proxy) dialOuter(ctx context.Context, over, network string, source origin, expect []spiffeid.ID, to way, protocols ...string) (t transport, expiry time.Time, err error) {
	if over == lines.Auto { // the transport may have changed since
		if transport, _, _ := p.transports.now(network); transport != lines.QUIC || p.transports.failedFrom(network, source.from) {
			over = lines.TCP
		}
	}
	defer func() {
		if err == nil || errors.Is(ctx.Err(), context.Canceled) || blameOf(err) == blameOwn {
			return
		}
		if over != lines.QUIC {
			p.names.Unreachable(to.tcp.Addr())
		}
		if over != lines.TCP {
			p.names.Unreachable(to.quic.Addr())
		}
	}()
	switch over {
	case lines.QUIC:
		t, expiry, _, err = p.dialQUIC(ctx, p.cfg.Timeouts.Dial+p.cfg.Timeouts.Handshake, network, source, expect, to.quic, protocols...)
		return t, expiry, err
	case lines.Auto:
		return p.dialEither(ctx, network, source, expect, to, protocols...)
	}
	return p.dialTLS(ctx, hopOuter, source, expect, to.tcp, protocols...)
}

// dialEither dials by QUIC, and by TCP if QUIC fails or takes dialStagger. It returns what is open first. QUIC has failed
// if TCP is open and QUIC is not within its patience.
func (p *Proxy) dialEither(ctx context.Context, network string, source origin, expect []spiffeid.ID, to way, protocols ...string) (transport, time.Time, error) {
	if _, _, err := p.clientTLS(ctx, source.id, expect, protocols...); err != nil { // a certificate may take long
		return nil, time.Time{}, err
	}
	type open struct {
		t       transport
		expires time.Time
	}
	var mu sync.Mutex
	var quicErr, tcpErr error
	quicDone, quicFailed, tcpOpen := false, false, false
	note := func(f func()) {
		mu.Lock()
		defer mu.Unlock()
		f()
		if quicErr != nil && tcpOpen {
			p.transports.missed(network, source, quicErr)
			quicErr = nil
		}
	}
	o, err := firstOf(ctx, 2, func(ctx context.Context, i int) (o open, err error) {
		if i == 0 {
			var took time.Duration
			o.t, o.expires, took, err = p.dialQUIC(p.data, p.transports.patience(network), network, source, expect, to.quic, protocols...) // to its end, as a probe
			overtaken := false
			note(func() { quicDone, quicErr, quicFailed, overtaken = true, err, err != nil && isEvidence(err), tcpOpen })
			if err == nil {
				p.transports.shook(network, took, nil)
				if overtaken {
					p.transports.overtaken(network)
				}
			}
			return o, err
		}
		o.t, o.expires, err = p.dialTLS(ctx, hopOuter, source, expect, to.tcp, protocols...)
		note(func() { tcpOpen, tcpErr = err == nil, err })
		return o, err
	}, func(error) bool { return true }, func(o open) { o.t.Close() })
	mu.Lock()
	late := tcpOpen && (!quicDone || quicFailed)
	if err != nil && tcpErr != nil {
		err = tcpErr
	}
	mu.Unlock()
	if late {
		p.transports.late(network)
	}
	return o.t, o.expires, err
}

// dialQUIC opens a QUIC connection to a gateway of a network as source, from the network namespace of source. took is the time
// of the handshake alone.
func (p *Proxy) dialQUIC(ctx context.Context, within time.Duration, network string, source origin, expect []spiffeid.ID, addr netip.AddrPort, protocols ...string) (t transport, expiry time.Time, took time.Duration, err error) {
	cfg, expiry, err := p.clientTLS(ctx, source.id, expect, quic.Protocols(protocols)...)
	if err != nil {
		return nil, expiry, 0, err
	}
	socket, err := p.udpOf(source)(ctx, addr)
	if err != nil {
		return nil, expiry, 0, &dialError{err}
	}
	hctx, cancel := context.WithTimeout(ctx, within)
	defer cancel()
	started := time.Now()
	pipe, err := quic.Dial(hctx, socket, net.UDPAddrFromAddrPort(addr), cfg, quic.DialConfig{
		Silence: p.cfg.Timeouts.Dial, Memory: quic.Memory{Budget: p.cfg.Memory, Owner: source.id.String()},
	})
	if err == nil {
		return pipe, expiry, time.Since(started), nil
	}
	if identity.ReasonOf(err) == identity.ReasonHandshake && (isTimeout(err) || errors.As(err, new(syscall.Errno))) { // no process, or no path
		err = &dialError{err}
	} else {
		err = inHandshake(hopOuter, err)
	}
	if !errors.Is(ctx.Err(), context.Canceled) && isEvidence(err) {
		p.transports.failed.WithLabelValues(network).Inc()
	}
	return nil, expiry, 0, err
}

// startOuter starts a session with a gateway.
func (p *Proxy) startOuter(t transport, g *mesh.Gateway, source origin, expires time.Time) (*hbone.Session, error) {
	_, overTCP := t.(*hbone.TLSTransport)
	most := maxStreams
	if !overTCP {
		most = quicSessions
	}
	s, err := p.startSession(t, source.id, expires, most)
	if err == nil && !overTCP && p.cfg.Lines.TransportTo(g.Network) == lines.Auto {
		go func() { // ends with s
			<-s.Done()
			p.transports.closed(g.Network, picker.GatewayKey(g), s.Err())
		}()
	}
	return s, err
}

// silent takes in that the peer of a session is silent. One with a key for QUIC may have fallen back to TCP.
func (p *Proxy) silent(k pool.Key, s *hbone.Session) {
	gateway, ok := strings.CutPrefix(k.UID, gatewayUID)
	switch {
	case ok && s.Conn() == nil:
		p.transports.suspect(networkOf(k), gateway)
	case ok:
		p.paths.silent(gateway)
	}
}

// probeUDP does QUIC handshakes with addresses of gateways of a network, as the sources in turn, until one succeeds. It returns
// how long that one took. A handshake that fails counts if TCP connects to the same gateway. If none counts, the error is
// errUndeclared.
func (p *Proxy) probeUDP(ctx context.Context, network string, sources []origin) (time.Duration, error) {
	type target struct {
		*mesh.Gateway
		way
	}
	var to []target
	for _, g := range p.store.Current().Gateways(network) {
		for _, w := range waysTo(g, lines.QUIC) {
			if !g.Drained {
				to = append(to, target{g, w})
			}
		}
	}
	if len(to) == 0 || len(sources) == 0 {
		return 0, errUndeclared
	}
	rand.Shuffle(len(to), func(i, j int) { to[i], to[j] = to[j], to[i] })
	within := p.transports.patience(network)
	var failures [dialsAtFailure]error
	took, err := firstOf(ctx, len(failures), func(ctx context.Context, i int) (time.Duration, error) {
		source, x := sources[i%len(sources)], to[i%len(to)]
		t, _, took, err := p.dialQUIC(ctx, within, network, source, []spiffeid.ID{x.Identity}, x.quic, "h2")
		if err == nil {
			t.Close()
			return took, nil
		}
		tctx, cancel := context.WithTimeout(ctx, within)
		defer cancel()
		t, _, tcpErr := p.dialTLS(tctx, hopOuter, source, []spiffeid.ID{x.Identity}, x.tcp, "h2")
		if tcpErr == nil {
			t.Close()
			if isEvidence(err) {
				failures[i] = err
			}
		}
		return 0, err
	}, func(error) bool { return true }, func(time.Duration) {})
	if err == nil {
		return took, nil
	}
	return 0, cmp.Or(cmp.Or(failures[:]...), errUndeclared)
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
