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

// MaxServices is how many services a node proxy can follow.
const MaxServices = 2_000

// services holds the subscriptions of a node proxy and the reported state of each service. Safe for
// concurrent use.
type services struct {
	start    time.Time // zero of followed.used
	limit    int
	budget   int                       // bytes kept per stream, in wire size
	listed   func(network string) bool // in discovery; reports on other networks are dropped
	excerpts bool                      // gateways also send discovery
	proofs   *verified
	// unproven is called for each record that its claimed instance did not provably sign. It must
	// not block.
	unproven func(l *uplink, network string, id record.Instance, what string, why Unproven, err error)
	signal   chan struct{}
	observes bool // follows every reported service without a subscription

	mu      sync.RWMutex
	emptied map[string]struct{} // with observes: services whose state was removed
	byName  map[string]*followed
	changed map[Change]struct{}
	links   map[*uplink]struct{}
	silent  map[*followed]time.Time // services without a report from any stream: since when
	unheard map[Change]time.Time    // not yet reported by any attached stream: since when
	voices  voices                  // over all known state
}

// followed is one service.
type followed struct {
	name   string
	pinned bool         // named in the configuration: never idle
	since  time.Time    // when following started
	used   atomic.Int64 // last use, in nanoseconds since services.start

	answered    bool // a gateway has sent its full health
	ready       chan struct{}
	isDescribed bool
	described   chan struct{}               // closed when the active source has sent its discovery
	views       map[*uplink]map[string]told // by attached stream and network
	known       map[string]Known            // by network; see [services.learn]
	returned    map[string]returns          // by network, including networks without known state
}

// returns returns the readmissions of f on network.
func (f *followed) returns(network string) returns {
	r := f.returned[network]
	if r == nil {
		r = returns{}
		f.returned[network] = r
	}
	return r
}

// told is the state of a remote service as one stream reports it.
type told struct {
	deliveries []Delivery
	size       int // wire size in bytes
}

// maxKept is how many bytes are kept per stream. For scale, 2 000 services on eight networks with two
// gateway instances each take 8 MB.
const maxKept = 32 << 20

func newServices(limit int, proofs *verified) *services {
	return &services{start: time.Now(), proofs: proofs, unproven: func(*uplink, string, record.Instance, string, Unproven, error) {}, limit: limit, budget: maxKept, listed: func(string) bool { return true }, signal: make(chan struct{}, 1), byName: map[string]*followed{}, emptied: map[string]struct{}{}, changed: map[Change]struct{}{}, links: map[*uplink]struct{}{}, voices: voices{}, silent: map[*followed]time.Time{}, unheard: map[Change]time.Time{}}
}

// use records a use of service and follows it from now on. f is nil if the limit is reached and all
// followed services are pinned. answered reports whether the state of service is complete, so that
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

// await returns when all channels are closed, f has been followed for wait, or ctx is done. It reports
// whether it has waited.
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

// describe records that the discovery of names is complete.
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

// add starts following a service. The caller holds mu.
func (s *services) add(service string) *followed {
	f := &followed{name: service, since: time.Now(), ready: make(chan struct{}), described: make(chan struct{}), views: map[*uplink]map[string]told{}, known: map[string]Known{}, returned: map[string]returns{}}
	if !s.excerpts {
		f.describe()
	}
	s.byName[service] = f
	return f
}

// evict drops the least recently used service that is not pinned. The caller holds mu.
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

// drop stops following a service that is not pinned.
func (s *services) drop(service string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if f := s.byName[service]; f != nil && !f.pinned {
		s.forget(f)
	}
}

// retain pins exactly the given services of the configuration.
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

// sweep drops services that are not pinned and were not used for idle.
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

// attach adds the stream l and subscribes to all followed services on it.
func (s *services) attach(l *uplink) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.links[l] = struct{}{}
	for name := range s.byName {
		l.subscribe(name, true)
	}
}

// detach drops the reports of l. If no other stream reports a service, its last state stays known
// until [services.lapse].
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

// relist subscribes again to all followed services on a stream that earlier reported a network which
// discovery lists only now.
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

// lapse expires the health of services without a report from any stream for [ledger.Lapse]. It is then
// unknown, as in gateways without reports from a network. The exports stay valid.
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

// end expires the health of a remote service.
func (s *services) end(f *followed, network string, now time.Time) {
	delete(s.unheard, Change{f.name, network})
	if exports := exportsOf(f.known[network].Deliveries); len(exports) > 0 {
		s.learn(f, network, knownOf(f.name, network, exports, Known{}, f.returns(network), now))
	} else {
		s.unlearn(f, network)
	}
	s.note(Change{f.name, network})
}

// take stores reports of l. odd is the number of invalid or dropped entries.
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
		return odd, nil // no longer followed
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
				view[network] = told{} // reported as removed
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

// merge updates the known state of f on networks, if any stream reports f. The caller holds mu.
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

// keep keeps the known state of f on network if no stream has a newer one, and reports whether it does.
// That is so if each stream's gateway has not reported it and is not synchronized. An example is an
// isolated gateway that has just started. As without streams, health expires after [ledger.Lapse].
// The caller holds mu.
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
	s.learn(f, network, knownOf(f.name, network, k.Deliveries, k, f.returns(network), time.Now())) // only records that are still proven
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

// changes returns the changes since the last call, unordered.
func (s *services) changes() []Change {
	s.mu.Lock()
	defer s.mu.Unlock()
	out := slices.Collect(maps.Keys(s.changed))
	clear(s.changed)
	return out
}

// get returns the known state of a remote service.
func (s *services) get(network, service string) (Known, bool) {
	s.mu.RLock()
	defer s.mu.RUnlock()
	if f := s.byName[service]; f != nil {
		k, ok := f.known[network]
		return k, ok
	}
	return Known{}, false
}
