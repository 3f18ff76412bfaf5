package nodeproxy

import (
	"cmp"
	"context"
	"errors"
	"slices"
	"sync"
	"time"

	"github.com/isthmus-mesh/isthmus/hbone"
	"github.com/isthmus-mesh/isthmus/hbone/header"
	"github.com/isthmus-mesh/isthmus/health"
	"github.com/isthmus-mesh/isthmus/internal/retrybudget"
	"github.com/isthmus-mesh/isthmus/mesh"
	"github.com/isthmus-mesh/isthmus/nodeproxy/picker"
)

// A hedge: the application at the far end takes long to accept, its node proxy says so,
// and the call goes elsewhere. What holds, whatever comes in whatever order:
//
//   - One application gets the bytes, at most. The call leaves an attempt by asking the
//     far side to withdraw it, and goes elsewhere when that has answered that the application
//     got nothing. If it accepted first, its answer is 200, and the call stays.
//   - A call has one attempt at a time, so none outlives it.
//   - Each hedge is paid from the retry budget before it is asked for, and there is
//     somebody healthy elsewhere.
//   - A call does not fail for a hedge: one that fails elsewhere goes back to where it was
//     first, once and for nothing, and waits there as if it had not left: also if discovery has
//     nobody for it any more, by what it had before. What may have got its bytes elsewhere
//     ends it, as always.
//   - If no answer comes, it is as if nothing had been said: early bytes may have arrived,
//     and are not sent again.

// slowConnect is how long connecting to a local application takes before its client is told. It
// takes microseconds; from an accept queue that is full the kernel answers after a second. While the
// queue is seen to be full waitsLong is enough: who has no answer by then was dropped.
const slowConnect = 100 * time.Millisecond

// maxHedges is how often one call leaves an attempt.
const maxHedges = 3

// Values of [header.NameSlow].
const (
	tellSlow = "tell"    // request: I want to hear of it
	isSlow   = "connect" // informational response: connecting takes long
)

// hearsSlow is told that the application at the far end of an attempt takes long to
// accept, and reports whether the attempt is to be withdrawn. asked is which endpoint that
// is; zero: that is not known, and r may name it.
type hearsSlow interface {
	slow(r *hbone.Response, asked mesh.EndpointID) (withdraw bool)
}

// hedging is what a call knows of attempts that it has left, or is leaving.
type hedging struct {
	asked    bool           // of the current attempt: it is to be withdrawn
	times    int            // attempts that were
	left     []picker.Place // that have acknowledged it, oldest first
	back     picker.Place   // where the next attempt goes, to wait, until one has failed
	returned bool           // it went there already
	free     int            // attempts that do not count as repeats
}

// turnBack has the next attempt go back to the first place that was left, if none has, and
// reports whether it does.
func (h *hedging) turnBack() bool {
	if len(h.left) > 0 && !h.returned {
		h.back, h.returned = h.left[0], true
	}
	return h.back != (picker.Place{})
}

// where is what the next attempt avoids: the places where the call has failed, and those
// that it has left.
func (h *hedging) where(t tried) tried {
	t.Back = h.back
	if h.returned || len(h.left) == 0 {
		return t
	}
	t.Pods = slices.Clone(t.Pods)
	for _, p := range h.left {
		t.Pods = append(t.Pods, p.Endpoint)
	}
	return t
}

// acknowledged reports whether f is the answer to a withdrawal.
func (h *hedging) acknowledged(f *failure) bool {
	return h.asked && f.reason == string(header.ReasonWithdrawn) && f.responded()
}

// hear has the next attempt hear of a slow connect, if the call may leave it.
func (c *call) hear() {
	c.hedge.asked = false
	r := c.p.cfg.Retry
	if r.Hedge && r.Attempts > 0 && c.hedge.times < maxHedges && !c.hedge.returned && c.plan.Direct == nil {
		c.early.hears = c
	}
}

