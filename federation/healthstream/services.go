package healthstream

import (
	"context"
	"maps"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"google.golang.org/protobuf/proto"

	pb "github.com/isthmus-mesh/isthmus/federation/federationpb"
	"github.com/isthmus-mesh/isthmus/federation/ledger"
	"github.com/isthmus-mesh/isthmus/federation/record"
)

// MaxServices is how many services a node proxy follows at once.
const MaxServices = 2_000

// services is what a node proxy follows and what it has been told of it. Safe for
// concurrent use.
type services struct {
	start    time.Time // of the clock of used
	limit    int
	budget   int                       // of bytes that are kept of one stream, as they came
	listed   func(network string) bool // by discovery: of others nothing is kept
	excerpts bool                      // gateways tell of discovery too
	proofs   *verified
	// unproven is told what is not the word of who is said to have said it; it must not wait.
	unproven func(l *uplink, network string, id record.Instance, what string, why Unproven, err error)
	signal   chan struct{}
	observes bool // follows what it is told of, without being asked for it

	mu      sync.RWMutex
	emptied map[string]struct{} // with observes: services of which something was known that is no more
	byName  map[string]*followed
	changed map[Change]struct{}
	links   map[*uplink]struct{}
	silent  map[*followed]time.Time // of which no stream says anything: since when
	unheard map[Change]time.Time    // of which the streams that there are know nothing yet: since when
	voices  voices                  // of all that is known
}

// followed is one service.
type followed struct {
	name   string
	pinned bool         // by configuration: never idle
	since  time.Time    // it is followed
	used   atomic.Int64 // since start

	answered    bool // some gateway has told the whole of its health
	ready       chan struct{}
	isDescribed bool
	described   chan struct{}               // closed when the gateway that leads has told what discovery has of it
	views       map[*uplink]map[string]told // by attached stream and network
	known       map[string]Known            // by network; see [services.learn]
	returned    map[string]returns          // by network, also of those of which nothing is known any more
}

// returns is who of a share is taken back.
func (f *followed) returns(network string) returns {
	r := f.returned[network]
	if r == nil {
		r = returns{}
		f.returned[network] = r
	}
	return r
}

// told is what one stream says of a share.
type told struct {
	deliveries []Delivery
	size       int // in bytes, as it came
}

// maxKept is how many bytes are kept of one stream: 2 000 services on eight networks
// with two instances of a gateway each are 8 MB.
const maxKept = 32 << 20

func newServices(limit int, proofs *verified) *services {
	return &services{start: time.Now(), proofs: proofs, unproven: func(*uplink, string, record.Instance, string, Unproven, error) {}, limit: limit, budget: maxKept, listed: func(string) bool { return true }, signal: make(chan struct{}, 1), byName: map[string]*followed{}, emptied: map[string]struct{}{}, changed: map[Change]struct{}{}, links: map[*uplink]struct{}{}, voices: voices{}, silent: map[*followed]time.Time{}, unheard: map[Change]time.Time{}}
}

// use notes that service is used now, and follows it from now on. It returns it, nil if
// it is not followed, because all that are followed may not be forgotten, and whether
// there is nothing to wait for.
func (s *services) use(service string, pin bool) (f *followed, answered bool) {
	s.mu.RLock()
	f = s.byName[service]
	if f != nil && (f.pinned || !pin) {
		f.used.Store(int64(time.Since(s.start)))
		answered = f.answered && f.isDescribed
		s.mu.RUnlock()
		return f, answered
	}
	s.mu.RUnlock()
	s.mu.Lock()
	defer s.mu.Unlock()
	if f = s.byName[service]; f == nil {
		if len(s.byName) >= s.limit && !s.evict() {
			return nil, false
		}
		f = s.add(service)
		for l := range s.links {
			l.subscribe(service, true)
		}
	}
	f.pinned = f.pinned || pin
	f.used.Store(int64(time.Since(s.start)))
	return f, f.answered && f.isDescribed
}

// await returns when all of these are closed, f has been followed for wait, or ctx has ended. It returns whether it has waited.
func (f *followed) await(ctx context.Context, wait time.Duration, all ...<-chan struct{}) (waited bool) {
	if wait -= time.Since(f.since); wait <= 0 {
		return false
	}
	t := time.NewTimer(wait)
	defer t.Stop()
	for _, done := range all {
		select {
		case <-done:
		case <-t.C:
			return true
		case <-ctx.Done():
			return true
		}
	}
	return true
}

func (f *followed) describe() {
	if !f.isDescribed {
		f.isDescribed = true
		close(f.described)
	}
}

