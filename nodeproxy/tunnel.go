package nodeproxy

import (
	"cmp"
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"sync/atomic"
	"time"

	"github.com/spiffe/go-spiffe/v2/spiffeid"

	"github.com/isthmus-mesh/isthmus/hbone"
	"github.com/isthmus-mesh/isthmus/hbone/header"
	"github.com/isthmus-mesh/isthmus/hbone/pool"
	"github.com/isthmus-mesh/isthmus/identity"
	"github.com/isthmus-mesh/isthmus/internal/tcp"
	"github.com/isthmus-mesh/isthmus/mesh"
	"github.com/isthmus-mesh/isthmus/nodeproxy/picker"
	"github.com/isthmus-mesh/isthmus/nodeproxy/warm"
)

// tunnel is an open way to one application: bytes written to stream reach it.
type tunnel struct {
	stream   *hbone.Stream
	endpoint mesh.EndpointID // zero when the far side does not say
	inner    *hbone.Session  // ends with the tunnel; nil if the session is kept
	used     func()          // gives back the use of a session of a warm set; nil: it is none
}

// close ends what the tunnel alone used. The stream has ended or is reset.
func (t *tunnel) close() {
	t.stream.Close()
	if t.inner != nil {
		t.inner.Close(nil)
	}
	if t.used != nil {
		t.used()
	}
}

// caller is who a tunnel is opened for: one application connection.
type caller struct {
	snap   *mesh.Snapshot
	source *mesh.Workload
	app    netip.AddrPort // the application's own address
	host   string         // the service's hostname, empty when pod-addressed
	trace  string         // traceparent, the same on both hops
}

// ofNetwork is id, unless that is known to be a pod of another network than of its gateway who
// has named it: it cannot have that avoided.
func (c caller) ofNetwork(network string, id mesh.EndpointID) mesh.EndpointID {
	if w := c.snap.WorkloadByEndpoint(id); w != nil && w.Network != network {
		return 0
	}
	return id
}

// origin is as whom sessions are opened, and from where: those of a captured pod begin in its own
// network namespace, so that what holds for its packets holds for them, and serve no
// other pod.
type origin struct {
	id   spiffeid.ID
	from string // UID of the captured workload; empty: here
}

// begins is the UID of w if its connections begin in its own network namespace, as it is captured; empty: they begin here.
func (p *Proxy) begins(w *mesh.Workload) string {
	if p.pods.Get(w.UID) == nil {
		return ""
	}
	return w.UID
}

func (p *Proxy) origin(w *mesh.Workload) origin {
	o := origin{id: w.Identity}
	if p.pods != nil {
		o.from = w.UID
	}
	return o
}

// dialerOf returns how o dials the next process of a hop.
func (p *Proxy) dialerOf(o origin, hop string) dialTCP {
	dial := p.dialHop
	var more []tcp.Control
	if hop == hopOuter && p.line != nil {
		dial, more = p.line.dial, []tcp.Control{p.line.Control}
	}
	if o.from == "" {
		return dial
	}
	return p.pods.Dialer(o.from, hopKeepAlive, dial, more...)
}

func (p *Proxy) headers(c caller) hbone.Header {
	h := hbone.Header{
		header.NameBaggage:     p.baggage(c.snap, c.source),
		header.NameForwarded:   header.Forwarded(c.app, c.host),
		header.NameTraceparent: c.trace,
	}
	if p.cfg.Retry.Attempts > 0 { // see tryAll
		h[header.NameRepeats] = string(header.ReasonOverload)
	}
	return h
}

func (p *Proxy) baggage(snap *mesh.Snapshot, w *mesh.Workload) string {
	name := w.Name
	if svcs := snap.ServicesOf(w.UID); len(svcs) > 0 {
		name = svcs[0].Name
	}
	return header.Baggage{Cluster: w.Cluster, Namespace: w.Namespace, WorkloadType: "pod", Workload: w.Name, ServiceName: name,
		Region: w.Locality.Region, Zone: w.Locality.Zone}.String()
}

