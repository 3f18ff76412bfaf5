package picker

import (
	"maps"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/isthmus-mesh/isthmus/balance"
	"github.com/isthmus-mesh/isthmus/health"
	"github.com/isthmus-mesh/isthmus/health/standing"
	"github.com/isthmus-mesh/isthmus/mesh"
	"github.com/isthmus-mesh/isthmus/route"
)

// Config is what a Picker decides by. All functions must be safe for concurrent
// use and are called with locks held.
type Config struct {
	Network string // the own one
	// Own and Gateways judge pods of the own network, and gateways, by what comes of
	// connections; Paths what one gateway delivers of one share; Shares a share as a
	// whole.
	Own, Gateways, Paths, Shares health.Config
	// Endpoints says that sessions with single pods of other networks are kept, and
	// single pods avoided.
	Endpoints bool
	// Health is what is known of a share now; nil: nothing ever.
	Health func(Share) (Health, bool)
	// Jitter returns values drawn evenly from [0, 1), Seed any number.
	Jitter func() float64
	Seed   func() uint64
}

// Share is a network's part of a service, on one service port.
type Share struct {
	Network, Service string
	Port             uint16
}

// Path is one gateway's way to a share. Gateway is its name.
type Path struct {
	Share
	Gateway string
}

const (
	// hintTTL is how long an endpoint of another network that failed under our
	// eyes is asked to be avoided, unless its owner says something newer.
	hintTTL = 10 * time.Second
	// doubtFor is how long the gateway chooses after a pod of another network failed
	// under our eyes and its owners have not said why: as long as an ejection at least.
	doubtFor = time.Minute
	// lapsedFor is how long an endpoint that was left out by a word that has expired
	// gets no session of our own unless its owners say something new.
	lapsedFor = 10 * time.Minute
	// idleAfter is how long a destination is kept that nobody asks for.
	idleAfter = 10 * time.Minute
)

// Picker is what one node proxy chooses by. Safe for concurrent use.
//
// Its locks are taken in the order destination, origins or share, gate or cell; mu is held
// with none of them but shares'.
type Picker struct {
	config Config

	pods      *standing.Book[health.Key] // of the own network
	shares    *standing.Book[Share]
	paths     *standing.Book[Path]
	gateways  *standing.Book[string]
	podFlaps  flaps[health.Key]    // of the way to pods of the own network
	origins   *origins             // that do not reach some of these
	gateFlaps flaps[string]        // of gateways, by key
	attempts  attempts[health.Key] // at pods of the own network
	unreached attempts[string]     // of gateways, by key
	salt      uint64               // of the order in which gateways are preferred

	// destinations is copied on write, so that finding one takes no lock.
	destinations atomic.Pointer[map[destinationKey]*Destination]

	mu    sync.Mutex
	known map[Share]*share
	gates map[string]*gate
}

// New returns a Picker that knows of nothing bad.
func New(c Config) *Picker {
	if c.Health == nil {
		c.Health = func(Share) (Health, bool) { return Health{}, false }
	}
	p := &Picker{
		config: c, pods: standing.NewBook[health.Key](c.Own, c.Jitter),
		shares: standing.NewBook[Share](c.Shares, c.Jitter), paths: standing.NewBook[Path](c.Paths, c.Jitter),
		gateways: standing.NewBook[string](c.Gateways, c.Jitter), origins: newOrigins(c.Own, c.Jitter),
		known: map[Share]*share{}, gates: map[string]*gate{},
		podFlaps: newFlaps[health.Key](), gateFlaps: newFlaps[string](), salt: c.Seed(),
	}
	p.destinations.Store(&map[destinationKey]*Destination{})
	return p
}

// destinationKey tells flows apart that have other candidates or other ranks.
type destinationKey struct {
	service    string
	port       uint16
	everywhere bool
	elsewhere  bool
	from       balance.Place
}

// Resolve returns where f may go by snap. The error is that of [route.Resolve].
func (p *Picker) Resolve(snap *mesh.Snapshot, f route.Flow, now time.Time) (*Destination, error) {
	t, err := route.Find(snap, f)
	if err != nil {
		return nil, err
	}
	if t.Direct != nil {
		d := &Destination{picker: p}
		if err := route.ResolveInto(&d.direct, snap, f); err != nil {
			return nil, err
		}
		d.plan.Store(&d.direct)
		return d, nil
	}
	key := destinationKey{t.Service.Hostname, t.Port.Service, t.Everywhere, t.Elsewhere, balance.Place{Network: f.Source.Network, Node: f.Source.Node, Locality: f.Source.Locality}}
	for {
		d := (*p.destinations.Load())[key]
		if d == nil {
			d = &Destination{picker: p, key: key, draws: balance.NewDraws(p.config.Seed())}
			if err := d.revise(snap, t.Service, f, now); err != nil {
				return nil, err // it holds nothing yet
			}
			if first := p.enter(key, d); first != nil { // somebody was faster
				d.leave(now)
				continue
			}
			return d, nil
		}
		if err = d.revise(snap, t.Service, f, now); err != errLeft {
			return d, err
		}
		p.remove(key, d)
	}
}

