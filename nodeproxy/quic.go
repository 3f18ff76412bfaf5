package nodeproxy

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"iter"
	"maps"
	"math/rand/v2"
	"net"
	"net/netip"
	"slices"
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
	"github.com/isthmus-mesh/isthmus/nodeproxy/pods"
)

// A lost packet delays all connections of a session with a pod, which has one QUIC stream. NewReno, the only algorithm of
// quic-go, allows a QUIC connection some ten packets in each round trip at 1 % loss. So both carry fewer streams than over TCP.
// TestSmallMessagesByTransport measures it.
const (
	quicStreams  = 8 // connections in a session with a pod
	quicSessions = 2 // sessions with pods in a QUIC connection
)

// transport carries a session with the next process of a hop.
type transport interface {
	hbone.Transport
	Protocol() string // ALPN
}

// opened is the transport of a new session, after the TLS handshake.
type opened struct {
	t       transport
	expires time.Time // when the local certificate expires
}

// dialOuter dials a gateway over a transport, and does the TLS handshake.
func (p *Proxy) dialOuter(ctx context.Context, source origin, g *mesh.Gateway, over string, to way, protocols ...string) (o opened, err error) {
	if over == lines.Auto && p.transports.transportFor(g, source) == lines.TCP { // it may have changed since
		over = lines.TCP
	}
	switch over {
	case lines.QUIC:
		o.t, o.expires, _, err = p.dialQUIC(ctx, p.cfg.Timeouts.Dial+p.cfg.Timeouts.Handshake, source, g, to.quic, protocols...)
	case lines.Auto:
		o, err = p.dialEither(ctx, source, g, to, protocols...)
	default:
		o.t, o.expires, err = p.dialTLS(ctx, hopOuter, source, []spiffeid.ID{g.Identity}, to.tcp, protocols...)
	}
	if err == nil || errors.Is(ctx.Err(), context.Canceled) || blameOf(err) == blameOwn {
		return o, err
	}
	if over != lines.QUIC {
		p.names.Unreachable(to.tcp.Addr())
	}
	if over != lines.TCP {
		p.names.Unreachable(to.quic.Addr())
	}
	return o, err
}

// dialEither dials by QUIC, and by TCP if QUIC fails or takes dialStagger. It returns the one that is open first. QUIC has
// failed if TCP is open and QUIC is not within handshakeTimeout.
func (p *Proxy) dialEither(ctx context.Context, source origin, g *mesh.Gateway, to way, protocols ...string) (opened, error) {
	expect := []spiffeid.ID{g.Identity}
	if _, _, err := p.clientTLS(ctx, source.id, expect, protocols...); err != nil { // a certificate may take long
		return opened{}, err
	}
	var mu sync.Mutex
	var quicOpen, tcpOpen bool
	var quicErr, tcpErr error // quicErr only if it counts against UDP
	o, err := firstOf(ctx, 2, func(ctx context.Context, i int) (o opened, err error) {
		if i > 0 {
			o.t, o.expires, err = p.dialTLS(ctx, hopOuter, source, expect, to.tcp, protocols...)
			mu.Lock()
			defer mu.Unlock()
			if tcpOpen, tcpErr = err == nil, err; tcpOpen && !quicOpen {
				p.transports.requestProbe(g.Network)
			}
		} else {
			o.t, o.expires, _, err = p.dialQUIC(p.data, p.transports.handshakeTimeout(g.Network), source, g, to.quic, protocols...) // to its end, for handshakeFailed
			mu.Lock()
			defer mu.Unlock()
			if quicOpen = err == nil; err != nil && countsAgainstUDP(err) {
				quicErr = err
			}
		}
		if tcpOpen && quicErr != nil {
			p.transports.handshakeFailed(g, source, quicErr)
		}
		return o, err
	}, func(error) bool { return true }, func(o opened) { o.t.Close() })
	if err != nil {
		err = cmp.Or(tcpErr, err)
	}
	return o, err
}

// dialQUIC opens a QUIC connection to a gateway as source, from the network namespace of source. took is the time of the
// handshake alone.
func (p *Proxy) dialQUIC(ctx context.Context, within time.Duration, source origin, g *mesh.Gateway, addr netip.AddrPort, protocols ...string) (t transport, expiry time.Time, took time.Duration, err error) {
	cfg, expiry, err := p.clientTLS(ctx, source.id, []spiffeid.ID{g.Identity}, quic.Protocols(protocols)...)
	if err != nil {
		return nil, expiry, 0, err
	}
	open := udpHere
	if source.from != "" {
		open = p.pods.UDP(source.from, udpHere)
	}
	socket, err := open(ctx, addr)
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
		err = &dialError{named(addr, err)}
	} else {
		err = inHandshake(hopOuter, err)
	}
	if !errors.Is(ctx.Err(), context.Canceled) && countsAgainstUDP(err) {
		p.transports.failed.WithLabelValues(g.Network).Inc()
	}
	return nil, expiry, 0, err
}

