package nodeproxy

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/net/http2"

	"github.com/isthmus-mesh/isthmus/hbone"
	"github.com/isthmus-mesh/isthmus/hbone/header"
	"github.com/isthmus-mesh/isthmus/identity"
	"github.com/isthmus-mesh/isthmus/internal/accept"
	"github.com/isthmus-mesh/isthmus/internal/admission"
	"github.com/isthmus-mesh/isthmus/internal/overload"
	"github.com/isthmus-mesh/isthmus/internal/pending"
	"github.com/isthmus-mesh/isthmus/mesh"
	"github.com/isthmus-mesh/isthmus/route"
)

// inbound ends tunnels for one local workload.
type inbound struct {
	p        *Proxy
	uid      string
	listener net.Listener
	permits  *permits
	conns    sync.WaitGroup
	sessions hbone.Group
	leaving  atomic.Bool // the pod is terminating
}

func (p *Proxy) listenInbound(w *mesh.Workload) (*inbound, error) {
	addr := netip.AddrPortFrom(w.Addresses[0], mesh.HBONEPort)
	l, err := listenShared(addr, p.holder("inbound", w.UID))
	if err != nil {
		return nil, fmt.Errorf("listen for workload %s at %s: %w: stop what listens there, such as another node proxy of another user, node or network", w.UID, addr, err)
	}
	return newInbound(p, w.UID, l), nil
}

func newInbound(p *Proxy, uid string, l net.Listener) *inbound {
	return &inbound{p: p, uid: uid, listener: l, permits: newPermits(uid, p.store)}
}

// police has the connections of in, and those in plain text to its workload, follow policies until each that has called it
// has called stop.
func (in *inbound) police() (stop func()) {
	in.p.mu.Lock()
	defer in.p.mu.Unlock()
	in.p.policed[in.permits]++
	return func() {
		in.p.mu.Lock()
		defer in.p.mu.Unlock()
		if in.p.policed[in.permits]--; in.p.policed[in.permits] == 0 {
			delete(in.p.policed, in.permits)
		}
	}
}

// run accepts until the listener is closed and returns when the last of its
// sessions has ended.
func (in *inbound) run(ctx context.Context) {
	defer in.police()()
	defer in.conns.Wait()
	handshakes := pending.New(in.p.cfg.Limits.Handshakes)
	var failures accept.Failures
	for {
		conn, err := in.listener.Accept()
		if errors.Is(err, net.ErrClosed) {
			return
		}
		if err != nil {
			if !pause(ctx, failures.Failed(in.p.log.With().Str("workload", in.uid).Logger(), err, time.Now())) {
				return
			}
			continue
		}
		failures.Succeeded()
		entry, evicted := handshakes.Enter(conn, admission.AddressKey(addrPort(conn.RemoteAddr()).Addr()))
		if evicted {
			in.p.metrics.refused.WithLabelValues("overload").Inc()
		}
		if entry == nil {
			conn.Close()
			continue
		}
		in.p.boundMemory(conn, false)
		in.conns.Go(func() { in.serve(ctx, conn, in.clientAddress(conn), entry) })
	}
}

// clientAddress is what the limits of an address apply to: none for a gateway of the
// own network, which carries the clients of all others.
func (in *inbound) clientAddress(conn net.Conn) netip.Addr {
	tcp, ok := conn.RemoteAddr().(*net.TCPAddr)
	if !ok || in.p.gateways.has(in.p.store.Current(), in.p.cfg.Network, tcp.AddrPort().Addr(), time.Now()) {
		return netip.Addr{}
	}
	return tcp.AddrPort().Addr()
}

// serve ends the tunnels of one connection.
func (in *inbound) serve(ctx context.Context, conn net.Conn, from netip.Addr, entry *pending.Entry) {
	t, expiry, err := in.handshake(ctx, conn, entry)
	entry.Leave()
	if kind := entry.Probe(err); kind != "" {
		in.p.metrics.probed.WithLabelValues(kind).Inc()
		return
	}
	if err != nil {
		refusal := in.p.refusals.Note("inbound", in.uid, conn.RemoteAddr(), err)
		in.p.metrics.refused.WithLabelValues(refusal).Inc()
		return
	}
	cfg := in.p.session
	cfg.SettingsTimeout = in.p.cfg.Timeouts.Handshake
	cfg.NotAfter, cfg.ExpiryGrace = expiry, in.p.cfg.Timeouts.CertificateGrace
	client := admission.Client{Identity: t.Peer().ID.String(), Address: from}
	admitted, err := in.p.clients.Session(client, time.Now())
	if err != nil {
		in.p.clients.Refused(err, client)
		hbone.NewServer(t, cfg, nil).Decline(ctx, err.Error())
		return
	}
	defer admitted.Release()
	cfg.Refused = func(why hbone.Refusal) { in.p.metrics.streams.WithLabelValues(string(why)).Inc() }
	var goAway sync.Once // of a session that began while the pod was terminating
	cfg.Screen = func(req *hbone.Incoming) hbone.Handler {
		if in.leaving.Load() {
			goAway.Do(func() { in.p.running.Go(func() { req.Session.Drain(in.p.data) }) })
		}
		return in.screen(req, client, admitted)
	}
	if session := hbone.NewServer(t, cfg, nil); in.untrusted(session) { // its root was removed during the handshake
		err = hbone.ErrUntrusted
		session.Decline(ctx, "the root that signed the certificate was removed from federation.networks")
	} else {
		err = in.sessions.Serve(ctx, session)
	}
	in.p.metrics.sessions.WithLabelValues(string(hbone.OutcomeOf(err))).Inc()
	in.p.peerLines.Sample(in.p.log.Debug(), client.Identity, "session").Str("workload", in.uid).AnErr("cause", err).Msg("inbound session ended")
}

