package gateway

import (
	"slices"
	"sync"
	"time"

	"github.com/isthmus-mesh/isthmus/discovery"
	"github.com/isthmus-mesh/isthmus/federation"
	"github.com/isthmus-mesh/isthmus/mesh"
)

// summaries turns what this gateway knows of its own pods into one record per
// service and port. Those of global services go to every network, the others
// only to this network's node proxies. Safe for concurrent use.
type summaries struct {
	network string
	store   interface{ Current() *mesh.Snapshot }
	pods    podHealth
	publish func(...federation.Record) // to everybody; repeated by the federation
	own     func(...federation.Record) // to the node proxies of this network
	// withdraw ends the repeats of what was published.
	withdraw func(...federation.Key)

	mu      sync.Mutex
	started bool
	changed time.Time // when discovery last changed; zero: never
	last    map[summaryKey]federation.Record
	// exported are those of last that went to every network.
	exported map[summaryKey]struct{}
}

// podHealth is what backends knows of one pod and target port: whether a
// connection is expected to work, and when that was last seen to change (zero:
// never).
type podHealth func(w *mesh.Workload, target uint16, now time.Time) (usable bool, seen time.Time)

type summaryKey struct {
	service string
	port    uint16
}

// start publishes everything for the first time. Until then nothing is said:
// a gateway that has no report of its nodes yet would call every pod healthy.
func (s *summaries) start(now time.Time) {
	s.mu.Lock()
	s.started = true
	s.mu.Unlock()
	s.update(s.store.Current().Services(), now)
}

// repeat vouches again for what is told to this network alone.
func (s *summaries) repeat(now time.Time) {
	s.mu.Lock()
	defer s.mu.Unlock()
	snap := s.store.Current()
	for key := range s.last {
		if svc := snap.Service(key.service); svc != nil && !svc.Exported() {
			if p, ok := svc.Port(key.port); ok {
				s.own(s.record(snap, svc, p, now))
			}
		}
	}
}

// touched publishes the summaries of the services that the pod w is a member
// of, if they say something new.
func (s *summaries) touched(w *mesh.Workload, now time.Time) {
	s.update(s.store.Current().ServicesOf(w.UID), now)
}

// revised publishes whatever a new snapshot changed.
func (s *summaries) revised(changes discovery.Changes, now time.Time) {
	snap := s.store.Current()
	s.mu.Lock()
	s.changed = now
	s.retain(snap)
	s.mu.Unlock()
	if changes.All {
		s.update(snap.Services(), now)
		return
	}
	var services []*mesh.Service
	for host := range changes.Services {
		if svc := snap.Named(host); svc != nil {
			services = append(services, svc)
		}
	}
	s.update(services, now)
}

// retain drops what snap no longer lists, or lists for other ears than before, and
// withdraws it; the caller holds mu.
func (s *summaries) retain(snap *mesh.Snapshot) {
	for key := range s.last {
		_, exported := s.exported[key]
		if svc := snap.Service(key.service); svc != nil && svc.Exported() == exported {
			if _, ok := svc.Port(key.port); ok {
				continue
			}
		}
		delete(s.last, key)
		if exported {
			delete(s.exported, key)
			s.withdraw(federation.SummarySubject(s.network, key.service, key.port))
		}
	}
}

func (s *summaries) update(services []*mesh.Service, now time.Time) {
	snap := s.store.Current()
	s.mu.Lock()
	defer s.mu.Unlock()
	if !s.started {
		return
	}
	var exported, own []federation.Record
	for _, svc := range services {
		for _, p := range svc.Ports {
			key := summaryKey{svc.Hostname, p.Service}
			prev, known := s.last[key]
			if !known && len(snap.Members(svc, s.network)) == 0 {
				continue // not a service of this network
			}
			r := s.record(snap, svc, p, now)
			if known && federation.SameFact(prev, r) {
				continue
			}
			s.last[key] = r
			if svc.Exported() {
				exported = append(exported, r)
				s.exported[key] = struct{}{}
			} else {
				own = append(own, r)
			}
		}
	}
	s.publish(exported...)
	s.own(own...)
}

func (s *summaries) record(snap *mesh.Snapshot, svc *mesh.Service, p mesh.Port, now time.Time) federation.Record {
	f := federation.SummaryFact{Service: svc.Hostname, Port: p.Service}
	seen := s.changed
	members := snap.Members(svc, s.network)
	offer := svc.Offer(p, members)
	for _, w := range members {
		if !offer.Has(w) {
			continue
		}
		f.Ready++
		f.ReadyCapacity += w.Capacity
		usable, at := s.pods(w, w.Target(p), now)
		if usable {
			f.Healthy++
			f.HealthyCapacity += w.Capacity
		} else {
			f.Exceptions = append(f.Exceptions, w.Endpoint)
		}
		if at.After(seen) {
			seen = at
		}
	}
	slices.Sort(f.Exceptions)
	age := federation.NoEvidence
	if !seen.IsZero() {
		age = max(0, now.Sub(seen))
	}
	return federation.Record{Network: s.network, Age: age, Summary: &f}
}
