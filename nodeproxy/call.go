package nodeproxy

import (
	"context"
	crand "crypto/rand"
	"errors"
	"math/rand/v2"
	"net"
	"net/netip"
	"time"

	"github.com/isthmus-mesh/isthmus/hbone"
	"github.com/isthmus-mesh/isthmus/hbone/header"
	"github.com/isthmus-mesh/isthmus/internal/overload"
	"github.com/isthmus-mesh/isthmus/nodeproxy/picker"
	"github.com/isthmus-mesh/isthmus/route"
)

// call is one connection of a local application, from accept to its access-log line. One
// goroutine owns it.
type call struct {
	p         *Proxy
	app       appConn
	early     *earlyData
	uid       string // of the local workload
	flow      route.Flow
	who       caller
	to        *picker.Destination
	plan      *route.Plan   // of to
	pick      picker.Choice // the destination of the open tunnel
	tried     tried
	hedge     hedging
	missed    []string // gateways that another replica answered for, by picker.GatewayKey
	access    access
	opening   overload.Work       // admitted, not yet open
	towards   overload.Toward     // the same per destination
	elsewhere int                 // dials that another replica answered
	learned   bool                // the name was requested from the gateways
	granted   func() error        // reports success to the application, once (SOCKS); may be nil
	denied    func(reason string) // reports failure instead; may be nil
}

// carry connects one application connection to the destination of flow. already is the data that
// was read from app. carry owns app. The caller runs the returned function with the same context:
// it returns when the connection closes. The result is nil if the connection failed.
func (p *Proxy) carry(ctx context.Context, app appConn, uid string, flow route.Flow, already []byte, granted func() error, denied func(reason string)) func(context.Context) {
	p.boundMemory(app, true)
	c := &call{p: p, app: app, early: newEarlyData(app, already, p.cfg.Memory), uid: uid, flow: flow, granted: granted, denied: denied}
	c.who.app, c.who.trace = addrPort(app.RemoteAddr()), header.NewTraceparent(crand.Reader)
	c.access = access{direction: "outbound", started: time.Now(), source: uid}
	c.access.service, c.access.port = asked(flow)
	p.metrics.opened.WithLabelValues("source").Inc()
	c.access.trace, _, _ = header.ParseTraceparent(c.who.trace)
	t, f := c.reach(ctx)
	var to bulkTo
	if c.plan != nil && c.who.source != nil {
		to = bulkTo{c.who.source.Identity, c.plan.Authority}
	}
	c.to, c.plan = nil, nil
	if f != nil {
		c.early.release()
		c.fail(f)
		app.Close()
		p.finish(&c.access)
		return nil
	}
	view, pick := p.view, c.pick
	pick.Avoid, pick.Expect = nil, nil // not needed while it is open
	e := &established{p: p, conn: app, stream: t.stream, access: c.access, sent: int64(c.early.sent)}
	if len(c.early.rest()) > 0 {
		e.early = c.early
	} else {
		c.early.release()
	}
	c.early = nil
	if pick.Gateway != nil && !p.session.Disable.BulkApart {
		e.bulk = &bulkWatch{h: &p.bulk, to: to, quic: t.stream.Session().Base().Conn() == nil}
	}
	e.ended = func() {
		if e.bulk != nil {
			e.bulk.end()
		}
		t.close()
		view.done(&pick)
	}
	return e.relay
}

// resolve makes the plan from the current snapshot if the plan is from an older one. If discovery
// does not list the destination, resolve requests it from the gateways once.
func (c *call) resolve(ctx context.Context) *failure {
	f := c.replan()
	if f != nil && !c.learned && (f.unlisted() || c.p.own != nil && f.reason == reasonNoRoute) {
		if changed, _ := c.p.learn(ctx, c.flow); changed {
			f = c.replan()
		}
	}
	c.learned = true
	return f
}

// replan is resolve without a request to the gateways.
func (c *call) replan() *failure {
	snap := c.p.store.Current()
	if snap == c.who.snap {
		return nil
	}
	source := snap.Workload(c.uid)
	if source == nil {
		return &failure{final: true, reason: reasonNoRoute, err: errors.New("discovery no longer lists the workload " + c.uid)}
	}
	c.flow.Source = source
	to, err := c.p.view.Resolve(snap, c.flow, time.Now())
	if err != nil {
		return routeFailure(c.p.because(snap, c.flow, err))
	}
	c.to, c.plan = to, to.Plan()
	c.who.snap, c.who.source, c.who.host = snap, source, ""
	if c.plan.Service != nil {
		c.who.host = c.plan.Service.Hostname
		c.access.service, c.access.port = c.who.host, c.plan.Port.Service
	}
	return nil
}

// reach opens a tunnel. It retries on other candidates while a retry is safe, useful and within
// the deadline, the number of attempts and the retry budget.
func (c *call) reach(ctx context.Context) (*tunnel, *failure) {
	if f := c.resolve(ctx); f != nil {
		return nil, f
	}
	if f := c.admit(ctx); f != nil {
		return nil, f
	}
	defer c.opened()
	t, f := c.tryAll(ctx)
	if f == nil || f.overload() { // only the last attempt counts: a connection accepted elsewhere was not refused
		c.p.throttle.Answered(sharedKey(c.plan), c.identity(), f == nil, time.Now())
	}
	return t, f
}

