package gossip

import (
	"context"
	"net"
	"net/netip"
	"time"

	"github.com/spiffe/go-spiffe/v2/spiffeid"

	"github.com/isthmus-mesh/isthmus/federation/antientropy"
	"github.com/isthmus-mesh/isthmus/identity"
	"github.com/isthmus-mesh/isthmus/internal/backoff"
	"github.com/isthmus-mesh/isthmus/internal/link"
)

// dials are the pauses between attempts: a peer is to be found soon after it can
// be reached.
var dials = backoff.Backoff{First: 50 * time.Millisecond, Limit: 500 * time.Millisecond}

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

	// The transport's mu guards these.
	pending []antientropy.Output
	vain    bool // the last attempt has brought no connection that pending could use
}

func (l *lane) run(ctx context.Context) {
	defer l.cancel()
	failures := 0
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
		if !link.Pause(ctx, dials.Next(failures)) {
			return
		}
		l.flush(false)
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

// connect dials and serves the connection until it is of no use.
func (l *lane) connect(ctx context.Context) error {
	f := l.transport.f
	raw, err := f.cfg.dial.TLS(ctx, f.cfg.Identity, f.cfg.Self, l.identity, l.address.String(), ALPN, f.cfg.timing.dial)
	if err != nil {
		f.cfg.Metrics.Joins.WithLabelValues("failed").Inc()
		if identity.ReasonOf(err) != identity.ReasonHandshake {
			l.transport.refusals.Note("federation", "", net.TCPAddrFromAddrPort(l.address), err)
		}
		return err
	}
	defer link.CloseAbruptly(raw)
	c := &conn{Conn: raw, transport: l.transport, kind: l.kind, dialled: true, ready: func() { l.flush(true) }}
	if err := c.greet(ctx, l.identity, []byte{l.kind}); err != nil {
		f.cfg.Metrics.Joins.WithLabelValues("failed").Inc()
		l.transport.refused(l.identity, err)
		return err
	}
	f.cfg.Metrics.Joins.WithLabelValues("ok").Inc()
	err = c.serve(ctx)
	l.transport.refused(l.identity, err)
	return err
}
