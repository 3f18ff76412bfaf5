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
	"github.com/isthmus-mesh/isthmus/internal/lines"
	"github.com/isthmus-mesh/isthmus/internal/tcp"
	"github.com/isthmus-mesh/isthmus/mesh"
	"github.com/isthmus-mesh/isthmus/nodeproxy/picker"
	"github.com/isthmus-mesh/isthmus/nodeproxy/warm"
)

// tunnel is an open path to one application: bytes written to stream reach it.
type tunnel struct {
	stream   *hbone.Stream
	endpoint mesh.EndpointID // zero if the far side did not name it
	inner    *hbone.Session  // closes with the tunnel; nil if the session is kept
	used     func()          // releases a session of a preconnect pool; nil if the session is not from one
}

// close releases what only this tunnel used. The stream is already closed or reset.
func (t *tunnel) close() {
	t.stream.Close()
	if t.inner != nil {
		t.inner.Close(nil)
	}
	if t.used != nil {
		t.used()
	}
}

// caller is the application connection that a tunnel is opened for.
type caller struct {
	snap   *mesh.Snapshot
	source *mesh.Workload
	app    netip.AddrPort // the application's own address
	host   string         // the service's hostname, empty when pod-addressed
	trace  string         // traceparent, the same on both hops
}

// ofNetwork returns id, or 0 if discovery lists the endpoint in another network than that of the
// gateway that named it. A gateway must not cause endpoints of other networks to be avoided.
func (c caller) ofNetwork(network string, id mesh.EndpointID) mesh.EndpointID {
	if w := c.snap.WorkloadByEndpoint(id); w != nil && w.Network != network {
		return 0
	}
	return id
}

// origin is the identity that sessions are opened with, and the network namespace that they are
// dialed from. Sessions for a captured pod are dialed from the pod's network namespace, so the
// rules for its packets apply to them. They serve no other pod.
type origin struct {
	id   spiffeid.ID
	from string // UID of the captured workload; empty: the network namespace of this process
}

// begins returns the UID of w if w is captured: its connections are dialed from its own network
// namespace. Otherwise it returns "": they are dialed from that of this process.
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

// connect opens a stream to an application on s. asked is the endpoint that s leads to, zero if it is unknown.
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

// openSingle opens a tunnel to a pod of the local network.
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

