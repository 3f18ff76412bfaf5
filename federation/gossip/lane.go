package gossip

import (
	"context"
	"errors"
	"net"
	"net/netip"
	"os"
	"time"

	"github.com/spiffe/go-spiffe/v2/spiffeid"

	"github.com/isthmus-mesh/isthmus/federation/antientropy"
	"github.com/isthmus-mesh/isthmus/identity"
	"github.com/isthmus-mesh/isthmus/internal/backoff"
	"github.com/isthmus-mesh/isthmus/internal/link"
)

// dials are the pauses between attempts: a peer is to be found soon after it can
// be reached. One that comes back after long dials us by itself, as a rule, and is then
// dialed at once.
var dials = backoff.Backoff{First: 50 * time.Millisecond, Limit: 500 * time.Millisecond, Bound: 10 * time.Second}

// doubts are the pauses when one end has refused the other, as one does whose network's
// key it does not know: that lasts until somebody changes keys, which ends the pause.
// The last is well within refusedFor.
var doubts = backoff.Backoff{First: 500 * time.Millisecond, Limit: 15 * time.Second}

// laneKey is all that a lane depends on: when it changes, so must the lane.
type laneKey struct {
	network, gateway string
	address          netip.AddrPort
	identity         spiffeid.ID
	kind             byte
}

func (k laneKey) name() string { return k.network + "/" + k.gateway }

// lane dials one gateway, again and again for as long as discovery lists it; for
// bulk only when there is some.
type lane struct {
	laneKey
	transport *transport
	cancel    context.CancelFunc
	wanted    chan struct{} // bulk: something is pending
	again     chan struct{} // one slot: keys have changed, or it has dialed us: an attempt may succeed now

	// The transport's mu guards these.
	pending []antientropy.Output
	vain    bool // the last attempt has brought no connection that pending could use
	refused bool // one end has refused the other in the last attempt
}

func (l *lane) run(ctx context.Context) {
	defer l.cancel()
	failures, refusals := 0, 0
	failing := time.Now()
	for ctx.Err() == nil {
		if l.kind == kindBulk {
			select {
			case <-ctx.Done():
				return
			case <-l.wanted:
			}
		}
		start := time.Now()
		err := l.connect(ctx)
		l.flush(true)
		l.transport.f.cfg.Log.Debug().Err(err).Str("gateway", l.name()).Msg("federation connection ended")
		if time.Since(start) > l.transport.f.cfg.timing.silence {
			failures = 0
		}
		failures++
		pause := backoff.Jitter(dials.Lasting(failures, time.Since(failing)))
		refused := errors.As(err, new(*greetError))
		l.transport.mu.Lock()
		l.refused = refused
		l.transport.mu.Unlock()
		switch {
		case refused:
			refusals++
			pause = max(pause, doubts.Next(refusals))
		case errors.As(err, new(*dialError)):
		default: // it was in use
			refusals, failing = 0, time.Now()
		}
		timer := time.NewTimer(pause)
		select {
		case <-ctx.Done():
		case <-l.again:
			failures, refusals, failing = 0, 0, time.Now()
		case <-timer.C:
		}
		timer.Stop()
		l.flush(false)
	}
}

// retry ends the pause before the next attempt.
func (l *lane) retry() {
	select {
	case l.again <- struct{}{}:
	default:
	}
}

// flush sends what waits for this lane, by it or by what else there is.
func (l *lane) flush(vain bool) {
	t := l.transport
	t.mu.Lock()
	pending := l.pending
	l.pending, l.vain = nil, vain
	t.mu.Unlock()
	for _, o := range pending {
		t.send(o)
	}
}

// dialError is an attempt that has reached no gateway, greetError one that has, which
// did not believe this end, or was not believed.
type (
	dialError  struct{ error }
	greetError struct{ error }
)

func (e *dialError) Unwrap() error  { return e.error }
func (e *greetError) Unwrap() error { return e.error }

// connect dials and serves the connection until it is of no use.
func (l *lane) connect(ctx context.Context) error {
	f := l.transport.f
	raw, err := f.cfg.dial.TLS(ctx, f.cfg.Identity, f.cfg.Self, l.identity, l.address.String(), ALPN, f.cfg.timing.dial)
	if err != nil {
		f.cfg.Metrics.Joins.WithLabelValues("failed").Inc()
		if identity.ReasonOf(err) != identity.ReasonHandshake {
			l.transport.refusals.Note("federation", "", net.TCPAddrFromAddrPort(l.address), err)
		}
		return &dialError{err}
	}
	defer link.CloseAbruptly(raw)
	c := &conn{Conn: raw, transport: l.transport, kind: l.kind, dialled: true, ready: func() { l.flush(true) }}
	if err := c.greet(ctx, l.identity, []byte{l.kind}); err != nil {
		f.cfg.Metrics.Joins.WithLabelValues("failed").Inc()
		l.transport.refused(l.identity, err)
		if errors.Is(err, os.ErrDeadlineExceeded) || errors.Is(err, errSelf) {
			return &dialError{err} // nobody has refused anybody; another process may have the address, too
		}
		return &greetError{err}
	}
	f.cfg.Metrics.Joins.WithLabelValues("ok").Inc()
	err = c.serve(ctx)
	l.transport.refused(l.identity, err)
	return err
}