// connect opens a stream to an application on s, behind which asked is; zero: that is not known.
func (p *Proxy) connect(ctx context.Context, s *hbone.Session, e *earlyData, asked mesh.EndpointID, req *hbone.Request) (*hbone.Stream, *hbone.Response, error) {
	ctx, cancel := context.WithTimeoutCause(ctx, p.cfg.Timeouts.Connect, hbone.ErrConnectTimeout)
	defer cancel()
	if e.asked = asked; e.hears != nil {
		req.Header[header.NameSlow] = tellSlow
	}
	st, response, err := e.connect(ctx, s, req, p.cfg.Retry.Early)
	var status *hbone.StatusError
	if err != nil && e.sent > 0 && e.err == nil && !errors.As(err, &status) && !errors.Is(err, hbone.ErrRetryable) {
		p.metrics.indeterminate.Inc()
		err = &indeterminateError{err}
	}
	if err != nil && superseded(s) {
		err = &supersededError{err}
	}
	return st, response, err
}

// openSingle opens a tunnel to a pod of the own network.
func (p *Proxy) openSingle(ctx context.Context, c caller, e *earlyData, to *mesh.Workload, target uint16) (*tunnel, *failure) {
	addr := netip.AddrPortFrom(to.Addresses[0], mesh.HBONEPort)
	key := p.poolKey(p.origin(c.source), []spiffeid.ID{to.Identity}, addr.String(), to.UID)
	req := &hbone.Request{Authority: netip.AddrPortFrom(to.Addresses[0], target).String(), Header: p.headers(c)}
	t := &tunnel{endpoint: to.Endpoint}
	err := p.pool.Use(ctx, key, p.dialer(hopSingle, p.origin(c.source), []spiffeid.ID{to.Identity}, addr), func(s *hbone.Session) (err error) {
		t.stream, _, err = p.connect(ctx, s, e, to.Endpoint, req)
		return err
	})
	if err != nil {
		return nil, innerResponse(to.Endpoint, hopSingle, fmt.Errorf("pod %s at %s: %w", to.UID, addr, err))
	}
	return t, nil
}

// openDouble opens a tunnel through v to a pod, and inside it one to the
// application. A session with a pod is kept for later connections of the same source,
// if its warm set wants it: they skip the gateway and both handshakes.
func (p *Proxy) openDouble(ctx context.Context, c caller, e *earlyData, v via) (*tunnel, *failure) {
	t := &tunnel{endpoint: v.pin}
	req := &hbone.Request{Authority: v.authority, Header: p.headers(c)}
	req.Header[header.NameForwardedNetwork] = p.cfg.Network
	req.Header[header.NameEnds] = "explicit"
	var in *hbone.Session
	foreign := false
	open := func(s *hbone.Session) error {
		in = s
		// It joined one of an older snapshot, or is with one of several who are not named.
		a, asked := p.answerOf(s), t.endpoint
		if v.session.ID != 0 && a.Endpoint != 0 && !slices.Contains(v.expect, a.Identity) {
			foreign = true
			return notThatOne(v, &a, &a)
		}
		if a.Endpoint != 0 && !a.Unnamed {
			asked = a.Endpoint
		}
		started := time.Now()
		stream, response, err := p.connect(ctx, s, e, asked, req)
		if err != nil {
			if base := s.Base(); base.Err() != nil || !base.HeardSince(started) || shed(s) {
				err = &lostCarrierError{err}
			}
			return err
		}
		t.endpoint = cmp.Or(asked, mesh.EndpointID(response.Endpoint())) // see innerResponse
		t.stream = stream
		return nil
	}
	if v.bulk && v.chosen { // the session that is held stays without bulk; the set counts the connection all the same
		held := v.session
		t.used = func() { p.used(held, true) }
		v.session, v.chosen = warm.Session{}, false
	}
	if v.session.ID == 0 {
		var by answered
		var err error
		if t.inner, by, err = p.openInner(ctx, c, v); err == nil {
			t.endpoint = by.endpoint
			if err = open(t.inner); err != nil {
				t.inner.Close(nil)
			}
		}
		if err != nil {
			if t.used != nil {
				t.used()
			}
			return nil, throughFailure(v, by.endpoint, err)
		}
		return t, nil
	}
	var dialled atomic.Bool
	err := p.pool.Use(ctx, keptKey(v.session), p.dialKept(c, v, &dialled), open)
	if err == nil {
		counted := v.chosen || p.keep(v, in)
		t.used = func() { p.used(v.session, counted) }
		return t, nil
	}
	endpoint := v.pin
	if a := p.answerOf(in); endpoint == 0 && !a.Unnamed {
		endpoint = a.Endpoint
	}
	f := throughFailure(v, endpoint, err)
	f.quiet = in != nil && in.Silent() && !in.Base().Silent()
	left := e.err != nil || errors.Is(ctx.Err(), context.Canceled) // the application, or this process stops
	p.keepNone(v, in, f, (f.fault || foreign) && !left)
	if !v.chosen && !v.reserved && !dialled.Load() && in == nil && (f.at != atEndpoint || f.endpoint == 0) {
		f.fault = false // somebody else has asked, and says what came of it: of a crowd that waits nobody says it again
	}
	return nil, f
}