func (p *Picker) remove(key destinationKey, d *Destination) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if old := *p.destinations.Load(); old[key] == d {
		next := maps.Clone(old)
		delete(next, key)
		p.destinations.Store(&next)
	}
}

// enter adds d, unless there is one, which it returns.
func (p *Picker) enter(key destinationKey, d *Destination) (first *Destination) {
	p.mu.Lock()
	defer p.mu.Unlock()
	old := *p.destinations.Load()
	if first = old[key]; first == nil {
		next := maps.Clone(old)
		next[key] = d
		p.destinations.Store(&next)
	}
	return first
}

// hold returns what is kept of a share; the caller releases it.
func (p *Picker) hold(k Share) *share {
	p.mu.Lock()
	defer p.mu.Unlock()
	s := p.known[k]
	if s == nil {
		s = &share{picker: p, key: k, whole: p.shares.Hold(k), gatewayDraws: balance.NewDraws(p.config.Seed()), watchers: map[*Destination]struct{}{}}
		p.known[k] = s
	}
	s.holders++
	return s
}

func (p *Picker) release(s *share) {
	p.mu.Lock()
	last := s.holders == 1
	if s.holders--; last {
		delete(p.known, s.key)
	}
	p.mu.Unlock()
	if last {
		s.leave()
	}
}

// gate returns what is kept of a gateway.
func (p *Picker) gate(g *mesh.Gateway) *gate {
	key := GatewayKey(g)
	p.mu.Lock()
	defer p.mu.Unlock()
	x := p.gates[key]
	if x == nil {
		x = &gate{key: key, cell: p.gateways.Hold(key)}
		p.gates[key] = x
	}
	return x
}

// GatewayKey names a gateway in the whole mesh: network/name.
func GatewayKey(g *mesh.Gateway) string { return g.Network + "/" + g.Name }

// Retain drops what concerns pods, services and gateways that snap does not list,
// and destinations that nobody has asked for lately.
func (p *Picker) Retain(snap *mesh.Snapshot, now time.Time) {
	listed := func(service string, port uint16) bool {
		svc := snap.Named(service)
		if svc == nil {
			return false
		}
		_, ok := svc.Port(port)
		return ok
	}
	gateway := func(key string) bool { return Gateway(snap, key) != nil }
	for k, d := range *p.destinations.Load() {
		since := now.Add(-idleAfter)
		if !listed(k.service, k.port) {
			since = now
		}
		if d.asked.Load() <= since.UnixNano() && d.leave(since) {
			p.remove(k, d)
		}
	}
	p.mu.Lock()
	for k, g := range p.gates {
		if !gateway(k) && g.idle() {
			delete(p.gates, k)
			p.gateways.Release(g.cell)
		}
	}
	p.mu.Unlock()
	declared := func(k health.Key) bool {
		w := snap.WorkloadByEndpoint(k.Endpoint)
		return w != nil && snap.Declares(w.UID, k.Port)
	}
	p.pods.Prune(declared, now)
	p.podFlaps.retain(declared, now)
	p.origins.retain(declared, func(origin string) bool { return snap.Workload(origin) != nil }, now)
	p.attempts.retain(declared)
	p.shares.Prune(func(k Share) bool { return listed(k.Service, k.Port) }, now)
	p.paths.Prune(func(k Path) bool { return listed(k.Service, k.Port) && gateway(k.Network+"/"+k.Gateway) }, now)
	p.gateways.Prune(gateway, now)
	p.gateFlaps.retain(gateway, now)
	p.unreached.retain(gateway)
}

// Gateway finds the gateway of a key; nil if snap does not list it.
func Gateway(snap *mesh.Snapshot, key string) *mesh.Gateway {
	for i := range len(key) {
		if key[i] != '/' {
			continue
		}
		gs := snap.Gateways(key[:i])
		if at := slices.IndexFunc(gs, func(g *mesh.Gateway) bool { return g.Name == key[i+1:] }); at >= 0 {
			return gs[at]
		}
		return nil
	}
	return nil
}

// Load is what is open, for tests and people.
type Load struct{ Open, Waiting int }

// Load adds up all that is open, and all that waits for a first response.
func (p *Picker) Load() Load {
	l := Load{Open: p.pods.Open() + p.shares.Open() + p.paths.Open() + p.gateways.Open()}
	p.mu.Lock()
	defer p.mu.Unlock()
	for _, g := range p.gates {
		l.Waiting += g.waiting()
	}
	return l
}
