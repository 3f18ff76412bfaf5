package ads

import (
	"cmp"
	"context"
	"errors"
	"maps"
	"math/rand/v2"
	"net"
	"slices"
	"sync"
	"time"

	"github.com/rs/zerolog"
	"google.golang.org/grpc/credentials"

	pb "github.com/isthmus-mesh/isthmus/control/ads/adspb"
	"github.com/isthmus-mesh/isthmus/internal/backoff"
	"github.com/isthmus-mesh/isthmus/internal/logging"
)

const (
	// connections is how many servers a client is connected to.
	connections = 2
	// maxSpread bounds how long a server may make its clients wait.
	maxSpread = 30 * time.Second
)

// Address is where a server is.
type Address struct {
	Name        string // of the gateway, for logs
	HostPort    string
	Credentials credentials.TransportCredentials
}

// key is what a connection depends on.
func (a Address) key() string { return a.Name + " " + a.HostPort }

// ClientType is a type that a client requests.
type ClientType struct {
	URL      string
	Wildcard bool              // all resources
	Held     map[string]string // versions by name of what the client has already, such as from a cache
}

// Handler receives what the active source sends. Calls do not overlap. They may use
// the client's Subscribe and Unsubscribe.
type Handler interface {
	// Activate is called when another server becomes the active source. "" means none. All
	// resources stay valid then.
	Activate(source string)
	// Apply takes the changes of one response: first Resources, then Removed. It returns
	// why resources are rejected, by name. Their previous versions stay.
	Apply(u Update) (rejected map[string]error)
	// Synced is called once per active source, when it has sent everything that was
	// subscribed when it became active.
	Synced(source string)
}

// ClientConfig configures a [Client]. Types, Servers and Handler are required.
type ClientConfig struct {
	NodeID   string
	Metadata map[string]string // of the node: NODE_NAME, …
	Types    []ClientType      // requested in this order
	// Servers returns where servers are. It is called often and must not wait.
	Servers func() []Address
	// Token returns the bearer token of the next attempt. Nil sends none.
	Token   func(ctx context.Context) (string, error)
	Handler Handler

	Quiet       time.Duration // without a message from a stock server, after which its answer counts as complete; default 2 s
	DialTimeout time.Duration // default 2 s
	MinBackoff  time.Duration // default 100 ms
	MaxBackoff  time.Duration // default 2 s
	MaxResponse int           // bytes; default 64 MiB
	Log         zerolog.Logger

	dial func(context.Context, string) (net.Conn, error) // tests; nil: TCP
}

func (c *ClientConfig) setDefaults() {
	c.Quiet = cmp.Or(c.Quiet, 2*time.Second)
	c.DialTimeout = cmp.Or(c.DialTimeout, 2*time.Second)
	c.MinBackoff = cmp.Or(c.MinBackoff, 100*time.Millisecond)
	c.MaxBackoff = cmp.Or(c.MaxBackoff, 2*time.Second)
	c.MaxResponse = cmp.Or(c.MaxResponse, 64<<20)
}

// Client keeps connections to two servers and receives resources from one of them, the
// active source. Another server becomes active if the stream of the active one closes,
// or if it is stale or not synchronized and the other one is not. Safe for concurrent
// use.
type Client struct {
	cfg   ClientConfig
	lines logging.PeerLimits // of failed connections, by server

	applying  sync.Mutex // held while the handler runs; before mu
	announced bool       // the handler knows an active source; guarded by applying

	mu       sync.Mutex
	types    []*clientType
	sessions map[*session]struct{}
	using    map[string]int // connections by Address.key
	active   *session       // nil: none
	stopped  bool
}

// clientType is the client's state of one type. Client.mu guards it.
type clientType struct {
	url      string
	wildcard bool
	names    map[string]*subscription
	held     map[string]string // versions by name
}

// subscription is a subscribed name.
type subscription struct {
	name     string
	answered chan struct{}
	done     bool // answered is closed
}

func (s *subscription) finish() {
	if !s.done {
		s.done = true
		close(s.answered)
	}
}

// NewClient returns a client that does nothing until Run.
func NewClient(cfg ClientConfig) *Client {
	cfg.setDefaults()
	c := &Client{cfg: cfg, lines: logging.PeerLimits{Every: time.Minute}, sessions: map[*session]struct{}{}, using: map[string]int{}}
	for _, t := range cfg.Types {
		held := maps.Clone(t.Held)
		if held == nil {
			held = map[string]string{}
		}
		c.types = append(c.types, &clientType{url: t.URL, wildcard: t.Wildcard, names: map[string]*subscription{}, held: held})
	}
	return c
}

// Subscribe subscribes a name, alias or group. The channel is closed when a server has
// sent all resources of that key, even if there are none, or when it is unsubscribed. It is
// the same for each call. A type that is not configured never gets an answer.
func (c *Client) Subscribe(typeURL, name string) <-chan struct{} {
	c.mu.Lock()
	defer c.mu.Unlock()
	t := c.typeOf(typeURL)
	if t == nil {
		return make(chan struct{})
	}
	if t.names[name] == nil {
		t.names[name] = &subscription{name: name, answered: make(chan struct{})}
		if c.active != nil {
			c.active.want(t, name, true)
		}
	}
	return t.names[name].answered
}