// describe notes that discovery has all that there is to know of names.
func (s *services) describe(names []string) {
	if len(names) == 0 {
		return
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, name := range names {
		if f := s.byName[name]; f != nil {
			f.describe()
		}
	}
}

// followed returns nil if name is not followed.
func (s *services) followed(name string) *followed {
	s.mu.RLock()
	defer s.mu.RUnlock()
	return s.byName[name]
}

func (s *services) heard(name string) bool {
	s.mu.RLock()
	defer s.mu.RUnlock()
	f := s.byName[name]
	return f != nil && f.answered && f.isDescribed
}

// add begins to follow a service; the caller holds mu.
func (s *services) add(service string) *followed {
	f := &followed{name: service, since: time.Now(), ready: make(chan struct{}), described: make(chan struct{}), views: map[*uplink]map[string]told{}, known: map[string]Known{}, returned: map[string]returns{}}
	if !s.excerpts {
		f.describe()
	}
	s.byName[service] = f
	return f
}

// evict forgets the service that was not used for longest; the caller holds mu.
func (s *services) evict() bool {
	var oldest *followed
	for _, f := range s.byName {
		if !f.pinned && (oldest == nil || f.used.Load() < oldest.used.Load()) {
			oldest = f
		}
	}
	if oldest == nil {
		return false
	}
	s.forget(oldest)
	return true
}

func (s *services) forget(f *followed) {
	delete(s.byName, f.name)
	delete(s.silent, f)
	maps.DeleteFunc(s.unheard, func(c Change, _ time.Time) bool { return c.Service == f.name })
	for l, view := range f.views {
		l.release(view)
	}
	for l := range s.links {
		l.subscribe(f.name, false)
	}
	for network := range f.known {
		s.unlearn(f, network)
		s.note(Change{f.name, network})
	}
	if !f.answered {
		close(f.ready)
	}
	f.describe()
}

// drop forgets a service that is not pinned.
func (s *services) drop(service string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if f := s.byName[service]; f != nil && !f.pinned {
		s.forget(f)
	}
}

// retain makes pinned the services that configuration names.
func (s *services) retain(pinned map[string]bool) {
	s.mu.Lock()
	for _, f := range s.byName {
		f.pinned = f.pinned && pinned[f.name]
	}
	s.mu.Unlock()
	for name := range pinned {
		s.use(name, true)
	}
}

func (s *services) settled() bool {
	s.mu.RLock()
	defer s.mu.RUnlock()
	for _, f := range s.byName {
		if f.pinned && !(f.answered && f.isDescribed) {
			return false
		}
	}
	return true
}

// sweep forgets what was not used for idle.
func (s *services) sweep(idle time.Duration) {
	s.mu.Lock()
	defer s.mu.Unlock()
	limit := int64(time.Since(s.start) - idle)
	for _, f := range s.byName {
		if !f.pinned && f.used.Load() <= limit {
			s.forget(f)
		}
	}
}

// attach makes l a stream that is asked for all that is followed.
func (s *services) attach(l *uplink) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.links[l] = struct{}{}
	for name := range s.byName {
		l.subscribe(name, true)
	}
}

// detach forgets what l said. Where no other stream says anything it is what is known,
// and holds until [services.lapse].
func (s *services) detach(l *uplink) {
	s.mu.Lock()
	defer s.mu.Unlock()
	delete(s.links, l)
	for _, f := range s.byName {
		if _, ok := f.views[l]; ok {
			delete(f.views, l)
			s.merge(f, slices.Collect(maps.Keys(f.known)))
			if len(f.views) == 0 {
				s.silent[f] = time.Now()
			}
		}
	}
}

// relist asks a stream again for all that is followed when discovery lists a network that
// it spoke of before.
func (s *services) relist() {
	s.mu.Lock()
	defer s.mu.Unlock()
	for l := range s.links {
		found := false
		for network := range l.missed {
			if s.listed(network) {
				found = true
				delete(l.missed, network)
			}
		}
		if !found {
			continue
		}
		for name := range s.byName {
			l.subscribe(name, true)
		}
	}
}

// lapse ends the health of the services that no stream has said anything of for
// [ledger.Lapse]: it is unknown from then on, as in gateways that hear nothing of a
// network. The exports hold.
func (s *services) lapse(now time.Time) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for f, since := range s.silent {
		if now.Sub(since) < ledger.Lapse {
			continue
		}
		delete(s.silent, f)
		for network := range f.known {
			s.end(f, network, now)
		}
	}
	for c, since := range s.unheard {
		if now.Sub(since) >= ledger.Lapse {
			s.end(s.byName[c.Service], c.Network, now)
		}
	}
}

// end ends the health of a share.
func (s *services) end(f *followed, network string, now time.Time) {
	delete(s.unheard, Change{f.name, network})
	if exports := exportsOf(f.known[network].Deliveries); len(exports) > 0 {
		s.learn(f, network, knownOf(f.name, network, exports, Known{}, f.returns(network), now))
	} else {
		s.unlearn(f, network)
	}
	s.note(Change{f.name, network})
}

