package healthstream

import (
	"context"
	"crypto/rand"
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
	"github.com/isthmus-mesh/isthmus/federation/networkkey"
	"github.com/isthmus-mesh/isthmus/federation/peer"
	"github.com/isthmus-mesh/isthmus/identity"
	"github.com/isthmus-mesh/isthmus/internal/backoff"
	"github.com/isthmus-mesh/isthmus/internal/link"
	"github.com/isthmus-mesh/isthmus/mesh"
)

// Facts are what a node has to say of the ports of its pods. Safe for concurrent
// use; neither method may wait.
type Facts interface {
	// All returns every fact that is worth telling: what is out, and what came back
	// lately.
	All() []Fact
	// Fact returns the fact of t; not ok if there is none.
	Fact(t Target) (Fact, bool)
}

// ClientConfig is what a node proxy's end of the health streams needs.
// Node, Network, Self, Identity, Gateways and Facts are required.
type ClientConfig struct {
	Node     string
	Network  string
	Self     spiffeid.ID
	Identity link.Source
	// Token returns what proves the node to a gateway that does not know it by
	// Self; nil sends none. It is asked for each attempt.
	Token func(context.Context) ([]byte, error)
	// Gateways returns the gateways of the own network; it is asked again and
	// again, and must be quick.
	Gateways func() []*mesh.Gateway
	// Lists says whether discovery lists a network: of others nothing is kept. Nil lists
	// all. It must be quick.
	Lists func(network string) bool
	// Known are the keys by which other networks are known: what their gateways offer and
	// say of themselves is taken only as far as these vouch for it. See [Client.SetKnown].
	Known networkkey.Known
	Facts Facts
	// OnAsk is told which targets a gateway wants a word on: it holds them as out,
	// by the word of somebody who has gone. With everything another instance of
	// this node proxy was attached before, and what happened to the other targets
	// meanwhile nobody has seen. It must not wait.
	OnAsk func(targets []Target, everything bool)

	Log     zerolog.Logger
	Metrics *peer.Metrics

	DialTimeout time.Duration // for TCP, TLS and the welcome, each; default 2 s
	MinBackoff  time.Duration // default 100 ms
	MaxBackoff  time.Duration // default 2 s
	Heartbeat   time.Duration // default 2 s
	Dead        time.Duration // silence, or a stuck write, that ends a stream; default 6 s
	Idle        time.Duration // after which a service that is not used is forgotten; default 10 min
	MaxServices int           // followed at once; default [MaxServices]

	dial link.Dial // default link.TCP
}

func (c *ClientConfig) setDefaults() {
	c.DialTimeout = orDefault(c.DialTimeout, 2*time.Second)
	c.MinBackoff = orDefault(c.MinBackoff, 100*time.Millisecond)
	c.MaxBackoff = orDefault(c.MaxBackoff, 2*time.Second)
	c.Heartbeat = orDefault(c.Heartbeat, 2*time.Second)
	c.Dead = orDefault(c.Dead, 6*time.Second)
	c.Idle = orDefault(c.Idle, 10*time.Minute)
	c.MaxServices = orDefault(c.MaxServices, MaxServices)
	c.Metrics = c.Metrics.OrDiscard()
	if c.OnAsk == nil {
		c.OnAsk = func([]Target, bool) {}
	}
	if c.dial == nil {
		c.dial = link.TCP
	}
}

// Client keeps a stream to every gateway of a node proxy's own network.
// It is safe for concurrent use.
type Client struct {
	cfg      ClientConfig
	instance Instance
	refusals *identity.Refusals
	services *services
	unproven unprovens

	mu       sync.Mutex
	links    map[*uplink]struct{} // attached
	missed   map[gatewayKey]Unattached
	draining bool
}

// NewClient returns a client that does nothing until Run.
func NewClient(cfg ClientConfig) *Client {
	cfg.setDefaults()
	c := &Client{cfg: cfg, refusals: identity.NewRefusals(cfg.Log), services: newServices(cfg.MaxServices, newVerified(cfg.Network, cfg.Known)), links: map[*uplink]struct{}{}, missed: map[gatewayKey]Unattached{}}
	c.unproven.log, c.unproven.metrics = cfg.Log, cfg.Metrics
	c.services.unproven = c.unproven.note
	for _, why := range Unprovens {
		cfg.Metrics.Unproven.WithLabelValues(string(why))
	}
	if cfg.Lists != nil {
		c.services.listed = cfg.Lists
	}
	rand.Read(c.instance[:]) // never fails
	return c
}

// Attached returns to how many gateways a stream is up.
func (c *Client) Attached() int {
	c.mu.Lock()
	defer c.mu.Unlock()
	return len(c.links)
}

// Settled says whether a gateway has told what it knows of every service that
// configuration names.
func (c *Client) Settled() bool { return c.Attached() > 0 && c.services.settled() }

// Changed says that there is news of targets: Facts returns it by now, or that there is
// nothing to say any more. It never waits. A gateway that is not attached learns of it when it is.
func (c *Client) Changed(targets ...Target) {
	c.mu.Lock()
	defer c.mu.Unlock()
	for l := range c.links {
		l.changed(targets)
	}
}

// Drain tells the gateways that another instance of this node proxy takes over: its
// word goes before that of this one, which goes on speaking.
func (c *Client) Drain() {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.draining = true
	for l := range c.links {
		l.drain()
	}
}

