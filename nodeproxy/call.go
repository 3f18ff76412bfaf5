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

// call is one connection of a local application, from accept to its access-log
// line. Its own goroutine owns it.
type call struct {
	p         *Proxy
	app       appConn
	early     *earlyData
	uid       string // of the local workload
	flow      route.Flow
	who       caller
	to        *picker.Destination
	plan      *route.Plan   // of to
	pick      picker.Choice // where the open tunnel goes
	tried     tried
	hedge     hedging
	missed    []string // gateways that others have answered for, by picker.GatewayKey
	access    access
	opening   overload.Work       // admitted, and not yet open
	towards   overload.Toward     // likewise, of its destination
	elsewhere int                 // dials that others have answered
	learned   bool                // the gateways were asked for the name
	granted   func() error        // tells the application, once, that the way is open (SOCKS); may be nil
	denied    func(reason string) // tells it instead that there is none; may be nil
}

// carry takes one application connection to where flow says; already is what has
// been read from it. It owns app. What it returns is to be run with
// the same context and ends with the connection; nil if that has ended already.
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
	pick.Avoid, pick.Expect = nil, nil // not while it is open
	e := &established{p: p, conn: app, stream: t.stream, access: c.access, sent: int64(c.early.sent)}
	if len(c.early.rest()) > 0 {
		e.early = c.early
	} else {
		c.early.release()
	}
	c.early = nil
	if pick.Gateway != nil && !p.session.Disable.BulkApart {
		e.bulk = &bulkWatch{h: &p.bulk, to: to}
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

// resolve makes the plan from the current snapshot, if that is another one than
// the plan was made from. For what discovery does not know it asks the gateways once.
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

// replan is resolve by what is known.
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

// reach opens a tunnel, elsewhere again and again while that is safe, wanted
// and within deadline, number and budget.
func (c *call) reach(ctx context.Context) (*tunnel, *failure) {
	if f := c.resolve(ctx); f != nil {
		return nil, f
	}
	if f := c.admit(ctx); f != nil {
		return nil, f
	}
	defer c.opened()
	t, f := c.tryAll(ctx)
	if f == nil || f.overload() { // by the last attempt: what another place accepts is not refused
		c.p.throttle.Answered(sharedKey(c.plan), c.identity(), f == nil, time.Now())
	}
	return t, f
}

// admit waits until this process has time for the connection. One that it has no
// time for is refused before anything was spent on it.
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

// identity is as whom the connection is opened: what others refuse for overload, each by
// its limits and by turns, they refuse an identity.
func (c *call) identity() string { return c.who.source.Identity.String() }

// errOthersOverloaded is that of a connection that the far side would have refused.
var errOthersOverloaded = errors.New("the destination refuses new connections for overload")

// overloaded is the end of a connection that nobody has time for.
func overloaded(err error) *failure {
	return &failure{final: true, reason: string(header.ReasonOverload), err: err}
}

// opened ends what admit started: from here on the connection takes no more of this
// process's time than any other.
func (c *call) opened() {
	c.opening.Done()
	c.towards.Done()
}

// cancelled is the end of an attempt that nobody waits for any more.
func cancelled(err error) *failure {
	return &failure{final: true, reason: reasonCancelled, err: err}
}

// sharedKey is what shares a bound of connections that are being opened and, of each
// identity, a retry budget and what is refused for overload: a service's port, whatever name
// was asked for, or a pod that was addressed itself, whatever its port.
func sharedKey(plan *route.Plan) string {
	if plan.Direct != nil {
		return plan.Direct.UID
	}
	return plan.Authority
}

// lateLimit is how late this process may have been while it waited for somebody
// who is still blamed for what did not come.
const lateLimit = 125 * time.Millisecond

// isTimeout reports an attempt that ended because somebody did not answer in time.
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

// grant is called when a far application has accepted. Protocols in which the
// client speaks first wait for it, so it cannot wait for the first byte; a
// tunnel that breaks before that byte is still replaced, unseen.
//
// An error is the application's: it is gone, and the socket does not say so twice.
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

// fail ends the application's connection the way a refused connect looks: RST.
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

// asked is the host and port that f asks for; discovery may know a better name.
func asked(f route.Flow) (host string, port uint16) {
	if f.Host != "" {
		return f.Host, f.Port
	}
	return f.Addr.Addr().String(), f.Addr.Port()
}