// take takes what l says of services. It returns how many entries were odd.
func (s *services) take(l *uplink, m *pb.ServiceStates) (odd int, err error) {
	for _, state := range m.GetServices() {
		n, err := s.takeOne(l, state)
		odd += n
		if err != nil {
			return odd, err
		}
	}
	return odd, nil
}

func (s *services) takeOne(l *uplink, m *pb.ServiceState) (odd int, err error) {
	if len(m.GetShares()) > maxNetworks {
		return 0, malformed("service with %d shares: want at most %d", len(m.GetShares()), maxNetworks)
	}
	shares := map[string]told{}
	for _, x := range m.GetShares() {
		deliveries, n, err := decodeShare(m.GetService(), x, s.proofs, func(network string, id record.Instance, key string, why Unproven) {
			s.unproven(l, network, id, keyName(key), why, nil)
		})
		if err != nil {
			return odd, err
		}
		odd += n
		shares[x.GetNetwork()] = told{deliveries, proto.Size(x)}
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	f := s.byName[m.GetService()]
	if f == nil && s.observes {
		f = s.observe(m)
	}
	if f == nil {
		return odd, nil // forgotten meanwhile
	}
	view := f.views[l]
	before, now := view, time.Now()
	touched := slices.Collect(maps.Keys(shares))
	if m.GetWhole() || view == nil {
		touched = append(touched, slices.Collect(maps.Keys(f.known))...)
		l.release(view)
		view = map[string]told{}
		f.views[l] = view
		delete(s.silent, f)
	}
	for network, x := range shares {
		old, spoke := before[network]
		l.kept -= view[network].size
		delete(view, network)
		switch {
		case len(x.deliveries) == 0:
			if spoke && !m.GetWhole() && len(view) < maxNetworks {
				view[network] = told{} // it knows that there is nothing any more
			}
		case !s.listed(network):
			if len(l.missed) < maxNetworks {
				l.missed[network] = struct{}{}
			}
		case len(view) >= maxNetworks || l.kept+x.size > s.budget:
			odd++
		default:
			var others [][]Delivery
			for o, v := range f.views {
				if o != l {
					others = append(others, v[network].deliveries)
				}
			}
			date(x.deliveries, old.deliveries, others, now)
			view[network] = x
			l.kept += x.size
		}
	}
	s.merge(f, touched)
	if m.GetWhole() && !f.answered {
		f.answered = true
		close(f.ready)
	}
	return odd, nil
}

// merge brings what is known of networks up to date, if any stream says something
// of f; the caller holds mu.
func (s *services) merge(f *followed, networks []string) {
	if len(f.views) == 0 {
		return
	}
	for _, network := range networks {
		if s.keep(f, network) {
			continue
		}
		delete(s.unheard, Change{f.name, network})
		told := s.told(f, network)
		if _, was := f.known[network]; !was && len(told) == 0 {
			continue
		}
		if len(told) == 0 {
			s.unlearn(f, network)
		} else {
			s.learn(f, network, knownOf(f.name, network, told, f.known[network], f.returns(network), time.Now()))
		}
		s.note(Change{f.name, network})
	}
}

// keep lets what is known of f on network stand if no stream knows better: each is with a
// gateway that has said nothing of it and does not hold all that there is, as one that
// has just started and reaches nobody. As without any stream, health ends after
// [ledger.Lapse]. It returns whether it does; the caller holds mu.
func (s *services) keep(f *followed, network string) bool {
	k, ok := f.known[network]
	if !ok {
		return false
	}
	for l, view := range f.views {
		if _, spoken := view[network]; spoken || s.holds(l, network) {
			return false
		}
	}
	if slices.ContainsFunc(k.Deliveries, func(d Delivery) bool { return len(d.Health) > 0 }) && s.unheard[Change{f.name, network}].IsZero() {
		s.unheard[Change{f.name, network}] = time.Now()
	}
	s.learn(f, network, knownOf(f.name, network, k.Deliveries, k, f.returns(network), time.Now())) // as far as it is proven still
	s.note(Change{f.name, network})
	return true
}

func (s *services) note(c Change) {
	s.changed[c] = struct{}{}
	select {
	case s.signal <- struct{}{}:
	default:
	}
}

// changes takes what has changed since the last call, in no order.
func (s *services) changes() []Change {
	s.mu.Lock()
	defer s.mu.Unlock()
	out := slices.Collect(maps.Keys(s.changed))
	clear(s.changed)
	return out
}

// get returns what is known of a share.
func (s *services) get(network, service string) (Known, bool) {
	s.mu.RLock()
	defer s.mu.RUnlock()
	if f := s.byName[service]; f != nil {
		k, ok := f.known[network]
		return k, ok
	}
	return Known{}, false
}