// Use notes that pods of this node use a service, by its canonical hostname. The
// first use asks the gateways for it, and waits for their first answer, at most for
// wait, as do others until that is over; without a gateway it does not wait. From then on the service is followed
// until it was not used for Idle. It returns whether it has waited.
func (c *Client) Use(ctx context.Context, service string, wait time.Duration) (waited bool) {
	ready, answered, since := c.services.use(service, false)
	wait -= time.Since(since)
	if answered || ready == nil || wait <= 0 || c.Attached() == 0 {
		return false
	}
	t := time.NewTimer(wait)
	defer t.Stop()
	select {
	case <-ready:
	case <-t.C:
	case <-ctx.Done():
	}
	return true
}

// Forget ends what Use has begun, of a service that is not pinned.
func (c *Client) Forget(service string) { c.services.drop(service) }

// Pin makes services the ones that configuration names: they are followed at once,
// and however long they are not used.
func (c *Client) Pin(services ...string) {
	pinned := map[string]bool{}
	for _, s := range services {
		pinned[s] = true
	}
	c.services.retain(pinned)
}

// Known returns what is known of a share; not ok means nothing: treat it as usable.
func (c *Client) Known(network, service string) (Known, bool) {
	return c.services.get(network, service)
}

// Summary is what is known of a port of a share.
func (c *Client) Summary(network, service string, port uint16) (federation.SummaryFact, bool) {
	k, _ := c.services.get(network, service)
	f, ok := k.Summaries[port]
	return f, ok
}

// Changes is signalled when [Client.TakeChanges] has something to return.
func (c *Client) Changes() <-chan struct{} { return c.services.signal }

// TakeChanges returns the shares of which something else may be known than at the
// last call, in no order.
func (c *Client) TakeChanges() []Change { return c.services.changes() }

// SetKnown replaces the keys by which other networks are known. What they do not vouch
// for any more is not proven from now on.
func (c *Client) SetKnown(known networkkey.Known) {
	c.services.setKnown(known, c.unproven.rekeyed)
}

// Gateways returns the instances of another network's gateways that have proved who they
// are and where, as far as they speak of services that are followed. What is known of a
// service may change with them: see [Client.TakeChanges].
func (c *Client) Gateways(network string) []Gateway { return c.services.gateways(network) }

// Held returns the other networks of which an attached gateway knows all that there is to
// know, sorted, whether or not they are known by their keys here.
func (c *Client) Held() []string { return c.services.held() }

// Unproven returns what was lately not taken as the word of another network's gateway,
// sorted.
func (c *Client) Unproven() []string { return c.unproven.list(time.Now()) }

// Followed lists the services that are followed, and what is known of each.
func (c *Client) Followed() []Followed { return c.services.dump() }

// Run keeps the streams until ctx ends, and returns then.
func (c *Client) Run(ctx context.Context) error {
	var wg sync.WaitGroup
	defer wg.Wait()
	running := map[gatewayKey]context.CancelFunc{}
	tick := time.NewTicker(250 * time.Millisecond)
	defer tick.Stop()
	swept := time.Now()
	for {
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
		c.services.lapse(time.Now())
		c.services.expire(time.Now())
		c.services.relist()
		c.unproven.certified(c.services.proofs.certifies)
		c.services.doubt(c.unproven.doubted(time.Now()))
		if time.Since(swept) >= c.cfg.Idle/10 {
			swept = time.Now()
			c.services.sweep(c.cfg.Idle)
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

// keep holds one stream up, with backoff between the attempts. The first attempt
// after a loss is spread over the time that the gateway has asked for: all node
// proxies of a gateway that restarts lose it at the same moment.
func (c *Client) keep(ctx context.Context, g gatewayKey) {
	log := c.cfg.Log.With().Str("gateway", g.name).Logger()
	pauses := backoff.Backoff{First: c.cfg.MinBackoff, Limit: c.cfg.MaxBackoff}
	failures, told, since := 0, false, time.Now()
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
			failures, told, since = 0, false, time.Now()
		}
		failures++
		c.missing(g, err, since)
		var refused *refusedError
		if errors.As(err, &refused) && !told {
			told = true
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

// maxSpread bounds what a gateway may make its node proxies wait.
const maxSpread = 30 * time.Second

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
	up := newUplink(g.name, f)
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
		Node: c.cfg.Node, Network: c.cfg.Network, Instance: c.instance[:], Token: token,
	}}})
	if closed(err) {
		return nil, &refusedError{err}
	}
	if err != nil {
		return nil, fmt.Errorf("write attach: %w", err)
	}
	m, err := f.read()
	if closed(err) {
		return nil, &refusedError{err}
	}
	if err != nil {
		return nil, fmt.Errorf("read welcome: %w", err)
	}
	if m.GetWelcome() == nil {
		return nil, malformed("the first message of a gateway must be a welcome")
	}
	return m.GetWelcome(), nil
}

// refusedError is a gateway that knew who we are and closed the stream without a word.
type refusedError struct{ err error }

func (e *refusedError) Error() string {
	return "the gateway closed the stream before its welcome: its log says why (client refused: limits.identity.sessions; or health stream refused): " + e.err.Error()
}
func (e *refusedError) Unwrap() error { return e.err }

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

// repeat says once more what there is to say of targets: a gateway that asks has lost it.
func (c *Client) repeat(l *uplink, targets []Target) {
	var known []Target
	for _, t := range targets {
		if _, ok := c.cfg.Facts.Fact(t); ok {
			known = append(known, t)
		}
	}
	l.changed(known)
}

func (c *Client) add(l *uplink) {
	c.services.attach(l)
	c.mu.Lock()
	defer c.mu.Unlock()
	c.links[l] = struct{}{}
	if c.draining {
		l.drain()
	}
	c.cfg.Metrics.Attached.Set(float64(len(c.links)))
}

func (c *Client) remove(l *uplink) {
	c.mu.Lock()
	delete(c.links, l)
	c.cfg.Metrics.Attached.Set(float64(len(c.links)))
	c.mu.Unlock()
	c.services.detach(l)
}
