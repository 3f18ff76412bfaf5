package nodeproxy

import (
	"context"
	"errors"
	"math/rand/v2"
	"net"
	"net/netip"
	"slices"
	"sync"
	"syscall"
	"time"

	"github.com/spiffe/go-spiffe/v2/spiffeid"

	"github.com/isthmus-mesh/isthmus/hbone"
	"github.com/isthmus-mesh/isthmus/hbone/quic"
	"github.com/isthmus-mesh/isthmus/identity"
	"github.com/isthmus-mesh/isthmus/internal/lines"
	"github.com/isthmus-mesh/isthmus/mesh"
	"github.com/isthmus-mesh/isthmus/nodeproxy/pods"
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
		if transport, _, _ := p.transports.now(network); transport != lines.QUIC {
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
		return p.dialQUIC(ctx, p.cfg.Timeouts.Dial+p.cfg.Timeouts.Handshake, source, expect, to.quic, protocols...)
	case lines.Auto:
		return p.dialEither(ctx, network, source, expect, to, protocols...)
	}
	return p.dialTLS(ctx, hopOuter, source, expect, to.tcp, protocols...)
}

// dialEither dials by QUIC, and by TCP if QUIC fails or takes dialStagger. It returns what is open first. QUIC has failed
// if TCP is open and QUIC is not within its patience.
func (p *Proxy) dialEither(ctx context.Context, network string, source origin, expect []spiffeid.ID, to way, protocols ...string) (transport, time.Time, error) {
	type open struct {
		t       transport
		expires time.Time
	}
	var mu sync.Mutex
	var quicErr, tcpErr error
	quicDone, tcpOpen := false, false
	note := func(f func()) {
		mu.Lock()
		defer mu.Unlock()
		f()
		if quicErr != nil && tcpOpen {
			p.transports.shook(network, 0, quicErr)
			quicErr = nil
		}
	}
	o, err := firstOf(ctx, 2, func(ctx context.Context, i int) (o open, err error) {
		if i == 0 {
			started := time.Now()
			o.t, o.expires, err = p.dialQUIC(p.data, p.transports.patience(network), source, expect, to.quic, protocols...) // to its end, as a probe
			if err == nil {
				p.transports.shook(network, time.Since(started), nil)
			}
			note(func() { quicDone, quicErr = true, err })
			return o, err
		}
		o.t, o.expires, err = p.dialTLS(ctx, hopOuter, source, expect, to.tcp, protocols...)
		note(func() { tcpOpen, tcpErr = err == nil, err })
		return o, err
	}, func(error) bool { return true }, func(o open) { o.t.Close() })
	mu.Lock()
	late := tcpOpen && !quicDone
	if err != nil && tcpErr != nil {
		err = tcpErr
	}
	mu.Unlock()
	if late {
		p.transports.suspect(network)
	}
	return o.t, o.expires, err
}

// dialQUIC opens a QUIC connection to a gateway as source, from the network namespace of source.
func (p *Proxy) dialQUIC(ctx context.Context, within time.Duration, source origin, expect []spiffeid.ID, addr netip.AddrPort, protocols ...string) (transport, time.Time, error) {
	cfg, expiry, err := p.clientTLS(ctx, source.id, expect, quic.Protocols(protocols)...)
	if err != nil {
		return nil, expiry, err
	}
	socket, err := p.udpOf(source)(ctx, addr)
	if err != nil {
		return nil, expiry, &dialError{err}
	}
	hctx, cancel := context.WithTimeout(ctx, within)
	defer cancel()
	t, err := quic.Dial(hctx, socket, net.UDPAddrFromAddrPort(addr), cfg, quic.DialConfig{
		Silence: p.cfg.Timeouts.Dial, Memory: quic.Memory{Budget: p.cfg.Memory, Owner: source.id.String()},
	})
	switch {
	case err == nil:
		return t, expiry, nil
	case identity.ReasonOf(err) == identity.ReasonHandshake && (isTimeout(err) || errors.As(err, new(syscall.Errno))): // no process, or no path
		return nil, expiry, &dialError{err}
	}
	return nil, expiry, inHandshake(hopOuter, err)
}

// startOuter starts a session with a gateway of a network.
func (p *Proxy) startOuter(t transport, network string, source origin, expires time.Time) (*hbone.Session, error) {
	s, err := p.startSession(t, source.id, expires)
	if _, overTCP := t.(*hbone.TLSTransport); err == nil && !overTCP && p.cfg.Lines.TransportTo(network) == lines.Auto {
		go func() { // ends with s
			<-s.Done()
			p.transports.closed(network, s.Err())
		}()
	}
	return s, err
}

// probeUDP does a QUIC handshake with any gateway of a network, as source would.
func (p *Proxy) probeUDP(ctx context.Context, network string, source origin) error {
	gateways := slices.DeleteFunc(slices.Clone(p.store.Current().Gateways(network)), func(g *mesh.Gateway) bool { return g.Drained })
	if len(gateways) == 0 {
		return errUndeclared
	}
	g := gateways[rand.IntN(len(gateways))]
	t, _, err := p.dialQUIC(ctx, p.transports.patience(network), source, []spiffeid.ID{g.Identity}, g.Dialled(true)[0], "h2")
	if err == nil {
		t.Close()
	}
	return err
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