// handshake returns the connection and when the certificate that it was made with
// expires, or a little earlier one.
func (in *inbound) handshake(ctx context.Context, conn net.Conn, entry *pending.Entry) (*hbone.TLSTransport, time.Time, error) {
	ctx, cancel := context.WithTimeout(ctx, in.p.cfg.Timeouts.Handshake)
	defer cancel()
	w := in.p.store.Current().Workload(in.uid)
	if w == nil {
		conn.Close()
		return nil, time.Time{}, errors.New("the workload is gone")
	}
	svid, err := in.p.ids.Get(ctx, w.Identity)
	if err != nil {
		conn.Close()
		return nil, time.Time{}, &identity.OwnError{ID: w.Identity, Err: err}
	}
	t, err := hbone.ServerTLS(ctx, conn, entry.TLS(in.p.ids.ServerTLS(w.Identity, nil, "h2")))
	return t, svid.NotAfter(), err
}

// screen admits a CONNECT or refuses it, at once: by the limits of its client, and by the
// time that this process has. It is counted from its arrival: one that waits for a
// processor before its handler runs is what an overloaded process has too many of. Of a
// client that would not come again the connection waits for its turn.
func (in *inbound) screen(req *hbone.Incoming, client admission.Client, session *admission.Session) hbone.Handler {
	a := access{direction: "inbound", started: time.Now(), authority: req.Authority, attempts: 1, peer: req.Session.Peer().ID}
	a.trace, _, _ = header.ParseTraceparent(req.Header.Get(header.NameTraceparent))
	in.p.metrics.opened.WithLabelValues("destination").Inc()
	admitted, err := session.Stream(a.started, req.Unread, func() { req.Reset(http2.ErrCodeEnhanceYourCalm) })
	if err != nil {
		a.refuse(req, in.p.clients.Refused(err, client), header.ReasonOverload, 0, err)
		in.p.finish(&a)
		return nil
	}
	if !header.Repeats(req.Header.Get(header.NameRepeats), header.ReasonOverload) {
		return func(ctx context.Context, req *hbone.Incoming) {
			opening, err := in.p.hold(ctx, client.Identity)
			if err != nil {
				in.unadmitted(req, a, admitted, err)
				return
			}
			in.admitted(ctx, req, a, opening, admitted)
		}
	}
	opening, err := in.p.admit(client.Identity)
	if err != nil {
		in.unadmitted(req, a, admitted, err)
		return nil
	}
	return func(ctx context.Context, req *hbone.Incoming) { in.admitted(ctx, req, a, opening, admitted) }
}

// unadmitted ends a CONNECT that this process has no time for, or whose client left
// before its turn.
func (in *inbound) unadmitted(req *hbone.Incoming, a access, stream *admission.Stream, err error) {
	stream.Release()
	if errors.Is(err, overload.ErrOverloaded) {
		a.refuse(req, 503, header.ReasonOverload, 0, err)
	} else {
		a.result, a.err = "cancelled", err
	}
	in.p.finish(&a)
}

// admitted serves one that this process has time for.
func (in *inbound) admitted(ctx context.Context, req *hbone.Incoming, a access, opening overload.Work, stream *admission.Stream) {
	over := func() {
		opening.Done()
		stream.Release()
	}
	if !in.connect(ctx, req, a, &opening, over) {
		over()
	}
}

