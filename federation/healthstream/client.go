package healthstream

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/netip"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"github.com/rs/zerolog"
	"github.com/spiffe/go-spiffe/v2/spiffeid"

	"github.com/isthmus-mesh/isthmus/federation"
	"github.com/isthmus-mesh/isthmus/federation/federationpb"
	"github.com/isthmus-mesh/isthmus/federation/peer"
	"github.com/isthmus-mesh/isthmus/identity"
	"github.com/isthmus-mesh/isthmus/internal/backoff"
	"github.com/isthmus-mesh/isthmus/internal/link"
	"github.com/isthmus-mesh/isthmus/mesh"
)

// ClientConfig is what a node proxy's end of the health streams needs.
// Node, Network, Incarnation, Self, Identity, Gateways and Ledger are required.
type ClientConfig struct {
	Node        string
	Network     string
	Incarnation uint64 // grows with every start
	Self        spiffeid.ID
	Identity    link.Source
	// Gateways returns the gateways of the own network; it is asked again and
	// again, and must be quick.
	Gateways func() []*mesh.Gateway
	Ledger   *peer.Ledger
	// Current returns everything that the node now has to say, evidence ages
	// as of now; stamps are set here. It is asked when a stream attaches and
	// for every refresh. A caller of Report must have changed what Current
	// returns before.
	Current func() []federation.Record

	Log     zerolog.Logger
	Metrics *peer.Metrics

	DialTimeout time.Duration // for TCP, TLS and the welcome, each; default 2 s
	MinBackoff  time.Duration // default 100 ms
	MaxBackoff  time.Duration // default 2 s
	Heartbeat   time.Duration // default 2 s
	Dead        time.Duration // default 6 s
	Refresh     time.Duration // between repeats of what is not the default; default 10 s
}

func (c *ClientConfig) setDefaults() {
	c.DialTimeout = orDefault(c.DialTimeout, 2*time.Second)
	c.MinBackoff = orDefault(c.MinBackoff, 100*time.Millisecond)
	c.MaxBackoff = orDefault(c.MaxBackoff, 2*time.Second)
	c.Heartbeat = orDefault(c.Heartbeat, 2*time.Second)
	c.Dead = orDefault(c.Dead, 6*time.Second)
	c.Refresh = orDefault(c.Refresh, 10*time.Second)
	c.Metrics = c.Metrics.OrDiscard()
	if c.Current == nil {
		c.Current = func() []federation.Record { return nil }
	}
}

// Client keeps a stream to every gateway of a node proxy's own network.
// It is safe for concurrent use.
type Client struct {
	cfg      ClientConfig
	refusals *identity.Refusals
	sequence atomic.Uint64

	mu      sync.Mutex
	streams map[*uplink]struct{} // attached
}

// NewClient returns a client that does nothing until Run.
func NewClient(cfg ClientConfig) *Client {
	cfg.setDefaults()
	return &Client{cfg: cfg, refusals: identity.NewRefusals(cfg.Log), streams: map[*uplink]struct{}{}}
}

// Attached returns to how many gateways a stream is up.
func (c *Client) Attached() int {
	c.mu.Lock()
	defer c.mu.Unlock()
	return len(c.streams)
}

// Report sends records to every attached gateway at once, stamped here. It
// never blocks: a stream that is behind keeps the newest record of each key.
// A gateway that is not attached learns from Current when it is.
func (c *Client) Report(records ...federation.Record) {
	now := time.Now()
	stamped := c.stamp(c.sequence.Add(1), records)
	c.mu.Lock()
	defer c.mu.Unlock()
	for s := range c.streams {
		s.put(stamped, now)
	}
}

// stamp makes copies of records that are this node's word with one sequence.
// What no gateway would accept is left out and counted.
func (c *Client) stamp(sequence uint64, records []federation.Record) []federation.Record {
	out := make([]federation.Record, 0, len(records))
	for _, r := range records {
		r.Network = c.cfg.Network
		r.Origin = federation.Origin{Name: federation.OriginName(c.cfg.Network, c.cfg.Node), Incarnation: c.cfg.Incarnation}
		r.Sequence, r.Silence = sequence, 0
		if r.Endpoint == nil || r.Validate() != nil {
			c.cfg.Metrics.Rejected.WithLabelValues("malformed").Inc()
			continue
		}
		out = append(out, r)
	}
	return out
}

// current asks for the full state. The stamp is drawn before asking: an edge
// that comes in meanwhile is either in the answer or has a newer stamp.
func (c *Client) current() []federation.Record {
	sequence := c.sequence.Add(1)
	return c.stamp(sequence, c.cfg.Current())
}

// Run keeps the streams until ctx ends, and returns then. It also expires the
// ledger's records.
func (c *Client) Run(ctx context.Context) error {
	var wg sync.WaitGroup
	defer wg.Wait()
	running := map[gatewayKey]context.CancelFunc{}
	tick := time.NewTicker(250 * time.Millisecond)
	defer tick.Stop()
	for round := 0; ; round++ {
		wanted := map[gatewayKey]bool{}
		for _, g := range c.cfg.Gateways() {
			k := gatewayKey{g.Name, g.Address, g.Identity}
			wanted[k] = true
			if running[k] == nil {
				ctx, cancel := context.WithCancel(ctx)
				running[k] = cancel
				wg.Go(func() { c.keep(ctx, k) })
			}
		}
		for k, cancel := range running {
			if !wanted[k] {
				cancel()
				delete(running, k)
			}
		}
		if round%4 == 0 {
			c.cfg.Ledger.Expire()
		}
		select {
		case <-ctx.Done():
			for _, cancel := range running {
				cancel()
			}
			return nil
		case <-tick.C:
		}
	}
}

