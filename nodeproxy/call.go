package nodeproxy

import (
	"context"
	crand "crypto/rand"
	"errors"
	"math/rand/v2"
	"net"
	"net/netip"
	"slices"
	"time"

	"golang.org/x/net/http2"

	"github.com/isthmus-mesh/isthmus/hbone"
	"github.com/isthmus-mesh/isthmus/hbone/header"
	"github.com/isthmus-mesh/isthmus/internal/backoff"
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

// tried is where a call has already failed.
type tried = picker.Tried

// carry takes one application connection to where flow says; already is what has
// been read from it. It owns app. What it returns is to be run with
// the same context and ends with the connection; nil if that has ended already.
func (p *Proxy) carry(ctx context.Context, app appConn, uid string, flow route.Flow, already []byte, granted func() error, denied func(reason string)) func(context.Context) {
	c := &call{p: p, app: app, early: newEarlyData(app, already), uid: uid, flow: flow, granted: granted, denied: denied}
	c.who.app, c.who.trace = addrPort(app.RemoteAddr()), header.NewTraceparent(crand.Reader)
	c.access = access{direction: "outbound", started: time.Now(), source: uid}
	c.access.service, c.access.port = asked(flow)
	p.metrics.opened.WithLabelValues("source").Inc()
	c.access.trace, _, _ = header.ParseTraceparent(c.who.trace)
	t, f := c.reach(ctx)
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
	e.ended = func() {
		t.close()
		view.done(&pick)
	}
	return e.relay
}

// resolve makes the plan from the current snapshot, if that is another one than
// the plan was made from. For what discovery does not know it asks the gateways once.
func (c *call) resolve(ctx context.Context) *failure {
	f := c.replan()
	if f != nil && !c.learned && (f.unlisted() || c.p.own != nil && f.reason == reasonNoRoute) && c.p.learn(ctx, c.flow) {
		f = c.replan()
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

// tryAll makes one attempt after the other until one succeeds or no more are wanted.
func (c *call) tryAll(ctx context.Context) (*tunnel, *failure) {
	retry := c.p.cfg.Retry
	refused := false // for overload, elsewhere
	deadline := c.deadline()
	for {
		if f := c.prepare(ctx); f != nil && !(c.listed() && c.hedge.turnBack()) {
			return nil, f
		}
		if c.access.attempts++; c.access.attempts == 1 {
			c.p.budget.Earn(budgetKey(c.identity(), c.plan))
		}
		t, f := c.attempt(ctx)
		if f == nil {
			return t, nil
		}
		if c.again(f) && ctx.Err() == nil && time.Now().Before(deadline) {
			continue
		}
		c.note(f)
		if c.hedged(ctx, f) {
			if appClosed(c.app) {
				return nil, cancelled(&appGoneError{errors.New("found closed before an attempt")})
			}
			continue
		}
		attempts := c.access.attempts - c.hedge.free
		switch {
		case f.final, ctx.Err() != nil, attempts > retry.Attempts, time.Now().After(deadline), refused && f.overload():
			return nil, f
		case !c.p.budget.Spend(budgetKey(c.identity(), c.plan), f.repeatCost()):
			c.p.metrics.budget.Inc()
			return nil, f
		}
		refused = refused || f.overload()
		c.p.metrics.retries.WithLabelValues(f.reason).Inc()
		e := c.p.log.Debug().Str("service", c.access.service).Uint16("port", c.access.port).Str("network", c.access.network).
			Str("reason", f.reason).Int("attempt", c.access.attempts).Err(f.err)
		if f.endpoint != 0 {
			e.Stringer("endpoint", f.endpoint)
		}
		e.Msg("attempt failed")
		if !pause(ctx, retryDelay(attempts)) {
			return nil, cancelled(ctx.Err())
		}
		if appClosed(c.app) {
			return nil, cancelled(&appGoneError{errors.New("found closed before an attempt")})
		}
	}
}

// prepare makes the plan of the next attempt.
func (c *call) prepare(ctx context.Context) *failure {
	if f := c.resolve(ctx); f != nil {
		return f
	}
	if c.who.host != "" {
		c.p.use(ctx, c.who.host)
		return c.replan() // the first use may have brought shares
	}
	if w := c.plan.Direct; w != nil && c.p.own != nil && len(w.Addresses) > 0 {
		c.p.use(ctx, w.Addresses[0].String()) // or the gateways stop telling of it
	}
	return nil
}

// listed reports whether discovery still lists the workload whose connection this is.
func (c *call) listed() bool { return c.p.store.Current().Workload(c.uid) != nil }

// deadline is when the last attempt may start.
func (c *call) deadline() time.Time { return c.access.started.Add(c.p.cfg.Retry.Deadline) }

// mostElsewhere is how often one connection is dialled by replicas that were not meant.
const mostElsewhere = 24

// again reports whether f is only that another replica has answered than the one that was
// chosen: no attempt has failed. Those that were not reached come last in the next choice, as
// long as there are others.
func (c *call) again(f *failure) bool {
	if f.reason != reasonElsewhere || f.fault || c.elsewhere >= mostElsewhere {
		return false
	}
	c.access.attempts--
	c.elsewhere++
	return true
}

// miss notes that the gateway of p was not reached.
func (c *call) miss(p picker.Choice) {
	if c.missed = append(c.missed, picker.GatewayKey(p.Gateway)); len(c.missed) >= len(replicasOf(c.who.snap, p.Gateway)) {
		c.missed = nil
	}
}

// admit waits until this process has time for the connection. One that it has no
// time for is refused before anything was spent on it.
func (c *call) admit(ctx context.Context) *failure {
	to, err := sharedKey(c.plan), error(nil)
	if !c.p.throttle.Allow(to, c.identity(), time.Now(), rand.Float64()) {
		return overloaded(errOthersOverloaded)
	}
	if c.towards, err = c.p.towards.Admit(ctx, to, c.access.started); err == nil {
		if c.opening, err = c.p.load.Admit(ctx, c.access.started); err != nil {
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

// note keeps a failed attempt for the line of the connection; one that failed at the
// gateway names no pod.
func (c *call) note(f *failure) {
	pod := c.access.workload
	if pod == "" && f.endpoint != 0 && f.at != atGateway {
		pod = f.endpoint.String()
	}
	c.access.tried.add(failedPlace{pod: pod, gateway: c.access.gateway, reason: f.reason, cause: header.Error(f.err.Error())})
}

// retries are the pauses from the third attempt on.
var retries = backoff.Backoff{First: 25 * time.Millisecond, Limit: time.Second}

// retryDelay is how long to wait after the n-th attempt: not at all after the
// first two, which go to places not tried yet, then a value drawn evenly from
// [d/2, d] with d = 25 ms·2^(n-3). Eight repeats so outlast the second and a
// half in which an only gateway restarts, and a service that is down everywhere
// is not hammered.
func retryDelay(n int) time.Duration {
	if n < 3 {
		return 0
	}
	return retries.Next(n - 2)
}

// attempt chooses, opens, and waits for the first byte.
func (c *call) attempt(ctx context.Context) (*tunnel, *failure) {
	where := c.hedge.where(c.tried)
	where.Gateways = slices.Concat(c.tried.Gateways, c.missed)
	pick, f := c.p.view.choose(c.to, where, keptBy{c.p.kept, c.p.origin(c.who.source)}, time.Now())
	if f != nil {
		return nil, f
	}
	c.access.network, c.access.gateway, c.access.endpoint, c.access.workload = pick.Network(), "", 0, ""
	if id := pick.Chosen(); id != 0 {
		c.access.workload = c.p.view.nameOf(c.who.snap, id)
	}
	if pick.Gateway != nil {
		c.access.gateway = pick.Gateway.Name
	}
	started := time.Now()
	actx, ended := whileThere(ctx, c.app, c.p.cfg.Timeouts.Dial+c.p.cfg.Timeouts.Handshake+c.p.cfg.Timeouts.Connect)
	c.hear()
	t, f := c.tunnel(actx, pick)
	c.heard(f)
	gone := ended()
	switch {
	case f == nil:
	case c.early.err != nil:
		f = cancelled(c.early.err)
	case gone:
		f = cancelled(&appGoneError{errors.New("found closed while its connection was opened")})
	case ctx.Err() != nil:
		f = cancelled(ctx.Err())
	}
	c.p.excuse(f, started)
	if f == nil {
		c.p.view.opened(&pick, time.Now())
	} else {
		c.p.view.failed(&pick, f, time.Now())
		f.final = f.final || c.plan.Undeclared && f.at == atEndpoint && f.responded() // a closed port, and no other pod is meant
		if f.reason == reasonElsewhere && !f.fault {
			c.miss(pick)
		} else if !c.hedge.acknowledged(f) {
			addTried(&c.tried, pick, f)
		}
		c.access.endpoint = f.endpoint
		if name := c.p.view.nameOf(c.who.snap, f.endpoint); name != "" {
			c.access.workload = name
		}
		if f.at == atGateway { // no pod was asked
			c.access.endpoint, c.access.workload = 0, ""
		}
		return nil, f
	}
	if err := c.grant(); err != nil {
		return c.abandon(pick, t, err)
	}
	c.pick, c.access.endpoint, c.access.peer = pick, t.endpoint, t.stream.Session().Peer().ID
	if name := c.p.view.nameOf(c.who.snap, t.endpoint); name != "" {
		c.access.workload = name
	}
	err := c.early.firstByte(ctx, t.stream)
	switch {
	case err == nil:
		return t, nil
	case appGone(err):
		return c.abandon(pick, t, err)
	}
	f = c.brokeEarly(pick, t, err)
	t.close()
	c.p.view.failed(&pick, f, time.Now())
	addTried(&c.tried, pick, f)
	return nil, f
}

// abandon resets an open tunnel whose application is gone.
func (c *call) abandon(pick picker.Choice, t *tunnel, err error) (*tunnel, *failure) {
	t.stream.Reset(http2.ErrCodeConnect)
	t.close()
	c.p.view.done(&pick)
	return nil, cancelled(err)
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

// budgetKey is what shares a retry budget: an identity spends repeats by failures that are
// its own as well, at a limit or by what others think of it, and others have theirs left.
func budgetKey(identity string, plan *route.Plan) string { return identity + " " + sharedKey(plan) }

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
	c.p.metrics.warm.WithLabelValues(session).Inc()
	return c.p.openDouble(ctx, c.who, c.early, v)
}

// brokeEarly is a tunnel that broke after the far application had accepted and
// before anybody spoke.
func (c *call) brokeEarly(pick picker.Choice, t *tunnel, err error) *failure {
	f := &failure{at: atEndpoint, reason: reasonTunnel, endpoint: t.endpoint, err: err}
	s := t.stream.Session()
	if t.inner == nil {
		f.fault = breaksBlame(s.Err()) // the session died, not just this stream
	}
	if err := s.Base().Err(); err != nil {
		f.fault = breaksBlame(err)
		if pick.Gateway != nil {
			f.at = atGateway
		}
	}
	return f
}

// addTried notes that an attempt at p failed.
func addTried(t *tried, p picker.Choice, f *failure) {
	if f.endpoint != 0 {
		t.Pods = append(t.Pods, f.endpoint)
	}
	switch {
	case p.Gateway == nil:
	case f.at == atGateway:
		t.Gateways = append(t.Gateways, picker.GatewayKey(p.Gateway))
	case f.endpoint == 0:
		t.Networks = append(t.Networks, p.Gateway.Network)
	}
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
