package picker

import (
	"maps"
	"sync"
	"sync/atomic"
	"time"

	"github.com/isthmus-mesh/isthmus/balance"
	"github.com/isthmus-mesh/isthmus/health"
	"github.com/isthmus-mesh/isthmus/health/standing"
	"github.com/isthmus-mesh/isthmus/mesh"
	"github.com/isthmus-mesh/isthmus/route"
)

// Config is what a Picker decides by. Functions must be safe for concurrent use and
// are called with locks held.
type Config struct {
	Network string
	Hops    health.Config
	// Listed says whether discovery lists a pod on this network: nothing is kept of
	// others.
	Listed func(mesh.EndpointID) bool
	// Jitter returns values drawn evenly from [0, 1), Seed any number.
	Jitter func() float64
	Seed   func() uint64
	// Nth is which of its network's gateways this one is, from 0: see
	// [balance.PlaceInRound]. Nil is the first.
	Nth func() int
}

// Picker is what one gateway chooses by. Safe for concurrent use.
//
// Its locks are taken in the order service, mu, cell.
type Picker struct {
	config Config
	hops   *standing.Book[mesh.EndpointID]
	ports  *standing.Book[health.Key] // open connections alone

	// services is copied on write, so that finding one takes no lock.
	services atomic.Pointer[map[serviceKey]*Service]

	mu    sync.Mutex
	sick  map[health.Key]Word
	marks map[mesh.EndpointID]mark
}

// Word is what a witness says of a port that is out.
type Word struct {
	Reason  string
	Witness string    // its name
	Since   time.Time // when it was heard of
}

// mark is what else is known of a pod.
type mark struct {
	// doubted is since when it owes an answer; zero: it does not.
	doubted time.Time
	// untrusted says that it showed us a certificate that cannot be believed: that it
	// answers is no success until it has shown a better one.
	untrusted bool
	asked     time.Time // when a client's doubt last made us ask
	turned    time.Time // when its hop last changed
}

type serviceKey struct {
	hostname string
	port     uint16
}

// New returns a Picker that knows of nothing bad.
func New(c Config) *Picker {
	p := &Picker{
		config: c, hops: standing.NewBook[mesh.EndpointID](c.Hops, c.Jitter), ports: standing.NewBook[health.Key](health.Config{Mode: health.ModeOff}, c.Jitter),
		sick: map[health.Key]Word{}, marks: map[mesh.EndpointID]mark{},
	}
	p.services.Store(&map[serviceKey]*Service{})
	return p
}

// Resolve returns what authority means by snap. The error is that of
// [route.Export].
func (p *Picker) Resolve(snap *mesh.Snapshot, authority string, now time.Time) (*Service, error) {
	svc, port, err := route.FindExport(snap, p.config.Network, authority)
	if err != nil {
		return nil, err
	}
	if s := (*p.services.Load())[serviceKey{svc.Hostname, port.Service}]; s != nil && s.current(snap, svc, p.config.Network) {
		return s, nil
	}
	x, err := route.Export(snap, p.config.Network, authority)
	if err != nil {
		return nil, err
	}
	return p.offer(x, snap, now), nil
}

// Offer makes x what its service and port mean, until the next Resolve.
func (p *Picker) Offer(x route.Exported, now time.Time) *Service { return p.offer(x, nil, now) }

// offer makes x, by snap, what its service and port mean.
func (p *Picker) offer(x route.Exported, snap *mesh.Snapshot, now time.Time) *Service {
	key := serviceKey{x.Service.Hostname, x.Port.Service}
	for {
		if s := (*p.services.Load())[key]; s != nil {
			if s.offer(x, snap, now) {
				return s
			}
			p.remove(key, s)
		}
		s := &Service{picker: p, draws: balance.NewDraws(p.config.Seed())}
		s.offer(x, snap, now)
		if p.enter(key, s) {
			return s
		}
		s.leave()
	}
}

func (p *Picker) enter(key serviceKey, s *Service) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	old := *p.services.Load()
	if old[key] != nil {
		return false
	}
	next := maps.Clone(old)
	next[key] = s
	p.services.Store(&next)
	return true
}

func (p *Picker) remove(key serviceKey, s *Service) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if old := *p.services.Load(); old[key] == s {
		next := maps.Clone(old)
		delete(next, key)
		p.services.Store(&next)
	}
}

// Retain drops what concerns pods that are not listed any more, and service ports
// that snap does not list.
func (p *Picker) Retain(snap *mesh.Snapshot, now time.Time) {
	for k, s := range *p.services.Load() {
		if svc := snap.Named(k.hostname); svc != nil {
			if _, ok := svc.Port(k.port); ok {
				continue
			}
		}
		p.remove(k, s)
		s.leave()
	}
	p.Forget(now)
}

// Forget drops what concerns pods that are not listed any more.
func (p *Picker) Forget(now time.Time) {
	p.mu.Lock()
	maps.DeleteFunc(p.sick, func(k health.Key, _ Word) bool { return !p.config.Listed(k.Endpoint) })
	maps.DeleteFunc(p.marks, func(id mesh.EndpointID, _ mark) bool { return !p.config.Listed(id) })
	p.mu.Unlock()
	p.hops.Prune(p.config.Listed, now)
	p.ports.Prune(func(k health.Key) bool { return p.config.Listed(k.Endpoint) }, now)
}

// Services is how many service ports are held.
func (p *Picker) Services() int { return len(*p.services.Load()) }

// Open adds up all that is open.
func (p *Picker) Open() int { return p.ports.Open() }