func throughFailure(v via, endpoint mesh.EndpointID, err error) *failure {
	return throughResponse(endpoint, fmt.Errorf("through gateway %s at %s: %w", picker.GatewayKey(v.gateway), v.gateway.Address, err))
}

// via is the way to a pod of another network.
type via struct {
	gateway   *mesh.Gateway
	authority string          // the service, host:port
	pin       mesh.EndpointID // asked for; zero: the gateway chooses
	expect    []spiffeid.ID   // who may answer the inner handshake
	avoid     []mesh.EndpointID
	// session is the one to be kept that it is opened on; its ID is zero if none is.
	session  warm.Session
	chosen   bool // session is held, and the connection is counted
	reserved bool // this connection opens session, and says what came of it
	dials    int  // of gateway, at most, while other replicas at its address answer
	bulk     bool // it is likely to carry bulk, and gets sessions apart from others
}

// answered is whom a gateway has named.
type answered struct {
	endpoint mesh.EndpointID // zero: nobody
	weight   uint32
}

// openInner opens a session with a pod: a stream through the gateway, in which
// the second handshake starts before the gateway has responded. A failure of the
// hop to the gateway, or its refusal, is a *failure already.
func (p *Proxy) openInner(ctx context.Context, c caller, v via) (inner *hbone.Session, by answered, err error) {
	gw, from := v.gateway, p.origin(c.source)
	req := &hbone.Request{Authority: v.authority, Header: p.headers(c), Replayable: true}
	if v.pin != 0 {
		req.Header[header.NamePin] = v.pin.String()
	} else if len(v.avoid) > 0 {
		req.Header[header.NameAvoid] = formatAvoid(v.avoid)
	}
	key := p.gatewayKey(from, gw)
	key.Bulk = v.bulk && v.session.ID == 0
	dial := p.gatewayDialer(from, gw, p.adopt(from, key.Bulk))
	open := func(s *hbone.Session) error {
		started := time.Now()
		outer, err := s.Start(req)
		if err != nil {
			return err
		}
		handshake := error(nil)
		inner, handshake = p.innerSession(ctx, c.source.Identity, v.expect, outer)
		if handshake != nil && !outer.Responded() && s.Err() == nil {
			outer.Close()
			return handshake
		}
		response, err := outer.AwaitResponse(ctx)
		if err != nil {
			if inner != nil {
				inner.Close(nil)
			}
			return err
		}
		by = answered{c.ofNetwork(gw.Network, mesh.EndpointID(response.Endpoint())), header.ParseWeight(response.Header.Get(header.NameWeight))}
		if handshake != nil {
			outer.Close()
			f := innerResponse(by.endpoint, hopInner, handshake)
			if s.Err() != nil || !s.HeardSince(started) || f.refused {
				f.at = atGateway // its session died, with this tunnel in it, or it has reset the tunnel
			}
			return f
		}
		return nil
	}
	for n := 1; ; n++ {
		err = p.pool.Use(ctx, key, dial, open)
		if !isElsewhere(err) || n >= v.dials || ctx.Err() != nil {
			break
		}
	}
	var f *failure
	if err == nil || errors.As(err, &f) {
		return inner, by, err
	}
	f = outerResponse(err)
	f.endpoint = c.ofNetwork(gw.Network, f.endpoint)
	if v.pin != 0 {
		f.pinned(v.pin)
	}
	return nil, answered{endpoint: f.endpoint}, f
}

func formatAvoid(avoid []mesh.EndpointID) string {
	ids := make([]uint64, len(avoid))
	for i, id := range avoid {
		ids[i] = uint64(id)
	}
	return header.FormatAvoid(ids)
}

// innerSession runs the second handshake inside an outer stream. The stream is
// left open if it fails.
func (p *Proxy) innerSession(ctx context.Context, source spiffeid.ID, expect []spiffeid.ID, outer *hbone.Stream) (*hbone.Session, error) {
	cfg, expiry, err := p.clientTLS(ctx, source, expect, "h2")
	if err != nil {
		return nil, err
	}
	hctx, cancel := context.WithTimeout(ctx, p.cfg.Timeouts.Connect+p.cfg.Timeouts.Handshake)
	defer cancel()
	t, err := hbone.ClientTLS(hctx, outer, cfg)
	if err != nil {
		return nil, inHandshake(hopInner, err)
	}
	return p.startSession(t, source, expiry)
}