// udpError is a QUIC handshake without a response.
type udpError struct {
	text string
	error
}

func (e *udpError) Error() string { return e.text }
func (e *udpError) Unwrap() error { return e.error }

// named returns err of a QUIC handshake with addr, with the text that an operator needs.
func named(addr netip.AddrPort, err error) error {
	switch {
	case errors.Is(err, syscall.ECONNREFUSED):
		return &udpError{fmt.Sprintf("QUIC to %v: UDP port refused; the gateway may have lines.transport: tcp, or a firewall rejects it", addr), err}
	case isTimeout(err):
		return &udpError{fmt.Sprintf("QUIC to %v: no response by UDP in time: a firewall may drop it", addr), err}
	}
	return err
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
			if err := s.Err(); !s.Leaving() && isTimeout(err) { // with GOAWAY, a load balancer may send its packets elsewhere
				p.transports.requestProbe(g.Network)
			}
		}()
	}
	return s, err
}

// silent records that the peer of a session is silent. A session with a key for QUIC may have fallen back to TCP.
func (p *Proxy) silent(k pool.Key, s *hbone.Session) {
	gateway, ok := strings.CutPrefix(k.UID, gatewayUID)
	switch {
	case ok && s.Leaving():
	case ok && s.Conn() == nil:
		p.transports.requestProbe(networkOf(k))
	case ok:
		p.paths.silent(gateway)
	}
}

// maxSources is how many sources a probe has. A NetworkPolicy or a firewall may block UDP from a single pod.
const maxSources = 3

// sourcesOf returns the sources of sessions with gateways of a network, in random order, at most maxSources. Those for which
// avoid returns true are left out if there are others, and workloads that are no longer captured are always.
func sourcesOf(sessions iter.Seq2[pool.Key, *hbone.Session], network string, captured, avoid func(from string) bool) []origin {
	by := map[string]origin{} // by from
	for key := range sessions {
		id, err := spiffeid.FromString(key.Source)
		if err == nil && strings.HasPrefix(key.UID, gatewayUID) && networkOf(key) == network && (key.From == "" || captured(key.From)) {
			by[key.From] = origin{id, key.From}
		}
	}
	all := slices.Collect(maps.Values(by))
	if others := slices.DeleteFunc(slices.Clone(all), func(o origin) bool { return avoid(o.from) }); len(others) > 0 {
		all = others
	}
	rand.Shuffle(len(all), func(i, j int) { all[i], all[j] = all[j], all[i] })
	return all[:min(len(all), maxSources)]
}

// probeUDP probes UDP to a network as sources with open sessions.
func (p *Proxy) probeUDP(ctx context.Context, network string) (time.Duration, error) {
	return p.probeUDPFrom(ctx, network, sourcesOf(p.pool.Sessions(), network,
		func(from string) bool { return p.pods.Get(from) != nil }, func(from string) bool { return p.transports.failedFrom(network, from) }))
}

// probeUDPFrom does QUIC handshakes with addresses of gateways of a network, as the sources in turn, until one succeeds. It
// returns how long that one took. One that fails counts if TCP has just connected the same source with the same gateway. If none
// counts, the error is errUndeclared.
func (p *Proxy) probeUDPFrom(ctx context.Context, network string, sources []origin) (time.Duration, error) {
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
	within := p.transports.handshakeTimeout(network)
	var failures [dialsAtFailure]error
	took, err := firstOf(ctx, len(failures), func(ctx context.Context, i int) (time.Duration, error) {
		source, x := sources[i%len(sources)], to[i%len(to)]
		tctx, cancel := context.WithTimeout(ctx, within)
		defer cancel()
		t, _, err := p.dialTLS(tctx, hopOuter, source, []spiffeid.ID{x.Identity}, x.tcp, "h2")
		if err != nil {
			return 0, err
		}
		t.Close()
		t, _, took, err := p.dialQUIC(ctx, within, source, x.Gateway, x.quic, "h2")
		if err == nil {
			t.Close()
		} else if countsAgainstUDP(err) {
			failures[i] = err
		}
		return took, err
	}, func(error) bool { return true }, func(time.Duration) {})
	if err == nil {
		return took, nil
	}
	return 0, cmp.Or(cmp.Or(failures[:]...), errUndeclared)
}

func udpHere(ctx context.Context, to netip.AddrPort) (net.PacketConn, error) {
	return new(net.ListenConfig).ListenPacket(ctx, pods.UDPNetwork(to), "")
}