// connect serves one CONNECT: authority to local port, port to application. It reports
// whether the connection is established; then over is called when that has ended.
func (in *inbound) connect(ctx context.Context, req *hbone.Incoming, a access, opening *overload.Work, over func()) (relayed bool) {
	defer func() {
		if !relayed {
			in.p.finish(&a)
		}
	}()
	snap := in.p.store.Current()
	w := snap.Workload(in.uid)
	if w == nil {
		a.refuse(req, 503, header.ReasonNotLocal, 0, errors.New("the workload is gone"))
		return false
	}
	a.network, a.endpoint, a.workload = w.Network, w.Endpoint, w.UID
	target, svc, err := route.Inbound(snap, w, req.Authority, in.scope(snap, req))
	if err != nil {
		status, reason := inboundRefusal(err)
		a.refuse(req, status, reason, w.Endpoint, err)
		return false
	}
	a.target = target
	if svc != nil {
		a.service = svc.Hostname
		a.port = servicePort(svc, w, target)
	}
	to := netip.AddrPortFrom(route.InboundAddress(w, req.Authority), target) // of a pod with several addresses the one that is asked for is dialed, and policies may know it
	permit, decision := in.permits.ask(req.Session, w, to)
	if permit == nil {
		a.deny(req, w.Endpoint, decision)
		return false
	}
	defer func() {
		if !relayed {
			permit.end()
		}
	}()
	answered := in.tellIfSlow(req, w, target)
	conn, reason, err := in.p.witness.dialAt(ctx, w, to, addrPort(req.Session.RemoteAddr()).Addr())
	answered()
	if err != nil {
		if reason == "" {
			a.unwanted(ctx, req, w.Endpoint, err)
			return false
		}
		a.refuse(req, 503, reason, w.Endpoint, err)
		return false
	}
	if revoked := permit.revoked(); revoked != nil {
		reset(conn)
		a.deny(req, w.Endpoint, *revoked)
		return false
	}
	stream, err := req.Accept(hbone.Header{
		header.NameBaggage:  in.p.baggage(snap, w),
		header.NameEndpoint: w.Endpoint.String(),
	})
	if err != nil {
		reset(conn) // a FIN would be an end that nobody has sent
		a.unwanted(ctx, req, w.Endpoint, err)
		return false
	}
	if req.Header.Get(header.NameForwardedNetwork) != "" && req.Header.Get(header.NameEnds) == "" {
		stream.EndAtEOF() // a stock client, through a gateway
	}
	a.connect = time.Since(a.started)
	opening.Opened()
	in.p.boundMemory(conn, true)
	e := &established{p: in.p, conn: conn, stream: stream, access: a, ended: over, permit: permit}
	permit.opened(e)
	req.Then(e.relay)
	return true
}

// scope is what the peer of req may ask for. What comes from a gateway of this
// network comes from other networks: the inner handshake proves who the client is
// and not where it is, so the address of the connection decides. A header can only
// narrow the scope: it is the client's own word.
func (in *inbound) scope(snap *mesh.Snapshot, req *hbone.Incoming) route.Scope {
	if in.fromGateway(snap, req) || req.Session.Peer().ID.TrustDomain() != in.p.self.TrustDomain() { // nobody of another trust domain is of the own network
		return route.ExportedPorts
	}
	return in.p.cfg.Inbound.scope()
}

func (in *inbound) fromGateway(snap *mesh.Snapshot, req *hbone.Incoming) bool {
	peer, ok := req.Session.RemoteAddr().(*net.TCPAddr)
	if ok && in.p.gateways.has(snap, in.p.cfg.Network, peer.AddrPort().Addr(), time.Now()) {
		return true
	}
	network := req.Header.Get(header.NameForwardedNetwork)
	if network == "" || strings.EqualFold(network, in.p.cfg.Network) {
		return false
	}
	in.p.strays.Sample(in.p.log.Warn(), addrPort(req.Session.RemoteAddr()).Addr().String(), in.uid).Str("workload", in.uid).Stringer("from", req.Session.RemoteAddr()).
		Str("peer_network", network).Stringer("peer", req.Session.Peer().ID).
		Msg("a connection of another network comes from an address that discovery does not list for any gateway: set gateways[].sources, or everything that comes from there and does not say so may ask for every port")
	return true
}

func servicePort(svc *mesh.Service, w *mesh.Workload, target uint16) uint16 {
	for _, p := range svc.Ports {
		if w.Target(p) == target {
			return p.Service
		}
	}
	return 0
}

func inboundRefusal(err error) (status int, reason header.Reason) {
	var re *route.Error
	if !errors.As(err, &re) {
		return 503, header.ReasonNotLocal
	}
	switch re.Kind {
	case route.BadAuthority:
		reason = header.ReasonBadAuthority
	case route.NotExported:
		reason = header.ReasonNotExported
	case route.UnknownService, route.UnknownPort, route.NotMember:
		reason = header.ReasonUnknownService
	default:
		reason = header.ReasonNotLocal
	}
	return re.Status(), reason
}

// follow sends GOAWAY on the sessions of a pod when it becomes terminating, so that peers
// that do not know this from discovery, such as stock ztunnels and waypoints, stop using
// them. Open streams go on without a time limit: a terminating pod serves them until its process
// exits, which ends them. A peer may still open a session, as long as the pod serves: it
// gets GOAWAY after its first CONNECT, which is served.
func (in *inbound) follow(w *mesh.Workload) {
	terminating := w != nil && w.State == mesh.Terminating
	if in.leaving.Swap(terminating) != terminating && terminating {
		in.p.running.Go(func() { in.sessions.GoAway(in.p.data) })
	}
}

// drain stops accepting and asks every peer to go elsewhere; it returns when
// all sessions have ended or ctx has.
func (in *inbound) drain(ctx context.Context) {
	in.listener.Close()
	in.sessions.Drain(ctx)
}

func pause(ctx context.Context, d time.Duration) bool {
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-ctx.Done():
		return false
	case <-t.C:
		return true
	}
}