// startSession starts a session of the client source, whose certificate expires at
// notAfter.
func (p *Proxy) startSession(t *hbone.TLSTransport, source spiffeid.ID, notAfter time.Time) (*hbone.Session, error) {
	s, err := hbone.StartClient(t, p.sessionConfig(source, notAfter))
	if err == nil && p.started != nil {
		p.started(s)
	}
	return s, err
}

// clientTLS is how a session of source is opened with one of expect, and when the
// certificate for it expires.
func (p *Proxy) clientTLS(ctx context.Context, source spiffeid.ID, expect []spiffeid.ID, protocols ...string) (*tls.Config, time.Time, error) {
	svid, err := p.ids.Get(ctx, source)
	if err != nil {
		return nil, time.Time{}, &identity.OwnError{ID: source, Err: err}
	}
	cfg, err := p.ids.ClientTLS(ctx, source, expect, protocols...)
	return cfg, svid.NotAfter(), err // it may have been renewed in between: then this is early
}

// sessionConfig is that of a session of the client source, whose certificate expires at
// notAfter.
func (p *Proxy) sessionConfig(source spiffeid.ID, notAfter time.Time) hbone.Config {
	c := p.session
	c.Owner = source.String()
	c.NotAfter, c.ExpiryGrace = notAfter, p.cfg.Timeouts.CertificateGrace
	c.MaxStreams = 100
	c.SettingsTimeout, c.ConnectTimeout = p.cfg.Timeouts.Handshake, p.cfg.Timeouts.Connect
	return c
}

// dialer returns how the pool opens one more session as source. It does not wait
// until the peer serves.
func (p *Proxy) dialer(hop string, source origin, expect []spiffeid.ID, addr netip.AddrPort) func(context.Context) (*hbone.Session, error) {
	return func(ctx context.Context) (*hbone.Session, error) {
		t, expiry, err := p.dialTLS(ctx, hop, source, expect, addr, "h2")
		if err != nil {
			return nil, err
		}
		return p.startSession(t, source.id, expiry)
	}
}

// dialTLS is a dialer as far as the handshake; expiry is when the own certificate expires.
func (p *Proxy) dialTLS(ctx context.Context, hop string, source origin, expect []spiffeid.ID, addr netip.AddrPort, protocols ...string) (t *hbone.TLSTransport, expiry time.Time, err error) {
	cfg, expiry, err := p.clientTLS(ctx, source.id, expect, protocols...)
	if err != nil {
		return nil, expiry, err
	}
	if hop == hopOuter {
		defer func() {
			if err != nil && !errors.Is(ctx.Err(), context.Canceled) {
				p.names.Unreachable(addr.Addr())
			}
		}()
	}
	conn, err := p.dialerOf(source, hop)(ctx, addr, p.cfg.Timeouts.Dial)
	if err != nil {
		return nil, expiry, &dialError{err}
	}
	if hop != hopOuter || p.cfg.Lines.UnsentBytes == 0 {
		p.boundMemory(conn, false)
	}
	hctx, cancel := context.WithTimeout(ctx, p.cfg.Timeouts.Handshake)
	defer cancel()
	if t, err = hbone.ClientTLS(hctx, conn, cfg); err != nil {
		return nil, expiry, inHandshake(hop, err)
	}
	return t, expiry, nil
}

// gatewayUID precedes a gateway's key where a pool wants a workload's UID.
const gatewayUID = "gateway/"

// gatewayKey is that of sessions with g as source.
func (p *Proxy) gatewayKey(source origin, g *mesh.Gateway) pool.Key {
	return p.poolKey(source, []spiffeid.ID{g.Identity}, g.Address.String(), gatewayUID+picker.GatewayKey(g))
}

func (p *Proxy) poolKey(source origin, expect []spiffeid.ID, addr, uid string) pool.Key {
	names := make([]string, len(expect))
	for i, id := range expect {
		names[i] = id.String()
	}
	slices.Sort(names)
	return pool.Key{Source: source.id.String(), From: source.from, Expected: strings.Join(names, " "), Address: addr, UID: uid}
}