// gatewayKey is all that a stream depends on: when it changes, so must the
// stream.
type gatewayKey struct {
	name     string
	address  netip.AddrPort
	identity spiffeid.ID
}

// keep holds one stream up, with backoff between the attempts.
func (c *Client) keep(ctx context.Context, g gatewayKey) {
	log := c.cfg.Log.With().Str("gateway", g.name).Logger()
	pauses := backoff.Backoff{First: c.cfg.MinBackoff, Limit: c.cfg.MaxBackoff}
	failures, told := 0, false
	for ctx.Err() == nil {
		attached, err := c.stream(ctx, g, log)
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
			failures, told = 0, false
		}
		failures++
		var refused *refusedError
		if errors.As(err, &refused) && !told {
			told = true
			log.Warn().Err(err).Msg("health stream refused")
		}
		pause := pauses.Next(failures)
		if !attached {
			log.Debug().Err(err).Dur("retry_in_ms", pause).Msg("health stream not attached")
		}
		if !link.Pause(ctx, pause) {
			return
		}
	}
}

// stream runs one stream to its end; attached says whether it was accepted.
func (c *Client) stream(ctx context.Context, g gatewayKey, log zerolog.Logger) (attached bool, err error) {
	conn, err := link.Dial(link.TCP).TLS(ctx, c.cfg.Identity, c.cfg.Self, g.identity, g.address.String(), ALPN, c.cfg.DialTimeout)
	if err != nil {
		return false, err
	}
	defer link.CloseAbruptly(conn)
	stop := context.AfterFunc(ctx, func() { link.CloseAbruptly(conn) })
	defer stop()
	h := &healthConn{conn: conn, dead: c.cfg.DialTimeout}
	if err := c.greet(h); err != nil {
		return false, err
	}
	h.dead = c.cfg.Dead
	log.Info().Msg("health stream attached")
	up := newUplink(h)
	c.add(up)
	defer c.remove(up)

	var writing sync.WaitGroup
	ctx, cancel := context.WithCancelCause(ctx)
	writing.Go(func() {
		if err := up.run(ctx, c.cfg, c.current); err != nil {
			cancel(err)
			link.CloseAbruptly(conn)
		}
	})
	cancel(c.readSummaries(h))
	link.CloseAbruptly(conn)
	writing.Wait()
	return true, context.Cause(ctx)
}

func (c *Client) greet(h *healthConn) error {
	err := h.write(&federationpb.HealthMessage{Message: &federationpb.HealthMessage_Hello{Hello: &federationpb.Hello{
		Node: c.cfg.Node, Network: c.cfg.Network, Incarnation: c.cfg.Incarnation,
	}}})
	if closed(err) {
		return &refusedError{err}
	}
	if err != nil {
		return fmt.Errorf("write hello: %w", err)
	}
	m, err := h.read()
	if closed(err) {
		return &refusedError{err}
	}
	if err != nil {
		return fmt.Errorf("read welcome: %w", err)
	}
	if m.GetWelcome() == nil {
		return &peer.MalformedError{Cause: errors.New("the first message of a gateway must be a welcome")}
	}
	return nil
}

// refusedError is a gateway that knew who we are and closed the stream without a word.
type refusedError struct{ err error }

func (e *refusedError) Error() string {
	return "the gateway closed the stream before its welcome: its log says why (client refused: limits.identity.sessions, which all node proxies of a network share; or health stream refused): " + e.err.Error()
}
func (e *refusedError) Unwrap() error { return e.err }

// closed reports an end that the peer has chosen, as far as a socket can tell.
func closed(err error) bool {
	return errors.Is(err, io.EOF) || errors.Is(err, syscall.ECONNRESET) || errors.Is(err, syscall.EPIPE)
}

// readSummaries merges what the gateway passes on. The gateway is believed in
// what it says of any network: it has verified the origins' signatures.
func (c *Client) readSummaries(h *healthConn) error {
	for {
		m, err := h.read()
		if err != nil {
			return err
		}
		records, _, err := federation.FromBatches(m.GetRecords())
		if err != nil {
			return &peer.MalformedError{Cause: err}
		}
		wanted := records[:0]
		for _, r := range records {
			if r.Summary == nil {
				c.cfg.Metrics.Rejected.WithLabelValues("foreign").Inc()
				continue
			}
			wanted = append(wanted, r)
		}
		for _, outcome := range c.cfg.Ledger.MergeAll(wanted) {
			c.cfg.Metrics.Records.WithLabelValues(outcome.String()).Inc()
		}
	}
}

func (c *Client) add(s *uplink) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.streams[s] = struct{}{}
	c.cfg.Metrics.Attached.Set(float64(len(c.streams)))
}

func (c *Client) remove(s *uplink) {
	c.mu.Lock()
	defer c.mu.Unlock()
	delete(c.streams, s)
	c.cfg.Metrics.Attached.Set(float64(len(c.streams)))
}