// openDouble opens a tunnel through v to a pod, and inside it one to the application.
// The session with the pod is kept for later connections of the same source if the preconnect
// pool needs it. These connections need no CONNECT to the gateway and neither handshake.
func (p *Proxy) openDouble(ctx context.Context, c caller, e *earlyData, v via) (*tunnel, *failure) {
	t := &tunnel{endpoint: v.pin}
	req := &hbone.Request{Authority: v.authority, Header: p.headers(c)}
	req.Header[header.NameForwardedNetwork] = p.cfg.Network
	req.Header[header.NameEnds] = "explicit"
	var in *hbone.Session
	foreign := false
	open := func(s *hbone.Session) error {
		in = s
		// It joined a session of an older snapshot, or the gateway did not name which of several pods serves it.
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
	if v.bulk && v.chosen { // keep bulk off the kept session; the preconnect pool still counts the connection
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
	left := e.err != nil || errors.Is(ctx.Err(), context.Canceled) // the application closed, or this process stops
	p.keepNone(v, in, f, (f.fault || foreign) && !left)
	if !v.chosen && !v.reserved && !dialled.Load() && in == nil && (f.at != atEndpoint || f.endpoint == 0) {
		f.fault = false // another connection dialed and reports the result; waiting connections do not repeat it
	}
	return nil, f
}

func throughFailure(v via, endpoint mesh.EndpointID, err error) *failure {
	return throughResponse(endpoint, fmt.Errorf("through gateway %s at %s: %w", picker.GatewayKey(v.gateway), v.gateway.Address, err))
}

// via is the path to a pod of another network.
type via struct {
	gateway   *mesh.Gateway
	authority string          // the service, host:port
	pin       mesh.EndpointID // requested endpoint; zero: the gateway chooses
	expect    []spiffeid.ID   // identities accepted in the inner handshake
	avoid     []mesh.EndpointID
	// session is the kept session to open the tunnel on. Its ID is zero if there is none.
	session  warm.Session
	chosen   bool // session is already open, and the connection is counted
	reserved bool // this connection opens session and reports the result
	dials    int  // maximum dials of gateway while other replicas at its address answer
	bulk     bool // likely to carry bulk; uses sessions separate from others
}

// answered is the endpoint that a gateway named in its response.
type answered struct {
	endpoint mesh.EndpointID // zero if none
	weight   uint32
}

// openInner opens a session with a pod through a stream of the gateway. The inner handshake
// starts before the gateway has responded. If the hop to the gateway fails, or the gateway
// refuses, err is already a *failure.
func (p *Proxy) openInner(ctx context.Context, c caller, v via) (inner *hbone.Session, by answered, err error) {
	gw, from := v.gateway, p.origin(c.source)
	req := &hbone.Request{Authority: v.authority, Header: p.headers(c), Replayable: true}
	if v.pin != 0 {
		req.Header[header.NamePin] = v.pin.String()
	} else if len(v.avoid) > 0 {
		req.Header[header.NameAvoid] = formatAvoid(v.avoid)
	}
	bulk := v.bulk && v.session.ID == 0
	over := p.transportTo(gw, from, bulk)
	key := p.gatewayKey(from, gw, over)
	key.Bulk = bulk
	dial := p.gatewayDialer(from, gw, over, p.adopt(from, over, bulk))
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
				f.at = atGateway // the outer session failed with this tunnel in it, or the gateway reset the tunnel
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

// innerSession runs the inner handshake inside an outer stream. If it fails, the stream stays open.
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
	most := maxStreams
	if outer.Session().Base().Conn() == nil {
		most = quicStreams
	}
	return p.startSession(t, source, expiry, most)
}

// startSession starts a session with the client identity source, which has at most that many streams. Its certificate expires at
// notAfter.
func (p *Proxy) startSession(t hbone.Transport, source spiffeid.ID, notAfter time.Time, most int) (*hbone.Session, error) {
	c := p.sessionConfig(source, notAfter)
	c.MaxStreams = most
	s, err := hbone.StartClient(t, c)
	if err == nil && p.started != nil {
		p.started(s)
	}
	return s, err
}

// clientTLS returns the TLS configuration for a session of source with a peer of expect, and
// when the certificate of source expires.
func (p *Proxy) clientTLS(ctx context.Context, source spiffeid.ID, expect []spiffeid.ID, protocols ...string) (*tls.Config, time.Time, error) {
	svid, err := p.ids.Get(ctx, source)
	if err != nil {
		return nil, time.Time{}, &identity.OwnError{ID: source, Err: err}
	}
	cfg, err := p.ids.ClientTLS(ctx, source, expect, protocols...)
	return cfg, svid.NotAfter(), err // early if the certificate was renewed in between
}

// maxStreams is how many streams a session has at most, other than over QUIC.
const maxStreams = 100

// sessionConfig returns the configuration of a session with the client identity source. Its
// certificate expires at notAfter.
func (p *Proxy) sessionConfig(source spiffeid.ID, notAfter time.Time) hbone.Config {
	c := p.session
	c.Owner = source.String()
	c.NotAfter, c.ExpiryGrace = notAfter, p.cfg.Timeouts.CertificateGrace
	c.SettingsTimeout, c.ConnectTimeout = p.cfg.Timeouts.Handshake, p.cfg.Timeouts.Connect
	return c
}

// dialer returns the function that the pool opens another session with, as source. It does not
// wait for the peer's settings.
func (p *Proxy) dialer(hop string, source origin, expect []spiffeid.ID, addr netip.AddrPort) func(context.Context) (*hbone.Session, error) {
	return func(ctx context.Context) (*hbone.Session, error) {
		t, expiry, err := p.dialTLS(ctx, hop, source, expect, addr, "h2")
		if err != nil {
			return nil, err
		}
		return p.startSession(t, source.id, expiry, maxStreams)
	}
}

// dialTLS dials addr by TCP and does the TLS handshake. expiry is when the local certificate expires.
func (p *Proxy) dialTLS(ctx context.Context, hop string, source origin, expect []spiffeid.ID, addr netip.AddrPort, protocols ...string) (t transport, expiry time.Time, err error) {
	cfg, expiry, err := p.clientTLS(ctx, source.id, expect, protocols...)
	if err != nil {
		return nil, expiry, err
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

// gatewayUID prefixes a gateway's key where a pool key needs a workload UID.
const gatewayUID = "gateway/"

// gatewayKey returns the pool key of sessions that source opens to g over a transport.
func (p *Proxy) gatewayKey(source origin, g *mesh.Gateway, over string) pool.Key {
	address := g.Address.String()
	if over != lines.TCP {
		address = overQUIC + address
	}
	return p.poolKey(source, []spiffeid.ID{g.Identity}, address, gatewayUID+picker.GatewayKey(g))
}

func (p *Proxy) poolKey(source origin, expect []spiffeid.ID, addr, uid string) pool.Key {
	names := make([]string, len(expect))
	for i, id := range expect {
		names[i] = id.String()
	}
	slices.Sort(names)
	return pool.Key{Source: source.id.String(), From: source.from, Expected: strings.Join(names, " "), Address: addr, UID: uid}
}
