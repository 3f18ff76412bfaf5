package nodeproxy

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"slices"
	"time"

	"github.com/isthmus-mesh/isthmus/hbone"
	"github.com/isthmus-mesh/isthmus/hbone/header"
	"github.com/isthmus-mesh/isthmus/internal/overload"
	"github.com/isthmus-mesh/isthmus/mesh"
	"github.com/isthmus-mesh/isthmus/nodeproxy/capture"
	"github.com/isthmus-mesh/isthmus/policy"
)

// arrival is one connection that another host opened to a captured pod in plain text, while a policy of the pod may deny
// some. What processes of the node open, such as the kubelet's probes, does not come here; see [capture.Exempt]. Its own
// goroutine owns it.
type arrival struct {
	p      *Proxy
	h      *captured
	conn   *net.TCPConn
	from   netip.AddrPort
	to     netip.AddrPort
	pod    *mesh.Workload
	permit *permit // nil: not asked yet, or denied
	access access
}

// An arrival is the session of its connection, for policies: nobody has proven who they are.
func (*arrival) Peer() hbone.Peer       { return hbone.Peer{} }
func (a *arrival) RemoteAddr() net.Addr { return a.conn.RemoteAddr() }

// arrived serves what others open to h in plain text.
func (p *Proxy) arrived(h *captured) serve {
	return func(_ context.Context, conn *net.TCPConn) func(context.Context) {
		to, err := capture.Original(conn)
		if err != nil {
			p.peerLines.Sample(p.log.Debug(), addrPort(conn.RemoteAddr()).Addr().String(), "captured").Str("workload", h.uid).Stringer("from", conn.RemoteAddr()).Err(err).Msg("bad connection to a captured pod")
			reset(conn)
			return nil
		}
		a := &arrival{p: p, h: h, conn: conn, from: addrPort(conn.RemoteAddr()), to: to}
		a.access = access{direction: "inbound", started: time.Now(), workload: h.uid, authority: to.String(), target: to.Port(), attempts: 1, plain: true, client: a.from}
		p.metrics.opened.WithLabelValues("destination").Inc()
		far, reason, err := a.open()
		if err != nil {
			if a.access.result == "" {
				a.access.result, a.access.err = reason, err
			}
			if a.permit != nil {
				a.permit.end()
			}
			reset(conn)
			p.finish(&a.access)
			return nil
		}
		a.access.connect = time.Since(a.access.started)
		r := &plainRelay{p: p, near: conn, far: far, access: a.access, permit: a.permit}
		a.permit.opened(r)
		return func(context.Context) { r.run(h.pod.Context()) }
	}
}

// open asks whether the connection may be, and connects to the application.
func (a *arrival) open() (far *net.TCPConn, reason string, err error) {
	if a.pod = a.p.store.Current().Workload(a.h.uid); a.pod == nil {
		return nil, string(header.ReasonNotLocal), errors.New("the workload is gone")
	}
	a.access.network, a.access.endpoint = a.pod.Network, a.pod.Endpoint
	a.access.service, a.access.port = a.declares()
	if mesh.ReservedPort(a.to.Port()) {
		return nil, string(header.ReasonNotLocal), fmt.Errorf("port %d belongs to the node proxy itself", a.to.Port())
	}
	var decision policy.Decision
	if a.permit, decision = a.h.in.permits.ask(a, a.pod, a.to); !decision.Allowed() {
		a.access.denied(decision)
		return nil, a.access.result, errDenied
	}
	opening, err := a.p.hold(a.h.pod.Context(), a.from.Addr().String())
	switch {
	case errors.Is(err, overload.ErrOverloaded):
		return nil, string(header.ReasonOverload), err
	case err != nil:
		return nil, reasonCancelled, err
	}
	defer opening.Done()
	conn, why, err := a.dial()
	switch {
	case err != nil && why == "":
		return nil, reasonCancelled, err
	case err != nil:
		return nil, string(why), err
	}
	if revoked := a.permit.revoked(); revoked != nil {
		reset(conn)
		a.access.denied(*revoked)
		return nil, a.access.result, errDenied
	}
	return conn.(*net.TCPConn), "", nil
}

// declares returns the service and its port that the connection is for, if one of the pod's has the port.
func (a *arrival) declares() (service string, port uint16) {
	for _, s := range a.p.store.Current().ServicesOf(a.pod.UID) {
		if port := servicePort(s, a.pod, a.to.Port()); port != 0 {
			return s.Hostname, port
		}
	}
	return "", 0
}

// dial connects to the application, as its client where that can be. The witness sees what comes of it, if it is
// at the address by which others know the pod.
func (a *arrival) dial() (net.Conn, header.Reason, error) {
	ctx, ended := whileThere(a.h.pod.Context(), a.conn, 2*a.p.cfg.Timeouts.App) // longer than the dial: who is slow is not who has left
	defer ended()
	if a.to.Addr() == a.pod.Addresses[0] {
		return a.p.witness.dial(ctx, a.pod, a.to.Port(), a.from.Addr())
	}
	if !slices.Contains(a.pod.Addresses, a.to.Addr()) && a.to.Addr().IsLinkLocalUnicast() {
		return nil, header.ReasonNotLocal, fmt.Errorf("%s is an address of one link, and no address of the pod", a.to.Addr())
	}
	conn, err := a.h.pod.ApplicationDialer()(ctx, a.to, a.p.cfg.Timeouts.App)
	return conn, reasonOf(err), err
}