// slow implements [hearsSlow]. Who was asked speaks of itself, whomever it names: see innerResponse.
func (c *call) slow(r *hbone.Response, asked mesh.EndpointID) (withdraw bool) {
	id := cmp.Or(asked, mesh.EndpointID(r.Endpoint()))
	if r.Header.Get(header.NameSlow) != isSlow || id == 0 {
		return false
	}
	where := c.tried
	where.Pods = append(slices.Clone(c.tried.Pods), id)
	for _, p := range c.hedge.left {
		where.Pods = append(where.Pods, p.Endpoint)
	}
	now := time.Now()
	switch {
	case now.After(c.deadline()) || !c.p.view.Elsewhere(c.to, where, now):
		c.p.metrics.hedges.WithLabelValues("nobody").Inc()
	case !c.p.budget.Spend(budgetKey(c.identity(), c.plan), retrybudget.AfterSlow):
		c.p.metrics.hedges.WithLabelValues("budget").Inc()
	default:
		c.hedge.asked = true
		c.hedge.times++
		return true
	}
	return false
}

// heard counts what came of an attempt that was to be withdrawn; f is nil if it succeeded.
func (c *call) heard(f *failure) {
	c.early.hears = nil
	if !c.hedge.asked {
		return
	}
	result := "unanswered"
	switch {
	case f == nil:
		result = "accepted"
	case c.hedge.acknowledged(f):
		result = "withdrawn"
	case f.responded():
		result = "refused"
	}
	c.p.metrics.hedges.WithLabelValues(result).Inc()
}

// hedged reports whether the call goes on after f by its own right, which is not a repeat: it
// has left that attempt, which is paid for, or goes back to the first one that it has left.
func (c *call) hedged(ctx context.Context, f *failure) bool {
	h := &c.hedge
	h.back = picker.Place{}
	var indeterminate *indeterminateError
	switch {
	case ctx.Err() != nil, f.reason == reasonCancelled:
		return false
	case h.acknowledged(f):
		h.left = append(h.left, picker.Place{Network: c.access.network, Endpoint: f.endpoint})
		c.access.hedges++
	case !errors.As(f.err, &indeterminate) && h.turnBack():
	default:
		return false
	}
	h.free++
	c.p.log.Debug().Str("service", c.access.service).Uint16("port", c.access.port).Str("network", c.access.network).Stringer("endpoint", f.endpoint).
		Str("reason", f.reason).Int("attempt", c.access.attempts).Bool("back", h.returned).Msg("attempt left")
	return true
}

// tellIfSlow tells the client of req, if it asks for that, when connecting to target of w takes
// long; the caller calls what it gets when it does no more. While this process itself is
// late it says nothing.
func (in *inbound) tellIfSlow(req *hbone.Incoming, w *mesh.Workload, target uint16) (answered func()) {
	tells := req.Header.Get(header.NameSlow) == tellSlow
	once := sync.Once{}
	tell := func(since time.Duration) {
		switch {
		case in.p.late(time.Now().Add(-since)):
		case tells:
			once.Do(func() {
				in.p.metrics.slow.WithLabelValues("yes").Inc()
				req.Inform(hbone.Header{header.NameSlow: isSlow, header.NameEndpoint: w.Endpoint.String()})
			})
		default:
			in.p.metrics.slow.WithLabelValues("no").Inc()
		}
	}
	slow := time.AfterFunc(slowConnect, func() { tell(slowConnect) })
	if !tells {
		return func() { slow.Stop() }
	}
	full := time.AfterFunc(waitsLong, func() {
		if in.p.witness.sockets.full(health.Key{Endpoint: w.Endpoint, Port: target}) {
			tell(waitsLong)
		}
	})
	return func() {
		slow.Stop()
		full.Stop()
	}
}

// withdrawn reports whether ctx, that of a CONNECT, has ended because its client has
// taken it back.
func withdrawn(ctx context.Context) bool { return errors.Is(context.Cause(ctx), hbone.ErrWithdrawn) }

// unwanted ends a CONNECT whose client has left, or has withdrawn it: the application has
// got nothing of it.
func (a *access) unwanted(ctx context.Context, req *hbone.Incoming, id mesh.EndpointID, err error) {
	if withdrawn(ctx) || errors.Is(err, hbone.ErrWithdrawn) {
		a.refuse(req, 503, header.ReasonWithdrawn, id, hbone.ErrWithdrawn)
		return
	}
	a.result, a.err = "cancelled", err
}
