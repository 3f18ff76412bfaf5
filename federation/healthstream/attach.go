package healthstream

import (
	"context"
	"errors"
	"fmt"
	"io"
	mrand "math/rand/v2"
	"net"
	"net/netip"
	"sync"
	"syscall"
	"time"

	"github.com/rs/zerolog"
	"github.com/spiffe/go-spiffe/v2/spiffeid"

	"github.com/isthmus-mesh/isthmus/federation"
	pb "github.com/isthmus-mesh/isthmus/federation/federationpb"
	"github.com/isthmus-mesh/isthmus/federation/peer"
	"github.com/isthmus-mesh/isthmus/identity"
	"github.com/isthmus-mesh/isthmus/internal/backoff"
	"github.com/isthmus-mesh/isthmus/internal/link"
)

// gatewayKey is all that a stream depends on: when it changes, so must the
// stream.
type gatewayKey struct {
	name     string
	address  netip.AddrPort
	identity spiffeid.ID
}

// called is what the gateway is called: one that is known by its address alone says so.
func (k gatewayKey) called(w *pb.Welcome) string {
	if name := w.GetGateway(); k.name == k.address.String() && name != "" && len(name) <= federation.MaxName {
		return name
	}
	return k.name
}

// keep holds one stream up, with backoff between the attempts. The first attempt
// after a loss is spread over the time that the gateway has asked for: all node
// proxies of a gateway that restarts lose it at the same moment.
func (c *Client) keep(ctx context.Context, g gatewayKey) {
	log := c.cfg.Log.With().Str("gateway", g.name).Logger()
	pauses := backoff.Backoff{First: c.cfg.MinBackoff, Limit: c.cfg.MaxBackoff}
	failures, said, since := 0, refusalLine{}, time.Now()
	defer c.missing(g, nil, since)
	for ctx.Err() == nil {
		spread, attached, err := c.stream(ctx, g, log)
		if ctx.Err() != nil {
			return
		}
		if reason := peer.Reason(err); reason != "" {
			c.cfg.Metrics.Rejected.WithLabelValues(reason).Inc()
		}
		if identity.ReasonOf(err) != identity.ReasonHandshake {
			c.refusals.Note("health", "", net.TCPAddrFromAddrPort(g.address), err)
		}
		if attached {
			log.Warn().Err(err).Msg("health stream lost")
			failures, said, since = 0, refusalLine{}, time.Now()
		}
		failures++
		c.missing(g, err, since)
		if said.first(err) {
			log.Warn().Err(err).Msg("health stream refused")
		}
		pause := pauses.Next(failures)
		if attached {
			pause += time.Duration(mrand.Float64() * float64(spread))
		} else {
			log.Debug().Err(err).Dur("retry_in_ms", pause).Msg("health stream not attached")
		}
		if !link.Pause(ctx, pause) {
			return
		}
	}
}

// stream runs one stream to its end; attached says whether it was accepted.
func (c *Client) stream(ctx context.Context, g gatewayKey, log zerolog.Logger) (spread time.Duration, attached bool, err error) {
	conn, err := c.cfg.dial.TLS(ctx, c.cfg.Identity, c.cfg.Self, g.identity, g.address.String(), ALPN, c.cfg.DialTimeout)
	if err != nil {
		return 0, false, err
	}
	defer link.CloseAbruptly(conn)
	stop := context.AfterFunc(ctx, func() { link.CloseAbruptly(conn) })
	defer stop()
	f := &frames{conn: conn, dead: c.cfg.DialTimeout, metrics: c.cfg.Metrics}
	welcome, err := c.greet(ctx, f)
	if err != nil {
		return 0, false, err
	}
	out, err := targetsFromWire(welcome.GetOut())
	if err != nil {
		return 0, false, err
	}
	f.dead = c.cfg.Dead
	log.Info().Int("held_out", len(out)).Bool("resumed", welcome.GetResumed()).Msg("health stream attached")
	c.cfg.OnAsk(out, welcome.GetResumed())
	up := newUplink(g.called(welcome), f)
	up.address = g.address
	if c.cfg.Observe {
		up.observe()
	}
	c.add(up)
	c.missing(g, nil, time.Time{})
	defer c.remove(up)

	var writing sync.WaitGroup
	ctx, cancel := context.WithCancelCause(ctx)
	writing.Go(func() {
		if err := up.run(ctx, c.cfg.Heartbeat, c.cfg.Facts); err != nil {
			cancel(err)
			link.CloseAbruptly(conn)
		}
	})
	cancel(c.listen(f, up))
	link.CloseAbruptly(conn)
	writing.Wait()
	return min(time.Duration(welcome.GetSpreadMs())*time.Millisecond, maxSpread), true, context.Cause(ctx)
}

func (c *Client) greet(ctx context.Context, f *frames) (*pb.Welcome, error) {
	var token []byte
	if c.cfg.Token != nil {
		ctx, cancel := context.WithTimeout(ctx, c.cfg.DialTimeout)
		defer cancel()
		var err error
		if token, err = c.cfg.Token(ctx); err != nil {
			return nil, fmt.Errorf("get the token of this node: %w", err)
		}
	}
	err := f.write(&pb.StreamMessage{Message: &pb.StreamMessage_Attach{Attach: &pb.Attach{
		Node: c.cfg.Node, Network: c.cfg.Network, Instance: c.instance[:], Token: token, Observe: c.cfg.Observe, Explain: true,
	}}})
	if closed(err) {
		return nil, &refusedError{err: err}
	}
	if err != nil {
		return nil, fmt.Errorf("write attach: %w", err)
	}
	m, err := f.read()
	if closed(err) {
		return nil, &refusedError{err: err}
	}
	if err != nil {
		return nil, fmt.Errorf("read welcome: %w", err)
	}
	if r := m.GetRefused(); r != nil {
		return nil, &refusedError{why: Refusal(r.GetReason()).known()}
	}
	if m.GetWelcome() == nil {
		return nil, malformed("the first message of a gateway must be a welcome")
	}
	return m.GetWelcome(), nil
}

// closed reports an end that the peer has chosen, as far as a socket can tell.
func closed(err error) bool {
	return errors.Is(err, io.EOF) || errors.Is(err, syscall.ECONNRESET) || errors.Is(err, syscall.EPIPE)
}

// listen reads what the gateway says until the stream ends.
func (c *Client) listen(f *frames, up *uplink) error {
	for {
		m, err := f.read()
		if err != nil {
			return err
		}
		switch x := m.GetMessage().(type) {
		case *pb.StreamMessage_Services:
			odd, err := c.services.take(up, x.Services)
			c.cfg.Metrics.Rejected.WithLabelValues("malformed").Add(float64(odd))
			if err != nil {
				return err
			}
		case *pb.StreamMessage_Proofs:
			if err := c.services.introduce(up, x.Proofs, time.Now()); err != nil {
				return err
			}
		case *pb.StreamMessage_Holdings:
			if err := c.services.hold(up, x.Holdings); err != nil {
				return err
			}
		case *pb.StreamMessage_Notices:
			c.noticed(up, noticesFromWire(x.Notices))
		case *pb.StreamMessage_Offer:
			c.offered(up, x.Offer)
		case *pb.StreamMessage_Excerpt:
			if err := c.excerpt(up, x.Excerpt); err != nil {
				return err
			}
		case *pb.StreamMessage_Ask:
			targets, err := targetsFromWire(x.Ask.GetTargets())
			if err != nil {
				return err
			}
			c.repeat(up, targets)
			c.cfg.OnAsk(targets, false)
		}
	}
}
