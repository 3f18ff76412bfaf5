package healthstream

import (
	"context"
	"crypto/rand"
	"maps"
	"net/netip"
	"sync"
	"time"

	"github.com/rs/zerolog"
	"github.com/spiffe/go-spiffe/v2/spiffeid"

	"github.com/isthmus-mesh/isthmus/federation"
	pb "github.com/isthmus-mesh/isthmus/federation/federationpb"
	"github.com/isthmus-mesh/isthmus/federation/networkkey"
	"github.com/isthmus-mesh/isthmus/federation/peer"
	"github.com/isthmus-mesh/isthmus/identity"
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
	// Observe makes this an observer instead: without being asked for it, it follows all
	// that other networks export, and nothing of their health; it says nothing of pods.
	// Node and Facts are not used then.
	Observe bool

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
	// Excerpts takes what one gateway tells of the own network's discovery; nil: a file says
	// so, and no gateway is asked.
	Excerpts Excerpts
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
	if c.Observe {
		c.MaxServices, c.Facts, c.Node = orDefault(c.MaxServices, MaxObserved), noFacts{}, "observer"
	}
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

	leading leading

	mu       sync.Mutex
	links    map[*uplink]struct{} // attached
	missed   map[gatewayKey]Unattached
	answered map[netip.AddrPort]string // which gateway has answered there last, at most maxAnswered
	draining bool
}

// NewClient returns a client that does nothing until Run.
func NewClient(cfg ClientConfig) *Client {
	cfg.setDefaults()
	c := &Client{cfg: cfg, refusals: identity.NewRefusals(cfg.Log), services: newServices(cfg.MaxServices, newVerified(cfg.Network, cfg.Known)), links: map[*uplink]struct{}{}, missed: map[gatewayKey]Unattached{}, answered: map[netip.AddrPort]string{}}
	c.unproven.log, c.unproven.metrics = cfg.Log, cfg.Metrics
	c.services.unproven = c.unproven.note
	c.services.observes = cfg.Observe
	for _, why := range Unprovens {
		cfg.Metrics.Unproven.WithLabelValues(string(why))
	}
	c.leading.offers = map[*uplink]*pb.Offer{}
	c.services.excerpts = cfg.Excerpts != nil
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

// maxAnswered is of how many addresses it is remembered who has answered there.
const maxAnswered = 256

// Answered returns which gateway answered last at each address that a stream was up to, by its
// name, and at which of them a stream is up.
func (c *Client) Answered() (names map[netip.AddrPort]string, up map[netip.AddrPort]bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	up = map[netip.AddrPort]bool{}
	for l := range c.links {
		up[l.address] = true
	}
	return maps.Clone(c.answered), up
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
	f, answered := c.services.use(service, false)
	switch {
	case answered || f == nil || c.Attached() == 0:
		return false
	case c.Leader() == "": // no gateway describes it
		return f.await(ctx, wait, f.ready)
	}
	return f.await(ctx, wait, f.described, f.ready)
}

// Described returns when the gateway that leads has told what discovery has of name, at most wait after name was first
// followed. Unlike Use it also waits while no gateway is attached. It returns at once if name is not followed.
func (c *Client) Described(ctx context.Context, name string, wait time.Duration) {
	if f := c.services.followed(name); f != nil {
		f.await(ctx, wait, f.described)
	}
}

// Heard reports whether gateways have said all that they know of a service that is followed: the one
// that leads what discovery has of it, and one of them its health and what other networks export.
func (c *Client) Heard(service string) bool { return c.services.heard(service) }

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
		c.services.prune()
		c.unproven.certified(c.services.proofs.certifies)
		c.services.doubt(c.unproven.doubted(time.Now()))
		if time.Since(swept) >= c.cfg.Idle/10 {
			swept = time.Now()
			c.services.sweep(c.cfg.Idle)
		}
		select {
		case <-ctx.Done():
			c.leading.mu.Lock()
			c.leading.ended = true
			c.leading.mu.Unlock()
			for _, cancel := range running {
				cancel()
			}
			return nil
		case <-tick.C:
		}
	}
}

// maxSpread bounds what a gateway may make its node proxies wait.
const maxSpread = 30 * time.Second

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
	if len(c.answered) >= maxAnswered {
		clear(c.answered)
	}
	c.answered[l.address] = l.gateway
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
	c.withdrawn(l)
}