// admit waits until this process has capacity for the connection. Without capacity, the
// connection is refused before any work was spent on it.
func (c *call) admit(ctx context.Context) *failure {
	to, err := sharedKey(c.plan), error(nil)
	if !c.p.throttle.Allow(to, c.identity(), time.Now(), rand.Float64()) {
		return overloaded(errOthersOverloaded)
	}
	c.early.owner = c.identity()
	if err = c.p.load.Memory.Await(ctx, c.identity()); err == nil {
		c.towards, err = c.p.towards.Admit(ctx, to, c.access.started)
	}
	if err == nil {
		if c.opening, err = c.p.load.Admit(ctx, c.access.started, c.identity()); err != nil {
			c.towards.Done()
		}
	}
	switch {
	case err == nil:
		return nil
	case errors.Is(err, overload.ErrOverloaded):
		return overloaded(err)
	default:
		return &failure{final: true, reason: reasonCancelled, err: err}
	}
}

// identity returns the SPIFFE ID that the connection is opened with. Peers that refuse for
// overload apply their limits and their turns per identity.
func (c *call) identity() string { return c.who.source.Identity.String() }

// errOthersOverloaded is returned for a connection that the destination would likely have refused.
var errOthersOverloaded = errors.New("the destination refuses new connections for overload")

// overloaded returns the failure of a connection that was refused for overload.
func overloaded(err error) *failure {
	return &failure{final: true, reason: string(header.ReasonOverload), err: err}
}

// opened releases what admit reserved. From here on the connection costs this process as much as any
// established one.
func (c *call) opened() {
	c.opening.Done()
	c.towards.Done()
}

// cancelled returns the failure of a cancelled attempt.
func cancelled(err error) *failure {
	return &failure{final: true, reason: reasonCancelled, err: err}
}

// sharedKey returns the key of the limit on opening connections. With an identity it is also the
// key of the retry budget and of the overload throttle. It is a service's port, under any of the
// service's names, or the UID of a pod that was addressed directly, on any port.
func sharedKey(plan *route.Plan) string {
	if plan.Direct != nil {
		return plan.Direct.UID
	}
	return plan.Authority
}

// lateLimit is the largest scheduling delay of this process, during a wait for a peer, that lets a
// missing answer count against the peer.
const lateLimit = 125 * time.Millisecond

// isTimeout reports whether err is that a peer did not answer in time.
func isTimeout(err error) bool {
	var ne net.Error
	return errors.As(err, &ne) && ne.Timeout() ||
		errors.Is(err, hbone.ErrConnectTimeout) || errors.Is(err, hbone.ErrSettingsTimeout) || errors.Is(err, hbone.ErrPingTimeout)
}

func (c *call) tunnel(ctx context.Context, pick picker.Choice) (*tunnel, *failure) {
	if pick.Pod != nil {
		return c.p.openSingle(ctx, c.who, c.early, pick.Pod, pick.Target)
	}
	v := via{gateway: pick.Gateway, authority: c.plan.Authority, expect: pick.Expect, avoid: pick.Avoid, pin: pick.Chosen()}
	kept := keptBy{c.p.kept, c.p.origin(c.who.source)}
	session := "alone"
	switch {
	case pick.Kept.ID != 0:
		session = "held"
		v.session, v.chosen = kept.session(pick.Share, pick.Kept.ID), true
	case pick.Reserved != 0:
		if session = "opened"; pick.Joined {
			session = "awaited"
		}
		v.session, v.reserved = kept.session(pick.Share, pick.Reserved), !pick.Joined
		if pick.Pinned != 0 {
			v.pin = pick.Pinned
		}
	}
	to := bulkTo{c.who.source.Identity, v.authority}
	if !v.reserved && !c.p.session.Disable.BulkApart && c.p.bulk.expects(to, time.Now()) {
		session, v.bulk = "bulk", true
	}
	c.p.metrics.warm.WithLabelValues(session).Inc()
	return c.p.openDouble(ctx, c.who, c.early, v)
}

// grant is called when the far application has accepted. It cannot wait for the first byte:
// a client that sends first waits for grant. A tunnel that breaks before that byte is still
// replaced transparently.
//
// An error means that the local application is gone. The socket reports that only once.
func (c *call) grant() error {
	c.access.connect = time.Since(c.access.started)
	if c.access.attempts == 1 {
		c.towards.Opened()
	}
	c.opening.Opened()
	c.opened()
	if c.granted == nil {
		return nil
	}
	err := c.granted()
	c.granted, c.denied = nil, nil
	if err != nil {
		return &appGoneError{err}
	}
	return nil
}

// fail closes the application's connection with an RST, as for a refused connect.
func (c *call) fail(f *failure) {
	c.access.result, c.access.err = f.reason, f.err
	if c.denied != nil {
		c.denied(f.reason)
	}
	c.app.SetLinger(0)
}

func routeFailure(err error) *failure {
	f := &failure{final: true, reason: reasonNoRoute, err: err}
	var re *route.Error
	if errors.As(err, &re) {
		switch re.Kind {
		case route.UnknownService, route.UnknownPort:
			f.reason = string(header.ReasonUnknownService)
		case route.NotExported:
			f.reason = string(header.ReasonNotExported)
		case route.NoEndpoint:
			f.reason = string(header.ReasonNoEndpoint)
		}
	}
	return f
}

func addrPort(a net.Addr) netip.AddrPort {
	if t, ok := a.(*net.TCPAddr); ok {
		ap := t.AddrPort()
		return netip.AddrPortFrom(ap.Addr().Unmap(), ap.Port())
	}
	return netip.AddrPort{}
}

// asked returns the host and port that f requests. Discovery may have a better name.
func asked(f route.Flow) (host string, port uint16) {
	if f.Host != "" {
		return f.Host, f.Port
	}
	return f.Addr.Addr().String(), f.Addr.Port()
}
