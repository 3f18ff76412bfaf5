package nodeproxy

import (
	"context"
	"errors"
	"slices"
	"time"

	"golang.org/x/net/http2"

	"github.com/isthmus-mesh/isthmus/hbone/header"
	"github.com/isthmus-mesh/isthmus/internal/backoff"
	"github.com/isthmus-mesh/isthmus/nodeproxy/picker"
	"github.com/isthmus-mesh/isthmus/route"
)

// tried is where a call has already failed.
type tried = picker.Tried

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

// mostElsewhere is how often one connection is dialed by replicas that were not meant.
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
	where.Gateways, where.Origin = slices.Concat(c.tried.Gateways, c.missed), c.p.begins(c.who.source)
	pick, f := c.p.view.choose(c.to, where, keptBy{c.p.kept, c.p.origin(c.who.source)}, time.Now())
	if f != nil {
		return nil, f
	}
	c.access.network, c.access.gateway, c.access.transport, c.access.endpoint, c.access.workload = pick.Network(), "", "", 0, ""
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
		c.failed(&pick, f)
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
	if pick.Gateway != nil {
		c.access.transport = transportOf(t.stream.Session())
	}
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
	c.failed(&pick, f)
	addTried(&c.tried, pick, f)
	return nil, f
}

// failed takes in that the attempt at pick failed with f.
func (c *call) failed(pick *picker.Choice, f *failure) {
	c.p.view.failed(pick, f, time.Now())
	if c.p.view.unanswered(pick, f) {
		c.p.probePod(probedPod{pick.Pod.Endpoint, c.p.begins(c.who.source)})
	}
}

// abandon resets an open tunnel whose application is gone.
func (c *call) abandon(pick picker.Choice, t *tunnel, err error) (*tunnel, *failure) {
	t.stream.Reset(http2.ErrCodeConnect)
	t.close()
	c.p.view.done(&pick)
	return nil, cancelled(err)
}

// budgetKey is what shares a retry budget: an identity spends repeats by failures that are
// its own as well, at a limit or by what others think of it, and others have theirs left.
func budgetKey(identity string, plan *route.Plan) string { return identity + " " + sharedKey(plan) }

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
	f.hop = f.fault && pick.Pod != nil
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