// Unsubscribe removes a subscription. The server then removes the resources that no other
// subscription selects. A stock server does it only when the client reconnects.
func (c *Client) Unsubscribe(typeURL, name string) {
	c.mu.Lock()
	defer c.mu.Unlock()
	t := c.typeOf(typeURL)
	if t == nil || t.names[name] == nil {
		return
	}
	t.names[name].finish()
	delete(t.names, name)
	if c.active != nil {
		c.active.want(t, name, false)
	}
}

// Active returns the name of the active source, or "".
func (c *Client) Active() string {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.active == nil {
		return ""
	}
	return c.active.nameLocked()
}

// Sources returns the descriptions that connected servers sent, in no order.
func (c *Client) Sources() []*pb.Source {
	c.mu.Lock()
	defer c.mu.Unlock()
	var out []*pb.Source
	for x := range c.sessions {
		if x.source != nil {
			out = append(out, x.source)
		}
	}
	return out
}

func (c *Client) typeOf(url string) *clientType {
	if i := slices.IndexFunc(c.types, func(t *clientType) bool { return t.url == url }); i >= 0 {
		return c.types[i]
	}
	return nil
}

var (
	errDemoted  = errors.New("another server is the active source")
	errUnlisted = errors.New("server is no longer listed")
)

// Run keeps connections until ctx is done.
func (c *Client) Run(ctx context.Context) error {
	var wg sync.WaitGroup
	for range connections {
		wg.Go(func() { c.keep(ctx) })
	}
	for pause(ctx, time.Second); ctx.Err() == nil; pause(ctx, time.Second) {
		c.prune()
	}
	c.mu.Lock()
	c.stopped = true
	c.mu.Unlock()
	wg.Wait()
	return nil
}

// prune closes sessions with servers that are no longer listed.
func (c *Client) prune() {
	listed := map[string]bool{}
	for _, a := range c.cfg.Servers() {
		listed[a.key()] = true
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	for x := range c.sessions {
		if !listed[x.address.key()] {
			x.cancel(errUnlisted)
		}
	}
}

// keep keeps one connection, with backoff between attempts. When an open stream is
// lost, the next attempt is also spread over the time that the server sent: all its
// clients reconnect at that moment.
func (c *Client) keep(ctx context.Context) {
	pauses := backoff.Backoff{First: c.cfg.MinBackoff, Limit: c.cfg.MaxBackoff}
	failures, last := 0, ""
	for ctx.Err() == nil {
		a, ok := c.choose(last)
		if !ok {
			pause(ctx, c.cfg.MaxBackoff/4)
			continue
		}
		last = a.key()
		opened, spread, err := c.session(ctx, a)
		c.release(ctx, last)
		if ctx.Err() != nil || errors.Is(err, errDemoted) || errors.Is(err, errUnlisted) {
			continue
		}
		if failures++; opened {
			failures = 1
		}
		wait := pauses.Next(failures) + time.Duration(rand.Int64N(int64(spread)+1))
		c.lines.Sample(c.cfg.Log.Warn(), last, "").Str("source", a.Name).Str("address", a.HostPort).Dur("retry_in_ms", wait).Err(err).Msg("discovery stream lost")
		pause(ctx, wait)
	}
}

// choose returns a server that is not in use, if possible another one than last, and
// counts it as used.
func (c *Client) choose(last string) (Address, bool) {
	servers := c.cfg.Servers()
	c.mu.Lock()
	defer c.mu.Unlock()
	free := slices.DeleteFunc(slices.Clone(servers), func(a Address) bool { return c.using[a.key()] > 0 })
	if len(free) > 1 {
		free = slices.DeleteFunc(free, func(a Address) bool { return a.key() == last })
	}
	if len(free) == 0 {
		return Address{}, false
	}
	a := free[rand.IntN(len(free))]
	c.using[a.key()]++
	return a, true
}

// release undoes choose, and calls the handler if there is no active source now.
func (c *Client) release(ctx context.Context, key string) {
	c.applying.Lock()
	defer c.applying.Unlock()
	c.mu.Lock()
	c.using[key]--
	none := c.announced && c.active == nil && ctx.Err() == nil
	c.mu.Unlock()
	if none {
		c.announced = false
		c.cfg.Log.Warn().Msg("no discovery source: known resources stay valid")
		c.cfg.Handler.Activate("")
	}
}

// rank orders sources: 0 cannot be active.
func rank(x *session) int {
	switch {
	case x == nil || x.closed || !x.source.GetSynchronized():
		return 0
	case x.source.GetStale():
		return 1
	}
	return 2
}

// elect makes another session active if that is better. The caller holds mu.
func (c *Client) elect() {
	best := c.active
	if c.stopped {
		best = nil
	}
	for x := range c.sessions {
		if !c.stopped && rank(x) > rank(best) {
			best = x
		}
	}
	if rank(best) == 0 {
		best = nil
	}
	old := c.active
	if best == old {
		return
	}
	c.active = best
	if old != nil {
		old.cancel(errDemoted)
	}
	if best != nil {
		best.activate()
	}
}
